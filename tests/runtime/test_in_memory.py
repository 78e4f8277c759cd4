"""Weights that are handed over beside a model's bytes make the same session, and no copies besides its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from helpers import build, floats, graph, node

from onnxq.ir import Model, infer_types, load, parse
from onnxq.ir.passes import normalise
from onnxq.pipeline.quantize import quantize
from onnxq.runtime import in_memory
from onnxq.runtime.in_memory import InMemory, encode, encode_apart
from onnxq.runtime.session import SessionError, open_session, run_session, sessions_kept

FOLDER = Path(__file__).parents[2] / "sample_models"
MODELS = sorted(FOLDER.glob("*.onnx"))


@pytest.fixture
def apart(monkeypatch):
    """Let weights of 64 bytes be handed over."""
    monkeypatch.setattr(in_memory, "BESIDE", 64)


def same_runs(model: Model, feeds, **settings):
    taps = [v for n in model.graph.nodes for v in n.outputs if v is not None and v.dtype == 1 and not v.is_output]
    whole = open_session(model.serialize(taps), **settings)
    apart = open_session(InMemory(model, taps), **settings)
    assert [o.name for o in apart.get_outputs()] == [o.name for o in whole.get_outputs()]
    for expected, got in zip(run_session(whole, None, feeds), run_session(apart, None, feeds), strict=True):
        np.testing.assert_array_equal(got, expected)


def digits(model: Model):
    with np.load(FOLDER / "digits_test.npz") as file:
        return {value.name: file[value.name][:3] for value in model.graph.inputs}


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
@pytest.mark.parametrize("optimize", ["basic", "all"])
def test_sessions_are_the_same_to_the_bit(path, optimize, apart):
    model = load(path)
    normalise(model)
    infer_types(model)
    same_runs(model, digits(model), optimize=optimize)


def test_those_of_quantized_models_are_too(tmp_path, apart):
    path = tmp_path / "q.onnx"
    for recipe in ("static-int8", "dynamic-int8", "weight-int8"):
        quantize(
            FOLDER / "digits_cnn.onnx",
            recipe,
            output=path,
            data=[FOLDER / "digits_calibration.npz"],
            force=True,
            fast=True,
        )
        model = load(path)
        assert encode_apart(model)[1]
        same_runs(model, digits(model))


def test_weights_of_bodies_and_of_types_that_numpy_lacks_stay_inside(apart):
    body = {
        name: graph([node("MatMul", "a v", f"{name}_o")], {}, [f"{name}_o"], {"v": floats(32, 32)})
        for name in ("t", "e")
    }
    proto = build(
        [
            node("DequantizeLinear", "q s", "w"),
            node("MatMul", "x w", "a"),
            node("If", "c", "b", then_branch=body["t"], else_branch=body["e"]),
            node("Gemm", "b h", "y"),
        ],
        {"x": [3, 32], "c": (onnx.TensorProto.BOOL, [])},
        weights={"q": floats(32, 32).astype(ml_dtypes.int4), "s": floats(), "h": floats(32, 32)},
        opset=21,
    )
    model = parse(proto.SerializeToString())
    assert list(encode_apart(model)[1]) == ["h"]
    same_runs(model, {"x": floats(3, 32), "c": np.array(True)})


def test_what_nobody_reads_or_bodies_alone_and_sizes_stay_inside(apart):
    """An initializer without readers is gone when onnxruntime looks for it, and it looks into axes before."""
    bodies = {name: graph([node("Add", "a v", f"{name}_o")], {}, [f"{name}_o"], {}) for name in ("t", "e")}
    proto = build(
        [
            node("MatMul", "x w", "a"),
            node("If", "c", "b", then_branch=bodies["t"], else_branch=bodies["e"]),
            node("Gather", "b i", "g", axis=1),
            node("Reshape", "g s", "y"),
        ],
        {"x": [3, 32], "c": (onnx.TensorProto.BOOL, [])},
        weights={
            "w": floats(32, 32),
            "v": floats(1, 32),
            "i": np.arange(16),
            "s": np.array([3, *[1] * 15, 16]),
            "unread": floats(32, 32),
        },
    )
    model = parse(proto.SerializeToString())
    assert list(encode_apart(model)[1]) == ["w"]
    same_runs(model, {"x": floats(3, 32), "c": np.array(True)})


def test_a_model_with_a_weight_that_nobody_reads_is_quantized(tmp_path):
    weights = {"w": floats(32, 64), "unread": floats(256, 128)}
    onnx.save(build([node("MatMul", "x w", "y")], {"x": ["n", 32]}, weights=weights), tmp_path / "m.onnx")
    report = quantize(tmp_path / "m.onnx", samples=[{"x": floats(4, 32, seed=i)} for i in range(4)])
    assert report.comparison is not None
    assert report.comparison.worst_sqnr > 30


def test_a_weight_may_be_an_input_with_a_default(apart):
    proto = build([node("MatMul", "x w", "y")], {"x": [3, 32], "w": [32, 32]}, weights={"w": floats(32, 32)})
    model = parse(proto.SerializeToString())
    assert encode_apart(model)[1]
    same_runs(model, {"x": floats(3, 32)})
    same_runs(model, {"x": floats(3, 32), "w": floats(32, 32, seed=7)})


def test_a_session_needs_nothing_of_the_model(apart):
    weight = floats(32, 32)
    proto = build([node("Gather", "w i", "y")], {"i": (onnx.TensorProto.INT64, [2])}, weights={"w": weight})
    data = bytearray(proto.SerializeToString())
    session = open_session(InMemory(parse(memoryview(data))))
    data[:] = bytes(len(data))
    assert run_session(session, None, {"i": np.array([3, 5])})[0].tolist() == weight[[3, 5]].tolist()


def test_what_does_not_load_is_said(apart):
    proto = build([node("MatMul", "x w", "y")], {"x": [3, 32]}, weights={"w": floats(32, 32)})
    proto.graph.node[0].attribute.add(name="nonsense", type=1, f=1.0)
    with pytest.raises(SessionError, match="nonsense"):
        open_session(InMemory(parse(proto.SerializeToString())))


PEAK = """
import sys
from onnxq.ir import load
from onnxq.runtime.session import InMemory, open_session

