"""Plans that share what is known of a graph's nodes are the plans that would be made anew."""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers import build, floats, node, recipe_of, typed
from test_copy_plan import SAMPLES, named

from onnxq.ir import Model, load
from onnxq.ir.passes import normalise
from onnxq.ir.shape_inference.types import infer_types
from onnxq.planning import planner
from onnxq.planning.decision import Choices, Override, Plan, node_key
from onnxq.planning.planner import make_plan, plan_again
from onnxq.planning.recipe import load_recipe


def loaded(name: str) -> Model:
    model = load(SAMPLES / f"{name}.onnx")
    normalise(model)
    infer_types(model)
    return model


@pytest.mark.parametrize("recipe", ["auto", "static-int8"])
@pytest.mark.parametrize("name", ["digits_cnn", "digits_depthwise", "digits_attention", "digits_lstm"])
def test_choices_and_prices_change_only_what_they_are_about(name: str, recipe: str) -> None:
    model = loaded(name)
    first = make_plan(model, load_recipe(recipe), with_data=True)
    keys = [node_key(decision.node) for decision in first.quantized()]
    chosen = (Override("float", "a test"), Override("weight-int8", "a test"), Override("static-int8", "a test"))
    several: list[Choices] = [{key: choice} for key in keys for choice in chosen]
    for choices in ({}, *several, dict.fromkeys(keys[::2], chosen[0])):
        for price in (0.0, 1e5):
            costs = first.costs.with_prices(dict.fromkeys(keys[1:3], price))
            settings = replace(first, choices=choices, costs=costs)
            for count in (True, False):
                shared = plan_again(model, settings, costs_count=count)
                assert shared.shared is first.shared
                anew = plan_again(model, replace(settings, shared=None), costs_count=count)
                assert anew.shared is not first.shared
                assert named(shared) == named(anew)


def test_nothing_is_shared_with_another_graph_recipe_or_times() -> None:
    weights = {"w": floats(32, 32)}
    model = typed(build([node("MatMul", "x w", "y")], {"x": [4, 32]}, ["y"], weights))
    plan = make_plan(model, recipe_of("auto"), with_data=True)

    def is_shared(model: Model, settings: Plan) -> bool:
        return plan_again(model, settings).shared is plan.shared

    assert is_shared(model, plan)
    copy = model.copy()
    infer_types(copy)
    assert not is_shared(copy, plan)
    assert not is_shared(model, replace(plan, recipe=recipe_of("static-int8")))
    assert not is_shared(model, replace(plan, costs=plan.costs.with_shapes({"x": (1, 32)})))
    assert not is_shared(model, replace(plan, with_data=False))
    assert not is_shared(model, replace(plan, stores_only=True))
    model.graph.mark_dirty()
    infer_types(model)
    assert not is_shared(model, plan)


def test_a_node_is_asked_once_what_it_becomes(monkeypatch: pytest.MonkeyPatch) -> None:
    model, asked = loaded("digits_cnn"), 0
    before = planner.form_of
    plan = make_plan(model, load_recipe("auto"), with_data=True)

    def form_of(*given: object) -> object:
        nonlocal asked
        asked += 1
        return before(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(planner, "form_of", form_of)
    for _ in range(10):
        plan_again(model, plan)
    assert asked == 0
