"""The head is the product that gives an output of the model."""

from __future__ import annotations

import pytest
from helpers import build, floats, node, recipe_of
from onnx import TensorProto, helper

from onnxq.ir import infer_types, parse
from onnxq.planning.planner import make_plan

WEIGHTS = {"w": floats(64, 64, scale=0.3), "v": floats(64, 48, scale=0.3), "b": floats(48)}
BODY = [node("MatMul", "x w", "a"), node("Relu", "a", "h")]


@pytest.mark.parametrize(
    ("behind", "outputs", "bits"),
    [
        ([node("MatMul", "h v", "y")], ["y"], ["weight-int4", "weight-int8"]),
        ([node("MatMul", "h v", "s"), node("Add", "s b", "y")], ["y"], ["weight-int4", "weight-int8"]),
        ([node("MatMul", "h v", "s"), node("Softmax", "s", "y", axis=-1)], ["y"], ["weight-int4", "weight-int8"]),
        # keys and values that a decoder gives for its cache are moved first, and are read besides
        ([node("MatMul", "h v", "s"), node("Transpose", "s", "y", perm=[1, 0])], ["y"], ["weight-int4"] * 2),
        ([node("MatMul", "h v", "s"), node("Relu", "s", "y"), node("Abs", "s", "z")], ["y", "z"], ["weight-int4"] * 2),
    ],
)
def test_the_head_has_bits_of_its_own(behind, outputs, bits):
    model = parse(build(BODY + behind, {"x": [4, 64]}, outputs, WEIGHTS, 21).SerializeToString())
    infer_types(model)
    for head_bits, expected in ((8, bits), (0, ["weight-int4"] * 2)):
        plan = make_plan(model, recipe_of("weight-int4", head_bits=head_bits), with_data=False)
        assert [decision.scheme for decision in plan.decisions if decision.node.op_type == "MatMul"] == expected


def test_a_head_in_a_branch_of_if_is_one_and_in_a_loop_it_is_none():
    plan = make_plan(branching("If"), recipe_of("weight-int4", head_bits=8), with_data=False)
    assert [decision.scheme for decision in plan.decisions if decision.node.op_type == "MatMul"] == ["weight-int8"] * 2
    plan = make_plan(branching("Loop"), recipe_of("weight-int4", head_bits=8), with_data=False)
    assert [decision.scheme for decision in plan.decisions if decision.node.op_type == "MatMul"] == ["weight-int4"]


def branching(op_type):
    """Return a product in both branches of an `If`, or in the body of a `Loop`."""
    made = helper.make_tensor_value_info("m", TensorProto.FLOAT, [4, 48])
    if op_type == "If":
        bodies = {
            f"{name}_branch": helper.make_graph([node("MatMul", "x v", "m")], name, [], [made])
            for name in ("then", "else")
        }
        nodes = [helper.make_node("If", ["c"], ["y"], **bodies)]
    else:
        nodes = [node("MatMul", "x v", "m"), node("Identity", "go", "went")]
        ends = [helper.make_tensor_value_info("went", TensorProto.BOOL, []), made]
        starts = [helper.make_tensor_value_info("i", TensorProto.INT64, []), helper.make_tensor_value_info("go", 9, [])]
        nodes = [helper.make_node("Loop", ["", "c"], ["y"], body=helper.make_graph(nodes, "body", starts, ends))]
    proto = build(nodes, {"x": [4, 64], "c": (TensorProto.BOOL, [])}, ["y"], {"v": WEIGHTS["v"]}, 21)
    model = parse(proto.SerializeToString())
    infer_types(model)
    return model
