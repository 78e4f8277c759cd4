"""A PRelu with one slope: a LeakyRelu, where the result keeps its shape."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import floats
from spelled_support import assert_same, ops, simplified


def text(slope: str) -> str:
    return f"g (float[N,3,4,5] x, float[S] s) => (float[N,3,4,5] y) {{ y = PRelu (x, {slope}) }}"


@pytest.mark.parametrize("shape", [(1,), (1, 1, 1), ()])
def test_it_is_a_leaky_relu(shape: tuple[int, ...]) -> None:
    found = simplified(text("a"), {"a": np.full(shape, 0.25, np.float32)}, "prelu_to_leaky_relu", 13)
    assert ops(found.model) == ["LeakyRelu"]
    assert found.notes == ("rewrote 1 PRelu with one slope as LeakyRelu",)
    assert_same(found, {"x": floats(2, 3, 4, 5), "s": floats(1)}, 0)


@pytest.mark.parametrize("slope", ["a", "s"])
def test_several_slopes_and_computed_ones_stay(slope: str) -> None:
    found = simplified(text(slope), {"a": floats(3, 1, 1)}, "prelu_to_leaky_relu", 13)
    assert found.notes == ()
