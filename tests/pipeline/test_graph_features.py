"""Whatever a graph may hold: quantized end to end in both modes, it loads, runs, and computes nearly the same."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers import ALL, F, build, floats, node, run, sqnr, unlike
from onnx import TensorProto, helper, numpy_helper

from onnxq.errors import ModelError, NothingToQuantize
from onnxq.ir.opset import minimum_ir
from onnxq.pipeline.quantize import quantize
from onnxq.report import Report

RECIPES = ("auto", "dynamic-int8", "static-int8", "weight-int8")
BOTH = pytest.mark.parametrize("static", [False, True], ids=["dynamic", "static"])


class Result:
    """A model that was quantized through the whole pipeline, and what came of it."""

    def __init__(self, source: bytes, path: Path, report: Report, feeds: Sequence[dict[str, np.ndarray]]) -> None:
        self.source = source
        self.data = path.read_bytes()
        self.proto = onnx.ModelProto.FromString(self.data)
        self.report = report
        self.feeds = feeds

    def worst(self) -> float:
        """SQNR in dB of the worst output of the worst sample, with and without optimisations."""
        return min(
            sqnr(expected, got)
            for feeds in self.feeds
            for level in ({}, {"level": ALL})
            for expected, got in zip(run(self.source, feeds), run(self.data, feeds, **level), strict=True)
        )

    def operators(self) -> list[str]:
        return [one.op_type for one in self.proto.graph.node]


def convert(
    proto: onnx.ModelProto, folder: Path, *, static: bool, recipe: str | None = None, samples: int = 4, **options: Any
) -> Result:
    """Quantize through the pipeline, with random samples of the model's inputs where ranges are to be calibrated."""
    source, target = folder / "m.onnx", folder / "out.onnx"
    source.write_bytes(proto.SerializeToString())
    made = [_feeds(proto, seed) for seed in range(samples)]
    recipe = recipe or ("static-int8" if static else "dynamic-int8")
    report = quantize(source, recipe, output=target, samples=made if static else None, force=True, **options)
    onnx.checker.check_model(str(target), full_check=not proto.graph.sparse_initializer)
    return Result(source.read_bytes(), target, report, made)


def _feeds(proto: onnx.ModelProto, seed: int) -> dict[str, np.ndarray]:
    weights = {w.name for w in proto.graph.initializer}
    feeds = {}
    for one in proto.graph.input:
        shape = [d.dim_value for d in one.type.tensor_type.shape.dim]
        dtype = helper.tensor_dtype_to_np_dtype(one.type.tensor_type.elem_type)
        if one.name not in weights:
            feeds[one.name] = np.asarray(floats(*shape, seed=seed), dtype)
    return feeds


@BOTH
def test_nodes_of_one_name_and_without_a_name(tmp_path: Path, static: bool) -> None:
    nodes = [
        node("MatMul", "x w", "a", name="twin"),
        node("Relu", "a", "b", name="twin"),
        node("MatMul", "b v", "c", name=""),
        node("Tanh", "c", "y", name=""),
    ]
    proto = build(nodes, {"x": [3, 64]}, weights={"w": floats(64, 64), "v": floats(64, 32, seed=1)})
    source, target = tmp_path / "m.onnx", tmp_path / "out.onnx"
    source.write_bytes(proto.SerializeToString())
    samples = [{"x": floats(3, 64, seed=i)} for i in range(4)] if static else None
    report = quantize(source, "static-int8" if static else "dynamic-int8", output=target, samples=samples, fast=True)
    assert any("renamed 1 node" in note for note in report.notes)
    proto.graph.node[1].name = "other"
    feeds = {"x": floats(3, 64, seed=9)}
    assert sqnr(run(proto.SerializeToString(), feeds)[0], run(target.read_bytes(), feeds)[0]) > 20


