"""PRelu spelled out for onnxruntime: where, and to the bit."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import ALL, NONE, applied, build, changed_alike, count_ops, floats, node, typed
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxq.optimize.optimize import optimize_for_target
from onnxq.optimize.prelu import spell_slopes


@pytest.mark.parametrize(("most", "kinds"), [(1.0, {"Mul", "Max"}), (1.5, {"Relu", "Sub", "Mul", "Add"})])
@pytest.mark.parametrize("opset", [8, 13, 17])
def test_slopes_of_channels_are_spelled_out(most: float, kinds: set[str], opset: int) -> None:
    slope = np.linspace(-0.5, most, 16).reshape(16, 1, 1).astype(np.float32)
    proto = build([node("PRelu", "x a", "y")], {"x": [1, 16, 16, 16]}, ["y"], {"a": slope}, opset)
    made, count = changed_alike(proto, spell_slopes, {"x": floats(1, 16, 16, 16)}, [NONE, ALL])
    assert count == 1
    assert set(count_ops(made)) == kinds
    assert made.graph.node[-1].name == "n_y"


@pytest.mark.parametrize(
    ("slope", "shape"),
    [
        (np.full((1, 1, 1), 0.5), (1, 16, 16, 16)),  # a LeakyRelu
        (np.full((16, 1, 1), 0.5), (1, 16, 4, 4)),  # few elements
    ],
)
def test_others_stay(slope: np.ndarray, shape: tuple[int, ...]) -> None:
    proto = build([node("PRelu", "x a", "y")], {"x": [*shape]}, ["y"], {"a": slope.astype(np.float32)}, 13)
    assert applied(spell_slopes, typed(proto)) == 0


def test_a_slope_that_is_computed_stays() -> None:
    shapes = {"x": [1, 16, 16, 16], "a": [16, 1, 1]}
    assert applied(spell_slopes, typed(build([node("PRelu", "x a", "y")], shapes, ["y"], {}, 13))) == 0


def test_it_is_part_of_tuning_where_kernels_are_known() -> None:
    slope = {"a": np.full((16, 1, 1), 0.25, np.float32)}
    proto = build([node("PRelu", "x a", "y")], {"x": [1, 16, 16, 16]}, ["y"], slope, 13)
    for target, kinds in (("cpu", ["Mul", "Max"]), ("qnn", ["PRelu"])):
        assert [step.op_type for step in optimize_for_target(typed(proto), target).graph.nodes] == kinds


@settings(max_examples=30, deadline=None)
@given(slopes=st.lists(st.floats(-4, 4, width=32), min_size=3, max_size=3), scale=st.sampled_from([1e-30, 1.0, 1e30]))
def test_no_bit_changes(slopes: list[float], scale: float) -> None:
    slope = np.array(slopes, np.float32).reshape(3, 1, 1)
    proto = build([node("PRelu", "x a", "y")], {"x": [2, 3, 20, 20]}, ["y"], {"a": slope}, 13)
    x = floats(2, 3, 20, 20, scale=scale)
    x[0, :, 0, :4] = 0.0, -0.0, 1e-40, -1e-40
    _, count = changed_alike(proto, spell_slopes, {"x": x}, [NONE, ALL])
    assert count == 1
