"""Figures of a full report: kernels by operator, bytes by layer, limits, the worst samples."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from onnxq.ir import load, parse
from onnxq.pipeline.quantize import quantize
from onnxq.report import Report
from onnxq.report.details import LayerSize, by_operator, kernels_of, layer_sizes, limits_kept, operator_of
from onnxq.verification.compare import compare
from onnxq.verification.records import Comparison, MetricComparison, OutputComparison
from tests.helpers import build, floats, node

SAMPLES = Path(__file__).parents[2] / "sample_models"


@pytest.mark.parametrize(
    ("kernel", "operator"),
    [
        ("QLinearConv", "Conv"),
        ("NhwcFusedConv", "Conv"),
        ("DynamicQuantizeMatMul", "MatMul"),
        ("MatMulIntegerToFloat", "MatMul"),
        ("QGemm", "Gemm"),
        ("QAttention", "Attention"),
        ("QuantizeLinear", "conversions"),
        ("DynamicQuantizeLinear", "conversions"),
        ("Reshape", "Reshape"),
        ("QuickGelu", "QuickGelu"),
    ],
)
def test_kernels_belong_to_operators(kernel: str, operator: str) -> None:
    assert operator_of(kernel) == operator


def test_times_of_one_operator_add_up() -> None:
    assert by_operator({"Conv": 1e6, "FusedConv": 2e6, "QuantizeLinear": 5e5}) == {"Conv": 3.0, "conversions": 0.5}


def test_sizes_of_layers_count_what_stands_behind_a_dequantize() -> None:
    wide = build([node("MatMul", "x w", "y", name="m")], {"x": [1, 8]}, weights={"w": floats(8, 4)})
    codes = {"c": np.ones((8, 4), np.int8), "s": np.ones(4, np.float32)}
    nodes = [node("DequantizeLinear", "c s", "w", axis=1), node("MatMul", "x w", "y", name="m")]
    narrow = build(nodes, {"x": [1, 8]}, weights=codes)
    found = layer_sizes(parse(wide.SerializeToString()), parse(narrow.SerializeToString()))
    assert found == (LayerSize("m", "MatMul", 8 * 4 * 4, 8 * 4 + 4 * 4),)


def test_a_layer_that_has_another_name_is_found_by_its_output() -> None:
    wide = build([node("Gemm", "x w", "y", name="g")], {"x": [1, 8]}, weights={"w": floats(8, 4)})
    codes = {"c": np.ones((8, 4), np.int8), "s": np.array(1, np.float32), "z": np.array(0, np.uint8)}
    nodes = [
        node("DequantizeLinear", "c s", "w"),
        node("Gemm", "x w", "h", name="another"),
        node("QuantizeLinear", "h s z", "q"),
        node("DequantizeLinear", "q s z", "y"),
    ]
    narrow = build(nodes, {"x": [1, 8]}, weights=codes)
    found = layer_sizes(parse(wide.SerializeToString()), parse(narrow.SerializeToString()))
    assert found == (LayerSize("g", "Gemm", 8 * 4 * 4, 8 * 4 + 4),)


@pytest.mark.parametrize("recipe", ["dynamic-int8", "weight-int8", "weight-int4"])
def test_every_byte_of_constants_belongs_to_a_layer(recipe: str, tmp_path: Path) -> None:
    nodes = [
        node("Gather", "table ids", "h", name="words"),
        node("MatMul", "h w", "a", name="first"),
        node("Relu", "a", "b"),
        node("MatMul", "b v", "y", name="second"),
    ]
    weights = {"table": floats(400, 64), "w": floats(64, 128), "v": floats(128, 64)}
    made = build(nodes, {"ids": (TensorProto.INT64, ["n"])}, weights=weights)
    onnx.save(made, tmp_path / "m.onnx")
    quantize(tmp_path / "m.onnx", recipe, output=tmp_path / "q.onnx", fast=True)
    narrow = load(tmp_path / "q.onnx")
    found = {one.node: one for one in layer_sizes(load(tmp_path / "m.onnx"), narrow)}
    assert {name: one.float_bytes for name, one in found.items()} == {"words": 102400, "first": 32768, "second": 32768}
    constants = {value for each in narrow.graph.walk() for value in each.inputs if value is not None and value.tensor}
    total = sum(value.tensor.nbytes for value in constants if value.tensor is not None)
    assert total * 0.95 <= sum(one.quantized_bytes for one in found.values()) <= total
    assert all(0 < one.quantized_bytes < one.float_bytes / 2 for one in found.values())


def test_limits_say_what_was_reached() -> None:
    output = OutputComparison("y", "float32", 10, False, 31.25, 0.125, 0.999, 97.5)
    comparison = Comparison((output,), 5, metric=MetricComparison("m:f", 0.9, 0.8))
    limits = limits_kept(comparison, 1200, min_sqnr=40, max_drop=0.2, max_size=1000)
    assert [(limit.reached, limit.passed) for limit in limits] == [
        ("31.2 dB", False),
        ("0.1", True),
        ("1,200 bytes", False),
    ]
    assert limits_kept(comparison, 1200) == ()
    equal = replace(comparison, outputs=(replace(output, sqnr=math.inf),))
    assert limits_kept(equal, None, min_sqnr=40)[0].reached == "equal"


def test_the_samples_that_are_off_most_are_named() -> None:
    first = build([node("MatMul", "x w", "y")], {"x": [1, 4]}, weights={"w": np.eye(4, dtype=np.float32)})
    clipped = [node("MatMul", "x w", "h"), node("Clip", "h low high", "y")]
    bounds = {"low": np.array(-1, np.float32), "high": np.array(1, np.float32)}
    second = build(clipped, {"x": [1, 4]}, weights={"w": np.eye(4, dtype=np.float32), **bounds})
    samples = [{"x": np.full((1, 4), size, np.float32)} for size in (0.5, 4.0, 1.0, 2.0)]
    found = compare(first, second, samples, latency=False).worst_samples
    assert [(one.index, one.output) for one in found] == [(1, "y"), (3, "y")]
    assert found[0].sqnr == pytest.approx(20 * math.log10(4 / 3), abs=1e-6)


def test_a_sample_that_only_the_quantized_model_makes_nan_of_is_worst() -> None:
    first = build([node("Abs", "x", "y")], {"x": [1, 4]})
    second = build([node("Sqrt", "x", "r"), node("Mul", "r r", "y")], {"x": [1, 4]})
    samples = [{"x": np.full((1, 4), value, np.float32)} for value in (0.3, -1.0, 0.7)]
    found = compare(first, second, samples, latency=False).worst_samples
    assert (found[0].index, found[0].sqnr) == (1, -math.inf)


def test_a_full_report_has_them(tmp_path: Path) -> None:
    data = SAMPLES / "digits_calibration.npz"
    report: Report = quantize(
        SAMPLES / "digits_cnn.onnx", "static-int8", output=tmp_path / "q.onnx", data=data, sample_limit=4, detailed=True
    )
    assert report.kernels == kernels_of((tmp_path / "q.onnx").read_bytes())
    assert {one.operator for one in report.operator_times} > {"Conv", "MaxPool"}
    assert all(one.float_ms >= 0 and one.quantized_ms >= 0 for one in report.operator_times)
    assert all(one.quantized_bytes < one.float_bytes / 2 for one in report.layer_sizes if one.float_bytes > 4000)
    assert report.made is not None
    assert report.made.endswith("+00:00")
    page = report.to_html()
    for heading in ("times", "kernels", "sizes", "worst-samples"):
        assert f'id="{heading}"' in page
