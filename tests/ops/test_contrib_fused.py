"""Fused operators of com.microsoft: weights stored in 8 bit where the file has them, computed as before."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from helpers import ALL, F, Quantized, floats, graph, node, quantize_in_memory, sqnr
from onnx import TensorProto, helper

I32 = TensorProto.INT32


def contrib(
    op: str, names: str, inputs: dict[str, Any], weights: dict[str, np.ndarray], outputs: str = "y", **attributes: Any
) -> onnx.ModelProto:
    made = node(op, names, outputs, domain="com.microsoft", **attributes)
    body = graph([made], inputs, ["y"], weights)
    rank = len(next(iter(inputs.values()))) if op != "EmbedLayerNormalization" else 3
    body.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * rank))
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(body, opset_imports=imports, ir_version=8)


X = {"x": [2, 5, 64]}
IDS = {"ids": (I32, [2, 5]), "segments": (I32, [2, 5])}
TABLES = {
    **{name: floats(rows, 64, seed=i) for i, (name, rows) in enumerate((("words", 50), ("places", 9), ("kinds", 2)))},
    "gamma": np.ones(64, F),
    "beta": np.zeros(64, F),
}
CASES = {
    "Attention": contrib(
        "Attention", "x w b", X, {"w": floats(64, 192, scale=0.1), "b": floats(192, scale=0.1)}, num_heads=4
    ),
    "FusedMatMul": contrib("FusedMatMul", "x w", X, {"w": floats(64, 32)}, alpha=0.125),
    "FusedMatMul, transposed": contrib("FusedMatMul", "x w", X, {"w": floats(32, 64)}, alpha=0.5, transB=1),
    "FusedMatMul, weight first": contrib("FusedMatMul", "w x", {"x": [64, 7]}, {"w": floats(32, 64)}),
    "FusedConv": contrib(
        "FusedConv", "x w b", {"x": [1, 8, 9, 9]}, {"w": floats(16, 8, 3, 3), "b": floats(16)}, activation="Relu"
    ),
    "FusedGemm": contrib(
        "FusedGemm", "x w b", {"x": [3, 64]}, {"w": floats(32, 64), "b": floats(32)}, activation="Relu", transB=1
    ),
    "EmbedLayerNormalization": contrib(
        "EmbedLayerNormalization", "ids segments words places kinds gamma beta", IDS, TABLES, outputs="y mask"
    ),
}


def feeds_of(proto: onnx.ModelProto) -> dict[str, np.ndarray]:
    feeds = {}
    for value in proto.graph.input:
        shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
        if value.type.tensor_type.elem_type == I32:
            feeds[value.name] = np.random.default_rng(0).integers(
                0, 2 if value.name == "segments" else 50, shape, np.int32
            )
        else:
            feeds[value.name] = floats(*shape, seed=3)
    return feeds


@pytest.mark.parametrize("recipe", ["weight-int8", "auto"])
@pytest.mark.parametrize("name", CASES)
def test_weights_of_fused_operators_are_stored(name: str, recipe: str) -> None:
    proto = CASES[name]
    made: Quantized = quantize_in_memory(proto, recipe, [feeds_of(proto)] if recipe == "auto" else ())
    assert made.plan.decisions[0].scheme == "weight-int8"
    feeds = feeds_of(proto)
    for level in ({}, {"level": ALL}):
        assert sqnr(made.float_run(feeds)[0], made.run(feeds, **level)[0]) > 35
    assert len(made.data) < 0.5 * len(made.source)


@pytest.mark.parametrize(
    ("proto", "reason"),
    [
        (
            contrib("MultiHeadAttention", "x x x", X, {}, num_heads=4),
            "it has no weight of its own: those of the products before it are quantized",
        ),
        (contrib("FusedMatMul", "x x", X, {}, transB=1), "weight is not a constant"),
        (contrib("FusedMatMul", "x w", X, {"w": floats(64, 2)}), "weight has only 128 elements"),
        (contrib("Inverse", "x", {"x": [4, 4]}, {}), "onnxq has no quantized form for operators of com.microsoft"),
    ],
)
def test_the_others_stay_float_for_a_reason(proto: onnx.ModelProto, reason: str) -> None:
    made = quantize_in_memory(proto, "weight-int8")
    assert (made.plan.decisions[0].scheme, made.plan.decisions[0].reason) == (None, reason)
