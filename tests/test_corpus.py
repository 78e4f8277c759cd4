"""Every model of the onnx package through `quantize`: valid, loading and close to float, or refused in a sentence."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from corpus import cases, name_of, verdict_of
from mass import isolated
from verdict import SETTINGS, Broken


def test_a_sample_of_the_corpus_is_quantized_or_refused() -> None:
    total = len(cases()) * len(SETTINGS)
    chosen = random.Random(1).sample([i for i in range(total) if not name_of(i).startswith("light")], 160)
    broken, kinds = [], Counter[str]()
    for index in sorted(chosen):
        try:
            kinds[verdict_of(index).kind] += 1
        except Broken as error:
            broken.append(f"{name_of(index)}: {error}")
    assert broken == []
    assert kinds["quantized"] >= 20, kinds


@pytest.mark.slow
def test_the_whole_corpus_is_quantized_or_refused() -> None:
    tally = isolated("corpus.py", len(cases()) * len(SETTINGS), batch=6000, seconds=3600)
    print(f"\n{len(cases())} models, {len(SETTINGS)} settings: {tally}")
    assert tally.broken == []
    assert tally.kinds["quantized"] > 5000
