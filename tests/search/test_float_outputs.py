"""The part of a changed model that its changes reach, and what variants give that run no more than that."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from helpers import build, floats, node

from onnxq.data.samples import input_specs, wrap_samples
from onnxq.ir import Model, Patch, commit, load
from onnxq.ir.segment import cut_changed
from onnxq.ir.shape_inference.types import infer_types
from onnxq.search.sqnr_evaluator import SqnrEvaluator


def two_branches(tmp_path: Path) -> Model:
    """Two products of one Relu, each an output, the second with a skip connection from the input."""
    nodes = [
        node("MatMul", "x first", "a"),
        node("Relu", "a", "b"),
        node("MatMul", "b left", "y"),
        node("MatMul", "b right", "c"),
        node("Add", "c x", "z"),
    ]
    weights = {name: floats(8, 8, seed=seed) for seed, name in enumerate(("first", "left", "right"))}
    path = tmp_path / "branches.onnx"
    path.write_bytes(build(nodes, {"x": [2, 8]}, ["y", "z"], weights).SerializeToString())
    model = load(path)
    infer_types(model)
    return model


def changed(model: Model, output: str) -> Model:
    """A copy in which the product that gives a value has another weight."""
    made = model.copy()
    producer = made.graph.values[output].producer
    assert producer is not None
    patch = Patch(made.graph, producer, "change a weight")
    patch.rewire(producer, 1, patch.constant(floats(8, 8, seed=9), "other"))
    commit([patch])
    return made


def test_a_part_begins_at_known_values_in_front_of_the_change(tmp_path: Path) -> None:
    model = two_branches(tmp_path)
    part = cut_changed(changed(model, "c"), model, ["b"], ["y", "z"])
    assert part is not None
    assert [one.op_type for one in part.nodes] == ["MatMul", "Add"]
    assert {value.name for value in part.inputs} == {"b", "x"}
    assert [value.name for value in part.outputs] == ["z"]


def test_what_is_not_known_is_computed_again(tmp_path: Path) -> None:
    model = two_branches(tmp_path)
    part = cut_changed(changed(model, "c"), model, [], ["y", "z"])
    assert part is not None
    assert [one.op_type for one in part.nodes] == ["MatMul", "Relu", "MatMul", "Add"]
    assert {value.name for value in part.inputs} == {"x"}


def test_everything_behind_a_change_is_changed(tmp_path: Path) -> None:
    model = two_branches(tmp_path)
    part = cut_changed(changed(model, "a"), model, ["a", "b", "c"], ["y", "z"])
    assert part is not None
    assert len(part.nodes) == 5
    assert {value.name for value in part.outputs} == {"y", "z"}


def test_nothing_is_left_of_an_equal_copy(tmp_path: Path) -> None:
    model = two_branches(tmp_path)
    part = cut_changed(model.copy(), model, ["b"], ["y", "z"])
    assert part is not None
    assert not part.nodes
    assert not part.outputs


def test_a_default_of_an_input_is_a_constant_of_a_part(tmp_path: Path) -> None:
    model = two_branches(tmp_path)
    right = model.graph.values["right"]
    right.is_input = True
    model.graph.inputs.append(right)
    part = cut_changed(changed(model, "a"), model, [], ["z"])
    assert part is not None
    assert {value.name for value in part.inputs} == {"x"}
    assert "right" in {value.name for value in part.constants}


def test_parts_are_as_far_from_float_as_whole_models(tmp_path: Path) -> None:
    model = two_branches(tmp_path)
    samples = wrap_samples([{"x": floats(2, 8, seed=20 + at)} for at in range(3)], input_specs(model))
    judge = SqnrEvaluator(model, samples)
    inside = judge.float_tensors(model, {})
    assert inside is not None
    assert "b" in inside.names
    several = [changed(model, name) for name in ("a", "c", "y")]
    whole, parts = list(judge.noises(several)), list(judge.noises(several, inside))
    for one, other in zip(whole, parts, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-12)
    assert not parts[1][0]  # the other output is not touched
