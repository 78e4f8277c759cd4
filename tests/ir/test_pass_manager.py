"""The pass manager: its registry, its runner, and who asks for it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from helpers import build, node, run

from onnxq import simplify as simplifying
from onnxq.errors import InvalidResult, ModelError, RecipeError
from onnxq.ir import Model, infer_types, parse, pass_manager
from onnxq.ir.pass_manager import PACKAGES, Change, Pass, find_passes, run_passes
from onnxq.ir.patch import Patch
from onnxq.planning.recipe import load_recipe, parse_recipe
from onnxq.simplify import simplify
from onnxq.stages.prepare import prepare
from onnxq.targets.target import load_target

X = np.float32([[-2.0, -0.5, 0.25, 3.0]])


def abs_of_neg(opset: int = 0):
    """A pass: Abs needs no Neg before it."""

    def describe(model: Model):
        for item in model.graph.nodes:
            source = item.inputs[0]
            if item.op_type == "Abs" and source.producer is not None and source.producer.op_type == "Neg":
                patch = Patch(model.graph, item, "Abs forgets the sign")
                patch.rewire(item, 0, source.producer.inputs[0])
                yield Change(patch, opset=opset)

    return Pass("abs_of_neg", "simplify", 1, "Abs needs no Neg.", describe, "dropped {} sign{s}")


@pytest.fixture
def with_pass(monkeypatch):
    return lambda *passes: monkeypatch.setattr(
        pass_manager, "find_passes", lambda phase: passes * (phase == "simplify")
    )


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
        raise ModelError("no way")

    monkeypatch.setattr(simplifying, "raise_opset", refuse)
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
        yield Patch(model.graph)

    with_pass(Pass("breaks", "simplify", 1, "It breaks things.", describe))
    model = negated()
    infer_types(model)
    with pytest.raises(InvalidResult, match="the pass breaks broke the model"):
        simplify(model)
    with pytest.raises(ValueError, match="no simplify pass is named fold_all"):
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


def test_every_pass_has_a_name_a_phase_an_order_and_a_sentence():
    found = [item for phase in PACKAGES for item in find_passes(phase)]
    assert len({item.name for item in found}) == len(found) > 55
    assert [item.phase for item in found] == sorted((item.phase for item in found), key=list(PACKAGES).index)
    for phase in PACKAGES:
        orders = [item.order for item in find_passes(phase)]
        assert orders == sorted(set(orders))  # none depends on its name for its place
    for item in found:
        assert len(item.summary.split()) > 3, item.name
        assert "\n" not in item.summary


def test_a_pass_belongs_to_a_package_of_passes_and_has_a_name_of_its_own():
    def outside(model):
        raise NotImplementedError

    with pytest.raises(ValueError, match="no module of a phase"):
        pass_manager.register_pass(order=1)(outside)
    again = next(item for item in find_passes("normalise") if item.name == "fold_pad")
    with pytest.raises(ValueError, match="its name is that of another pass"):
        pass_manager.register_pass(order=1)(again.run)


def target(**other):
    return replace(load_target("cpu"), **other)


@pytest.mark.parametrize(
    ("needs", "told", "why"),
    [
        ({}, {}, ""),
        ({"opset": 18}, {}, "it needs operator set 18, and the model has 17"),
        ({"opset": 17}, {}, ""),
        ({"integer": True}, {"integer": False}, "it pays only where products compute in 8 bit"),
        ({"timed": True}, {"target": target(timed=False)}, "it follows kernel times, and none are known of cpu"),
        ({"timed": True}, {"target": target()}, ""),
        ({"domain": "my"}, {"target": target()}, "cpu does not know the operators of my"),
        ({"operators": ("Conv", "Gemm")}, {}, "the model has no Conv or Gemm"),
        ({"operators": ("Conv", "Abs")}, {}, ""),
    ],
)
def test_a_pass_does_not_run_where_it_cannot(needs, told, why):
    item = replace(abs_of_neg(), **needs)
    assert item.obstacle(negated(), **told) == why
    if "integer" not in needs:
        run_passes(model := negated(), [item], target=told.get("target"))
        assert len(model.graph.nodes) == (3 if why else 2)


def test_a_pass_may_change_the_model_itself_and_is_told_the_target():
    def rename(model: Model, runtime) -> int:
        for item in model.graph.nodes:
            item.name = f"{runtime.name}_{item.name}"
        return len(model.graph.nodes)

    item = Pass("rename", "optimize", 1, "It names nodes.", rename, "renamed {} node{s}", for_target=True)
    found = run_passes(model := negated(), [item], target=target())
    assert (found.notes, found.original) == (("renamed 3 nodes",), None)
    assert all(each.name.startswith("cpu_") for each in model.graph.nodes)


def test_types_are_inferred_for_passes_that_ask_for_them_and_kept_where_they_were():
    seen = []

    def look(model: Model) -> int:
        seen.append(model.graph.nodes[-1].outputs[0].shape)
        return 0

    untyped, typed = (Pass("look", "optimize", 1, "It looks.", look, types=types) for types in (False, True))
    run_passes(negated(), [untyped, typed, untyped])
    assert seen == [None, (1, 4), (1, 4)]
    run_passes(model := negated(), [abs_of_neg()], typed=True)
    assert model.graph.nodes[0].outputs[0].shape == (1, 4)


def test_a_shape_that_one_pass_makes_known_is_known_to_the_next_one():
    """Where types are kept: a Softmax behind a computed Resize had several axes behind its own only afterwards."""
    seen = []

    def look(model: Model) -> int:
        seen.append(model.graph.nodes[-1].outputs[0].shape)
        return 0

    run_passes(negated(), [abs_of_neg(), Pass("look", "simplify", 2, "It looks.", look)], typed=True)
    assert seen == [(1, 4)]


def test_operator_sets_of_new_operators_are_imported():
    def describe(model: Model):
        item = model.graph.nodes[-1]
        patch = Patch(model.graph, item)
        (made,) = patch.node("Gelu", [item.inputs[0]], outputs=["g"], domain="com.microsoft")
        patch.replace(item.outputs[0], made)
        yield patch

    run_passes(model := negated(), [Pass("gelu", "optimize", 1, "It writes Gelu.", describe)])
    assert model.opsets["com.microsoft"] == 1
