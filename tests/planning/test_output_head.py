"""The head is the product that gives an output of the model."""

from __future__ import annotations

import pytest
from helpers import build, floats, node, recipe_of

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
