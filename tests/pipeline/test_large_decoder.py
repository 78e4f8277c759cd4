"""A large model is rounded layer by layer as a small one is, its live tensors in a file."""

from __future__ import annotations

import onnx
import pytest
from helpers import build, floats, node

from onnxq.ir.storage import residency
from onnxq.ir.storage import shelf as shelf_module
from onnxq.pipeline.quantize import quantize
from onnxq.planning.recipe import in_blocks

MIXING = floats(12, 96, seed=50)


def samples():
    return [{"x": floats(1, 6, 12, seed=seed) @ MIXING + floats(1, 6, 96, seed=900 + seed) / 5} for seed in range(40)]


@pytest.fixture
def source(tmp_path):
    weights = {"w1": floats(96, 64, scale=0.3), "w2": floats(64, 80, scale=0.3, seed=1), "w3": floats(80, 40, seed=2)}
    nodes = [
        *(node("MatMul", "x w1", "a"), node("Relu", "a", "b"), node("MatMul", "b w2", "c")),
        *(node("Relu", "c", "d"), node("Transpose", "d", "e", perm=[0, 1, 2]), node("MatMul", "e w3", "y")),
    ]
    onnx.save(build(nodes, {"x": [1, 6, 96]}, ["y"], weights, 21), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def made(source, name, monkeypatch, *, large, spooled=True):
    with monkeypatch.context() as patch:
        if large:
            patch.setattr(residency, "LARGE", 0)
            patch.setattr(shelf_module, "SHELVED", 64 if spooled else 1 << 20)
            patch.setattr("onnxq.ir.storage.scratch_file.SPOOLED", 64 if spooled else 1 << 20)
        report = quantize(source, in_blocks(4), samples=samples(), output=source.with_name(name))
    assert report.comparison is not None
    return report, report.comparison.worst_sqnr


def test_a_large_model_keeps_what_a_small_one_keeps(source, monkeypatch):
    small, expected = made(source, "small.onnx", monkeypatch, large=False)
    report, found = made(source, "large.onnx", monkeypatch, large=True)
    nearest = quantize(
        source, in_blocks(4).setting(rounding="nearest"), samples=samples(), output=source.with_name("nearest.onnx")
    )
    assert nearest.comparison is not None
    assert [weight.method for weight in report.weights or small.weights] == ["output error"] * 3
    assert found > nearest.comparison.worst_sqnr + 2
    assert found > expected - 1.5
    assert any("channels were not rescaled" in note and "nearest" not in note for note in report.notes)
    assert not [path for path in source.parent.iterdir() if path.name.startswith(".onnxq")]


def test_the_same_codes_in_memory_and_on_disk(source, monkeypatch):
    made(source, "one.onnx", monkeypatch, large=True)
    made(source, "two.onnx", monkeypatch, large=True, spooled=False)
    one, two = (source.with_name(name).read_bytes() for name in ("one.onnx", "two.onnx"))
    assert one == two
