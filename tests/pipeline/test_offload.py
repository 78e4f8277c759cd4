"""What goes out of memory is the same numbers afterwards, and stays where it is if there is no room."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import build, floats, node
from onnx import TensorProto

from onnxq.calibration.im2col import Unfolding
from onnxq.calibration.second_moments import InputMoments, LayerMoments
from onnxq.calibration.stats import Stats
from onnxq.ir import ArrayTensor, DeferredTensor, parse
from onnxq.ir.storage.scratch_file import is_mapped
from onnxq.pipeline import offload
from onnxq.pipeline.offload import spill_moments, spill_weights, store_computed
from onnxq.pipeline.quantize import quantize
from onnxq.runtime import memory


@pytest.fixture
def everything(monkeypatch):
    """Let everything go."""
    monkeypatch.setattr(offload, "WORTH_IT", 0)
    monkeypatch.setattr(offload, "SPOOLED", 64)
    monkeypatch.setattr("onnxq.ir.storage.scratch_file.SPOOLED", 64)
    monkeypatch.setattr(memory, "HEAVY", 0)


def measured() -> Stats:
    stats = Stats(lambda name: [InputMoments([LayerMoments(Unfolding(16), 16)])])
    stats.add("x", floats(5, 7, 16))
    return stats


def test_moments_are_the_same_out_of_memory(tmp_path, everything):
    stats, expected = measured(), measured()
    spill_moments(stats, tmp_path)
    assert [is_mapped(half.gram) for half in stats.halves()] == [True, True]
    assert [half.waiting.size for half in stats.halves()] == [0, 0]
    (layer,), (before,) = (each["x"][InputMoments].layers.values() for each in (stats, expected))
    for found, kept in zip(
        (layer.fitted(), layer.held_out(), layer.total()),
        (before.fitted(), before.held_out(), before.total()),
        strict=True,
    ):
        np.testing.assert_array_equal(found.matrix, kept.matrix)
        np.testing.assert_array_equal(found.mean, kept.mean)
    stats.add("x", floats(1, 7, 16))  # more can come


def test_few_moments_stay_and_so_do_those_without_room(tmp_path, everything, monkeypatch):
    stats = measured()
    spill_moments(stats, tmp_path / "nowhere")
    assert not any(is_mapped(half.gram) for half in stats.halves())
    monkeypatch.setattr(offload, "WORTH_IT", 1 << 20)
    spill_moments(stats, tmp_path)
    assert not any(is_mapped(half.gram) for half in stats.halves())


@pytest.mark.parametrize("folder", [".", "nowhere"])
def test_new_weights_are_the_same_out_of_memory(folder, tmp_path, everything):
    proto = build(
        [node("MatMul", "x w", "a"), node("MatMul", "a v", "y")],
        {"x": [3, 8]},
        weights={"w": floats(8, 8), "v": floats(8, 8)},
    )
    source = parse(proto.SerializeToString())
    model = source.copy()
    tensor = ArrayTensor(floats(8, 8, seed=5))
    model.graph.values["w"].tensor = tensor
    spill_weights(model, source, tmp_path / folder)
    assert model.graph.values["w"].tensor is tensor  # codes are known by it
    assert is_mapped(tensor.array) == (folder == ".")
    assert tensor.numpy().tolist() == floats(8, 8, seed=5).tolist()


def test_the_same_bytes_are_written(tmp_path, everything, monkeypatch):
    nodes = [node("Conv", "x w", "c", pads=[1] * 4), node("Relu", "c", "r"), node("Conv", "r v", "y")]
    weights = {"w": floats(16, 4, 3, 3), "v": floats(8, 16, 1, 1, seed=1)}
    source = parse(build(nodes, {"x": ["N", 4, 8, 8]}, weights=weights).SerializeToString())
    samples = [{"x": floats(1, 4, 8, 8, seed=seed)} for seed in range(8)]
    quantize(source, "static-int8", output=tmp_path / "a.onnx", samples=samples)
    monkeypatch.undo()
    quantize(source, "static-int8", output=tmp_path / "b.onnx", samples=samples)
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {"a.onnx", "b.onnx"}


@pytest.mark.parametrize("folder", [".", "nowhere"])
def test_computed_constants_are_stored_once(tmp_path, everything, folder):
    model = parse(build([node("MatMul", "x w", "y")], {"x": [2, 30]}, ["y"], {"w": floats(30, 20)}).SerializeToString())
    table, read = floats(20, 30, seed=1), []

    def transposed():
        read.append(None)
        return table.T

    weight = next(value for value in model.initializers() if value.name == "w")
    weight.tensor = DeferredTensor(TensorProto.FLOAT, (30, 20), transposed)
    store_computed(model, tmp_path / folder)
    assert len(read) == (folder == ".")
    assert is_mapped(weight.tensor.numpy()) == (folder == ".")
    np.testing.assert_array_equal(weight.tensor.numpy(), table.T)
    assert not list(tmp_path.iterdir())
