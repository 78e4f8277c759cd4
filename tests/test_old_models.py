"""Models of operator sets that onnxruntime has no kernels for, and models that it cannot run: never a bug of ours."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from helpers import floats, node, run
from onnx import TensorProto, helper, numpy_helper

from onnxq.cli import main
from onnxq.ir import infer_types, load
from onnxq.ir.passes import normalise
from onnxq.pipeline.quantize import quantize
from onnxq.planning.planner import Plan, make_plan
from onnxq.planning.recipe import load_recipe
from onnxq.stages.prepare import replan_with_costs
from onnxq.stages.prepared import Prepared


def old(path, nodes, weights, shape, size, opset=6):
    """Write a model of an old operator set, every initializer an input as well."""
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    inputs += [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(w.dtype), w.shape) for n, w in weights]
    graph = helper.make_graph(
        nodes,
        "g",
        inputs,
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, size])],
        [numpy_helper.from_array(array, name) for name, array in weights],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=3)
    onnx.save(made, path)
    return path


def network(path):
    """As Caffe2 wrote them: a factor for each channel by `axis`, a bias of Gemm by `broadcast`."""
    nodes = [
        node("Conv", "x w b", "c", kernel_shape=[3, 3], pads=[1] * 4),
        node("Mul", "c f", "m", broadcast=1, axis=1),
        node("Relu", "m", "r"),
        node("Reshape", "r rows", "a"),
        node("Gemm", "a v k", "y", broadcast=1),
    ]
    weights = {"w": floats(16, 16, 3, 3, scale=0.1), "b": floats(16, seed=1), "f": floats(16, seed=2)}
    weights |= {"rows": np.int64([1, -1]), "v": floats(4096, 256, scale=0.02), "k": floats(256, seed=3)}
    return old(path, nodes, list(weights.items()), [1, 16, 16, 16], 256)


@pytest.mark.parametrize("with_data", [False, True])
def test_a_model_of_opset_6_is_raised_to_what_onnxruntime_runs(with_data, tmp_path):
    source, target = network(tmp_path / "m.onnx"), tmp_path / "q.onnx"
    samples = [{"x": floats(1, 16, 16, 16, seed=seed)} for seed in range(4)] if with_data else None
    report = quantize(source, samples=samples, output=target, fast=True)
    assert "opset raised from 6 to 7" in report.notes
    assert report.comparison.worst_sqnr > 30
    assert target.stat().st_size < 0.3 * source.stat().st_size
    assert run(target.read_bytes(), {"x": floats(1, 16, 16, 16)})[0].shape == (1, 256)


def test_what_a_plan_needs_is_asked_again_of_the_newer_model(tmp_path, monkeypatch):
    """More may be quantized in it, as shapes become known: the result was written for an opset that it did not have."""
    model = load(network(tmp_path / "m.onnx"))
    normalise(model)
    infer_types(model)
    stored = load_recipe("weight-int8")
    monkeypatch.setattr(
        "onnxq.stages.prepare.make_plan",
        lambda m, recipe, **given: make_plan(m, stored if m.opset == 6 else recipe, **given),
    )
    prepared = replan_with_costs(Prepared(tmp_path, "", 0, model, Plan(load_recipe("auto"), {}, with_data=False), ()))
    assert prepared.model.opset == prepared.plan.opset == 11
    assert "opset raised from 6 to 7" in prepared.notes
    assert "opset raised from 7 to 11" in prepared.notes


def test_a_model_that_cannot_be_raised_is_refused_with_what_to_do(tmp_path, capsys):
    weights = [("w", floats(1, 128, 16)), ("r", floats(1, 128, 32))]
    source = old(tmp_path / "m.onnx", [node("LSTM", "x w r", "y", hidden_size=32)], weights, [5, 1, 16], 32)
    assert main(["quantize", str(source)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        f"error: {source} cannot be converted from opset 6 to 7: onnx's converter fails at LSTM (node n_y)",
        "hint: Export it again with opset 7 or newer.",
    ]


def test_a_model_that_does_not_run_in_float_is_no_bug_of_ours(tmp_path, capsys):
    """Of a Gemm, onnxruntime finds only when it runs that shapes do not fit; of a MatMulInteger, when it loads it."""
    weights = [("rows", np.int64([1, -1])), ("w", floats(256, 256)), ("b", floats(256))]
    nodes = [node("Reshape", "x rows", "r"), node("Gemm", "r w b", "y")]
    source = old(tmp_path / "m.onnx", nodes, weights, [1, 4, 256], 256, opset=9)
    assert main(["quantize", str(source)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("error: onnxruntime cannot run the float model on sample 0 (x [1, 4, 256]): ")
    assert lines[1].startswith("hint: ")
