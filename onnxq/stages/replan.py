"""Replanning: for a copy, for other choices, for bodies that no sample has run; and quantizing a copy.

Tests: `tests/pipeline/test_graph_bodies.py`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from onnxq.calibration.stats import Stats
from onnxq.ir import Graph, Model
from onnxq.ir.shape_inference.types import infer_types
from onnxq.lowering.rewrite import rewrite
from onnxq.planning.copy_plan import can_copy_plans, copy_plan, plan_of_copy
from onnxq.planning.decision import Plan
from onnxq.planning.planner import Choices, plan_again
from onnxq.rounding.weights import Weights
from onnxq.runtime.memory import FOR_VARIANTS, collect_garbage
from onnxq.stages.measure import choose_qparams
from onnxq.stages.prepared import Prepared


def copy_prepared(prepared: Prepared, choices: Choices | None = None, *, costs_count: bool = True) -> Prepared:
    """Return a copy to change, weights shared, planned with other choices where there are any."""
    model = _copied(prepared)
    if costs_count and (choices is None or choices == prepared.plan.choices):
        plan = copy_plan(prepared.plan, prepared.model, model)
        if plan is not None:
            return replace(prepared, model=model, plan=plan)
    if can_copy_plans(prepared.model):  # what is known of its nodes serves all plans, and a copy has nodes of its own
        planned = replan(prepared, choices, costs_count=costs_count)
        return replace(prepared, model=model, plan=plan_of_copy(planned.plan, prepared.model, model))
    return replan(replace(prepared, model=model), choices, costs_count=costs_count)


def copy_planned(prepared: Prepared, plan: Plan) -> Prepared:
    """Return a copy to change, as a plan of the model has it; for models that `can_copy_plans`."""
    model = _copied(prepared)
    return replace(prepared, model=model, plan=plan_of_copy(plan, prepared.model, model))


def _copied(prepared: Prepared) -> Model:
    collect_garbage(prepared.model, room=FOR_VARIANTS)  # what was tried before
    model = prepared.model.copy()
    infer_types(model)
    return model


def replan(
    prepared: Prepared,
    choices: Choices | None = None,
    *,
    costs_count: bool = True,
    unreached: Collection[Graph] = (),
) -> Prepared:
    """Plan a model that has changed, with the same choices unless there are others; see `plan_again`."""
    settings = prepared.plan if choices is None else replace(prepared.plan, choices=choices)
    return replace(prepared, plan=plan_again(prepared.model, settings, costs_count=costs_count, unreached=unreached))


def exclude_unreached_bodies(prepared: Prepared, stats: Stats) -> Prepared:
    """Replan where no sample has run a body: its nodes have no ranges, so their activations stay float."""
    missing = {v.graph for v in prepared.plan.calibrated() if v.graph.parent is not None and v.name not in stats}
    if not missing:
        return prepared
    return replan(prepared, unreached=missing)


def quantize_copy(prepared: Prepared, stats: Stats, weights: Weights | None = None) -> Model:
    """Quantize a model, which is changed, with ranges from these statistics, weights to nearest if there are none."""
    prepared = exclude_unreached_bodies(prepared, stats)
    return rewrite(prepared.model, prepared.plan, choose_qparams(prepared.plan, stats), weights)
