"""Forms of QuantizeLinear and DequantizeLinear that the engine writes: operator sets, domains, element types."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers import ALL, build, floats, node, quantize_in_memory, recipe_of

from onnxq import evaluate
from onnxq.explanation.inspect import inspect
from onnxq.pipeline.quantize import quantize
from onnxq.verification.compare import check_wellformed

ROOT = Path(__file__).parents[2]
ARENA = ROOT / "../shared/arena"
MICROSOFT = "com.microsoft"
PAIR = ("QuantizeLinear", "DequantizeLinear")
TYPES = {"uint8": np.uint8, "int8": np.int8, "uint16": np.uint16, "int16": np.int16}

WEIGHTS = {
    "w": floats(8, 3, 3, 3, scale=0.3),
    "b": floats(8, seed=1),
    "v": floats(8, 8, 1, 1, seed=2, scale=0.4),
    "f": floats(8, 5, seed=3),
    "g": floats(5, seed=4),
}
FEEDS = [{"x": floats(2, 3, 8, 8, seed=seed)} for seed in range(5, 9)]


def network(opset: int) -> onnx.ModelProto:
    """Conv, Relu, Conv, pooling, Gemm: both kinds of reader, a clamp, an operator between two quantized ones."""
    nodes = [
        node("Conv", "x w b", "c", pads=[1, 1, 1, 1]),
        node("Relu", "c", "r"),
        node("MaxPool", "r", "p", kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", "p v", "d"),
        node("GlobalAveragePool", "d", "q"),
        node("Flatten", "q", "h"),
        node("Gemm", "h f g", "y"),
    ]
    return build(nodes, {"x": [2, 3, 8, 8]}, ["y"], WEIGHTS, opset)


def pairs(proto: onnx.ModelProto) -> set[str]:
    """Domains of the quantizing nodes."""
    return {one.domain for one in proto.graph.node if one.op_type in PAIR}


def opsets(proto: onnx.ModelProto) -> dict[str, int]:
    return {one.domain: one.version for one in proto.opset_import}


def activation_zero_points(proto: onnx.ModelProto) -> list[np.ndarray]:
    arrays = {one.name: onnx.numpy_helper.to_array(one) for one in proto.graph.initializer}
    return [arrays[one.input[2]] for one in proto.graph.node if one.op_type == "QuantizeLinear"]


@pytest.mark.parametrize(
    ("settings", "before", "after", "floor"),
    [
        ({"granularity": "tensor"}, 10, 10, 25),
        ({"granularity": "tensor"}, 12, 12, 25),
        ({"granularity": "channel"}, 11, 13, 25),
        ({"domain": MICROSOFT}, 9, 10, 25),
        ({"domain": MICROSOFT}, 11, 11, 25),
        ({"domain": MICROSOFT, "granularity": "tensor"}, 17, 17, 25),
        ({"activations": "int8"}, 11, 13, 25),
        ({"activations": "int8", "domain": MICROSOFT}, 11, 11, 25),
        ({"activations": "uint16"}, 17, 21, 35),
        ({"activations": "int16"}, 21, 21, 35),
        ({"activations": "uint16", "domain": MICROSOFT}, 11, 11, 35),
        ({"activations": "int16", "domain": MICROSOFT}, 17, 17, 35),
    ],
    ids=str,
)
def test_pairs_need_no_newer_opset_than_their_form_does(settings, before, after, floor):
    made = quantize_in_memory(network(before), "static-int8", FEEDS, **settings)
    proto = made.proto
    domain = settings.get("domain", "")
    assert opsets(proto) == {"": after} | ({MICROSOFT: 1} if domain else {})
    assert pairs(proto) == {domain}
    assert made.ops["QuantizeLinear"] == 6
    zeros = activation_zero_points(proto)
    kind = settings.get("activations", "uint8")
    assert {zero.dtype for zero in zeros} == {np.dtype(TYPES[kind])}
    if kind.startswith("int"):
        assert not any(zeros)
    for feeds in FEEDS[:2]:
        assert min(made.sqnr(feeds), made.sqnr(feeds, ALL)) > floor
        np.testing.assert_allclose(evaluate(proto, feeds)["y"], made.run(feeds)[0], atol=1e-3)  # a code may flip


def test_a_clamp_stays_where_symmetric_codes_would_not_saturate_at_zero():
    plain = quantize_in_memory(network(17), "static-int8", FEEDS)
    symmetric = quantize_in_memory(network(17), "static-int8", FEEDS, activations="int8")
    assert (plain.ops["Relu"], symmetric.ops["Relu"]) == (0, 1)
    assert symmetric.decision("n_r").reason == "its output is quantized instead of that of n_c"
    relu = next(one for one in symmetric.proto.graph.node if one.op_type == "Relu")
    maker = next(one for one in symmetric.proto.graph.node if relu.input[0] in one.output)
    reader = next(one for one in symmetric.proto.graph.node if relu.output[0] in one.input)
    assert (maker.op_type, reader.op_type) == ("Conv", "QuantizeLinear")


def test_run_time_quantization_refuses_other_types_than_its_own():
    made = quantize_in_memory(network(17), "dynamic-int8", (), activations="uint16")
    assert made.decision("n_y").reason == "activations quantized at run time are uint8, not uint16"


def test_signed_activations_are_refused_where_onnxruntime_does_not_load_them():
    made = quantize_in_memory(network(21), "static-int8", FEEDS, activations="int8")
    expected = 'onnxruntime fails on int8 activations from opset 21 on, unless domain = "com.microsoft"'
    assert made.decision("n_c").reason == made.decision("n_y").reason == expected


def test_stored_weights_in_either_domain():
    weights = {"w": floats(32, 32), "v": floats(32, 32, seed=1)}
    source = build([node("MatMul", "x w", "m"), node("MatMul", "m v", "y")], {"x": [4, 32]}, ["y"], weights, 9)
    feeds = {"x": floats(4, 32)}
    for settings, expected in (({"domain": MICROSOFT}, 9), ({"granularity": "tensor"}, 10), ({}, 13)):
        made = quantize_in_memory(source, "weight-int8", (), form="qdq", **settings)
        assert opsets(made.proto)[""] == expected
        assert pairs(made.proto) == {settings.get("domain", "")}
        assert made.sqnr(feeds) > 25
        np.testing.assert_allclose(evaluate(made.proto, feeds)["y"], made.run(feeds)[0], rtol=1e-4, atol=1e-4)


def through_files(model: Path, data: Path, target: Path, recipe: str, settings: dict[str, Any]) -> onnx.ModelProto:
    """Quantize a model file, ask the checker, the evaluator and `inspect` about it, and give it."""
    chosen = recipe_of(recipe, **{"rounding": "nearest", "smoothing": False} | settings)
    report = quantize(model, chosen, output=target, data=[data], sample_limit=4, fast=True)
    assert check_wellformed(target) is None
    proto = onnx.load(target)
    facts = inspect(target)
    assert facts.conversions == sum(one.op_type in (*PAIR, "DynamicQuantizeLinear") for one in proto.graph.node)
    assert facts.opsets.get(MICROSOFT, 0) == (settings.get("domain") == MICROSOFT)
    assert report.comparison is not None
    proto.metadata_props.add(key="sqnr", value=str(report.comparison.worst_sqnr))
    return proto


def quality(proto: onnx.ModelProto) -> float:
    return float(next(entry.value for entry in proto.metadata_props if entry.key == "sqnr"))


@pytest.mark.parametrize("model", ["digits_cnn", "digits_attention"])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"granularity": "tensor", "domain": MICROSOFT},
        {"activations": "int8", "domain": MICROSOFT},
        {"activations": "uint16"},
        {"activations": "uint16", "domain": MICROSOFT},
    ],
    ids=str,
)
def test_sample_models_in_every_form(model, settings, tmp_path):
    data = ROOT / "sample_models/digits_calibration.npz"
    proto = through_files(ROOT / f"sample_models/{model}.onnx", data, tmp_path / "q.onnx", "static-int8", settings)
    assert pairs(proto) == {settings.get("domain", "")}
    assert quality(proto) > (22 if "granularity" in settings else 25)


# Of each operator that quantization may write, where the model is as it was exported: model, data, recipe, settings,
# operator set that the result has, an operator that it is made of, least SQNR in dB.
ON_REAL_MODELS = [
    ("minilm", "minilm", "dynamic-int8", {}, {"": 17}, ("", "DynamicQuantizeLinear", 24), 9),
    ("chargpt", "chargpt", "static-int8", {}, {"": 17}, ("", "QuantizeLinear", 17), 25),
    ("super_resolution", "superres", "static-int8", {"granularity": "tensor"}, {"": 10}, ("", "QuantizeLinear", 5), 18),
    ("ultraface_rfb320", "face", "static-int8", {"granularity": "tensor"}, {"": 10}, ("", "QuantizeLinear", 55), 38),
    (
        *("super_resolution", "superres", "static-int8", {"domain": MICROSOFT}),
        *({"": 10, MICROSOFT: 1}, (MICROSOFT, "QuantizeLinear", 5), 23),
    ),
    (
        *("ultraface_rfb320", "face", "static-int8", {"domain": MICROSOFT}),
        *({"": 10, MICROSOFT: 1}, (MICROSOFT, "DequantizeLinear", 159), 40),
    ),
    (
        *("magika_v3_3", "magika", "static-int8", {"domain": MICROSOFT, "activations": "uint16"}),
        *({"": 15, "ai.onnx.ml": 2, MICROSOFT: 1}, (MICROSOFT, "QuantizeLinear", 4), 45),
    ),
    ("digits_mbv2", "digits", "static-int8", {"activations": "uint16"}, {"": 21}, ("", "QuantizeLinear", 29), 35),
    ("digits_mbv2", "digits", "static-int8", {"activations": "int8"}, {"": 17}, ("", "QuantizeLinear", 29), 30),
]


@pytest.mark.skipif(not ARENA.exists(), reason="needs the real models")
@pytest.mark.slow
@pytest.mark.parametrize(("model", "data", "recipe", "settings", "after", "contains", "floor"), ON_REAL_MODELS)
def test_real_models_in_every_form(model, data, recipe, settings, after, contains, floor, tmp_path):
    source, samples = ARENA / f"models/{model}.onnx", ARENA / f"data/{data}_calib.npz"
    proto = through_files(source, samples, tmp_path / "q.onnx", recipe, settings)
    assert opsets(proto) == after
    domain, op_type, count = contains
    assert Counter((one.domain, one.op_type) for one in proto.graph.node)[domain, op_type] == count
    assert quality(proto) > floor
