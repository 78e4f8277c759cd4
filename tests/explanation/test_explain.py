"""What `explain` says of single nodes."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers import build, floats, node
from onnx import TensorProto, helper, numpy_helper

from onnxq.errors import ModelError
from onnxq.explanation.explain import explain
from onnxq.explanation.records import Attempt, Explanation, Wire
from onnxq.ops.forms.per_row import SENTENCE
from onnxq.ops.forms.scheme import Scheme
from onnxq.pipeline.plan import plan_report
from onnxq.pipeline.quantize import quantize
from onnxq.pipeline.request import Quantized
from onnxq.stages.prepared import Prepared
from onnxq.verification.records import Contribution

SAMPLES = Path(__file__).parents[2] / "sample_models"
CNN, DATA = SAMPLES / "digits_cnn.onnx", SAMPLES / "digits_calibration.npz"


def one(*arguments: object, **options: object) -> Explanation:
    (found,) = explain(*arguments, **options)  # type: ignore[arg-type]
    return found


@cache
def with_data() -> dict[str, Explanation]:
    """All nodes of one run, by their names."""
    return {found.node.name: found for found in explain(CNN, "*", data=[DATA], sample_limit=8)}


def test_a_node_by_name() -> None:
    found = one(CNN, "Conv_3")
    assert (found.node.name, found.node.op_type, found.node.scheme) == ("Conv_3", "Conv", "weight-int8")
    assert (found.rule, found.asked) == ("recipe auto", "auto")
    assert [attempt.scheme for attempt in found.attempts] == ["dynamic-int8", "weight-int8"]
    assert [attempt.accepted for attempt in found.attempts] == [False, True]
    assert found.attempts[-1] == Attempt("weight-int8", True, found.node.reason)
    assert found.times is None  # kernel times have a say only where static quantization is possible
    assert [wire.origin for wire in found.inputs] == ["", "constant", "constant"]
    assert found.inputs[1].kind == "float32[64, 32, 3, 3]"
    assert [(w.name, w.op_type, w.scheme) for w in found.inputs[0].nodes] == [("Relu_2", "Relu", None)]
    assert [(w.name, w.op_type) for w in found.outputs[0].nodes] == [("Relu_5", "Relu")]
    assert (found.activations, found.layers) == ((), ())


def test_ends_of_the_graph() -> None:
    first, last = one(CNN, "Conv_0"), one(CNN, "Gemm_21")
    assert first.inputs[0] == Wire("image", "float32[batch, 1, 8, 8]", "input of the graph", ())
    assert (last.outputs[0].tensor, last.outputs[0].origin) == ("logits", "output of the graph")


def test_by_tensor_and_by_glob() -> None:
    assert one(CNN, "logits").node.name == "Gemm_21"
    assert [found.node.name for found in explain(CNN, "Conv_*")] == ["Conv_0", "Conv_3", "Conv_7"]


@pytest.mark.parametrize(
    ("pattern", "message", "hint"),
    [
        ("Cov_3", "no node of .* is called 'Cov_3'", "Did you mean 'Conv_3'"),
        ("logitz", "no node of .* is called 'logitz'", "Did you mean 'logits'"),
        ("conv_1", "no node of .* is called 'conv_1'", "Its Conv nodes are 'Conv_0', 'Conv_3', 'Conv_7'. `onnxq plan`"),
        ("Reshape9", "no node of .* is called 'Reshape9'", "Its Reshape node is 'Reshape_"),
        ("zebra", "no node of .* is called 'zebra'", "`onnxq plan` lists all nodes."),
        ("BatchNormalization_1", "gone before anything is quantized: .*folded 3 BatchNormalization", "took it in"),
    ],
)
def test_names_that_nothing_has(pattern: str, message: str, hint: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        explain(CNN, pattern)
    assert hint in caught.value.hint


def test_the_rule_that_decided(tmp_path: Path) -> None:
    recipe = tmp_path / "mine.toml"
    recipe.write_text('name = "mine"\nscheme = "static-int8"\n[[rules]]\nop = "Conv"\nname = "*_3"\nscheme = "float"\n')
    found = one(CNN, "Conv_3", recipe)
    assert (found.rule, found.asked, found.attempts) == ("rule op = 'Conv', name = '*_3'", "float", ())
    other = one(CNN, "Conv_7", recipe)
    assert (other.rule, other.asked, other.node.scheme) == ("recipe mine", "static-int8", "static-int8")
    assert other.times is None  # the recipe leaves no choice
    assert one(CNN, "Conv_3", exclude=["Conv"]).rule == "--exclude Conv"
    assert one(CNN, "Conv_3", only=["Gemm"]).rule == "--only"


def test_with_data_the_figures_are_those_of_the_run(tmp_path: Path) -> None:
    found = with_data()["Conv_3"]
    assert found.node.scheme == "static-int8"
    assert found.times is not None
    assert 0 < found.times.in_integers < found.times.in_float
    assert not found.times.guessed  # the batch is open, and the first sample says how large it is
    report = quantize(CNN, output=tmp_path / "q.onnx", data=[DATA], sample_limit=8, detailed=True)
    assert found.activations == tuple(a for a in report.activations if "Conv_3" in a.nodes)
    assert len(found.activations) == 2
    model = onnx.load(tmp_path / "q.onnx")
    stored = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    scales = {float(stored[n.input[1]]) for n in model.graph.node if n.op_type == "QuantizeLinear"}
    assert {a.scale for a in found.activations} <= scales


def test_what_a_search_changes_takes_the_place_of_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    shares = (Contribution("Conv_3", "Conv", "22", "static-int8", 1e-4, 0.75, True),)

    def searched(prepared: Prepared, *_: object, **__: object) -> Quantized:
        report = plan_report(prepared)
        nodes = [replace(n, scheme=None, reason="returned") if n.name == "Conv_3" else n for n in report.nodes]
        return Quantized(prepared.model, replace(report, nodes=tuple(nodes), sensitivity=shares), b"")

    monkeypatch.setattr("onnxq.explanation.explain.quantize_prepared", searched)
    found = one(CNN, "Conv_3", data=[DATA], sample_limit=2)
    assert (found.node.scheme, found.node.reason) == (None, "returned")
    assert found.contribution == shares[0]
    (maker,) = one(CNN, "Relu_5", data=[DATA], sample_limit=2).inputs[0].nodes
    assert (maker.name, maker.scheme) == ("Conv_3", None)


def test_an_absorbed_node_was_not_asked() -> None:
    found = with_data()["Relu_5"]
    assert found.node.reason.startswith("absorbed by the quantized output of Conv_3")
    assert found.attempts == ()
    assert [a.nodes[:2] for a in found.activations] == [("Conv_3", "Relu_5")]


def test_nodes_without_names_in_bodies_with_missing_inputs(tmp_path: Path) -> None:
    body = helper.make_graph(
        [helper.make_node("Clip", ["x", "", "high"], ["inner"])], "b", [],
        [helper.make_tensor_value_info("inner", TensorProto.FLOAT, [2])],
    )  # fmt: skip
    graph = helper.make_graph(
        [helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=body)], "g",
        [helper.make_tensor_value_info(*i) for i in [("x", TensorProto.FLOAT, [2]), ("c", TensorProto.BOOL, [])]],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
        [numpy_helper.from_array(np.float32(1), "high")],
    )  # fmt: skip
    path = tmp_path / "if.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    found = explain(path, "inner*")  # a node without a name goes by what it makes
    assert [clip.node.op_type for clip in found] == ["Clip", "Clip"]
    assert [wire.origin for wire in found[0].inputs] == ["input of the graph", "left out", "constant"]
    assert one(path, "y").node.op_type == "If"


def test_everything_goes_into_json() -> None:
    found = with_data()["Conv_3"]
    data = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert data["name"] == "Conv_3"
    assert data["times"]["in_float"] > 0
    assert data["inputs"][0]["nodes"][0]["name"] == "Relu_2"
    assert data["activations"][0]["scale"] > 0
    assert Scheme().name == data["asked"]


def test_rows_that_are_taken_without_data_are_the_attempt_that_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    weights = {"w": floats(256, 512)}
    path.write_bytes(build([node("MatMul", "x w", "y")], {"x": [128, 256]}, ["y"], weights).SerializeToString())
    found = one(path, "y")
    assert found.node.scheme == "dynamic-int8"
    assert found.attempts == (Attempt("dynamic-int8", True, SENTENCE),)
    assert found.node.reason == SENTENCE
