"""The error that every quantized node adds to the outputs, from runs of groups of nodes.

Errors of single nodes add up at the outputs as long as they are small. So a group of nodes that is quantized alone
shows what its nodes add together. The group that adds most is halved, until the nodes that add most stand alone. Both
halves are run: together they make 0.7 to 1.8 times the error of the group. More groups say more than more samples. A
node's own error says less: the rest of a graph passes on 0.0001 to 15 times as much of it. Its square root tells where
to halve a group, and shares out the error of one that is not halved.

Tests: `tests/search/test_mixed_precision.py`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import fields
from functools import partial
from typing import Any

import numpy as np

from onnxq.errors import ModelError
from onnxq.ir import Value
from onnxq.planning.decision import Choices, Decision, Override, Plan
from onnxq.planning.planner import node_key
from onnxq.runtime.fork import in_copy
from onnxq.search.resolution import resolved_noise, round_to_resolution
from onnxq.search.sqnr_evaluator import SqnrEvaluator
from onnxq.search.variants import Variants
from onnxq.stages.measure import also_in_8bit
from onnxq.stages.prepared import Prepared
from onnxq.stages.replan import copy_prepared
from onnxq.verification.layerwise import compare_layers
from onnxq.verification.records import Contribution

ALL_ALONE = 20  # up to so many nodes each is run alone
GROUPS = 4  # of all others, at first
SPLITS = 10  # of groups
SEVERAL = 4  # nodes from which on the float model's tensors are kept for groups of them
LEAST = 0.03  # of the error of all nodes, below which a group is not halved
PASS_SAMPLES = 1
ALONE = "only some nodes are quantized"
Group = range  # places of nodes that follow each other


def sensitivity(variants: Variants, *, splits: int = SPLITS, all_alone: int = ALL_ALONE) -> tuple[Contribution, ...]:
    """Measure what each quantized node contributes.

    Args:
        variants: The quantized model and what it can be compared with.
        splits: How many groups of nodes are halved.
        all_alone: Up to how many nodes each is run alone.

    Returns:
        One for each node that is quantized on its own account, in graph order. Operators without weights that only
        stay in 8 bit between others are not counted: without their neighbours they would be float.

    """
    nodes = weighted_decisions(variants.prepared.plan)
    places = range(len(nodes))
    if len(nodes) <= all_alone:
        shares = np.ones(len(nodes))
        noises = _Groups(variants, nodes, variants.judge).noises(equal_parts(places, len(nodes)))
    else:
        with in_copy(partial(_root_errors, variants, nodes), copies=variants.split.shareable) as roots:
            groups = _Groups(variants, nodes, variants.split.group_evaluator)
            noises = groups.noises(equal_parts(places, GROUPS))
            shares = roots()
        for _ in range(splits):
            worst = _worst_to_halve(noises)
            if worst is None:
                break
            del noises[worst]
            noises |= groups.noises(_halves(worst, shares))
    groups_in_order = sorted(noises, key=lambda group: group.start)
    parts = [part for group in groups_in_order for part in _shared_out(noises[group], shares[group.start : group.stop])]
    exact = [len(group) == 1 for group in groups_in_order for _ in group]
    return contributions(nodes, parts, exact)


def also_measured(prepared: Prepared) -> list[Value]:
    """Return what other plans have in 8 bit, if variants of `sensitivity` have anything that the plan has not.

    A pass over the samples for these alone would take much longer than measuring them with all others.
    """
    plan, known = prepared.plan, prepared.plan.calibrated()
    found = [value for value in also_in_8bit(plan) if value not in known]
    if not found:
        return []
    every_other = quantize_only(plan, weighted_decisions(plan)[::2])  # so that each has neighbours in float
    asked = copy_prepared(prepared, every_other, costs_count=False).plan.calibrated()
    return found if {value.name for value in asked} - {value.name for value in known} else []


def contributions(
    nodes: Sequence[Decision], noises: Sequence[float], exact: Sequence[bool]
) -> tuple[Contribution, ...]:
    """Return what nodes add to the error, with its share of all.

    Args:
        nodes: The nodes.
        noises: Squared error that each adds. Infinite ones have all of the error, alike.
        exact: Whether that is the error of the node alone.

    """
    sizes = [float(math.isinf(noise)) for noise in noises] if math.inf in noises else noises
    total = math.fsum(sizes) or 1.0
    return tuple(
        Contribution(d.node.display_name, d.node.op_type, node_key(d.node), d.scheme or "", noise, size / total, alone)
        for d, noise, size, alone in zip(nodes, noises, sizes, exact, strict=True)
    )


def weighted_decisions(plan: Plan) -> list[Decision]:
    """Return the decisions for nodes that are quantized on their own account."""
    return [d for d in plan.decisions if d.form is not None and not d.form.passive and d.node not in plan.absorbed]


class _Groups:
    """Groups of nodes that are quantized alone, from the first one of them on."""

    def __init__(self, variants: Variants, nodes: Sequence[Decision], judge: SqnrEvaluator) -> None:
        self._variants, self._nodes, self._judge = variants, nodes, judge
        self._plan = variants.prepared.plan
        several = len(nodes) >= SEVERAL
        shapes = self._plan.costs.shapes
        self._inside = judge.float_tensors(variants.prepared.model, shapes) if several else None

    def noises(self, groups: Sequence[Group]) -> dict[Group, np.ndarray]:
        """Run some groups; gives the error of each value by group."""
        choices = (quantize_only(self._plan, self._nodes[group.start : group.stop]) for group in groups)
        found = self._variants.noises(choices, costs_count=False, judge=self._judge, inside=self._inside)
        resolved = (np.array([resolved_noise(float(each)) for each in noise]) for noise in found)
        return dict(zip(groups, resolved, strict=True))


def _root_errors(variants: Variants, nodes: Sequence[Decision]) -> np.ndarray:
    """Return the root of each node's own squared error; where it is part of the next node's, the least of the others'.

    They are all the same where the evaluator does not know an operator.
    """
    try:
        layers = compare_layers(
            variants.prepared.model.copy(), variants.model({}), variants.samples, limit=PASS_SAMPLES
        )
    except ModelError:
        return np.ones(len(nodes))
    known = {layer.tensor: 10 ** (-round_to_resolution(layer.own) / 20) for layer in layers if layer.own > -math.inf}
    roots = np.array([known.get(node_key(decision.node), 0.0) for decision in nodes])
    least = float(roots.min(where=roots > 0, initial=math.inf))
    return np.where(roots > 0, roots, least if math.isfinite(least) else 1.0)


def _shared_out(noise: np.ndarray, shares: np.ndarray) -> list[float]:
    """Divide the error of a group among its nodes."""
    return [float(part) for part in _size(noise) * (shares / shares.sum())]


def quantize_only(plan: Plan, chosen: Collection[Decision]) -> Choices:
    """Choose float for all nodes but some; operators that stay in 8 bit between others follow by themselves."""
    choices, kept = {}, {node_key(decision.node) for decision in chosen}
    for decision in plan.decisions:
        key = node_key(decision.node)
        if key in kept and decision.scheme is not None:
            choices[key] = Override(decision.scheme, ALONE, _own_settings(plan, decision))
        elif decision.node not in plan.absorbed and (decision.form is None or not decision.form.passive):
            choices[key] = Override("float", ALONE)
    return choices


def _own_settings(plan: Plan, decision: Decision) -> tuple[tuple[str, Any], ...]:
    """Return in which fields the settings of a node differ from those of the recipe: scales by row, bits of a head."""
    if decision.settings is None:
        return ()
    asked, _ = plan.recipe.scheme_for(decision.node.op_type, decision.node.name)
    pairs = ((each.name, getattr(decision.settings, each.name)) for each in fields(asked) if each.name != "name")
    return tuple((name, value) for name, value in pairs if value != getattr(asked, name))


def equal_parts(places: Group, count: int) -> list[Group]:
    """Cut places into so many groups of about the same length, or into single ones."""
    count = min(count, len(places))
    return [places[index * len(places) // count : (index + 1) * len(places) // count] for index in range(count)]


def _halves(group: Group, shares: np.ndarray) -> list[Group]:
    """Cut a group of several where both parts have about the same share."""
    before = np.cumsum(shares[group.start : group.stop - 1])  # of all cuts
    half = shares[group.start : group.stop].sum() / 2
    cut = int(np.abs(before - half).argmin()) + 1
    return [group[:cut], group[cut:]]


def _worst_to_halve(noises: dict[Group, np.ndarray]) -> Group | None:
    """Return the group of several nodes that adds most of the error; None where none adds much."""
    least = LEAST * math.fsum(_size(noise) for noise in noises.values())
    large = [group for group, noise in noises.items() if len(group) > 1 and _size(noise) > least]
    return min(large, key=lambda group: (-_size(noises[group]), group.start), default=None)


def _size(noise: np.ndarray) -> float:
    return float(noise.max(initial=0.0))
