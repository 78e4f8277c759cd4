"""Nodes that are not what their operators ask for are refused in our words, by file, node and attribute."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from helpers import floats, graph, node
from onnx import TensorProto, helper

import onnxq
from onnxq.cli import main
from onnxq.errors import ModelError
from onnxq.ir.invariants import plain_reason
from onnxq.ir.model import parse
from onnxq.ir.schemas import misused_node
from onnxq.runtime.custom_ops import refusal_hint
from onnxq.runtime.ort_session import SessionError, reason

CONV = {"k": floats(4, 3, 3, 3), "b": floats(4, 1), "s": floats(5)}
MAP, ROW = {"x": [1, 3, 8, 8]}, {"x": [1, 8]}


def build(nodes: list[onnx.NodeProto], inputs: dict, outputs: list[str], weights: dict) -> onnx.ModelProto:
    """Make a model that nobody has checked."""
    imports = [helper.make_opsetid("", 17)]
    return helper.make_model(graph(nodes, inputs, outputs, weights), opset_imports=imports, ir_version=8)


def _branch(*names: str) -> onnx.GraphProto:
    nodes = [node("Relu", "x", name) for name in names]
    return helper.make_graph(
        nodes, "branch", [], [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 8]) for n in names]
    )


def _body() -> onnx.GraphProto:
    state, made = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 8]) for name in ("state", "made"))
    return helper.make_graph([node("Relu", "state", "made")], "body", [state], [made])


CASES = [
    (node("Conv", "", "y", name="c"), MAP, "Conv node 'c' has 0 inputs, and its operator has at least 2"),
    (node("Conv", "x", "y", name="c"), MAP, "Conv node 'c' has 1 input, and its operator has at least 2"),
    (node("Conv", "x k", "y", dilations=1.5), MAP, "Conv node 'n_y' has the attribute dilations as float, not"),
    (
        node("Conv", "x k b", "y", name="c"),
        MAP,
        "Conv node 'c' has a bias of shape [4, 1], and its weight asks for [4]",
    ),
    (
        node("Gemm", "x x", "y", name="g", alpha="a"),
        ROW,
        "Gemm node 'g' has the attribute alpha as string, not as floa",
    ),
    (node("Relu", "x x", "y", name="r"), ROW, "Relu node 'r' has 2 inputs, and its operator has 1"),
    (node("Relu", "x", "y z", name="r"), ROW, "Relu node 'r' has 2 outputs, and its operator has 1"),
    (node("Concat", "x x", "y", name="c"), ROW, "Concat node 'c' lacks its attribute axis"),
    (node("Clip", "x", "y", name="c", max=6.0), ROW, "the attribute max, which its operator does not have in opset 17"),
    (node("BatchNormalization", "x s s s b", "y", name="n"), MAP, "has parameters of shapes [5] and [4, 1]"),
    (
        helper.make_node("If", ["x"], ["y"], name="i", then_branch=_branch("p"), else_branch=_branch("q", "r")),
        ROW,
        "has branches with 2 outputs and 1 output",
    ),
    (
        helper.make_node("Loop", ["x", "", "x"], ["y"], name="l", body=_body()),
        ROW,
        "Loop node 'l' has 3 inputs, and its body has 1",
    ),
]


@pytest.mark.parametrize(("wrong", "inputs", "said"), CASES, ids=[said for *_, said in CASES])
def test_a_node_that_its_operator_does_not_know_is_named(wrong: onnx.NodeProto, inputs: dict, said: str) -> None:
    model = build([wrong], inputs, ["y"], CONV)
    found = misused_node(parse(model.SerializeToString()).graph, 17)
    assert found is not None
    assert said in found


def test_parameters_for_other_channels_are_named() -> None:
    nodes = [node("Conv", "x k", "c"), node("BatchNormalization", "c s s s s", "y", name="n")]
    found = misused_node(parse(build(nodes, MAP, ["y"], CONV).SerializeToString()).graph, 17)
    assert found == "BatchNormalization node 'n' has parameters for [5] channels, and reads [4]"


def test_unknown_operators_and_internal_attributes_pass() -> None:
    nodes = [
        node("Nonsense", "x", "a", power=2),
        node("Relu", "a", "b", __internal=1),
        node("Odd", "b", "y", domain="d"),
    ]
    assert misused_node(parse(build(nodes, ROW, ["y"], {}).SerializeToString()).graph, 17) is None


def test_every_command_that_plans_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(build([node("Conv", "x", "y", name="c")], MAP, ["y"], CONV), "bad.onnx")
    for arguments in (["quantize", "bad.onnx"], ["plan", "bad.onnx"], ["explain", "bad.onnx", "c"]):
        assert main(arguments) == 2
        assert "bad.onnx: Conv node 'c' has 1 input" in capsys.readouterr().err
    assert main(["verify", "bad.onnx"]) == 1
    assert "bad.onnx is no valid ONNX model: Conv node 'c' has 1 input" in capsys.readouterr().err


def test_a_domain_that_is_not_imported_is_named(tmp_path: Path) -> None:
    model = build([node("Relu", "x", "a"), node("Scaler", "a", "y", name="s", domain="ai.onnx.ml")], ROW, ["y"], {})
    del model.opset_import[:]
    model.opset_import.add(version=17)
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(ModelError, match=r"m.onnx: .* node s is Scaler of the domain ai.onnx.ml, which the model does"):
        onnxq.prepare(tmp_path / "m.onnx", "weight-int8", with_data=False)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("'[TypeInferenceError] Types differ'", "Types differ"),
        ("[ShapeInferenceError] (op_type:Add, node name: a): Shapes differ", "Shapes differ"),
        (
            "/p/inliner.cc:224: Bind: Assertion `a <= b` failed: Number of actual parameters cannot exceed number of "
            "formal parameters",
            "a node gives a function more inputs or outputs than it has",
        ),
        ("No Op registered for Nope with domain_version of 17", "opset 17 has no operator Nope"),
        (
            "Your model ir_version 99 is higher than the checker's (14).",
            "it has IR version 99, and this onnx knows those up to 14",
        ),
    ],
)
def test_what_the_onnx_package_says_is_made_plain(text: str, said: str) -> None:
    assert plain_reason(RuntimeError(text)).removeprefix(": ") == said


PREFIX = "[ONNXRuntimeError] : 1 : FAIL : "


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "Unsupported model IR version: 99, max supported IR version: 14",
            "it has IR version 99, and this onnxruntime reads those up to 14",
        ),
        (
            "Non-zero status code returned while running Reshape node. Name:'r' Status Message: size != 0 && "
            "(input_shape_size % size) == 0 was false. The input tensor cannot be reshaped to the requested shape. "
            "Input shape:{1,5,4}, requested shape:{-1,11,2}",
            "Reshape node 'r': its input [1,5,4] cannot have the shape [-1,11,2]",
        ),
        ("Failed to load library /a/b.npz with error: /a/b.npz: invalid ELF header", "invalid ELF header"),
        ("Node (ad) Op (Add) [ShapeInferenceError] Incompatible dimensions", "Add node 'ad': Incompatible dimensions"),
        (
            'This is an invalid model. In Node, ("np", Nope, "", -1) : ("t": tensor(float),) -> ("y": tensor(float),) '
            ", Error No Op registered for Nope with domain_version of 17",
            "Nope node 'np': opset 17 has no such operator",
        ),
        (
            "This is an invalid model. Type Error: Type 'tensor(float)' of input parameter (c) of operator (If) in "
            "node (if) is invalid.",
            "If node 'if': its input 'c' is float, which the operator does not take",
        ),
        (
            "Load model from a b.onnx failed:Node (mm) Op (MatMul) [ShapeInferenceError] Incompatible dimensions",
            "MatMul node 'mm': Incompatible dimensions",
        ),
        (
            "tensorprotoutils.cc:2678 ConstantNodeProtoToTensorProto Constant node: co has no data",
            "Constant node: co has no data",
        ),
        ("Exception during initialization: conv.h:59 Type false was false. Unknown type", "Unknown type"),
    ],
)
def test_what_onnxruntime_says_of_a_model_begins_with_the_node(text: str, said: str) -> None:
    assert reason(RuntimeError(PREFIX + text)) == said


def test_a_custom_operator_without_library_still_gets_its_hint() -> None:
    said = reason(
        RuntimeError(PREFIX + "Load model from m.onnx failed:Fatal error: acme:Odd(-1) is not a registered function/op")
    )
    assert said == "it has no operator Odd of domain acme"
    assert "--custom-ops" in refusal_hint(SessionError(said))
