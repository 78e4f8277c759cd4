"""Model-local functions, with weights inside and around them and functions inside functions, quantized end to end."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers import ALL, count_ops, floats, graph, node, run, sqnr
from onnx import TensorProto, helper, numpy_helper

from onnxq.pipeline.quantize import quantize

BOTH = pytest.mark.parametrize("static", [False, True], ids=["dynamic", "static"])
DOMAIN = "blocks"


def constant(name: str, array: np.ndarray) -> onnx.NodeProto:
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(array))


def function(
    name: str, inputs: list[str], outputs: list[str], nodes: list[onnx.NodeProto], opset: int
) -> onnx.FunctionProto:
    imports = [helper.make_opsetid("", opset), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_function(DOMAIN, name, inputs, outputs, nodes, imports)


def with_functions(opset: int = 17, body_opset: int | None = None) -> onnx.ModelProto:
    """`block` has a weight of its own and is given another; `twice` calls it two times, and is called twice."""
    body_opset = body_opset or opset
    block = function(
        "block",
        ["bx", "bw"],
        ["by"],
        [
            constant("own", floats(64, 64, seed=1, scale=0.2)),
            node("MatMul", "bx own", "h"),
            node("Relu", "h", "r"),
            node("MatMul", "r bw", "s"),
            node("Tanh", "s", "by"),
        ],
        body_opset,
    )
    twice = function(
        "twice",
        ["tx", "tw"],
        ["ty"],
        [node("block", "tx tw", "t1", domain=DOMAIN), node("block", "t1 tw", "ty", domain=DOMAIN)],
        body_opset,
    )
    nodes = [
        node("twice", "x w", "a", domain=DOMAIN),
        node("twice", "a v", "b", domain=DOMAIN),
        node("MatMul", "b u", "y"),
    ]
    weights = {name: floats(64, 64, seed=i + 2, scale=0.2) for i, name in enumerate("wvu")}
    made = graph(nodes, {"x": [4, 64]}, [], weights)
    made.output.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 64]))
    imports = [helper.make_opsetid("", opset), helper.make_opsetid(DOMAIN, 1)]
    model = helper.make_model(made, opset_imports=imports, ir_version=8, functions=[block, twice])
    if body_opset == opset:  # the checker forbids what onnxruntime loads
        onnx.checker.check_model(model)
    return model


@BOTH
@pytest.mark.parametrize(("opset", "body_opset"), [(17, 17), (11, 11), (17, 13)])
def test_functions_are_inlined_and_quantized(tmp_path: Path, static: bool, opset: int, body_opset: int) -> None:
    proto = with_functions(opset, body_opset)
    source, target = tmp_path / "m.onnx", tmp_path / "out.onnx"
    source.write_bytes(proto.SerializeToString())
    samples = [{"x": floats(4, 64, seed=i)} for i in range(16)]  # of fewer, held-out ones reach further than the others
    recipe = "static-int8" if static else "dynamic-int8"
    fast = (opset, body_opset) != (17, 17)  # trials copy a model of these
    report = quantize(source, recipe, output=target, samples=samples if static else None, fast=fast)
    made = onnx.load(target)
    onnx.checker.check_model(made, full_check=True)
    assert not made.functions
    assert [d.scheme for d in report.nodes if d.op_type == "MatMul"] == [recipe] * 9
    assert any(note == "inlined 2 model-local functions" for note in report.notes)
    assert static or count_ops(made)["MatMul"] == 0
    for feeds in samples:
        expected = run(source.read_bytes(), feeds)[0]
        assert sqnr(expected, run(target.read_bytes(), feeds)[0]) > 25
        assert sqnr(expected, run(target.read_bytes(), feeds, ALL)[0]) > 25
    assert len(made.SerializeToString()) < 0.5 * sum(4 * 64 * 64 for _ in range(8))


@BOTH
def test_a_function_in_a_body(tmp_path: Path, static: bool) -> None:
    proto = with_functions()
    call = graph([node("block", "x w", "t", domain=DOMAIN)], {}, ["t"], {}, "then")
    other = graph([node("MatMul", "x v", "e")], {}, ["e"], {}, "else")
    holder = helper.make_node("If", ["c"], ["a"], name="choose", then_branch=call, else_branch=other)
    del proto.graph.node[:2]
    proto.graph.node.insert(0, holder)
    proto.graph.node[1].input[0] = "a"
    proto.graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    source, target = tmp_path / "m.onnx", tmp_path / "out.onnx"
    source.write_bytes(proto.SerializeToString())
    samples = [{"x": floats(4, 64, seed=i), "c": np.array(i % 2 == 0)} for i in range(6)]
    recipe = "static-int8" if static else "dynamic-int8"
    report = quantize(source, recipe, output=target, samples=samples if static else None)
    assert [d.scheme for d in report.nodes if d.op_type == "MatMul"] == [recipe] * 4
    for feeds in samples:
        assert sqnr(run(source.read_bytes(), feeds)[0], run(target.read_bytes(), feeds)[0]) > 25
