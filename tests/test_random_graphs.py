"""Random models of every operator family: quantized soundly, or refused in a sentence."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from corpus import tiny_weights_count
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from random_graphs import random_models
from verdict import SETTINGS, judge

# Up to nine random layers in a row, with weights and results of any size, that may cancel: a bound on nonsense only.
LEAST = 10.0  # dB
CHECKS = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]


def examine(count: int, phases: list[Phase]) -> Counter[str]:
    """Judge so many random models; gives how they ended."""
    kinds = Counter[str]()

    options = {"deadline": None, "derandomize": True, "database": None, "suppress_health_check": CHECKS}

    @settings(max_examples=count, phases=phases, **options)
    @given(random_models(), st.sampled_from(list(SETTINGS)), st.booleans())
    def one(drawn: Any, setting: str, tiny: bool) -> None:
        model, samples = drawn
        recipe, with_data = SETTINGS[setting]
        if tiny:
            with tiny_weights_count():
                verdict = judge(model, samples, recipe=recipe, with_data=with_data, least_sqnr=LEAST)
        else:
            verdict = judge(model, samples, recipe=recipe, with_data=with_data, least_sqnr=LEAST)
        kinds[verdict.kind] += 1

    one()
    return kinds


def test_random_models_are_quantized_or_refused() -> None:
    kinds = examine(16, [Phase.generate, Phase.shrink])
    assert kinds["quantized"] > 8, kinds


@pytest.mark.slow
def test_two_thousand_random_models_are_quantized_or_refused() -> None:
    kinds = examine(2000, [Phase.generate, Phase.shrink])
    print(f"\n{kinds}")
    assert kinds["quantized"] > 600, kinds