@BOTH
def test_names_that_quantization_would_like_to_use(tmp_path: Path, static: bool) -> None:
    names = ("scale", "zero_point", "quantized", "dequantized", "cast", "float")
    taken = {f"{base}_{name}": np.array(i + 0.5, F) for i, name in enumerate(names) for base in ("x", "w", "y")}
    nodes = [node("MatMul", "x w", "a")]
    for index, name in enumerate(taken):
        nodes.append(node("Add", f"{'a' if index == 0 else f'a{index - 1}'} {name}", f"a{index}"))
    nodes.append(node("Identity", f"a{len(taken) - 1}", "y"))
    proto = build(nodes, {"x": [3, 64]}, weights={"w": floats(64, 64), **taken})
    result = convert(proto, tmp_path, static=static)
    assert result.worst() > 30


@BOTH
def test_stated_types_are_not_believed(tmp_path: Path, static: bool) -> None:
    proto = build([node("MatMul", "x w", "a"), node("Relu", "a", "y")], {"x": [3, 64]}, weights={"w": floats(64, 64)})
    proto.graph.value_info.append(helper.make_tensor_value_info("a", TensorProto.INT64, [7, 7, 7]))
    proto.graph.value_info.append(helper.make_tensor_value_info("gone", TensorProto.FLOAT, [1]))
    source, target = tmp_path / "m.onnx", tmp_path / "out.onnx"
    source.write_bytes(proto.SerializeToString())
    samples = [{"x": floats(3, 64, seed=i)} for i in range(4)] if static else None
    quantize(source, "static-int8" if static else "dynamic-int8", output=target, samples=samples, fast=True)
    onnx.checker.check_model(str(target), full_check=True)
    del proto.graph.value_info[:]
    feeds = {"x": floats(3, 64, seed=9)}
    assert sqnr(run(proto.SerializeToString(), feeds)[0], run(target.read_bytes(), feeds)[0]) > 30


@BOTH
def test_dimensions_of_size_zero(tmp_path: Path, static: bool) -> None:
    nodes = [
        node("MatMul", "x w", "a"),
        node("MatMul", "x empty", "none"),
        node("Concat", "a none", "y", axis=1),
        node("MatMul", "nothing w", "z"),
    ]
    weights = {"w": floats(64, 64), "empty": np.zeros((64, 0), F), "nothing": np.zeros((0, 64), F)}
    proto = build(nodes, {"x": [3, 64]}, outputs=("y", "z"), weights=weights)
    result = convert(proto, tmp_path, static=static)
    got = run(result.data, {"x": floats(3, 64)})
    assert got[0].shape == (3, 64)
    assert got[1].shape == (0, 64)
    assert sqnr(run(result.source, {"x": floats(3, 64)})[0], got[0]) > 30


@BOTH
def test_a_batch_without_rows(tmp_path: Path, static: bool) -> None:
    proto = build([node("MatMul", "x w", "y")], {"x": ["n", 64]}, weights={"w": floats(64, 64)})
    source, target = tmp_path / "m.onnx", tmp_path / "out.onnx"
    source.write_bytes(proto.SerializeToString())
    samples = [{"x": np.zeros((0, 64), F)}, {"x": floats(3, 64)}] if static else None
    quantize(source, "static-int8" if static else "dynamic-int8", output=target, samples=samples, fast=True)
    assert run(target.read_bytes(), {"x": floats(2, 64)})[0].shape == (2, 64)


@BOTH
def test_scalars_and_absent_inputs(tmp_path: Path, static: bool) -> None:
    nodes = [
        node("Mul", "x factor", "a"),
        node("Gemm", "a w", "b"),
        node("Clip", "b - high", "c"),
        node("Add", "c s", "d"),
        node("ReduceSum", "d", "total", keepdims=0),
        node("Add", "d total", "y"),
    ]
    weights = {"w": floats(64, 64), "factor": np.array(0.5, F), "high": np.array(3.0, F)}
    proto = build(nodes, {"x": [3, 64], "s": []}, weights=weights)
    assert convert(proto, tmp_path, static=static).worst() > 25


