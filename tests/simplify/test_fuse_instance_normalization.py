"""Decomposed instance normalisations: where they become one operator, and where they stay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import floats
from spelled_support import assert_same, simplified

NAME = "fuse_instance_normalization"
CONSTANTS: dict[str, Any] = {
    "rows": np.array([2, 3, 1, 63]),
    "two": np.float32(2),
    "e": np.float32(1e-3),
    "e5": np.full((1, 1, 1, 1, 1), 1e-3, np.float32),
    "g": floats(3, 1, 1, seed=2),
    "b": floats(1, 3, 1, 1, seed=3),
    "wide": floats(1, 3, 9, 1, seed=4),
}
DIRECT = [
    "m = ReduceMean <axes = [2, 3]> (x)",
    "d = Sub (x, m)",
    "s = Mul (d, d)",
    "v = ReduceMean <axes = [-1, 2]> (s)",
]
ROWS = [
    "r = Reshape (x, rows)",
    "m = ReduceMean <axes = [3]> (r)",
    "d = Sub (x, m)",
    "s = Pow (d, two)",
    "t = Reshape (s, rows)",
    "v = ReduceMean <axes = [3]> (t)",
]
END = ["w = Add (v, e)", "q = Sqrt (w)", "n = Div (d, q)"]


def text(*steps: str, x: str = "2,3,9,7") -> str:
    return f"g (float[{x}] x) => (float[{x}] y) {{ {' '.join(steps)} }}"


@pytest.mark.parametrize("means", [DIRECT, ROWS], ids=["maps", "rows"])
@pytest.mark.parametrize(
    ("behind", "left"),
    [
        (["k = Mul (n, g)", "y = Add (b, k)"], []),
        (["y = Mul (g, n)"], []),
        (["k = Add (n, b)", "y = Mul (k, g)"], ["Mul"]),
        (["k = Mul (n, wide)", "y = Add (k, b)"], ["Mul", "Add"]),
        (["y = Relu (n)"], ["Relu"]),
    ],
)
def test_they_become_one_operator(means: list[str], behind: list[str], left: list[str]) -> None:
    found = simplified(text(*means, *END, *behind), CONSTANTS, NAME, 13)
    assert found.notes == ("fused 1 decomposed InstanceNormalization",)
    assert [node.op_type for node in found.model.graph.nodes] == ["InstanceNormalization", *left]
    assert_same(found, {"x": 3 + floats(2, 3, 9, 7, seed=1)}, 1e-5)


def test_maps_of_any_size_are_normalised_too() -> None:
    found = simplified(text(*DIRECT, *END, "y = Mul (n, g)", x="N,3,H,W"), CONSTANTS, NAME, 13)
    assert [node.op_type for node in found.model.graph.nodes] == ["InstanceNormalization"]
    assert_same(found, {"x": floats(2, 3, 4, 5, seed=1)}, 1e-5)


@pytest.mark.parametrize(
    "steps",
    [
        [step.replace("[2, 3]", "[1, 2, 3]") for step in DIRECT],  # one mean is over the channels
        [step.replace("[-1, 2]", "[-1]") for step in DIRECT],
        [step.replace("axes = [3]", "axes = [1, 3]") for step in ROWS],
        [step.replace("Sub (x, m)", "Sub (m, x)") for step in DIRECT],
        [step.replace("(d, d)", "(d, x)") for step in DIRECT],
    ],
)
def test_other_means_stay(steps: list[str]) -> None:
    found = simplified(text(*steps, *END, "y = Mul (n, g)"), CONSTANTS, NAME, 13)
    assert not found.notes
    assert "InstanceNormalization" not in [node.op_type for node in found.model.graph.nodes]


def test_an_epsilon_of_more_axes_gives_the_result_more_axes() -> None:
    steps = [*DIRECT, *(step.replace("(v, e)", "(v, e5)") for step in END), "y = Relu (n)"]
    wider = text(*steps).replace("(float[2,3,9,7] y)", "(float[1,2,3,9,7] y)")
    assert not simplified(wider, CONSTANTS, NAME, 13).notes
