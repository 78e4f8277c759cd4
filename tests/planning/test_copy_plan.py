"""A plan that is copied with its model is the plan that the copy would get."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from helpers import build, floats, node, recipe_of, typed

from onnxq.ir import Model, load
from onnxq.ir.passes import normalise
from onnxq.ir.shape_inference.types import infer_types
from onnxq.planning.copy_plan import copy_plan
from onnxq.planning.decision import Override, Plan
from onnxq.planning.planner import make_plan
from onnxq.planning.recipe import load_recipe

SAMPLES = Path(__file__).parents[2] / "sample_models"


def named(plan: Plan) -> dict[str, object]:
    """Everything in a plan, nodes and values by name, in its order."""
    return {
        "decisions": [(d.node.display_name, replace(d, node=None)) for d in plan.decisions],  # type: ignore[arg-type]
        "outputs": [(n.display_name, v.name) for n, v in plan.outputs.items()],
        "others": [(n.display_name, [v.name for v in vs]) for n, vs in plan.others.items()],
        "absorbed": [(a.display_name, b.display_name) for a, b in plan.absorbed.items()],
        "same_scale": [(a.name, b.name) for a, b in plan.same_scale.items()],
        "moved": [(a.name, b.name) for a, b in plan.moved.items()],
        "ranges": [(v.name, s) for v, s in plan.ranges.items()],
        "rest": (plan.conversions, plan.clipped, plan.keeps_opset, plan.stores_only, plan.choices, plan.recipe),
    }


def copied(model: Model) -> Model:
    copy = model.copy()
    infer_types(copy)
    return copy


@pytest.mark.parametrize("recipe", ["auto", "static-int8", "dynamic-int8"])
@pytest.mark.parametrize("name", ["digits_cnn", "digits_depthwise", "digits_attention", "digits_lstm"])
def test_it_is_what_planning_the_copy_gives(name: str, recipe: str) -> None:
    model = load(SAMPLES / f"{name}.onnx")
    normalise(model)
    infer_types(model)
    plan, copy = make_plan(model, load_recipe(recipe), with_data=True), copied(model)
    found = copy_plan(plan, model, copy)
    assert found is not None
    assert named(found) == named(make_plan(copy, load_recipe(recipe), with_data=True))
    assert {d.node.graph for d in found.decisions} == {copy.graph}
    assert all(value.graph is copy.graph for value in (*found.ranges, *found.outputs.values()))
    again = copied(copy)
    assert copy_plan(found, copy, again) is not None  # a copy of the copy, too


def test_what_has_changed_is_planned_again() -> None:
    weights = {"w": floats(32, 32)}
    model = typed(build([node("MatMul", "x w", "y")], {"x": [4, 32]}, ["y"], weights))
    plan = make_plan(model, recipe_of("static-int8"), with_data=True)
    assert copy_plan(plan, model, copied(model)) is not None
    assert copy_plan(plan, copied(model), copied(model)) is None  # the plan of another model
    assert copy_plan(replace(plan, clipped={"x": None}), model, copied(model)) is None  # type: ignore[dict-item]
    other = replace(plan, choices={"y": Override("float", "a test")})
    assert copy_plan(other, model, copied(model)) is None
    assert copy_plan(make_plan(model, plan.recipe, with_data=True, costs_count=False), model, copied(model)) is None
    model.graph.mark_dirty()
    infer_types(model)
    assert copy_plan(plan, model, copied(model)) is None
    untyped = typed(build([node("MatMul", "x w", "y")], {"x": [4, 32]}, ["y"], weights))
    plan = make_plan(untyped, recipe_of("static-int8"), with_data=True)
    untyped.typed = None
    assert copy_plan(plan, untyped, untyped.copy()) is None