@BOTH
def test_sparse_initializers_stay(tmp_path: Path, static: bool) -> None:
    dense = np.zeros(64, F)
    dense[[3, 40]] = [1.5, -2.0]
    proto = build(
        [node("MatMul", "x w", "a"), node("Add", "a s", "y")], {"x": [3, 64], "s": [64]}, weights={"w": floats(64, 64)}
    )
    del proto.graph.input[1]
    values = numpy_helper.from_array(dense[[3, 40]], "s")
    indices = numpy_helper.from_array(np.array([3, 40], np.int64), "s_indices")
    proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [64]))
    result = convert(proto, tmp_path, static=static)
    assert [s.values.name for s in result.proto.graph.sparse_initializer] == ["s"]
    assert result.worst() > 30


@BOTH
def test_training_information_metadata_and_words_stay(tmp_path: Path, static: bool) -> None:
    proto = build([node("MatMul", "x w", "y")], {"x": [3, 64]}, weights={"w": floats(64, 64)})
    proto.producer_name, proto.doc_string, proto.graph.doc_string = "maker", "words", "more words"
    proto.metadata_props.add(key="author", value="somebody")
    info = proto.training_info.add()
    info.algorithm.CopyFrom(helper.make_graph([], "algorithm", [], []))
    result = convert(proto, tmp_path, static=static)
    kept = result.proto
    assert (kept.producer_name, kept.doc_string, kept.graph.doc_string) == ("maker", "words", "more words")
    assert {p.key: p.value for p in kept.metadata_props}["author"] == "somebody"
    assert len(kept.training_info) == 1
    assert result.worst() > 30


@BOTH
def test_a_weight_that_is_an_output_too(tmp_path: Path, static: bool) -> None:
    weight = floats(64, 64)
    proto = build([node("MatMul", "x w", "y")], {"x": [3, 64]}, outputs=("y", "w"), weights={"w": weight})
    result = convert(proto, tmp_path, static=static)
    assert result.worst() > 30
    np.testing.assert_array_equal(run(result.data, result.feeds[0])[1], weight)


@BOTH
def test_a_bias_that_two_layers_share(tmp_path: Path, static: bool) -> None:
    nodes = [node("Conv", "x w b", "a", pads=[1] * 4), node("Conv", "a v b", "y", pads=[1] * 4)]
    weights = {"w": floats(8, 8, 3, 3, scale=0.1), "v": floats(8, 8, 3, 3, seed=1, scale=2), "b": floats(8)}
    proto = build(nodes, {"x": [1, 8, 8, 8]}, weights=weights)
    result = convert(proto, tmp_path, static=static, recipe=None if static else "weight-int8")
    assert result.worst() > 25


@BOTH
@pytest.mark.parametrize("recipe", ["weight-int8", None])
def test_one_weight_read_along_different_axes(tmp_path: Path, static: bool, recipe: str | None) -> None:
    nodes = [
        node("MatMul", "x w", "a"),
        node("Gemm", "a w", "b", transB=1),
        node("Gemm", "b w", "c", transB=1, alpha=0.5),
        node("MatMul", "c w", "y"),
    ]
    proto = build(nodes, {"x": [3, 64]}, weights={"w": floats(64, 64) * np.linspace(0.01, 1, 64, dtype=F)})
    assert convert(proto, tmp_path, static=static, recipe=recipe).worst() > 25


@BOTH
def test_a_table_that_is_looked_up_and_multiplied(tmp_path: Path, static: bool) -> None:
    nodes = [
        node("Gather", "table ids", "rows"),
        node("Transpose", "table", "head", perm=[1, 0]),
        node("MatMul", "rows head", "y"),
    ]
    proto = build(nodes, {"ids": (TensorProto.INT64, (5,))}, weights={"table": floats(50, 64)})
    source, target = tmp_path / "m.onnx", tmp_path / "out.onnx"
    source.write_bytes(proto.SerializeToString())
    feeds = {"ids": np.array([1, 5, 7, 0, 49])}
    quantize(source, output=target, samples=[feeds] * 4 if static else None)
    assert sqnr(run(source.read_bytes(), feeds)[0], run(target.read_bytes(), feeds)[0]) > 30


