"""Indices that are counted from the end before a Gather that does so itself."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import build, floats, node
from onnx import TensorProto
from support import assert_same, simplified, written

SAID = ("removed index wrapping before 1 Gather",)
CONSTANTS = {"zero": np.int32(0), "none": np.float32(0), "n": np.int32(7), "t": floats(7, 3)}
KERAS = [
    node("Add", "i n", "a"),
    node("Cast", "i", "f", to=TensorProto.FLOAT),
    node("Less", "f none", "l"),
    node("Not", "l", "o"),
    node("Cast", "o", "keep", to=TensorProto.INT32),
    node("Mul", "i keep", "positive"),
    node("Cast", "l", "wrap", to=TensorProto.INT32),
    node("Mul", "wrap a", "negative"),
    node("Add", "negative positive", "r"),
    node("Gather", "t r", "y"),
]
WHERE = [node("Less", "i zero", "l"), node("Add", "i n", "a"), node("Where", "l a i", "r"), node("Gather", "t r", "y")]
FEEDS = [{"i": np.int32([[0, 6, -1], [-7, 3, 2]])}]


def made(nodes, **weights):
    return build(nodes, {"i": (TensorProto.INT32, ["b", 3])}, ["y"], CONSTANTS | weights)


@pytest.mark.parametrize("nodes", [KERAS, WHERE], ids=["as a sum", "as a choice"])
def test_a_gather_counts_from_the_end_itself(nodes):
    proto = made(nodes)
    found = simplified(proto, "remove_index_wrapping")
    assert written(found.model) == ["y = Gather(t[7, 3], i)"]
    assert found.notes == SAID
    assert_same(proto, found, FEEDS)


def test_a_large_table_is_tried_at_its_ends():
    size = 1 << 17
    proto = made(WHERE, n=np.int32(size), t=floats(size, 1))
    assert written(simplified(proto, "remove_index_wrapping").model) == [f"y = Gather(t[{size}, 1], i)"]


OTHERS = {
    "another length": (WHERE, {"n": np.int32(6)}),
    "a length for each": (WHERE, {"n": np.int32([7, 7, 7])}),
    "more axes": (WHERE, {"n": np.int32([[[7]]])}),
    "shifted": ([node("Sub", "i n", "r"), node("Gather", "t r", "y")], {"n": np.int32(1)}),
    "clipped": ([node("Max", "i zero", "r"), node("Gather", "t r", "y")], {}),
    "squared": ([node("Mul", "i i", "r"), node("Gather", "t r", "y")], {}),
}


@pytest.mark.parametrize("case", OTHERS)
def test_other_indices_stay(case):
    nodes, weights = OTHERS[case]
    assert simplified(made(nodes, **weights), "remove_index_wrapping").notes == ()
