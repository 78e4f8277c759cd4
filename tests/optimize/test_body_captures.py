"""Bodies read copies where onnxruntime would move conversions up to them, and end the process."""

from typing import Any

import numpy as np
import onnx
import pytest
from helpers import ALL, NONE, build, count_ops, every_node, floats, node, quantize_in_memory, run
from onnx import TensorProto, helper

PLACES = {"first": np.array([0]), "last": np.array([5]), "axis": np.array([2]), "shape": np.array([1, 8, -1])}
MOVES: dict[str, list[onnx.NodeProto]] = {
    "Slice": [node("Slice", "c first last axis", "m")],
    "Reshape": [node("Reshape", "c shape", "m")],
    "Transpose": [node("Transpose", "c", "m", perm=[0, 2, 1, 3])],
    "MaxPool": [node("MaxPool", "c", "m", kernel_shape=[2, 2])],
    "Unsqueeze": [node("Unsqueeze", "c first", "m")],
    "a chain": [node("Transpose", "c", "t", perm=[0, 2, 1, 3]), node("Identity", "t", "m")],
}


def model(moves: list[onnx.NodeProto], behind: str = "m") -> onnx.ModelProto:
    """A Conv, what moves its output, and an If whose branches read that."""
    bodies = {}
    for name, operator in (("then_branch", "Relu"), ("else_branch", "Neg")):
        made = helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
        bodies[name] = helper.make_graph([node(operator, behind, name)], name, [], [made])
    nodes = [node("Conv", "x w", "c"), *moves, node("If", "condition", "y", **bodies)]
    inputs: dict[str, Any] = {"x": [1, 4, 8, 8], "condition": (TensorProto.BOOL, [])}
    return build(nodes, inputs, ["y"], {"w": floats(8, 4, 3, 3), **PLACES})


SAMPLES = [{"x": floats(1, 4, 8, 8, seed=seed), "condition": np.array(bool(seed))} for seed in range(2)]


@pytest.mark.parametrize("moves", MOVES.values(), ids=list(MOVES))
def test_a_body_reads_a_copy_of_what_is_moved_behind_a_conversion(moves: list[onnx.NodeProto]) -> None:
    made = quantize_in_memory(model(moves), "static-int8", SAMPLES)
    (copy,) = [each for each in made.proto.graph.node if each.op_type == "Max"]
    readers = [each for each in every_node(made.proto.graph) if copy.output[0] in each.input]
    assert sorted(each.op_type for each in readers) == ["Neg", "Relu"]
    for feeds in SAMPLES:  # the process would end here
        (expected,), (got,) = run(made.data, feeds, NONE), run(made.data, feeds, ALL)
        assert np.abs(expected - got).max() < 0.2


def test_what_is_computed_in_between_needs_no_copy() -> None:
    moves = [node("Slice", "c first last axis", "s"), node("Tanh", "s", "m")]
    assert not count_ops(quantize_in_memory(model(moves), "static-int8", SAMPLES).proto)["Max"]


def test_what_bodies_read_without_a_move_needs_no_copy() -> None:
    assert not count_ops(quantize_in_memory(model([], "c"), "static-int8", SAMPLES).proto)["Max"]
