"""Targets of which no kernel time is known, and those with kernels for activations of 16 bits."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from helpers import F, build, floats, node

from onnxq.errors import CheckFailed
from onnxq.pipeline.quantize import quantize
from onnxq.report import Report
from onnxq.search.budget import Budget
from onnxq.search.meet_budget import WIDENED

WIDTH = 64


SOME, MUCH = 8, 1000  # how far the first channel towers above the others: 8 bits are enough still, or not


def model_in(folder: Path, factor: float) -> Path:
    """A Conv whose first input channel towers above the others, its weights small, and a product behind it."""
    kernel = floats(8, 4, 3, 3)
    kernel[:, 0] /= factor
    nodes = [node("Conv", "x k", "c", pads=[1, 1, 1, 1]), node("Relu", "c", "r"), node("GlobalAveragePool", "r", "p")]
    nodes += [node("Flatten", "p", "f"), node("Gemm", "f w b", "y")]
    weights = {"k": kernel, "w": floats(8, 16, seed=1), "b": floats(16, seed=2)}
    path = folder / f"{factor}.onnx"
    path.write_bytes(build(nodes, {"x": [None, 4, 8, 8]}, ["y"], weights, opset=17).SerializeToString())
    return path


def samples(factor: float) -> list[dict]:
    made = [floats(2, 4, 8, 8, seed=seed) for seed in range(8)]
    for x in made:
        x[:, 0] *= F(factor)
    return [{"x": x} for x in made]


def made_for(folder: Path, target: str, factor: float, **settings) -> tuple[Report, onnx.ModelProto]:
    source, recipe = model_in(folder, factor), folder / "r.toml"
    recipe.write_text(f'scheme = "auto"\ntarget = "{target}"\nsmoothing = false\n')
    output = folder / "out.onnx"
    report = quantize(source, recipe, output=output, samples=samples(factor), force=True, **settings)
    return report, onnx.load(output)


def types(model: onnx.ModelProto) -> set[str]:
    scales = {n.input[2] for n in model.graph.node if n.op_type == "QuantizeLinear"}
    kinds = onnx.TensorProto.DataType
    return {kinds.Name(i.data_type) for i in model.graph.initializer if i.name in scales}


def test_activations_get_16_bits_where_8_miss_what_is_asked_for(tmp_path):
    plain, model = made_for(tmp_path, "qnn", SOME)
    assert types(model) == {"UINT8"}
    assert WIDENED not in plain.notes
    reached = plain.comparison.worst_sqnr
    report, model = made_for(tmp_path, "qnn", SOME, budget=Budget(min_sqnr=reached + 4))
    assert types(model) == {"UINT16"}, "a kernel reads and writes the same type"
    assert {n.domain for n in model.graph.node if n.op_type == "QuantizeLinear"} == {"com.microsoft"}, "opset 17"
    assert report.comparison.worst_sqnr > reached + 4
    assert WIDENED in report.notes
    assert report.returned == ()
    assert report.counts().get("static-int8", 0) == plain.counts()["static-int8"]


def test_a_clamp_follows_its_product_into_float(tmp_path):
    """It kept pairs of its own between float nodes: a budget that float nodes reach was missed and refused."""
    report, _ = made_for(tmp_path, "qnn", SOME, exclude=["Conv"])
    reasons = {n.op_type: (n.scheme, n.reason) for n in report.nodes}
    assert reasons["Relu"] == (None, "the Conv before it stays float")
    assert reasons["Gemm"][0] == "static-int8"


def test_activations_get_16_bits_where_8_would_give_a_model_of_no_use(tmp_path):
    report, model = made_for(tmp_path, "qnn", MUCH)
    assert types(model) == {"UINT16"}
    assert report.comparison.worst_sqnr > 20


@pytest.mark.parametrize("target", ["openvino", "tensorrt", "generic"])
def test_other_targets_have_no_kernels_for_16_bits(tmp_path, target):
    reached = made_for(tmp_path, target, SOME)[0].comparison.worst_sqnr
    try:
        _, model = made_for(tmp_path, target, SOME, budget=Budget(min_sqnr=reached + 4))
    except CheckFailed:
        return
    assert not types(model) & {"UINT16", "INT16"}


@pytest.mark.parametrize("target", ["openvino", "qnn", "tensorrt", "generic"])
def test_nothing_is_a_bargain_whose_price_nobody_knows(tmp_path, target):
    report, _ = made_for(tmp_path, target, SOME)
    assert report.comparison.worst_sqnr > 20
    assert report.returned == ()
    assert "of the time" not in "".join(n.reason for n in report.nodes)
