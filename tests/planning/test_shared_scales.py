"""What nobody but a Concat reads has the scale of what is joined: where, and what onnxruntime makes of it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from helpers import build, floats, node, quantize_in_memory, typed

from onnxq.planning.planner import make_plan
from onnxq.planning.recipe import load_recipe

WEIGHTS = {f"w{i}": floats(32, 32, 3, 3, seed=i, scale=0.05 * (i + 1)) for i in range(3)} | {
    "v": floats(32, 64, 1, 1, scale=0.1),
    "low": np.array(0, np.float32),
    "six": np.array(6, np.float32),
}
CONV = {"pads": [1] * 4}
POOL = {"kernel_shape": [3, 3], "pads": [1] * 4}


def joining(*between: onnx.NodeProto, reads: str, outputs: str = "y") -> onnx.ModelProto:
    """Two Conv over a third, what stands between, a Concat and a Conv."""
    steps = [
        node("Conv", "x w0", "c", **CONV),
        node("Conv", "c w1", "a", **CONV),
        node("Conv", "c w2", "b", **CONV),
        *between,
        node("Concat", reads, "j", axis=1),
        node("Conv", "j v", "y"),
    ]
    return build(steps, {"x": [1, 32, 24, 24]}, outputs.split(), WEIGHTS, 13)


def shared(proto: onnx.ModelProto, recipe: str = "static-int8") -> set[str]:
    """Values that have the scale of what is joined."""
    plan = make_plan(typed(proto), load_recipe(recipe), with_data=True)
    return {value.name for value, owner in plan.same_scale.items() if owner.name == "j"}


@pytest.mark.parametrize(
    ("proto", "names"),
    [
        (joining(reads="a b"), {"a", "b"}),
        (joining(node("Relu", "a", "r"), node("Relu", "b", "s"), reads="r s"), {"r", "s"}),
        (joining(node("MaxPool", "a", "r", **POOL), node("MaxPool", "b", "s", **POOL), reads="r s"), {"a", "b"}),
        (joining(node("Relu", "a", "r"), reads="r b"), {"b"}),  # what is below zero would come through
        # A Clip beside a Relu would end where the Relu does
        (joining(node("Clip", "a low six", "r"), node("Relu", "b", "s"), reads="r s"), set()),
        (joining(reads="a c"), {"a"}),  # both Conv read the other
        (joining(reads="a b", outputs="y a"), {"b"}),
        (joining(node("Sigmoid", "a", "r"), reads="r b"), {"b"}),  # a table of its own, for steps of 1/256
    ],
)
def test_who_shares_the_scale(proto: onnx.ModelProto, names: set[str]) -> None:
    assert shared(proto) == names


def test_a_value_that_is_joined_with_itself_and_not_read_behind_is_planned() -> None:
    """The joined value became the owner of its own scale, and the search for the owner never ended."""
    steps = [node("Conv", "x w0", "a", **CONV), node("Concat", "a a", "j", axis=0), node("Conv", "x w1", "y", **CONV)]
    model = typed(build(steps, {"x": [1, 32, 24, 24]}, ["y"], WEIGHTS, 13))
    plan = make_plan(model, load_recipe("static-int8").for_target("qnn"), with_data=True)
    assert plan.scale_owner(model.graph.values["a"]) is model.graph.values["j"]


def test_onnxruntime_copies_codes_of_one_scale() -> None:
    samples = [{"x": floats(1, 32, 24, 24, seed=seed)} for seed in range(4)]
    found = quantize_in_memory(joining(reads="a b"), "static-int8", samples)
    join = next(step for step in found.optimized_proto().graph.node if step.op_type == "QLinearConcat")
    weights = {w.name: onnx.numpy_helper.to_array(w) for w in found.optimized_proto().graph.initializer}
    assert len({float(weights[name]) for name in (join.input[0], *join.input[3::3])}) == 1
    assert found.sqnr({"x": floats(1, 32, 24, 24, seed=9)}) > 30
