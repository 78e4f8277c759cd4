"""The runner of simplifying passes, and who asks for it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from helpers import build, node, run

from onnxq.errors import InvalidResult, RecipeError
from onnxq.ir import Model, infer_types, parse
from onnxq.ir.patch import Patch
from onnxq.planning.recipe import load_recipe, parse_recipe
from onnxq.simplify import Change, pass_manager, simplify
from onnxq.stages.prepare import prepare

X = np.float32([[-2.0, -0.5, 0.25, 3.0]])


def abs_of_neg(opset: int = 0):
    """A pass: Abs needs no Neg before it."""

    def describe(model: Model):
        for item in model.graph.nodes:
            source = item.inputs[0]
            if item.op_type == "Abs" and source.producer is not None and source.producer.op_type == "Neg":
                patch = Patch(model.graph, item, "Abs forgets the sign")
                patch.rewire(item, 0, source.producer.inputs[0])
                yield Change(patch, "dropped {} sign{s}", opset)

    return pass_manager.Simplification("abs_of_neg", 1, describe)


@pytest.fixture
def with_pass(monkeypatch):
    return lambda *passes: monkeypatch.setattr(pass_manager, "find_simplifications", lambda: passes)


def negated(opset: int = 17) -> Model:
    nodes = [node("Neg", "x", "a"), node("Neg", "a", "b"), node("Abs", "b", "y")]
    return parse(build(nodes, {"x": [1, 4]}, opset=opset).SerializeToString())


def test_passes_run_until_nothing_is_left(with_pass):
    with_pass(abs_of_neg())
    model = negated()
    before = model.serialize()
    infer_types(model)
    found = simplify(model)
    assert found.model is model
    assert [item.op_type for item in model.graph.nodes] == ["Abs"]
    assert found.notes == ("dropped 2 signs",)
    assert [item.op_type for item in found.original.graph.nodes] == ["Neg", "Neg", "Abs"]
    assert model.graph.nodes[0].outputs[0].shape == (1, 4)  # types are inferred
    for data in (model.serialize(), found.original.serialize()):
        np.testing.assert_array_equal(run(data, {"x": X})[0], run(before, {"x": X})[0])
    again = simplify(found.model)
    assert (again.model, again.original, again.notes) == (found.model, None, ())


def test_the_opset_is_raised_where_a_change_needs_it(with_pass):
    with_pass(abs_of_neg(opset=20))
    model = negated(opset=17)
    infer_types(model)
    found = simplify(model)
    assert (found.model.opset, model.opset) == (20, 17)
    assert found.original is model
    assert found.notes == ("dropped 2 signs", "opset raised from 17 to 20")
    np.testing.assert_array_equal(run(found.model.serialize(), {"x": X})[0], np.abs(X))


def test_what_cannot_be_converted_stays_as_it_is(with_pass, monkeypatch):
    def refuse(model, minimum):
        raise pass_manager.ModelError("no way")

    monkeypatch.setattr(pass_manager, "raise_opset", refuse)
    with_pass(abs_of_neg(opset=20))
    model = negated()
    infer_types(model)
    found = simplify(model)
    assert (found.model, found.original, found.notes) == (model, None, ())
    with_pass(abs_of_neg(opset=20), replace(abs_of_neg(), name="other"))
    assert simplify(model).notes == ("dropped 2 signs",)


def test_a_pass_that_breaks_a_graph_is_named(with_pass):
    def describe(model: Model):
        model.graph.nodes[2].inputs[0] = model.graph.inputs[0]
        yield Change(Patch(model.graph), "broke {}")

    with_pass(pass_manager.Simplification("breaks", 1, describe))
    model = negated()
    infer_types(model)
    with pytest.raises(InvalidResult, match="the pass breaks broke the model"):
        simplify(model)
    with pytest.raises(ValueError, match="no simplifying pass is named fold_all"):
        simplify(model, only=["fold_all"])


def test_recipes_allow_it_but_for_other_targets(with_pass, tmp_path):
    with_pass(abs_of_neg())
    path = tmp_path / "m.onnx"

    def ops(recipe) -> tuple[list[str], bool, tuple[str, ...]]:
        path.write_bytes(negated().serialize())
        prepared = prepare(load_again(path), recipe, with_data=False)
        return [item.op_type for item in prepared.model.graph.nodes], prepared.original is None, prepared.notes

    whole = (["Neg", "Neg", "Abs"], True, ())
    assert ops("auto") == (["Abs"], False, ("dropped 2 signs",))
    assert ops(parse_recipe("simplify = false", "r")) == whole
    for target in ("generic", "openvino", "qnn", "tensorrt"):
        assert ops(load_recipe("auto").for_target(target)) == whole
    proto = onnx.load(path)
    proto.graph.node.append(onnx.helper.make_node("Unknown", ["y"], ["z"], domain="not.here"))
    proto.opset_import.append(onnx.helper.make_opsetid("not.here", 1))
    path.write_bytes(proto.SerializeToString())
    prepared = prepare(load_again(path), "auto", with_data=False)
    assert prepared.original is None  # it cannot be run, so a simplified model could not be compared


def load_again(path):
    return parse(path.read_bytes(), path)


def test_the_key_of_recipes():
    assert parse_recipe('scheme = "auto"', "r").simplify is True
    off = parse_recipe('name = "r"\nsimplify = false', "r")
    assert (off.simplify, off.simplifies) == (False, False)
    assert parse_recipe(off.to_toml(), "r") == off
    assert "simplify" not in load_recipe("auto").to_toml()
    with pytest.raises(RecipeError, match="'simplify' must be true or false"):
        parse_recipe("simplify = 1", "r")
    with pytest.raises(RecipeError, match="a rule cannot set 'simplify'"):
        parse_recipe("[[rules]]\nsimplify = false", "r")
    with pytest.raises(RecipeError, match="unknown key 'simplfy'"):
        parse_recipe("simplfy = false", "r")
