"""Means over all places of a map: where they become GlobalAveragePool, and where they stay."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import floats
from spelled_support import assert_same, simplified

W = {"w": floats(8, 3, 3, 3)}


def text(*steps: str, x: str = "N,3,9,7", y: str = "N,8,1,1") -> str:
    return f"g (float[{x}] x) => (float[{y}] y) {{ {' '.join(steps)} }}"


def mean(read: str, made: str = "y", axes: str = "2, 3", keepdims: int = 1) -> str:
    return f"{made} = ReduceMean <axes = [{axes}], keepdims = {keepdims}> ({read})"


@pytest.mark.parametrize(
    "steps",
    [
        ["c = Conv (x, w)", mean("c")],
        ["c = Conv (x, w)", "r = Relu (c)", mean("r", axes="-1, -2")],
        ["c = Conv (x, w)", "s = Sigmoid (c)", "m = Mul (s, c)", mean("m", "p"), "y = Mul (m, p)"],
        ["c = Conv (x, w)", "h = HardSwish (c)", mean("h", "p"), "y = Sigmoid (p)"],
    ],
)
def test_behind_a_conv_they_are_pools(steps: list[str]) -> None:
    whole = "N,8,7,5" if steps[-1].startswith("y = Mul") else "N,8,1,1"
    found = simplified(text(*steps, y=whole), W, "mean_to_global_average_pool", 14)
    assert found.notes == ("rewrote 1 mean over whole maps as GlobalAveragePool",)
    operators = [node.op_type for node in found.model.graph.nodes]
    assert "ReduceMean" not in operators
    assert operators.count("GlobalAveragePool") == 1
    assert_same(found, {"x": floats(2, 3, 9, 7, seed=1)}, 1e-6)


def test_axes_that_are_an_input() -> None:
    weights = W | {"a": np.array([-1, -2])}
    found = simplified(text("c = Conv (x, w)", "y = ReduceMean (c, a)"), weights, "mean_to_global_average_pool", 18)
    assert [node.op_type for node in found.model.graph.nodes] == ["Conv", "GlobalAveragePool"]
    assert_same(found, {"x": floats(2, 3, 9, 7, seed=1)}, 1e-6)


def test_axes_that_go_are_taken_by_a_flatten() -> None:
    steps = ["c = Conv (x, w)", mean("c", keepdims=0)]
    found = simplified(text(*steps, y="N,8"), W, "mean_to_global_average_pool", 14)
    assert [node.op_type for node in found.model.graph.nodes] == ["Conv", "GlobalAveragePool", "Flatten"]
    assert_same(found, {"x": floats(2, 3, 9, 7, seed=1)}, 1e-6)


@pytest.mark.parametrize(
    "steps",
    [
        [mean("x", "p"), "y = Conv (x, w)", "q = Identity (p)"],  # nothing is in blocks
        ["c = Conv (x, w)", mean("c", axes="1, 2")],
        ["c = Conv (x, w)", mean("c", axes="3")],
        ["c = Conv (x, w)", mean("c", axes="1, 2, 3")],
        ["c = Conv (x, w)", mean("c", "p"), "y = Sub (c, p)"],  # a normalisation, which needs them in order
        ["c = Conv (x, w)", "s = Softplus (c)", mean("s")],
    ],
)
def test_others_stay(steps: list[str]) -> None:
    found = simplified(text(*steps, y="N,A,B,C"), W, "mean_to_global_average_pool", 12)
    assert found.notes == ()
