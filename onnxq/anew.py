"""Plans made anew, for a copy to change, for other choices, for bodies that no sample has run, and carried out."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from onnxq.ir import Graph, Model
from onnxq.ir.types import infer_types
from onnxq.quant.collecting import collect
from onnxq.quant.plan import Choices, Plan, make_plan
from onnxq.quant.rewrite import rewrite
from onnxq.quant.stats import Stats
from onnxq.quant.weights import Weights
from onnxq.steps import Prepared, choose_qparams


def duplicate(ready: Prepared, choices: Choices | None = None, *, costs_count: bool = True) -> Prepared:
    """Give a copy to change, weights shared, planned with other choices where there are any."""
    collect(ready.model)  # what was tried before
    model = ready.model.copy()
    infer_types(model)
    return replace(ready, model=model, plan=planned_anew(ready, model, choices, costs_count=costs_count))


def planned_anew(
    ready: Prepared,
    model: Model,
    choices: Choices | None = None,
    *,
    costs_count: bool = True,
    unreached: Collection[Graph] = (),
) -> Plan:
    """Plan a model that took the place of another, with the same choices unless there are others; see `make_plan`."""
    before = ready.plan
    return make_plan(
        model,
        before.recipe,
        with_data=before.with_data,
        choices=before.choices if choices is None else choices,
        costs_count=costs_count,
        unreached=unreached,
        costs=before.costs,
        clipped=before.clipped,
    )


def reached(ready: Prepared, stats: Stats) -> Prepared:
    """Plan anew where no sample has run a body: its nodes have no ranges, so their activations stay float."""
    missing = {v.graph for v in ready.plan.calibrated() if v.graph.parent is not None and v.name not in stats}
    if not missing:
        return ready
    return replace(ready, plan=planned_anew(ready, ready.model, unreached=missing))


def carried_out(ready: Prepared, stats: Stats, weights: Weights | None = None) -> Model:
    """Quantize a model, which is changed, with ranges from these statistics, weights to nearest if there are none."""
    ready = reached(ready, stats)
    return rewrite(ready.model, ready.plan, choose_qparams(ready.plan, stats), weights)