@BOTH
@pytest.mark.parametrize("recipe", ["weight-int8", "auto", None])
@pytest.mark.parametrize(("alpha", "beta"), [(0.25, 1.0), (1.0, 0.5), (-2.0, -0.5), (1.0, 0.0)])
@pytest.mark.parametrize("transposed", [0, 1])
def test_gemm_with_alpha_and_beta(
    tmp_path: Path, static: bool, recipe: str | None, alpha: float, beta: float, transposed: int
) -> None:
    one = node("Gemm", "x w b", "y", alpha=alpha, beta=beta, transB=transposed)
    shape = (32, 64) if transposed else (64, 32)
    proto = build([one], {"x": [3, 64]}, weights={"w": floats(*shape), "b": floats(32, seed=5, scale=30)})
    assert convert(proto, tmp_path, static=static, recipe=recipe, fast=True).worst() > 30


@BOTH
@pytest.mark.parametrize("opset", [7, 8, 9, 10, 11, 12, 13, 16, 18, 19, 20, 21, 23, 25, 26])
def test_every_opset_that_onnxruntime_loads(tmp_path: Path, static: bool, opset: int) -> None:
    weights = {"k": floats(8, 4, 3, 3, scale=0.3), "w": floats(512, 64, scale=0.1), "b": floats(64)}
    nodes = [
        node("Conv", "x k", "a", pads=[1] * 4),
        node("Relu", "a", "r"),
        node("Flatten", "r", "f"),
        node("Gemm", "f w b", "y"),
    ]
    proto = build(nodes, {"x": [1, 4, 8, 8]}, weights=weights, opset=opset)
    proto.ir_version = minimum_ir(opset)
    if opset < 9:  # IR version 3 wants every initializer among the inputs
        for weight in proto.graph.initializer:
            proto.graph.input.append(helper.make_tensor_value_info(weight.name, weight.data_type, weight.dims))
    result = convert(proto, tmp_path, static=static, fast=opset not in (7, 13, 26))  # trials copy models of these three
    assert result.worst() > 25
    assert len(result.data) < 0.5 * len(result.source)


@BOTH
def test_an_opset_that_is_too_new_is_lowered_where_that_is_legal(tmp_path: Path, static: bool) -> None:
    proto = build([node("MatMul", "x w", "a"), node("Celu", "a", "y")], {"x": [3, 64]}, weights={"w": floats(64, 64)})
    proto.opset_import[0].version, proto.ir_version = 28, 14
    source, target = tmp_path / "m.onnx", tmp_path / "out.onnx"
    source.write_bytes(proto.SerializeToString())
    samples = [{"x": floats(3, 64, seed=i)} for i in range(4)] if static else None
    report = quantize(source, "static-int8" if static else "dynamic-int8", output=target, samples=samples, fast=True)
    assert "opset 28 and IR version 14 lowered to 26 and 13, which onnxruntime loads" in report.notes
    assert run(target.read_bytes(), {"x": floats(3, 64)})[0].shape == (3, 64)


@BOTH
def test_an_operator_that_is_too_new_is_refused_before_anything_is_written(tmp_path: Path, static: bool) -> None:
    proto = build(
        [node("MatMul", "x w", "a"), node("Mod", "a a", "y", fmod=1)], {"x": [3, 64]}, weights={"w": floats(64, 64)}
    )
    proto.opset_import[0].version, proto.ir_version = 28, 14
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    samples = [{"x": floats(3, 64)}] if static else None
    with pytest.raises(ModelError, match="node n_y is Mod of opset 28; onnxruntime loads up to 26"):
        quantize(tmp_path / "m.onnx", samples=samples)
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]


