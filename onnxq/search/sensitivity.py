"""The error that every quantized node adds to the outputs, from runs of groups of nodes.

Errors of single nodes add up at the outputs as long as they are small. So a group of nodes that is quantized alone
shows what its nodes add together. The group that adds most is halved, and the half that is not run gets the rest. This
goes on until the nodes that add most stand alone. A node's own error says less: the rest of a graph passes on 0.0001 to
15 times as much of it. Its square root shares out the error of a group, best for convolutions.

Tests: `tests/search/test_mixed_precision.py`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from functools import partial
from itertools import pairwise

import numpy as np

from onnxq.errors import ModelError
from onnxq.planning.decision import Choices, Decision, Override, Plan
from onnxq.planning.planner import node_key
from onnxq.runtime.fork import in_copy
from onnxq.search.resolution import resolved_noise, round_to_resolution
from onnxq.search.variants import Variants
from onnxq.verification.layerwise import compare_layers
from onnxq.verification.records import Contribution

ALL_ALONE = 20  # up to so many nodes each is run alone
GROUPS = 4  # of all others, at first
SPLITS = 18  # of groups
AT_ONCE = 2  # groups that are halved at the same time
LEAST = 0.03  # of the error of all nodes, below which a group is not halved
# A half that is not run has at least this share of its group's error. Both halves of a MobileNetV2's groups make 0.7 to
# 1.5 times the error of the group (onnxruntime 1.32, 26 November 2026)
DOUBT = 0.1
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
    plan = variants.prepared.plan
    nodes = weighted_decisions(plan)
    if len(nodes) <= all_alone:
        shares, noises = np.ones(len(nodes)), _group_noises(variants, nodes, groups=len(nodes), splits=0)
    else:
        with in_copy(partial(_root_errors, variants, nodes), copies=variants.split.shareable) as roots:
            noises = _group_noises(variants, nodes, groups=GROUPS, splits=splits)
            shares = roots()
    total = math.fsum(_size(noise) for noise in noises.values()) or 1.0
    return tuple(
        Contribution(d.node.display_name, d.node.op_type, node_key(d.node), d.scheme or "", noise, noise / total, exact)
        for group in sorted(noises, key=lambda group: group.start)
        for parts, exact in [(_shared_out(noises[group], shares[group.start : group.stop]), len(group) == 1)]
        for d, noise in zip(nodes[group.start : group.stop], parts, strict=True)
    )


def weighted_decisions(plan: Plan) -> list[Decision]:
    """Return the decisions for nodes that are quantized on their own account."""
    return [d for d in plan.decisions if d.form is not None and not d.form.passive and d.node not in plan.absorbed]


def _group_noises(
    variants: Variants, nodes: Sequence[Decision], *, groups: int, splits: int
) -> dict[Group, np.ndarray]:
    """Run groups of nodes alone, and halve so many of them, the worst ones; gives the error of each value by group."""
    plan = variants.prepared.plan

    def measured(groups: Sequence[Group]) -> list[np.ndarray]:
        choices = (quantize_only(plan, nodes[group.start : group.stop]) for group in groups)
        found = variants.noises(choices, costs_count=False)
        return [np.array([resolved_noise(float(each)) for each in noise]) for noise in found]

    parts = _parts(len(nodes), groups)
    noises = dict(zip(parts, measured(parts), strict=True))
    while splits > 0 and (worst := _worth_halving(noises)[: min(AT_ONCE, splits)]):
        halves = [(group[: len(group) // 2], group[len(group) // 2 :]) for group in worst]
        for group, (first, second), noise in zip(worst, halves, measured([one for one, _ in halves]), strict=True):
            whole = noises.pop(group)
            noises[first], noises[second] = noise, _without(whole, noise)
        splits -= len(worst)
    return noises


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
