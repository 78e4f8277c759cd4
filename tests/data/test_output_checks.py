"""Outputs that say that samples are normalised otherwise than in training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxq.data import output_checks
from onnxq.data.conventions import OtherValues, other_values
from onnxq.data.examine import examine
from onnxq.data.normalization import remedy
from onnxq.ir import Model, parse
from onnxq.runtime.session import Session

COUNT, CLASSES = 12, 16


def classifier(scale: float, prior: float = 0.6) -> Model:
    """Build a classifier that is sure of prototypes whose values are `scale` times those of 0 to 1."""
    prototypes = np.random.default_rng(0).random((CLASSES, 48)).astype(np.float32)
    weight = 4 * (prototypes - prototypes.mean(0)) / scale
    priors = prior * np.random.default_rng(5).standard_normal(CLASSES)
    nodes = [
        helper.make_node("Flatten", ["x"], ["flat"]),
        helper.make_node("MatMul", ["flat", "w"], ["scores"]),
        helper.make_node("Add", ["scores", "prior"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 4, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", CLASSES])],
        [numpy_helper.from_array(np.asarray(a, np.float32), n) for n, a in (("w", weight.T), ("prior", priors))],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return parse(made.SerializeToString())


def samples(scale: float) -> list[dict[str, np.ndarray]]:
    prototypes = np.random.default_rng(0).random((CLASSES, 48)).astype(np.float32)
    noise = np.random.default_rng(1).normal(0, 0.02, (COUNT, 48)).astype(np.float32)
    rows = (prototypes[:COUNT] + noise).clip(0, 1) * np.float32(scale)
    return [{"x": row.reshape(1, 3, 4, 4)} for row in rows]


def codes(model: Model, given: list[dict[str, np.ndarray]]) -> list[str]:
    found = examine(model, given).warnings
    return [warning.code for warning in found if warning.code != "few-samples"]


def test_a_classifier_that_is_sure_is_not_warned_of() -> None:
    assert codes(classifier(1.0), samples(1.0)) == []
    assert codes(classifier(255.0), samples(255.0)) == []


def test_a_classifier_that_is_sure_of_other_values_only_is_named() -> None:
    found = examine(classifier(60.0), samples(1.0)).warnings
    assert "wrong-normalization" in [warning.code for warning in found]
    message = next(warning for warning in found if warning.code == "wrong-normalization")
    assert "0 … 255" in message.remedy or "255" in message.remedy


def test_a_classifier_that_is_unsure_but_gives_all_classes_is_not_warned_of() -> None:
    assert codes(classifier(40.0, prior=0.0), samples(1.0)) == []


def test_other_values_are_run_no_further_than_they_can_be_sure(monkeypatch: pytest.MonkeyPatch) -> None:
    """None makes this classifier sure: after 7 of 12 samples of next to no certainty, the rest cannot reach 45 %."""
    runs: list[int] = []
    original = output_checks.run_session

    def counted(*given: Any) -> list[Any]:
        runs.append(1)
        return original(*given)

    monkeypatch.setattr(output_checks, "run_session", counted)
    model, given = classifier(1e9), samples(1.0)
    [summary] = examine(model, given).inputs
    runs.clear()
    found = [one.code for one in output_checks.output_warnings(model, given, {summary.name: summary})]
    assert "wrong-normalization" not in found
    others = len(list(other_values(summary)))
    assert COUNT + 7 * others <= len(runs) < COUNT + 9 * others


def test_large_outputs_that_hardly_differ_are_told_by_a_part_of_them() -> None:
    """2^18 elements that are equal but for a little noise; every 64th is a constant."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 1 << 18])
    places = np.random.default_rng(0).standard_normal((1, 1 << 18)).astype(np.float32)
    for factor, told in ((1e-6, True), (1.0, False)):
        weight = factor * np.random.default_rng(1).standard_normal((4, 1 << 18)).astype(np.float32)
        weight[:, ::64] = 0
        nodes = [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Add", ["m", "b"], ["y"])]
        constants = [numpy_helper.from_array(array, name) for name, array in (("w", weight), ("b", places))]
        made = helper.make_model(
            helper.make_graph(nodes, "g", [x], [y], constants),
            opset_imports=[helper.make_opsetid("", 17)],
            ir_version=8,
        )
        given = [{"x": row[None]} for row in np.random.default_rng(2).standard_normal((6, 4)).astype(np.float32)]
        found = examine(parse(made.SerializeToString()), given, calibrating=True)
        assert ("equal-outputs" in [warning.code for warning in found.warnings]) == told


def test_an_output_that_is_a_sequence_is_no_classifier() -> None:
    """SplitToSequence gives a list of tensors, which has no type and no probabilities."""
    nodes = [helper.make_node("SplitToSequence", ["x"], ["y"], axis=1)]
    row = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", CLASSES])
    parts = helper.make_tensor_sequence_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", [row], [parts])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    given = [{"x": np.random.default_rng(i).random((1, CLASSES), np.float32)} for i in range(COUNT)]
    assert codes(parse(made.SerializeToString()), given) == []


def test_the_remedy_for_pictures_is_an_option() -> None:
    assert "(--preprocess normalize=bytes)" in remedy([other_of("bytes")], files=True)
    assert "(x as it is read, where x is a picture of 0 … 255)" in remedy([other_of("bytes")])
    assert remedy([], files=True).startswith("Prepare the samples as in training, by --preprocess: ")


def other_of(setting: str) -> OtherValues:
    summary = examine(classifier(255), samples(1)).inputs[0]
    return next(other for other in other_values(summary) if other.setting == f"normalize={setting}")


def test_few_samples_run_where_their_outputs_clearly_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[int] = []
    run = output_checks.run_session

    def counted(session: Session, outputs: Sequence[str] | None, feeds: Mapping[str, np.ndarray]) -> list[Any]:
        runs.append(1)
        return run(session, outputs, feeds)

    monkeypatch.setattr(output_checks, "run_session", counted)
    rng = np.random.default_rng(3)
    graph = helper.make_graph(
        [helper.make_node("Tanh", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 4, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 3, 4, 4])],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    model = parse(made.SerializeToString())
    given = [{"x": rng.standard_normal((1, 3, 4, 4)).astype(np.float32)} for _ in range(COUNT)]
    assert codes(model, given) == []
    assert len(runs) == output_checks.FIRST
    alike = [{"x": 50 + abs(one["x"])} for one in given]  # of which a Tanh makes 1
    codes(model, alike)
    assert len(runs) == output_checks.FIRST + COUNT


def test_samples_of_one_class_are_told_apart_from_outputs_that_see_nothing() -> None:
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["s"]), helper.make_node("Softmax", ["s"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 32])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 2])],
        [numpy_helper.from_array(np.array([[1.0, 0.0]] * 32, np.float32), "w")],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    given = [{"x": np.random.default_rng(i).random((1, 32), np.float32)} for i in range(COUNT)]
    found = [one for one in examine(parse(made.SerializeToString()), given).warnings if one.code == "equal-outputs"]
    assert [one.message for one in found] == [f"the model is sure of one class for all {COUNT} samples"]
    assert "Give samples of all classes" in found[0].remedy


@pytest.mark.parametrize("last", ["y", "logits", "scores"])
def test_samples_of_which_each_has_the_same_class_are_named(last: str) -> None:
    model = classifier(1.0, prior=0)
    if last != "y":
        model.graph.outputs[:] = [value for node in model.graph.nodes for value in node.makes if value.name == last]
    noise = np.random.default_rng(2).normal(0, 0.25, (COUNT, 1, 3, 4, 4)).astype(np.float32)
    alike = [{"x": samples(1.0)[3]["x"] + more} for more in noise]
    (found,) = [one for one in examine(model, alike).warnings if one.code == "one-class"]
    assert found.message == f"the model gives class 3 of 0 to {CLASSES - 1} for each of {COUNT} samples"
    assert "one-class" not in codes(model, [*alike[1:], samples(1.0)[4]])
    if last == "scores":
        model.graph.outputs[0].name = "embedding"  # its greatest number may always be the same one
        assert "one-class" not in codes(model, alike)
