"""Layers replaced by equivalent ones that have an 8-bit kernel.

Tests: `tests/lowering/test_conv_transpose.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from onnxq.ir import Model
from onnxq.lowering.substitutions import FORMS
from onnxq.planning.decision import node_key
from onnxq.stages.prepare import replan_with_costs
from onnxq.stages.prepared import Prepared
from onnxq.targets import Costs
from onnxq.targets.target import load_target


def substitute_layers(
    prepared: Prepared, max_size: int | None = None, costs_of: Callable[[Model], Costs] | None = None
) -> Prepared:
    """Write layers in forms that are faster in 8 bit, if they work in 8 bit then; see `lowering/substitutions.py`.

    Args:
        prepared: The plan for the layers as they are.
        max_size: Bytes that the file may have.
        costs_of: Gives kernel times for a model; those of the plan without it, which know no sizes of new tensors.

    """
    recipe = prepared.plan.recipe
    simple = recipe.simplifies and prepared.strategy.tries_variants
    if not (prepared.plan.with_data and simple and load_target(recipe.scheme.target).timed):
        return prepared
    for form in FORMS:
        found, model = form.find(prepared.plan, prepared.model), prepared.model
        wanted = {node_key(node) for node in found if recipe.scheme_for(node.op_type, node.name)[0].name == "auto"}
        while wanted:
            changed, layers = form.written(model, wanted)
            notes = (*prepared.notes, form.says.format(len(wanted)))
            costs = costs_of(changed) if costs_of is not None else prepared.plan.costs
            again = replace(prepared, model=changed, notes=notes, original=prepared.original or model)
            again = replan_with_costs(again, max_size, costs)
            kept = form.worth_it(again.plan, layers)
            if kept == wanted:
                prepared = again
                break
            wanted = kept  # in float, the others are faster as they were
    return prepared
