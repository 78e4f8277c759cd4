"""Nodes inside If, Loop and Scan are quantized like those outside: calibrated by our evaluator, in every scope."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers import ALL, F, count_ops, floats, graph, node, run, session, sqnr
from onnx import TensorProto, helper

from onnxq.pipeline.quantize import quantize
from onnxq.report import Report

BOOL, INT = TensorProto.BOOL, TensorProto.INT64
BOTH = pytest.mark.parametrize("static", [False, True], ids=["dynamic", "static"])
Samples = list[dict[str, np.ndarray]]


def convert(
    proto: onnx.ModelProto,
    folder: Path,
    samples: Samples,
    *,
    static: bool,
    recipe: str | None = None,
    fast: bool = False,
) -> tuple[onnx.ModelProto, float, Report]:
    """Quantize through the pipeline; give the result and its SQNR in dB over all samples, optimised or not."""
    source, target = folder / "m.onnx", folder / "out.onnx"
    source.write_bytes(proto.SerializeToString())
    recipe = recipe or ("static-int8" if static else "dynamic-int8")
    report = quantize(source, recipe, output=target, samples=samples if static else None, force=True, fast=fast)
    onnx.checker.check_model(str(target), full_check=True)
    worst = min(
        sqnr(expected, got)
        for feeds in samples
        for level in ({}, {"level": ALL})
        for expected, got in zip(run(source.read_bytes(), feeds), run(target.read_bytes(), feeds, **level), strict=True)
    )
    return onnx.load(target), worst, report


def assemble(
    nodes: list[onnx.NodeProto], inputs: Any, outputs: dict[str, int], weights: Any = None, opset: int = 17
) -> onnx.ModelProto:
    """A checked model whose outputs, given with their ranks, no inference has to reach."""
    made = graph(nodes, inputs, list(outputs), weights or {})
    for value, rank in zip(made.output, outputs.values(), strict=True):
        value.CopyFrom(helper.make_tensor_value_info(value.name, TensorProto.FLOAT, [None] * rank))
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.checker.check_model(model)
    return model


def branch(text: str, weight: np.ndarray | None, name: str) -> onnx.GraphProto:
    """`MatMul x w` and Relu under the tensor names that every branch uses."""
    nodes = [node("MatMul", text, "h", name="same"), node("Relu", "h", "t", name="also_same")]
    return graph(nodes, {}, ["t"], {} if weight is None else {"w": weight}, name)


def choosing(then: onnx.GraphProto, other: onnx.GraphProto, weights: Any = None, **inputs: Any) -> onnx.ModelProto:
    nodes = [
        node("Mul", "x two", "m"),
        helper.make_node("If", ["c"], ["z"], name="choose", then_branch=then, else_branch=other),
        node("Identity", "z", "y"),
    ]
    given = {"x": [4, 64], "c": (BOOL, []), **inputs}
    return assemble(nodes, given, {"y": 2}, {"two": np.array(2, F), **(weights or {})})


def both_ways(count: int = 6) -> Samples:
    return [{"x": floats(4, 64, seed=i), "c": np.array(i % 2 == 0)} for i in range(count)]


def fused(proto: onnx.ModelProto, folder: Path) -> dict[str, int]:
    """Operators after onnxruntime has optimised, bodies included."""
    session(proto.SerializeToString(), ALL, keep=str(folder / "optimised.onnx"))
    return dict(count_ops(onnx.load(folder / "optimised.onnx")))


@BOTH
@pytest.mark.parametrize("inside", [True, False], ids=["weights inside", "weights outside"])
def test_both_branches_of_an_if(tmp_path: Path, static: bool, inside: bool) -> None:
    first, second = floats(64, 32), floats(64, 32, seed=1)
    if inside:
        proto = choosing(branch("m w", first, "then"), branch("x w", second, "else"))
    else:
        proto = choosing(branch("m v", None, "then"), branch("x v", None, "else"), {"v": first})
    made, worst, report = convert(proto, tmp_path, both_ways(), static=static, fast=True)
    assert worst > 30
    assert [d.scheme for d in report.nodes if d.op_type == "MatMul"] == [
        "static-int8" if static else "dynamic-int8"
    ] * 2
    found = fused(made, tmp_path)
    assert "MatMul" not in found
    assert sum(found.get(op, 0) for op in ("MatMulIntegerToFloat", "DynamicQuantizeMatMul")) == 2


@pytest.mark.parametrize(("recipe", "fallback"), [("static-int8", "weight-int8"), ("eager", "dynamic-int8")])
def test_a_branch_that_no_sample_takes(
    tmp_path: Path, recipe: str, fallback: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if recipe == "eager":  # what is faster is not asked here
        monkeypatch.setattr("onnxq.planning.planner.partition_graph", lambda graph, forms, *_: (set(forms), 0.0))
        monkeypatch.setattr("onnxq.planning.planner._keep_paying_run_time", lambda *_: None)
        monkeypatch.setattr("onnxq.stages.kernel_timing.worthwhile", lambda _: True)
        monkeypatch.setattr("onnxq.search.meet_budget.is_priced", lambda _: False)
        recipe = "auto"
    other = branch("n w", floats(64, 32, seed=1), "else")
    other.node.insert(0, node("Neg", "x", "n"))
    proto = choosing(branch("m w", floats(64, 32), "then"), other)
    samples = [{**feeds, "c": np.array(True)} for feeds in both_ways()]
    made, worst, report = convert(proto, tmp_path, samples, static=True, recipe=recipe)
    assert worst > 30
    not_taken, taken = [d for d in report.nodes if d.op_type == "MatMul"]
    assert (taken.scheme, not_taken.scheme) == ("static-int8", fallback)
    assert not_taken.reason.endswith("no sample runs the body it stands in")
    feeds = {"x": floats(4, 64, seed=9), "c": np.array(False)}
    assert sqnr(run(proto.SerializeToString(), feeds)[0], run(made.SerializeToString(), feeds)[0]) > 30


@BOTH
def test_convolutions_in_a_body(tmp_path: Path, static: bool) -> None:
    nodes = [
        node("Conv", "x k", "a", pads=[1] * 4),
        node("Relu", "a", "b"),
        node("Conv", "b l bias", "d", pads=[1] * 4),
        node("MaxPool", "d", "p", kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", "p k", "t", pads=[1] * 4),
    ]
    weights = {"k": floats(16, 16, 3, 3, scale=0.1), "l": floats(16, 16, 3, 3, seed=1, scale=0.1), "bias": floats(16)}
    then = graph(nodes, {}, ["t"], weights, "then")
    other = graph([node("MaxPool", "x", "t2", kernel_shape=[2, 2], strides=[2, 2])], {}, ["t2"], {}, "else")
    holder = helper.make_node("If", ["c"], ["y"], name="choose", then_branch=then, else_branch=other)
    proto = assemble([holder], {"x": [1, 16, 8, 8], "c": (BOOL, [])}, {"y": 4})
    samples = [{"x": floats(1, 16, 8, 8, seed=i), "c": np.array(i != 2)} for i in range(6)]
    recipe = None if static else "weight-int8"
    made, worst, _ = convert(proto, tmp_path, samples, static=static, recipe=recipe)
    assert worst > 25
    assert not static or fused(made, tmp_path)["QLinearConv"] == 3


def looping(count: int = 3) -> onnx.ModelProto:
    """A Loop that carries `state`, reads the captured `x`, and has a weight on either side of its border."""
    body = graph(
        [
            node("MatMul", "state w", "a"),
            node("MatMul", "x v", "b"),
            node("Add", "a b", "sum"),
            node("Tanh", "sum", "next"),
            node("Identity", "next", "scan"),
            node("Identity", "go", "still"),
        ],
        {"i": (INT, []), "go": (BOOL, []), "state": [4, 64]},
        {"still": BOOL, "next": TensorProto.FLOAT, "scan": TensorProto.FLOAT},
        {"w": floats(64, 64, scale=0.1)},
        "body",
    )
    nodes = [
        helper.make_node("Loop", ["n", "", "x"], ["last", "all"], name="loop", body=body),
        node("MatMul", "last v", "y"),
    ]
    weights = {"n": np.array(count, np.int64), "v": floats(64, 64, seed=3, scale=0.1)}
    return assemble(nodes, {"x": [4, 64]}, {"y": 2, "all": 3}, weights)


CHAINS = {
    "a clamp of the Conv before it": (["Conv"], ["Relu", "Conv"]),
    "a clamp of codes": (["Conv", "MaxPool", "Relu"], ["Conv"]),
    "a clamp that goes": (["Conv", "Relu", "MaxPool", "Clip"], ["Conv"]),
    "an upsampling": (["Conv", "Resize"], ["Conv"]),
}
OPERATORS: dict[str, tuple[str, dict[str, Any]]] = {
    "Conv": ("{} w b", {"pads": [1] * 4}),
    "MaxPool": ("{}", {"kernel_shape": [3, 3], "pads": [1] * 4}),
    "Clip": ("{} low", {}),
    "Resize": ("{} none twice", {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}),
}


def chain(before: list[str], inside: list[str]) -> onnx.ModelProto:
    """Operators one behind another, the last ones in a branch of an If, which alone reads the others."""
    made = []
    for number, op_type in enumerate([*before, *inside]):
        inputs, attributes = OPERATORS.get(op_type, ("{}", {}))
        made.append(node(op_type, inputs.format(f"v{number}"), f"v{number + 1}", **attributes))
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * 4) for name in (*made[-1].output, "n")]
    then = helper.make_graph(made[len(before) :], "then", [], results[:1])
    other = helper.make_graph([node("Neg", "v0", "n")], "other", [], results[1:])
    weights = {"w": floats(16, 16, 3, 3, seed=8), "b": floats(16, seed=9), "low": F(-0.5), "twice": F([1, 1, 2, 2])}
    used = {name: array for name, array in weights.items() if any(name in one.input for one in made)}
    used |= {"none": F([])} if "Resize" in before else {}
    choice = node("If", "taken", "y", then_branch=then, else_branch=other)
    return assemble([*made[: len(before)], choice], {"v0": [1, 16, 12, 12], "taken": (BOOL, [])}, {"y": 4}, used)


@pytest.mark.parametrize("recipe", ["static-int8", "auto"])
@pytest.mark.parametrize("parts", CHAINS.values(), ids=CHAINS)
def test_what_only_a_body_reads_of_a_chain(tmp_path: Path, parts: tuple[list[str], list[str]], recipe: str) -> None:
    """What is written as one node elsewhere stays apart where a body begins in between."""
    samples = [{"v0": floats(1, 16, 12, 12, seed=seed), "taken": np.array(bool(seed))} for seed in range(4)]
    fast = recipe != "auto"  # trials copy models of that one
    assert convert(chain(*parts), tmp_path, samples, static=True, recipe=recipe, fast=fast)[1] > 25


@BOTH
def test_a_loop_with_a_state_and_captured_values(tmp_path: Path, static: bool) -> None:
    samples = [{"x": floats(4, 64, seed=i)} for i in range(6)]
    made, worst, report = convert(looping(), tmp_path, samples, static=static)
    assert worst > 25
    assert all(d.scheme for d in report.nodes if d.op_type == "MatMul")
    assert "MatMul" not in fused(made, tmp_path)


@BOTH
def test_a_loop_that_does_not_run(tmp_path: Path, static: bool) -> None:
    samples = [{"x": floats(4, 64, seed=i)} for i in range(4)]
    _, worst, report = convert(looping(0), tmp_path, samples, static=static, recipe="auto")
    assert worst > 25
    assert all(d.scheme for d in report.nodes if d.op_type == "MatMul")


@BOTH
def test_a_scan(tmp_path: Path, static: bool) -> None:
    body = graph(
        [
            node("Concat", "state item", "both", axis=0),
            node("Gemm", "both w b", "g"),
            node("Tanh", "g", "t"),
            node("ReduceMean", "t", "next", axes=[0], keepdims=1),
            node("Identity", "next", "out"),
        ],
        {"state": [1, 64], "item": [1, 64]},
        ["next", "out"],
        {"w": floats(64, 64, scale=0.1), "b": floats(64)},
        "body",
    )
    scan = helper.make_node("Scan", ["start", "x"], ["last", "y"], name="scan", body=body, num_scan_inputs=1)
    proto = assemble([scan], {"x": [5, 1, 64], "start": [1, 64]}, {"last": 2, "y": 3})
    samples = [{"x": floats(5, 1, 64, seed=i), "start": floats(1, 64, seed=i + 50)} for i in range(5)]
    _, worst, report = convert(proto, tmp_path, samples, static=static, fast=True)
    assert worst > 25
    assert all(d.scheme for d in report.nodes if d.op_type == "Gemm")


@BOTH
def test_bodies_inside_bodies(tmp_path: Path, static: bool) -> None:
    inner = helper.make_node(
        "If", ["d"], ["r"], name="inner",
        then_branch=branch("m w", floats(64, 32, seed=4), "deep_then"),
        else_branch=branch("x w", floats(64, 32, seed=5), "deep_else"),
    )  # fmt: skip
    outer = graph([inner, node("Neg", "r", "t")], {}, ["t"], {}, "then")
    proto = choosing(outer, branch("x w", floats(64, 32, seed=6), "else"), d=(BOOL, []))
    samples = [{**feeds, "d": np.array(i % 4 < 2)} for i, feeds in enumerate(both_ways(8))]
    _, worst, report = convert(proto, tmp_path, samples, static=static, fast=True)
    assert worst > 28
    assert sum(bool(d.scheme) for d in report.nodes if d.op_type == "MatMul") == 3


@BOTH
@pytest.mark.parametrize("recipe", ["auto", None])
def test_the_sample_model_with_an_if(tmp_path: Path, static: bool, recipe: str | None) -> None:
    folder = Path(__file__).parents[2] / "sample_models"
    with np.load(folder / "digits_calibration.npz") as archive:
        arrays = {name: archive[name] for name in archive.files}
    proto = onnx.load(folder / "digits_if.onnx")
    names = [value.name for value in proto.graph.input]
    count = len(next(iter(arrays.values())))
    samples = [
        {n: arrays[n][i : i + 1] if arrays[n].shape[:1] == (count,) else arrays[n] for n in names}
        for i in range(0, count, 10)
    ]
    _, worst, report = convert(proto, tmp_path, samples, static=static, recipe=recipe)
    bodies = [d for d in report.nodes if d.scheme and (recipe == "auto" or "static" in d.scheme)]
    assert not static or bodies
    assert worst > 15
