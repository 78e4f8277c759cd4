"""Short rows computed with their coordinates in front: where, and to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from helpers import ALL, NONE, applied, build, changed_alike, count_ops, floats, node, typed
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxq.optimize.coordinates_first import put_coordinates_first
from onnxq.optimize.optimize import optimize_for_target

ROWS = 3000
WEIGHTS = {
    "halves": np.array([2, 2], np.int64),
    **{name: np.array([number], np.int64) for name, number in {"zero": 0, "two": 2, "four": 4, "last": -1}.items()},
    "tenth": np.array(0.1, np.float32),
    "prior": floats(1, ROWS, 2, seed=3),
    "size": np.array([[[3, 5]]], np.float32),
}
DECODE = [
    node("Split", "x halves", "p q", axis=-1),
    node("Mul", "p tenth", "r"),
    node("Add", "r prior", "c"),
    node("Exp", "q", "e"),
    node("Mul", "e size", "s"),
    node("Sub", "c s", "a"),
    node("Add", "c s", "b"),
    node("Concat", "a b", "y", axis=2),
]


def boxes(
    nodes: list[onnx.NodeProto] | None = None, outputs: str = "y", rows: Any = ROWS, batch: Any = 1
) -> onnx.ModelProto:
    return build(nodes or DECODE, {"x": [batch, rows, 4]}, outputs.split(), WEIGHTS, 13)


def test_boxes_are_decoded_with_coordinates_in_front() -> None:
    made, count = changed_alike(boxes(), put_coordinates_first, {"x": floats(1, ROWS, 4)}, [NONE, ALL])
    assert count == 1
    assert [step.op_type for step in made.graph.node] == [
        "Transpose", "Reshape", "Split", "Mul", "Add", "Exp", "Mul", "Sub", "Add", "Concat", "Reshape", "Transpose",
    ]  # fmt: skip
    assert [step.name for step in made.graph.node if step.op_type in ("Split", "Concat")] == ["n_p", "n_y"]


def test_bounds_of_32_bits_stay_of_one_type() -> None:
    bounds = {name: WEIGHTS[name].astype(np.int32) for name in ("zero", "two", "four", "last")}
    steps = [node("Slice", "x zero two last", "p"), node("Slice", "x two four last", "q"), *DECODE[1:]]
    proto = build(steps, {"x": [1, ROWS, 4]}, ["y"], WEIGHTS | bounds, 13)
    _, count = changed_alike(proto, put_coordinates_first, {"x": floats(1, ROWS, 4)})
    assert count == 1


@pytest.mark.parametrize("batch", [2, "N"])
def test_several_samples(batch: int | str) -> None:
    steps = [
        node("Slice", "x zero two last", "p"),
        node("Slice", "x two four last", "q"),
        node("Mul", "q tenth", "s"),
        node("Sub", "p s", "a"),
        node("Add", "p s", "b"),
        node("Concat", "b a", "y", axis=-1),
    ]
    made, count = changed_alike(
        boxes(steps, batch=batch), put_coordinates_first, {"x": floats(2, ROWS, 4)}, [NONE, ALL]
    )
    assert count == 1
    assert count_ops(made)["Transpose"] == 2


def test_what_others_read_goes_back() -> None:
    steps = [*DECODE[:-1], node("Softmax", "s", "z", axis=1), node("Concat", "a b p q", "y", axis=2)]
    made, count = changed_alike(boxes(steps, "y z"), put_coordinates_first, {"x": floats(1, ROWS, 4)}, [NONE, ALL])
    assert count == 1
    assert count_ops(made)["Transpose"] == 3


@pytest.mark.parametrize(
    "proto",
    [
        boxes(rows=100, nodes=[node("Split", "x halves", "p q", axis=-1), node("Concat", "q p", "y", axis=-1)]),
        boxes(
            [node("Split", "x halves", "p q", axis=-1), node("Relu", "p", "y")], rows=800
        ),  # not worth two Transposes
        boxes(rows="M", nodes=[node("Split", "x halves", "p q", axis=-1), node("Concat", "q p", "y", axis=-1)]),
        boxes([node("Concat", "x x", "y", axis=1)]),
        boxes([node("Concat", "x x x", "y", axis=2)]),  # longer rows
        boxes([node("Slice", "x zero two", "y")]),  # along the first axis
    ],
)
def test_others_stay(proto: onnx.ModelProto) -> None:
    assert applied(put_coordinates_first, typed(proto)) == 0


def test_it_is_part_of_tuning_where_kernels_are_known() -> None:
    weights = {**WEIGHTS, "w": floats(4, 3, 1, 1), "shape": np.array([1, ROWS, 4], np.int64)}
    steps = [node("Conv", "i w", "m"), node("Reshape", "m shape", "x"), *DECODE]
    proto = build(steps, {"i": [1, 3, 50, 60]}, ["y"], weights, 13)
    for target, moved in (("cpu", 2), ("qnn", 0)):
        kinds = [step.op_type for step in optimize_for_target(typed(proto), target).graph.nodes]
        assert kinds.count("Transpose") == moved


@settings(max_examples=30, deadline=None)
@given(data=st.data(), last=st.integers(2, 8), batch=st.integers(1, 3))
def test_no_bit_changes(data: st.DataObject, last: int, batch: int) -> None:
    shapes = [(), (1,), (last,), (ROWS, 1), (1, ROWS, last), (batch, 1, last), (batch, ROWS, 1)]
    constants = {f"k{i}": floats(*data.draw(st.sampled_from(shapes)), seed=i) for i in range(3)}
    cut = data.draw(st.integers(1, last - 1))
    weights = {**constants, "sizes": np.array([cut, last - cut], np.int64)}
    ops = [data.draw(st.sampled_from(["Add", "Mul", "Sub", "Max"])) for _ in range(3)]
    steps = [
        node(ops[0], "x k0", "a"),
        node("Split", "a sizes", "p q", axis=data.draw(st.sampled_from([-1, 2]))),
        node("Relu", "p", "r"),
        node("Concat", "q r", "b", axis=2),
        node(ops[1], "k1 b", "c"),
        node("Split", "c sizes", "s t", axis=-1),
        node("Concat", "t s", "d", axis=-1),
        node(ops[2], "d k2", "y"),
    ]
    proto = build(steps, {"x": [batch, ROWS, last]}, ["y"], weights, 13)
    feeds = {"x": floats(batch, ROWS, last, seed=7)}
    _, count = changed_alike(proto, put_coordinates_first, feeds, [NONE, ALL])
    assert count == 1
