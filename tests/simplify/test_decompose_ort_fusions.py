"""Fused operators of onnxruntime, written as those of ONNX: they compute the same, and their products go into 8 bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from helpers import floats, graph, node
from onnx import TensorProto, helper
from support import assert_same, simplified

from onnxq import quantize
from onnxq.ir import infer_types, parse
from onnxq.stages.prepare import prepare

NOTE = "decomposed 1 fused operator of onnxruntime"

I32 = TensorProto.INT32
X = {"x": ["batch", "tokens", 32]}
QKV = {"w": floats(32, 96, scale=0.3), "b": floats(96, seed=1)}
FEED = {"x": floats(2, 5, 32, seed=2)}
NORMS = {"gamma": floats(32, seed=3), "beta": floats(32, seed=4), "bias": floats(32, seed=5)}


def contrib(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, Any],
    weights: dict[str, np.ndarray],
    ranks: tuple[int, ...] = (3,),
    opset: int = 17,
) -> onnx.ModelProto:
    """A model whose outputs y and z, if there are two, are of these ranks."""
    made = graph(nodes, inputs, [], weights)
    for name, rank in zip("yz", ranks, strict=False):
        made.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * rank))
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(made, opset_imports=imports, ir_version=8)


def fused(op: str, reads: str, gives: str = "y", **attributes: Any) -> onnx.NodeProto:
    made = node(op, reads, gives, domain="com.microsoft", **attributes)
    made.output[:] = ["" if name == "-" else name for name in made.output]
    return made


MASKS: dict[str, tuple[dict[str, Any], dict[str, np.ndarray]]] = {
    "no mask": ({}, {}),
    "of tokens": ({"m": (I32, ["batch", "tokens"])}, {"m": np.array([[1, 1, 0, 1, 1], [1, 1, 1, 1, 1]], np.int32)}),
    "of pairs": (
        {"m": (I32, ["batch", "tokens", "tokens"])},
        {"m": np.tril(np.ones((2, 5, 5), np.int32))},
    ),
    "how many": ({"m": (I32, ["batch"])}, {"m": np.array([3, 5], np.int32)}),
}
ATTENTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"unidirectional": 1},
    "scaled": {"scale": 0.5, "mask_filter_value": -3.4028234663852886e38},
}


@pytest.mark.parametrize("settings", ATTENTIONS.values(), ids=ATTENTIONS)
@pytest.mark.parametrize(("inputs", "feeds"), MASKS.values(), ids=MASKS)
def test_attention_becomes_products_around_a_softmax(inputs, feeds, settings):
    reads = "x w b m" if inputs else "x w b"
    proto = contrib([fused("Attention", reads, num_heads=4, **settings)], {**X, **inputs}, QKV)
    found = simplified(proto, "decompose_ort_fusions")
    assert found.notes == (NOTE,)
    assert [n.op_type for n in found.model.graph.nodes].count("MatMul") == 5
    assert all(not n.domain for n in found.model.graph.nodes)
    assert_same(proto, found, [{**FEED, **feeds}], rtol=2e-6)


def test_attention_of_no_samples_at_all_gives_none():
    proto = contrib([fused("Attention", "x w b", num_heads=4)], X, QKV)
    assert_same(proto, simplified(proto, "decompose_ort_fusions"), [{"x": floats(0, 5, 32)}, {"x": floats(2, 0, 32)}])


def test_parts_of_attention_may_differ_in_width_and_something_may_be_added_to_its_scores():
    weights = {"w": floats(32, 80, scale=0.3), "b": floats(80), "more": floats(1, 4, 5, 5, seed=9)}
    made = fused("Attention", "x w b - - more", num_heads=4, qkv_hidden_sizes=[32, 32, 16])
    proto = contrib([made], X, weights)
    assert_same(proto, simplified(proto, "decompose_ort_fusions"), [FEED], rtol=2e-6)


@pytest.mark.parametrize(
    ("reads", "inputs"),
    [
        ("x w b - past", {"past": [2, "batch", 4, "before", 8]}),
        ("x w b m", {"m": (I32, ["twice_batch"])}),
        ("x k b", {"k": [32, 96]}),
    ],
    ids=["earlier tokens", "where tokens begin and end", "no constant weight"],
)
def test_attention_of_other_kinds_stays(reads, inputs):
    proto = contrib([fused("Attention", reads, num_heads=4)], {**X, **inputs}, QKV)
    assert simplified(proto, "decompose_ort_fusions").notes == ()


@pytest.mark.parametrize("opset", [14, 17])
@pytest.mark.parametrize("reads", ["x s gamma beta bias", "x s gamma beta", "x s gamma"])
def test_a_normalisation_and_the_sum_before_it_are_written_apart(reads, opset):
    made = fused("SkipLayerNormalization", reads, "n - - total", epsilon=1e-5)
    nodes = [made, node("Relu", "n", "y"), node("Relu", "total", "z")]
    proto = contrib(nodes, {**X, "s": ["batch", "tokens", 32]}, NORMS, (3, 3), opset)
    found = simplified(proto, "decompose_ort_fusions")
    assert found.notes[0] == NOTE
    assert all(not n.domain for n in found.model.graph.nodes)
    assert_same(proto, found, [{**FEED, "s": floats(2, 5, 32, seed=6)}], rtol=2e-6)


@pytest.mark.parametrize("opset", [14, 17, 21])
@pytest.mark.parametrize("reads", ["x s gamma", "x s gamma bias"])
def test_a_normalisation_by_the_root_mean_square_is_written_apart(reads, opset):
    made = fused("SkipSimplifiedLayerNormalization", reads, "n - - total", epsilon=1e-5)
    nodes = [made, node("Relu", "n", "y"), node("Relu", "total", "z")]
    proto = contrib(nodes, {**X, "s": ["batch", "tokens", 32]}, NORMS, (3, 3), opset)
    proto.ir_version = 10
    assert_same(proto, simplified(proto, "decompose_ort_fusions"), [{**FEED, "s": floats(2, 5, 32, seed=6)}], rtol=2e-6)


def test_a_normalisation_whose_mean_is_read_stays():
    made = fused("SkipLayerNormalization", "x s gamma beta", "n mean")
    nodes = [made, node("Relu", "n", "y"), node("Relu", "mean", "z")]
    proto = contrib(nodes, {**X, "s": ["batch", "tokens", 32]}, NORMS, (3, 3))
    assert simplified(proto, "decompose_ort_fusions").notes == ()


@pytest.mark.parametrize("reads", ["- words places -", "segments words places kinds"])
def test_embeddings_of_words_places_and_segments(reads):
    tables = {"words": floats(50, 32), "places": floats(9, 32, seed=7), "kinds": floats(2, 32, seed=8)}
    made = fused("EmbedLayerNormalization", f"ids {reads} gamma beta m", "n count")
    nodes = [made, node("Relu", "n", "y"), node("Cast", "count", "z", to=TensorProto.FLOAT)]
    inputs = {name: (I32, ["batch", "tokens"]) for name in ("ids", "segments", "m")}
    proto = contrib(nodes, inputs, {**NORMS, **tables}, (3, 1))
    feeds = {"ids": np.arange(10, dtype=np.int32).reshape(2, 5), "segments": np.ones((2, 5), np.int32)}
    feeds["m"] = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32)
    assert_same(proto, simplified(proto, "decompose_ort_fusions"), [feeds], rtol=2e-6)


ACTIVATIONS = {
    "Relu": [],
    "Sigmoid": [],
    "Tanh": [],
    "LeakyRelu": [0.1],
    "Clip": [-0.5, 0.75],
    "HardSigmoid": [0.3, 0.4],
}


@pytest.mark.parametrize(("kind", "given"), ACTIVATIONS.items(), ids=ACTIVATIONS)
def test_convolutions_with_an_activation(kind, given):
    weights = {"w": floats(6, 3, 3, 3), "b": floats(6, seed=1)}
    made = fused("FusedConv", "x w b", activation=kind, activation_params=given or None, pads=[1, 1, 1, 1])
    proto = contrib([made], {"x": ["n", 3, 8, 8]}, weights, (4,))
    found = simplified(proto, "decompose_ort_fusions")
    assert [n.op_type for n in found.model.graph.nodes] == ["Conv", kind]
    assert_same(proto, found, [{"x": floats(2, 3, 8, 8, seed=2)}], rtol=1e-6)


def test_a_convolution_with_a_sum():
    weights = {"w": floats(6, 3, 1, 1), "b": floats(6, seed=1)}
    made = fused("FusedConv", "x w b other", activation="Relu")
    proto = contrib([made], {"x": ["n", 3, 8, 8], "other": ["n", 6, 8, 8]}, weights, (4,))
    found = simplified(proto, "decompose_ort_fusions")
    assert [n.op_type for n in found.model.graph.nodes] == ["Conv", "Add", "Relu"]
    assert_same(proto, found, [{"x": floats(2, 3, 8, 8, seed=2), "other": floats(2, 6, 8, 8, seed=3)}], rtol=1e-6)


@pytest.mark.parametrize("given", [{"activation": "Relu"}, {"activation": "LeakyRelu", "activation_alpha": 0.1}])
def test_gemm_with_an_activation(given):
    weights = {"w": floats(6, 32), "b": floats(6)}
    proto = contrib([fused("FusedGemm", "x w b", transB=1, **given)], {"x": ["n", 32]}, weights, (2,))
    found = simplified(proto, "decompose_ort_fusions")
    assert [n.op_type for n in found.model.graph.nodes] == ["Gemm", given["activation"]]
    assert_same(proto, found, [{"x": floats(4, 32, seed=2)}], rtol=1e-6)


def test_an_activation_that_is_not_known_stays():
    made = fused("FusedConv", "x w", activation="Mystery")
    proto = contrib([made], {"x": ["n", 3, 8, 8]}, {"w": floats(6, 3, 1, 1)}, (4,))
    assert simplified(proto, "decompose_ort_fusions").notes == ()


def test_types_are_known_behind_fused_operators():
    nodes = [
        fused("Attention", "x w b", "a", num_heads=4),
        fused("SkipLayerNormalization", "a x gamma beta", "n"),
        node("MatMul", "n v", "f"),
        fused("BiasGelu", "f bias", "g"),
        fused("FastGelu", "g", "h"),
        fused("MultiHeadAttention", "h a n", "m", num_heads=4),
        node("MatMul", "m v", "y"),
    ]
    model = parse(contrib(nodes, X, {**QKV, **NORMS, "v": floats(32, 32)}).SerializeToString())
    infer_types(model)
    for name in "anfghmy":
        value = model.graph.values[name]
        assert (value.dtype, value.shape) == (TensorProto.FLOAT, ("batch", "tokens", 32))


def test_products_within_and_around_fused_operators_are_in_8_bit():
    """Weights of a BERT that onnxruntime had optimised were stored in 8 bit, and it stayed as slow as in float."""
    nodes = [
        fused("Attention", "x w b", "a", num_heads=4),
        fused("SkipLayerNormalization", "a x gamma beta", "n"),
        node("MatMul", "n v", "f"),
        fused("BiasGelu", "f wide", "g"),
        node("MatMul", "g u", "y"),
    ]
    weights = {name: floats(128, seed=i) for i, name in enumerate(("gamma", "beta"))}
    weights |= {"w": floats(128, 384, scale=0.1), "b": floats(384), "wide": floats(512)}
    weights |= {"v": floats(128, 512, scale=0.1), "u": floats(512, 128, scale=0.1)}
    proto = contrib(nodes, {"x": [1, 64, 128]}, weights)
    prepared = prepare(parse(proto.SerializeToString()), with_data=True)
    schemes = [decision.scheme for decision in prepared.plan.decisions if decision.node.op_type == "MatMul"]
    assert schemes.count("static-int8") == 5


@pytest.mark.parametrize("opset", [17, 18])
@pytest.mark.parametrize(
    "made",
    [
        fused("SkipSimplifiedLayerNormalization", "h s gamma bias", "n - - total", epsilon=1e-5),
        fused("SkipLayerNormalization", "h s gamma beta bias", "n - - total", epsilon=1e-5),
    ],
    ids=lambda made: made.op_type,
)
def test_a_normalisation_in_float16_is_computed_in_float32(made, opset):
    """Squares of large numbers are beyond float16, and constants have the type of what they are added to."""
    half = {name: array.astype(np.float16) for name, array in NORMS.items()}
    nodes = [node("Cast", "x", "h", to=TensorProto.FLOAT16), node("Add", "h half", "s"), made]
    nodes += [node("Cast", name, gives, to=TensorProto.FLOAT) for name, gives in (("n", "y"), ("total", "z"))]
    proto = contrib(nodes, X, {**half, "half": np.array(0.5, np.float16)}, (3, 3), opset)
    found = simplified(proto, "decompose_ort_fusions")
    assert found.notes == (NOTE,)
    assert_same(proto, found, [{"x": 400 * FEED["x"]}], rtol=3e-3)


def test_attention_in_float16_keeps_its_type():
    weights = {name: array.astype(np.float16) for name, array in QKV.items()}
    nodes = [node("Cast", "x", "h", to=TensorProto.FLOAT16)]
    nodes += [fused("Attention", "h w b m", "a", num_heads=4, unidirectional=1)]
    proto = contrib([*nodes, node("Cast", "a", "y", to=TensorProto.FLOAT)], {**X, **MASKS["of tokens"][0]}, weights)
    found = simplified(proto, "decompose_ort_fusions")
    assert found.notes == (NOTE,)
    kinds = {
        value.tensor.dtype for value in found.model.initializers() if "scale" in value.name or "barred" in value.name
    }
    assert kinds == {TensorProto.FLOAT16}


@pytest.mark.parametrize("given", [{}, {"transB": 1}, {"transA": 1, "alpha": 0.125}, {"transA": 1, "transB": 1}])
def test_a_product_with_a_constant_can_be_quantized(given: dict[str, Any]) -> None:
    shape = ["n", 32, 48] if given.get("transA") else ["n", 48, 32]
    weight = floats(64, 32) if given.get("transB") else floats(32, 64)
    proto = contrib([fused("FusedMatMul", "x w", **given)], {"x": shape}, {"w": weight})
    found = simplified(proto, "decompose_ort_fusions")
    assert found.notes[0] == NOTE
    assert_same(proto, found, [{"x": floats(2, *shape[1:], seed=7)}], 1e-5)
    report = quantize(proto, "static-int8", samples={"x": floats(8, 1, *shape[1:], seed=8)})
    assert report.counts()["static-int8"] == 1
    assert report.comparison.worst_sqnr > 30


def test_products_of_activations_of_rows_before_a_stack_and_of_shared_weights_stay() -> None:
    scores = contrib([fused("FusedMatMul", "x x", transB=1, alpha=0.125)], X, {})
    assert simplified(scores, "decompose_ort_fusions").notes == ()
    stacks = contrib([fused("FusedMatMul", "x w", transBatchA=1)], X, {"w": floats(32, 8)})
    assert simplified(stacks, "decompose_ort_fusions").notes == ()
    nodes = [fused("FusedMatMul", "x w", transB=1), fused("FusedMatMul", "y w", "z")]
    shared = contrib(nodes, X, {"w": floats(32, 32)}, (3, 3))
    assert simplified(shared, "decompose_ort_fusions").notes == (NOTE,)