@BOTH
@pytest.mark.parametrize("first", RECIPES)
def test_a_quantized_model_is_left_as_it_is(tmp_path: Path, static: bool, first: str) -> None:
    if first == "static-int8" and not static:
        pytest.skip("static quantization needs data")
    weights = {
        "k": floats(8, 4, 3, 3, scale=0.3),
        "v": floats(8, 8, 3, 3, scale=0.3),
        "w": floats(512, 64, scale=0.1),
        "u": floats(64, 64, scale=0.1),
        "b": floats(64),
    }
    nodes = [
        node("Conv", "x k", "a", pads=[1] * 4),
        node("Relu", "a", "r"),
        node("Conv", "r v", "c", pads=[1] * 4),
        node("Add", "r c", "s"),
        node("Flatten", "s", "f"),
        node("Gemm", "f w b", "g"),
        node("MatMul", "g u", "y"),
    ]
    proto = build(nodes, {"x": [1, 4, 8, 8]}, weights=weights)
    result = convert(proto, tmp_path, static=static, recipe=first, fast=True)
    again = tmp_path / "again.onnx"
    samples = result.feeds if static else None
    for recipe in RECIPES:
        with pytest.raises(NothingToQuantize, match="it is quantized already"):
            quantize(tmp_path / "out.onnx", recipe, output=again, samples=samples)
    del result.proto.metadata_props[:]
    (tmp_path / "out.onnx").write_bytes(result.proto.SerializeToString())
    with pytest.raises(NothingToQuantize, match="can be quantized"):
        quantize(tmp_path / "out.onnx", first, output=again, samples=samples)
    assert not again.exists()


def quantized_half() -> onnx.ModelProto:
    """A MatMul between Q/DQ pairs, and one that is still float."""
    nodes = [
        node("QuantizeLinear", "x s z", "xq"),
        node("DequantizeLinear", "xq s z", "xd"),
        node("DequantizeLinear", "wq ws wz", "wd"),
        node("MatMul", "xd wd", "a"),
        node("Relu", "a", "r"),
        node("MatMul", "r v", "y"),
    ]
    weights = {
        "s": np.array(0.03, F),
        "z": np.array(128, np.uint8),
        "wq": unlike(np.random.default_rng(0).integers(-127, 128, (64, 64))).astype(np.int8),
        "ws": np.full(64, 0.01, F),
        "wz": np.zeros(64, np.int8),
        "v": floats(64, 64, seed=1),
    }
    nodes[2].attribute.append(helper.make_attribute("axis", 1))
    return build(nodes, {"x": [3, 64]}, weights=weights)


@BOTH
@pytest.mark.parametrize("recipe", ["auto", "weight-int8", None])
def test_a_partly_quantized_model_gets_the_rest(tmp_path: Path, static: bool, recipe: str | None) -> None:
    proto = quantized_half()
    result = convert(proto, tmp_path, static=static, recipe=recipe)
    before = {one.name: one.SerializeToString() for one in proto.graph.node[:4]}
    after = {one.name: one.SerializeToString() for one in result.proto.graph.node}
    assert {name: after.get(name) for name in before} == before
    assert "v" not in [w.name for w in result.proto.graph.initializer]
    assert result.worst() > 30


def test_an_output_without_a_shape_gets_the_one_that_is_inferred(tmp_path: Path) -> None:
    model = build([node("MatMul", "x w", "y")], {"x": ["N", 64]}, ["y"], {"w": floats(64, 32)})
    model.graph.output[0].type.tensor_type.ClearField("shape")
    quantize(model, output=tmp_path / "q.onnx")
    made = onnx.load(tmp_path / "q.onnx")
    onnx.checker.check_model(made)
    assert [size.dim_param or size.dim_value for size in made.graph.output[0].type.tensor_type.shape.dim] == ["N", 32]
