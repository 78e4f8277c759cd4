"""Damaged models through `quantize`: a sentence or a sound result, never a traceback, a crash, a hang or a leftover."""

from __future__ import annotations

import pytest
from mass import isolated


def test_mutated_models_give_sentences_only() -> None:
    tally = isolated("fuzz.py", 24, batch=24, seconds=120)
    assert tally.broken == []
    assert tally.kinds["refused"] > 10, tally


@pytest.mark.slow
def test_ten_thousand_mutated_models_give_sentences_only() -> None:
    tally = isolated("fuzz.py", 10_000, batch=1000, seconds=1800)
    print(f"\n{tally}")
    assert tally.broken == []
    assert tally.kinds["quantized"] > 1000, tally
