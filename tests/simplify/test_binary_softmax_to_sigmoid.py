"""Softmax over two classes: what stands there afterwards, and where it stays."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import floats
from spelled_support import assert_same, simplified


def text(shape: str, axis: int = -1, op_type: str = "Softmax") -> str:
    return f"g (float[{shape}] x) => (float[{shape}] y) {{ y = {op_type} <axis = {axis}> (x) }}"


@pytest.mark.parametrize(
    ("shape", "axis", "opset"), [("N,600,2", -1, 13), ("N,600,2", 2, 13), ("1024,2", 1, 17), ("N,600,2", 2, 9)]
)
def test_it_is_a_sigmoid_of_the_difference(shape: str, axis: int, opset: int) -> None:
    found = simplified(text(shape, axis), {}, "binary_softmax_to_sigmoid", opset)
    assert found.notes[0] == "rewrote 1 two-class Softmax as Sigmoid"
    nodes = found.model.graph.nodes
    assert [node.op_type for node in nodes] == ["Split", "Sub", "Sub", "Concat", "Sigmoid"]
    assert nodes[0].inputs[1].constant.numpy().tolist() == [1, 1]
    size = [3 if dim == "N" else int(dim) for dim in shape.split(",")]
    scores = floats(*size, scale=20)
    scores.reshape(-1, 2)[:3] = [[-np.inf, 1], [500, -500], [7, 7]]  # a mask, certainty, a tie
    assert_same(found, {"x": scores}, 1e-6)


@pytest.mark.parametrize(
    ("graph", "opset"),
    [
        (text("N,600,3"), 13),
        (text("N,511,2"), 13),  # few rows
        (text("N,M,2"), 13),  # nobody knows how many
        (text("N,2,600", 1), 13),
        (text("N,600,2", op_type="LogSoftmax"), 13),
        (text("N,600,2", 1), 12),  # over 1,200 values there
    ],
)
def test_others_stay(graph: str, opset: int) -> None:
    found = simplified(graph, {}, "binary_softmax_to_sigmoid", opset)
    assert found.notes == ()
    assert len(found.model.graph.nodes) == 1
