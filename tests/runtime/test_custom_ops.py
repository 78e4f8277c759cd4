"""Custom operators: left alone, their neighbours quantized, and run only where onnxruntime has their library."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers import F, floats, graph, node
from onnx import TensorProto, helper

from onnxq.calibration.stats import Stats, TensorStats
from onnxq.cli import main
from onnxq.errors import CheckFailed, ModelError
from onnxq.ir import load
from onnxq.pipeline.quantize import quantize
from onnxq.planning.planner import make_plan
from onnxq.planning.recipe import load_recipe
from onnxq.report.markdown import markdown
from onnxq.runtime import ort_session
from onnxq.runtime.custom_ops import foreign_node, register_custom_ops
from onnxq.search.budget import Budget
from onnxq.stages.prepare import prepare


def custom_model(opset: int = 17, stated: bool = False) -> onnx.ModelProto:
    """MatMul, an operator that nobody knows, and a MatMul and a Gemm behind it, whose types nobody can infer."""
    nodes = [
        node("MatMul", "x w", "a"),
        node("Odd", "a", "b", domain="strange", factor=2.0),
        node("MatMul", "b v", "c"),
        node("Relu", "c", "d"),
        node("Gemm", "d u bias", "y"),
    ]
    weights = {name: floats(64, 64, seed=i, scale=0.1) for i, name in enumerate("wvu")}
    weights["bias"] = floats(64)
    made = graph(nodes, {"x": [4, 64]}, [], weights)
    made.output.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 64]))
    if stated:
        made.value_info.append(helper.make_tensor_value_info("b", TensorProto.FLOAT, [4, 64]))
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("strange", 3)]
    return helper.make_model(made, opset_imports=imports, ir_version=6 if opset < 13 else 8)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "m.onnx"
    path.write_bytes(custom_model().SerializeToString())
    return path


@pytest.fixture
def no_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget what a test registers."""
    monkeypatch.setattr("onnxq.runtime.custom_ops.LIBRARIES", libraries := [])
    monkeypatch.setattr(ort_session, "LIBRARIES", libraries)


@pytest.mark.parametrize("recipe", ["auto", "dynamic-int8", "weight-int8"])
@pytest.mark.parametrize("opset", [9, 17])
@pytest.mark.parametrize("stated", [False, True])
def test_neighbours_of_a_custom_operator_are_quantized_without_a_run(
    tmp_path: Path, recipe: str, opset: int, stated: bool
) -> None:
    proto = custom_model(opset, stated)
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    report = quantize(tmp_path / "m.onnx", recipe, output=tmp_path / "out.onnx")
    assert [d.name for d in report.nodes if d.scheme] == ["n_a", "n_c", "n_y"]
    assert report.comparison is None
    assert report.notes[-1] == (
        "not run and not compared with the float model, only checked for form: "
        "onnxruntime has no operator Odd of domain strange (node n_b)"
    )
    assert "not compared with the float model" in markdown(report)
    made = onnx.load(tmp_path / "out.onnx")
    onnx.checker.check_model(made)
    odd = next(one for one in made.graph.node if one.op_type == "Odd")
    assert odd.SerializeToString() == proto.graph.node[1].SerializeToString()
    assert {o.domain: o.version for o in made.opset_import}["strange"] == 3
    assert len(made.SerializeToString()) < 0.4 * proto.ByteSize()


def test_an_output_need_not_state_its_shape(tmp_path: Path) -> None:
    """Exporters do not know it behind a custom operator, and onnxruntime does not ask for it."""
    proto = custom_model()
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    report = quantize(proto, output=tmp_path / "q.onnx")
    assert report.counts()["float"] < len(proto.graph.node)
    assert not onnx.load(tmp_path / "q.onnx").graph.output[0].type.tensor_type.HasField("shape")


def test_a_malformed_model_is_not_called_ours(tmp_path: Path) -> None:
    proto = custom_model(9)
    del proto.graph.node[4].input[2]
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    with pytest.raises(ModelError, match="Gemm node 'n_y' has 2 inputs, and its operator has 3"):
        quantize(tmp_path / "m.onnx", "weight-int8")


