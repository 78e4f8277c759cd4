"""The error that every quantized node adds to the outputs, from runs of groups of nodes.

Errors of single nodes add up at the outputs as long as they are small. So a group of nodes that is quantized alone
shows what its nodes add together. The group that adds most is halved, and the half that is not run gets the rest. This
goes on until the nodes that add most stand alone. A node's own error says little: the rest of a graph passes on 0.0001
to 15 times as much of it. Nodes of one group get equal shares.

Tests: `tests/search/test_mixed_precision.py`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from itertools import pairwise

import numpy as np

from onnxq.planning.decision import Choices, Decision, Override, Plan
from onnxq.planning.planner import node_key
from onnxq.search.resolution import resolved_noise
from onnxq.search.variants import Variants
from onnxq.verification.records import Contribution

ALL_ALONE = 20  # up to so many nodes each is run alone
GROUPS = 4  # of all others, at first
SPLITS = 18  # of groups
AT_ONCE = 2  # groups that are halved at the same time
LEAST = 0.03  # of the error of all nodes, below which a group is not halved
# A half that is not run has at least this share of its group's error. Both halves of a MobileNetV2's groups make 0.7 to
# 1.5 times the error of the group (onnxruntime 1.32, 26 November 2026)
DOUBT = 0.1
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
    plan = variants.prepared.plan
    nodes = weighted_decisions(plan)

    def measured(groups: Sequence[Group]) -> list[np.ndarray]:
        choices = (quantize_only(plan, nodes[group.start : group.stop]) for group in groups)
        found = variants.noises(choices, costs_count=False)
        return [np.array([resolved_noise(float(each)) for each in noise]) for noise in found]

    alone = len(nodes) <= all_alone
    groups = _parts(len(nodes), len(nodes) if alone else GROUPS)
    noises = dict(zip(groups, measured(groups), strict=True))
    while splits > 0 and (worst := _worth_halving(noises)[: min(AT_ONCE, splits)]):
        halves = [(group[: len(group) // 2], group[len(group) // 2 :]) for group in worst]
        for group, (first, second), noise in zip(worst, halves, measured([one for one, _ in halves]), strict=True):
            whole = noises.pop(group)
            noises[first], noises[second] = noise, _without(whole, noise)
        splits -= len(worst)
    total = math.fsum(_size(noise) for noise in noises.values()) or 1.0
    return tuple(
        Contribution(d.node.display_name, d.node.op_type, node_key(d.node), d.scheme or "", noise, noise / total, exact)
        for group in sorted(noises, key=lambda group: group.start)
        for noise, exact in [(_size(noises[group]) / len(group), len(group) == 1)]
        for d in nodes[group.start : group.stop]
    )


def weighted_decisions(plan: Plan) -> list[Decision]:
    """Return the decisions for nodes that are quantized on their own account."""
    return [d for d in plan.decisions if d.form is not None and not d.form.passive and d.node not in plan.absorbed]


def quantize_only(plan: Plan, chosen: Collection[Decision]) -> Choices:
    """Choose float for all nodes but some; operators that stay in 8 bit between others follow by themselves."""
    choices, kept = {}, {node_key(decision.node) for decision in chosen}
    for decision in plan.decisions:
        key = node_key(decision.node)
        if key in kept and decision.scheme is not None:
            known = plan.choices.get(key)
            settings = known.settings if known is not None and known.scheme == decision.scheme else ()
            choices[key] = Override(decision.scheme, ALONE, settings)
        elif decision.node not in plan.absorbed and (decision.form is None or not decision.form.passive):
            choices[key] = Override("float", ALONE)
    return choices


def _parts(count: int, groups: int) -> list[Group]:
    """Cut so many places into groups of about the same length."""
    bounds = [index * count // max(groups, 1) for index in range(groups + 1)]
    return [range(first, last) for first, last in pairwise(bounds)]


def _worth_halving(noises: dict[Group, np.ndarray]) -> list[Group]:
    """Return the groups of several nodes that add much of the error, those that add most first."""
    least = LEAST * math.fsum(_size(noise) for noise in noises.values())
    large = [group for group, noise in noises.items() if len(group) > 1 and _size(noise) > least]
    return sorted(large, key=lambda group: (-_size(noises[group]), group.start))


def _without(whole: np.ndarray, part: np.ndarray) -> np.ndarray:
    """Return the error of each value that a part of a group leaves to the rest."""
    return np.where(np.isfinite(whole), np.maximum(whole - np.minimum(part, whole), DOUBT * whole), whole)


def _size(noise: np.ndarray) -> float:
    return float(noise.max(initial=0.0))
