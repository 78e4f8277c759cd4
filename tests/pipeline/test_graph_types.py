"""Element types: 16-bit floats are computed in float32 and quantized; what cannot be is left, in a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers import ALL, F, floats, graph, node, run, sqnr
from onnx import TensorProto, helper, numpy_helper

from onnxq.errors import NothingToQuantize
from onnxq.pipeline.quantize import quantize
from onnxq.report import Report

F16 = np.float16
BOTH = pytest.mark.parametrize("static", [False, True], ids=["dynamic", "static"])


def halves(*shape: int, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    return floats(*shape, seed=seed, scale=scale).astype(F16)


def assemble(
    nodes: Sequence[onnx.NodeProto],
    inputs: dict[str, tuple[int, list[int]]],
    outputs: dict[str, int],
    weights: dict[str, np.ndarray],
    opset: int = 17,
) -> onnx.ModelProto:
    """A checked model; ranks of outputs are inferred."""
    made = graph(nodes, inputs, outputs, weights)
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    for value, known in zip(model.graph.output, onnx.shape_inference.infer_shapes(model).graph.output, strict=True):
        value.CopyFrom(known)
    onnx.checker.check_model(model, full_check=True)
    return model


def convert(
    proto: onnx.ModelProto,
    folder: Path,
    samples: Sequence[dict[str, np.ndarray]],
    *,
    static: bool,
    recipe: str = "",
    fast: bool = False,
) -> tuple[bytes, float, Report]:
    source, target = folder / "m.onnx", folder / "out.onnx"
    source.write_bytes(proto.SerializeToString())
    recipe = recipe or ("static-int8" if static else "dynamic-int8")
    given = list(samples) if static else None
    report = quantize(source, recipe, output=target, samples=given, force=True, fast=fast)
    onnx.checker.check_model(str(target), full_check=True)
    worst = min(
        sqnr(expected.astype(F), got.astype(F))
        for feeds in samples
        for level in ({}, {"level": ALL})
        for expected, got in zip(run(source.read_bytes(), feeds), run(target.read_bytes(), feeds, **level), strict=True)
    )
    return target.read_bytes(), worst, report


def half_network(opset: int = 17) -> onnx.ModelProto:
    """Convolutions, a table, a layer normalisation and products, all in float16, with two outputs on the way."""
    nodes = [
        node("Conv", "x k kb", "a", pads=[1] * 4),
        node("Relu", "a", "b"),
        node("Conv", "b l", "c", pads=[1] * 4),
        node("Flatten", "c", "f"),
        node("Gemm", "f w wb", "g"),
        node("Tanh", "g", "mid"),
        node("Gather", "table ids", "rows"),
        node("Add", "mid rows", "s"),
        node("MatMul", "s v", "y"),
        node("Relu", "x", "positive"),
        node("Cast", "positive", "as_int", to=TensorProto.INT32),
    ]
    weights = {
        "k": halves(8, 4, 3, 3, scale=0.2),
        "kb": halves(8, scale=0.2),
        "l": halves(16, 8, 3, 3, seed=1, scale=0.1),
        "w": halves(16 * 64, 64, seed=2, scale=0.03),
        "wb": halves(64, seed=3, scale=0.1),
        "table": halves(50, 64, seed=4),
        "v": halves(64, 64, seed=5, scale=0.1),
    }
    inputs = {"x": (TensorProto.FLOAT16, [1, 4, 8, 8]), "ids": (TensorProto.INT64, [1])}
    outputs = {"y": TensorProto.FLOAT16, "mid": TensorProto.FLOAT16, "as_int": TensorProto.INT32}
    return assemble(nodes, inputs, outputs, weights, opset)


def half_samples(count: int = 5) -> list[dict[str, np.ndarray]]:
    return [{"x": halves(1, 4, 8, 8, seed=i), "ids": np.array([7 * i])} for i in range(count)]


@BOTH
@pytest.mark.parametrize("opset", [13, 17, 19, 21])
def test_a_float16_model_is_quantized(tmp_path: Path, static: bool, opset: int) -> None:
    proto = half_network(opset)
    data, worst, report = convert(proto, tmp_path, half_samples(), static=static, recipe="auto", fast=opset in (17, 19))
    assert worst > 20
    assert any("computed in float32, as onnxruntime does on the CPU" in note for note in report.notes)
    kept = onnx.ModelProto.FromString(data)
    assert [v.type.tensor_type.elem_type for v in kept.graph.input] == [TensorProto.FLOAT16, TensorProto.INT64]
    assert [v.type.tensor_type.elem_type for v in kept.graph.output] == [10, 10, TensorProto.INT32]
    assert len(data) < 0.6 * proto.ByteSize()
    layers = [d for d in report.nodes if d.op_type in ("Conv", "Gemm", "MatMul", "Gather")]
    assert [d.name for d in layers if not d.scheme] == ["n_a"]  # its weight is too small


def test_float16_that_the_file_states_about_inner_values_is_not_repeated(tmp_path: Path) -> None:
    """As converters write it. Calibration reads inner values, which compute in float32."""
    stated = onnx.shape_inference.infer_shapes(half_network(17))
    assert {info.type.tensor_type.elem_type for info in stated.graph.value_info} >= {TensorProto.FLOAT16}
    _, worst, _ = convert(stated, tmp_path, half_samples(), static=True, recipe="auto", fast=False)
    assert worst > 20


@BOTH
def test_float16_weights_that_stay_float_are_stored_in_16_bits(tmp_path: Path, static: bool) -> None:
    nodes = [node("MatMul", "x w", "a"), node("Mul", "a big", "y")]
    weights = {"w": halves(64, 512, scale=0.1), "big": halves(64, 512)}
    proto = assemble(nodes, {"x": (TensorProto.FLOAT16, [64, 64])}, {"y": TensorProto.FLOAT16}, weights)
    data, worst, _ = convert(proto, tmp_path, [{"x": halves(64, 64, seed=i)} for i in range(3)], static=static)
    assert worst > 25
    assert len(data) < proto.ByteSize() * 0.8
    kept = {w.name: w.data_type for w in onnx.ModelProto.FromString(data).graph.initializer}
    assert TensorProto.FLOAT16 in kept.values()


@BOTH
def test_float16_in_a_body(tmp_path: Path, static: bool) -> None:
    then = graph([node("MatMul", "m w", "t")], {}, {"t": TensorProto.FLOAT16}, {"w": halves(64, 64)}, "then")
    other = graph([node("MatMul", "x v", "e")], {}, {"e": TensorProto.FLOAT16}, {}, "else")
    nodes = [
        node("Neg", "x", "m"),
        helper.make_node("If", ["c"], ["z"], name="choose", then_branch=then, else_branch=other),
        node("Relu", "z", "y"),
    ]
    inputs = {"x": (TensorProto.FLOAT16, [4, 64]), "c": (TensorProto.BOOL, [])}
    proto = helper.make_model(
        graph(nodes, inputs, {"y": TensorProto.FLOAT16}, {"v": halves(64, 64, seed=1)}),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    samples = [{"x": halves(4, 64, seed=i), "c": np.array(i % 2 == 0)} for i in range(4)]
    source, target = tmp_path / "m.onnx", tmp_path / "out.onnx"
    source.write_bytes(proto.SerializeToString())
    quantize(source, "static-int8" if static else "dynamic-int8", output=target, samples=samples if static else None)
    for feeds in samples:
        assert sqnr(run(source.read_bytes(), feeds)[0], run(target.read_bytes(), feeds)[0]) > 25


@BOTH
def test_bfloat16_inside_a_model(tmp_path: Path, static: bool) -> None:
    weight = floats(64, 64)
    nodes = [
        node("Cast", "x", "h", to=TensorProto.BFLOAT16),
        node("MatMul", "h w", "a"),
        node("Cast", "a", "y", to=TensorProto.FLOAT),
    ]
    made = graph(nodes, {"x": [4, 64]}, ["y"], {})
    made.initializer.append(
        numpy_helper.from_array(weight.astype(helper.tensor_dtype_to_np_dtype(TensorProto.BFLOAT16)), "w")
    )
    proto = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    samples = [{"x": floats(4, 64, seed=i)} for i in range(4)]
    recipe = "static-int8" if static else "dynamic-int8"
    quantize(tmp_path / "m.onnx", recipe, output=tmp_path / "out.onnx", samples=samples if static else None)
    got = run((tmp_path / "out.onnx").read_bytes(), samples[0])[0]
    assert sqnr(samples[0]["x"] @ weight, got) > 30


@BOTH
def test_double_is_left_in_a_sentence(tmp_path: Path, static: bool) -> None:
    proto = assemble(
        [node("MatMul", "x w", "y")],
        {"x": (TensorProto.DOUBLE, [4, 64])},
        {"y": TensorProto.DOUBLE},
        {"w": floats(64, 64).astype(np.float64)},
    )
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    samples = [{"x": floats(4, 64).astype(np.float64)}] if static else None
    with pytest.raises(NothingToQuantize, match="weight is float64, not float32"):
        quantize(tmp_path / "m.onnx", samples=samples)
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]


def test_a_float32_model_with_a_float16_border_keeps_its_casts(tmp_path: Path) -> None:
    nodes = [
        node("Cast", "x", "f", to=TensorProto.FLOAT),
        node("MatMul", "f w", "a"),
        node("Cast", "a", "y", to=TensorProto.FLOAT16),
    ]
    inputs = {"x": (TensorProto.FLOAT16, [4, 64])}
    proto = assemble(nodes, inputs, {"y": TensorProto.FLOAT16}, {"w": floats(64, 64)})
    _, worst, report = convert(proto, tmp_path, [{"x": halves(4, 64)}], static=False)
    assert worst > 30
    assert not any("16-bit" in note for note in report.notes)


def test_weights_that_a_cast_makes_float16(tmp_path: Path) -> None:
    nodes = [
        node("Cast", "x", "h", to=TensorProto.FLOAT16),
        node("Cast", "w", "v", to=TensorProto.FLOAT16),
        node("MatMul", "h v", "a"),
        node("Cast", "a", "y", to=TensorProto.FLOAT),
    ]
    inputs = {"x": (TensorProto.FLOAT, [4, 64])}
    proto = assemble(nodes, inputs, {"y": TensorProto.FLOAT}, {"w": floats(64, 64)})
    _, worst, report = convert(proto, tmp_path, [{"x": floats(4, 64)}], static=False)
    assert worst > 30
    assert [d.scheme for d in report.nodes if d.op_type == "MatMul"] == ["dynamic-int8"]