@pytest.mark.parametrize("command", ["plan {} --sensitivity", "explain {} *"])
def test_commands_that_ask_for_the_library_take_it(source: Path, capsys, command: str) -> None:
    np.savez(source.parent / "d.npz", x=floats(4, 64))
    asked = [*command.format(source).split(), "-d", str(source.parent / "d.npz")]
    assert main(asked) == 2
    said = capsys.readouterr().err
    assert "it has no operator Odd of domain strange" in said
    assert "hint: Give the library of its custom operators with --custom-ops" in said
    assert main([*asked, "--custom-ops", "nothing.so"]) == 2
    assert "the library of custom operators nothing.so does not exist" in capsys.readouterr().err


def test_a_comparison_that_needs_the_library_says_so(source: Path, capsys) -> None:
    quantized = quantize(source, "weight-int8", output=source.with_name("q.onnx")).output
    assert main(["verify", str(quantized), "--against", str(source)]) == 2
    said = capsys.readouterr().err
    assert "it has no operator Odd of domain strange" in said
    assert "hint: Give the library of its custom operators with --custom-ops" in said


def test_data_need_the_library(source: Path) -> None:
    samples = [{"x": floats(4, 64)}]
    with pytest.raises(ModelError, match="it has no operator Odd of domain strange") as caught:
        quantize(source, samples=samples)
    assert "--custom-ops" in caught.value.hint
    assert [path.name for path in source.parent.iterdir()] == ["m.onnx"]


def test_a_budget_that_cannot_be_measured_is_no_pass(source: Path) -> None:
    with pytest.raises(CheckFailed, match="its SQNR cannot be measured"):
        quantize(source, budget=Budget(min_sqnr=1.0))
    assert [path.name for path in source.parent.iterdir()] == ["m.onnx"]


def test_statistics_from_elsewhere_make_it_static(source: Path, tmp_path: Path) -> None:
    prepared = prepare(load(source), "static-int8", with_data=True)
    stats = Stats()
    for value in prepared.plan.calibrated():
        stats.tensors[value.name] = TensorStats.of(floats(4, 64))
    report = quantize(source, "static-int8", output=tmp_path / "out.onnx", stats=stats)
    assert [d.scheme for d in report.nodes if d.scheme] == ["static-int8"] * 3


def test_fused_operators_of_onnxruntime_are_not_foreign(source: Path) -> None:
    model = load(source)
    found = foreign_node(model)
    assert found is not None
    assert found.op_type == "Odd"
    found.domain, found.op_type = "com.microsoft", "FusedMatMul"
    assert foreign_node(model) is None


def test_the_plan_says_why_a_custom_operator_stays(source: Path) -> None:
    model = load(source)
    plan = make_plan(model, load_recipe("auto"), with_data=False)
    assert "onnxq has no quantized form for operators of strange" in plan.reasons()


LIBRARY = """
#include <stdio.h>
#include <stdlib.h>
void *RegisterCustomOps(void *options, const void *api) {
    FILE *file = fopen(getenv("ONNXQ_TEST_CALLS"), "a");
    if (file) { fputs("called\\n", file); fclose(file); }
    return 0;
}
"""


@pytest.mark.usefixtures("no_libraries")
@pytest.mark.skipif(shutil.which("gcc") is None, reason="no compiler to make a library with")
def test_a_library_is_registered_in_every_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ops.c").write_text(LIBRARY)
    library = tmp_path / "ops.so"
    plain = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}  # as_processor.py's library
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, tmp_path / "ops.c"], check=True, env=plain)
    calls = tmp_path / "calls"
    monkeypatch.setenv("ONNXQ_TEST_CALLS", str(calls))
    register_custom_ops(library)
    register_custom_ops(library)
    assert calls.read_text() == "called\n"
    for _ in range(2):
        ort_session.Settings().options()
    assert calls.read_text() == "called\n" * 3
    path = tmp_path / "m.onnx"
    path.write_bytes(custom_model().SerializeToString())
    with pytest.raises(ModelError, match="onnxruntime cannot load"):  # the library does not hold Odd
        quantize(path, samples=[{"x": np.zeros((4, 64), F)}])


@pytest.mark.usefixtures("no_libraries")
def test_a_library_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="does not exist"):
        register_custom_ops(tmp_path / "nothing.so")
    with pytest.raises(ModelError, match="is a folder"):
        register_custom_ops(tmp_path)
    (tmp_path / "text.so").write_text("no library")
    with pytest.raises(ModelError, match="is no library of custom operators that onnxruntime can load"):
        register_custom_ops(tmp_path / "text.so")
    assert not ort_session.LIBRARIES