def peak():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) << 10

model = load(sys.argv[1])
before = peak()
session = open_session(InMemory(model) if sys.argv[2] == "apart" else model.serialize())
print((peak() - before) / model.weight_bytes)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peaks are read from /proc")
def test_opening_a_session_takes_the_memory_of_its_weights_and_little_more(tmp_path):
    layers = 16
    nodes = [node("MatMul", f"x{i} w{i}", f"x{i + 1}") for i in range(layers)]
    weights = {f"w{i}": np.full((1024, 1024), i, np.float32) for i in range(layers)}
    onnx.save(build(nodes, {"x0": [1, 1024]}, [f"x{layers}"], weights), tmp_path / "m.onnx")

    def taken(how):
        command = [sys.executable, "-c", PEAK, str(tmp_path / "m.onnx"), how]
        return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    # The pages of the mapped file count, too
    assert taken("apart") < 2.8 < 3.5 < taken("whole")


def test_equal_models_share_a_session_where_sessions_are_kept() -> None:
    weights = {"w": floats(4, 4)}

    def model(operator: str, scale: float = 1.0) -> Model:
        nodes = [node("MatMul", "x w", "h"), node(operator, "h", "y")]
        given = {name: array * np.float32(scale) for name, array in weights.items()}
        return parse(build(nodes, {"x": [2, 4]}, ["y"], given).SerializeToString())

    with sessions_kept():
        first = open_session(model("Relu"), keep=True)
        assert open_session(model("Relu"), keep=True) is first
        assert open_session(model("Relu")) is not first
        assert open_session(model("Relu"), keep=True, optimize="basic") is not first
        assert open_session(model("Relu", 2.0), keep=True) is not first
        assert open_session(model("Relu"), keep=True) is first
        for operator in ("Neg", "Abs", "Exp"):
            open_session(model(operator), keep=True)
        assert open_session(model("Relu"), keep=True) is not first  # the last few only
    assert open_session(model("Relu"), keep=True) is not open_session(model("Relu"), keep=True)


def test_a_digest_covers_weights_beside_the_bytes(apart: None) -> None:
    def digest(scale: float) -> bytes:
        weights = {"w": floats(8, 8) * np.float32(scale)}
        made = build([node("MatMul", "x w", "y")], {"x": [2, 8]}, ["y"], weights)
        return encode(InMemory(parse(made.SerializeToString()))).digest

    assert digest(1.0) == digest(1.0) != digest(2.0)
