"""Every model of the onnx package through `quantize`: valid, loading and close to float, or refused in a sentence."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from corpus import cases, name_of, runs, verdict_of
from mass import isolated
from verdict import Broken


def test_a_sample_of_the_corpus_is_quantized_or_refused() -> None:
    small = [index for index in range(len(runs())) if not name_of(index).startswith("light")]
    chosen = random.Random(1).sample(small, 24)
    broken, kinds = [], Counter[str]()
    for index in sorted(chosen):
        try:
            kinds[verdict_of(index).kind] += 1
        except Broken as error:
            broken.append(f"{name_of(index)}: {error}")
    assert broken == []
    assert kinds["quantized"] >= 5, kinds


@pytest.mark.slow
def test_the_whole_corpus_is_quantized_or_refused() -> None:
    tally = isolated("corpus.py", len(runs()), batch=4000, seconds=3600)
    print(f"\n{len(cases())} models, {len(runs())} runs: {tally}")
    assert tally.broken == []
    assert tally.kinds["quantized"] > 5000
