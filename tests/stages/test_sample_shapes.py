"""Sizes that a model leaves open: those of the first sample decide, where there is one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers import build, floats, node

from onnxq.cli import main
from onnxq.errors import DataError
from onnxq.explanation.explain import explain
from onnxq.ir import load
from onnxq.pipeline.quantize import quantize
from onnxq.stages.files import open_data
from onnxq.stages.kernel_timing import replan_with_sample_shapes
from onnxq.stages.prepare import prepare

OPEN = [None, 16, None, None]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Build two Conv that pay in 8 bit on large pictures, and not on the few places that a side of 4 has."""
    weights = {"k": floats(16, 16, 3, 3) / 12, "w": floats(16, 16, 1, 1) / 4}
    nodes = [node("Conv", "x k", "c", pads=[1] * 4), node("Relu", "c", "r"), node("Conv", "r w", "d")]
    path = tmp_path / "m.onnx"
    path.write_bytes(build([*nodes, node("Tanh", "d", "y")], {"x": OPEN}, ["y"], weights, 13).SerializeToString())
    return path


def samples(side: int, count: int = 4) -> list[dict[str, np.ndarray]]:
    return [{"x": floats(1, 16, side, side, seed=index)} for index in range(count)]


def quantized(path: Path, side: int, **options: object) -> set[str]:
    made = quantize(path, output=path.with_suffix(".q"), samples=samples(side), fast=True, force=True, **options)
    return {one.scheme or "float" for one in made.nodes if one.op_type == "Conv"}


def test_the_first_sample_decides(model: Path) -> None:
    assert quantized(model, 64) == {"static-int8"}
    assert "static-int8" not in quantized(model, 4)


def test_without_samples_sizes_are_guessed_and_statistics_serve_that_plan(model: Path, tmp_path: Path) -> None:
    data = tmp_path / "data.npz"
    np.savez(data, x=np.stack([sample["x"][0] for sample in samples(4)]))
    assert main(["calibrate", str(model), "-d", str(data), "-o", str(tmp_path / "s.npz")]) == 0
    made = quantize(model, output=tmp_path / "q.onnx", stats=tmp_path / "s.npz", fast=True)
    assert {one.scheme for one in made.nodes if one.op_type == "Conv"} == {"static-int8"}
    both = quantize(model, output=tmp_path / "b.onnx", stats=tmp_path / "s.npz", data=[data], fast=True)
    assert {one.scheme for one in both.nodes if one.op_type == "Conv"} == {"static-int8"}


def test_plan_and_explanation_say_the_same(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "data.npz"
    np.savez(data, x=np.stack([sample["x"][0] for sample in samples(64)]))
    assert main(["plan", str(model), "-d", str(data)]) == 0
    assert "static-int8" in capsys.readouterr().out
    (one,) = explain(model, "n_c", data=[data])
    assert one.times is not None
    assert not one.times.guessed


def test_layers_get_other_forms_by_the_sizes_of_the_sample(tmp_path: Path) -> None:
    weights = {"k": floats(64, 64, 3, 3) / 24, "t": floats(64, 64, 2, 2) / 16, "w": floats(64, 64, 3, 3) / 24}
    nodes = [
        node("Conv", "x k", "c", pads=[1] * 4),
        node("ConvTranspose", "c t", "u", strides=[2, 2]),
        node("Conv", "u w", "y", pads=[1] * 4),
    ]
    onnx.save(build(nodes, {"x": [None, 64, None, None]}, ["y"], weights, 13), tmp_path / "m.onnx")
    prepared = prepare(load(tmp_path / "m.onnx"), with_data=True)
    given = open_data(prepared.model, [], [{"x": floats(1, 64, 24, 24)}], None)
    found = replan_with_sample_shapes(prepared, given)
    assert [step.op_type for step in found.model.graph.nodes] == ["Conv", "Conv", "DepthToSpace", "Conv"]
    assert [found.plan.costs.shapes[value.name] for step in found.model.graph.nodes for value in step.outputs] == [
        (1, 64, 24, 24),
        (1, 256, 24, 24),
        (1, 64, 48, 48),
        (1, 64, 48, 48),
    ]


def test_a_sample_that_does_not_fit_is_reported_when_it_is_read(model: Path, tmp_path: Path) -> None:
    prepared = prepare(load(model), with_data=True)
    given = open_data(prepared.model, [], [{"z": floats(1)}], None)
    assert not replan_with_sample_shapes(prepared, given).plan.costs.shapes
    with pytest.raises(DataError, match="z"):
        quantize(model, output=tmp_path / "q.onnx", samples=given, fast=True)
