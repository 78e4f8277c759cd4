"""What `allow` permits, and what a search may give a node between integer products and float."""

from __future__ import annotations

from dataclasses import replace

import onnx
import pytest
from helpers import build, floats, node, quantize_in_memory, recipe_of, typed

from onnxq.quant.alternatives import REASON, by_blocks
from onnxq.quant.plan import make_plan
from onnxq.quant.recipe import Recipe
from onnxq.quant.rewrite import rewrite

WEIGHTS = {"w": floats(64, 32, scale=0.3), "v": floats(32, 16, seed=1), "b": floats(16, seed=2)}
NODES = [node("MatMul", "x w", "h"), node("Gemm", "h v b", "y")]
FEEDS = [{"x": floats(4, 64, seed=seed)} for seed in range(3, 7)]
ALLOWED = ("com.microsoft",)


def allowing(name: str = "auto") -> Recipe:
    return replace(recipe_of(name), allow=ALLOWED)


def test_pairs_of_com_microsoft_spare_a_conversion_where_they_are_allowed():
    source = build(NODES, {"x": [4, 64]}, ["y"], WEIGHTS, 11)
    for recipe, expected in (
        (recipe_of("static-int8"), {"": 13}),
        (allowing("static-int8"), {"": 11, "com.microsoft": 1}),
        (allowing("static-int8").for_target("tensorrt"), {"": 13}),
        (allowing("static-int8").setting(granularity="tensor"), {"": 11}),
    ):
        made = quantize_in_memory(source, recipe, FEEDS)
        assert {one.domain: one.version for one in made.proto.opset_import} == expected
        assert made.sqnr(FEEDS[0]) > 30
    newer = quantize_in_memory(build(NODES, {"x": [4, 64]}, ["y"], WEIGHTS, 17), allowing("static-int8"), FEEDS)
    assert {one.domain for one in newer.proto.opset_import} == {""}


@pytest.mark.parametrize(
    ("recipe", "opset", "forms"),
    [
        (recipe_of("auto"), 17, (None, None)),
        (recipe_of("auto"), 21, ("qdq", None)),  # a Gemm would dequantize its weight in every run
        (allowing(), 17, ("matmulnbits", "matmulnbits")),
        (allowing("static-int8"), 17, (None, None)),
        (allowing().for_target("generic"), 17, (None, None)),
    ],
)
def test_scales_by_block_are_offered_where_onnxruntime_multiplies_them(recipe, opset, forms):
    model = typed(build(NODES, {"x": [4, 64]}, ["y"], WEIGHTS, opset))
    choices = [by_blocks(one, recipe, model.opset) for one in model.graph.nodes]
    assert tuple(dict(one.settings)["form"] if one else None for one in choices) == forms


def test_a_choice_by_blocks_is_carried_out():
    source = build(NODES, {"x": [4, 64]}, ["y"], WEIGHTS, 17)
    model = typed(source)
    choices = {one.outputs[0].name: by_blocks(one, allowing(), 17) for one in model.graph.nodes}
    plan = make_plan(model, allowing(), with_data=True, choices=choices)
    assert [d.reason.split(": ")[1] for d in plan.decisions] == [REASON, REASON]
    data = rewrite(model, plan, {}).serialize()
    operators = [one.op_type for one in onnx.ModelProto.FromString(data).graph.node]
    assert operators == ["MatMulNBits", "MatMulNBits", "Add"]
