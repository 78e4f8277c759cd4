"""A table of embeddings that is the head's weight as well is stored once."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from helpers import floats, node, recipe_of
from onnx import TensorProto, helper, numpy_helper

import onnxq
from onnxq import evaluate
from onnxq.ir import infer_types, parse
from onnxq.pipeline.quantize import quantize
from onnxq.planning.planner import make_plan
from onnxq.planning.recipe import in_blocks
from onnxq.rounding.layer_by_layer import block_jobs
from onnxq.rounding.tied_tables import tied_tables

TABLE = floats(96, 64, seed=5)


def language_model(head=None, *, gemm=False, alpha=1.0):
    """Rows of a table, a product, and a head, which reads the table transposed unless another weight is given."""
    weights = {"table": TABLE, "w": floats(64, 64, seed=6, scale=0.2)}
    nodes = [node("Gather", "table ids", "x"), node("Softmax", "x", "s", axis=1), node("MatMul", "s w", "h")]
    if gemm:
        weights["flat"] = np.array([-1, 64], np.int64)
        nodes += [node("Reshape", "h flat", "r"), node("Gemm", "r table", "y", transB=1, alpha=alpha)]
    else:
        weights["head"] = np.ascontiguousarray(TABLE.T) if head is None else head
        nodes.append(node("MatMul", "h head", "y"))
    stored = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", "length"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", [ids], [y], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def samples():
    random = np.random.default_rng(0)
    return [{"ids": random.integers(0, 96, (1, 12))} for _ in range(12)]


@pytest.mark.parametrize("gemm", [False, True])
def test_one_tensor_serves_table_and_head(tmp_path, gemm):
    onnx.save(language_model(gemm=gemm), tmp_path / "m.onnx")
    report = quantize(tmp_path / "m.onnx", in_blocks(4), samples=samples(), output=tmp_path / "q.onnx")
    made = onnx.load(tmp_path / "q.onnx").graph
    counts = Counter(each.op_type for each in made.node)
    assert counts["GatherBlockQuantized"] == 1
    assert counts["MatMulNBits"] == 2
    large = [each for each in made.initializer if np.prod(each.dims) >= TABLE.size]
    assert [list(each.dims) for each in large] == [[96, 2, 32]]
    assert report.comparison is not None
    assert report.comparison.worst_sqnr > 15
    feeds = samples()[0]
    mine = evaluate(onnxq.load(tmp_path / "q.onnx"), feeds)["y"]
    session = open_model(tmp_path / "q.onnx")
    np.testing.assert_allclose(session.run(None, feeds)[0], mine, atol=0.05 * np.abs(mine).max())


def open_model(path):
    return ort.InferenceSession(path, providers=["CPUExecutionProvider"])


def test_rows_of_the_shared_table_are_those_of_the_float_table(tmp_path):
    onnx.save(language_model(), tmp_path / "m.onnx")
    quantize(tmp_path / "m.onnx", in_blocks(4), samples=samples(), output=tmp_path / "q.onnx")
    model = onnx.load(tmp_path / "q.onnx")
    lookup = next(each for each in model.graph.node if each.op_type == "GatherBlockQuantized")
    joined = next(each for each in model.graph.node if lookup.output[0] in each.input)
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info(joined.output[0], TensorProto.FLOAT, None))
    onnx.save(model, tmp_path / "rows.onnx")
    ids = np.arange(96).reshape(2, 48)
    rows = open_model(tmp_path / "rows.onnx").run(None, {"ids": ids})[0]
    steps = (TABLE.reshape(96, 2, 32).max(-1) - TABLE.reshape(96, 2, 32).min(-1)).max() / 255
    np.testing.assert_allclose(rows, TABLE.reshape(2, 48, 64), atol=2 * steps)


@pytest.mark.parametrize("shape", [(0, 3), (2, 0)])
def test_no_rows_are_looked_up_as_in_float(tmp_path, shape):
    onnx.save(language_model(), tmp_path / "m.onnx")
    quantize(tmp_path / "m.onnx", in_blocks(4), samples=samples(), output=tmp_path / "q.onnx")
    feeds = {"ids": np.zeros(shape, np.int64)}
    exact, made = (open_model(tmp_path / name).run(None, feeds)[0] for name in ("m.onnx", "q.onnx"))
    assert made.shape == exact.shape


OTHER = np.ascontiguousarray(TABLE.T)
OTHER[0, 0] += 1e-3


@pytest.mark.parametrize(
    ("model", "recipe"),
    [
        (language_model(OTHER), in_blocks(4)),
        (language_model(gemm=True, alpha=0.5), in_blocks(4)),
        (language_model(), in_blocks(4).setting(zero_points=False)),
        (language_model(), recipe_of("weight-int4")),
    ],
    ids=["another_weight", "alpha", "symmetric", "not_matmulnbits"],
)
def test_what_is_not_the_same_stays_apart(model, recipe):
    parsed = parse(model.SerializeToString())
    infer_types(parsed)
    assert not tied_tables(make_plan(parsed, recipe, with_data=True))


def test_a_tied_weight_does_not_compensate_for_layers_before():
    parsed = parse(language_model().SerializeToString())
    infer_types(parsed)
    plan = make_plan(parsed, in_blocks(4), with_data=True)
    assert [job.corrects for job in block_jobs(plan)] == [True, False]
    untied = parse(language_model(OTHER).SerializeToString())
    infer_types(untied)
    assert [job.corrects for job in block_jobs(make_plan(untied, in_blocks(4), with_data=True))] == [True, True]
