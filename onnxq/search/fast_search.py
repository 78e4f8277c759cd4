"""The nodes that a fast run returns to float, where its comparison shows that the model would be of little use.

No node is run alone, since that asks for ranges that were not measured. Groups of nodes that follow each other compute
in float in turn, and what the error loses by it is shared out among their nodes. The worst groups are taken apart.

All weights are only stored, some in 12 bit, if a few nodes are not enough or leave too little of the saved time.

Tests: `tests/search/test_fast.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from onnxq.data.samples import Samples
from onnxq.errors import OnnxqError
from onnxq.planning.decision import Choices, Decision, Override, node_key
from onnxq.search.candidates import find_candidates, is_priced, searchable
from onnxq.search.held_out import HoldoutSplit
from onnxq.search.meet_budget import stored_unless_worthwhile, towards_goals
from onnxq.search.mixed_precision import SearchResult
from onnxq.search.sensitivity import ALONE, Group, contributions, equal_parts, weighted_decisions
from onnxq.search.sqnr_evaluator import worst_decibels
from onnxq.search.variants import Variants
from onnxq.search.wide_weights import widen_stored_weights
from onnxq.verification.records import Contribution

# dB, and the share of the saved time given back for each, with all goals before. Other samples lose some dB
GOALS = ((20.0, math.inf), (22.0, 0.3), (24.0, 0.1))
ENOUGH = GOALS[-1][0]
HOPELESS = 12.0  # dB, below which no few nodes are enough: a small transformer with 11 dB would take 4 s to show it
TOO_FAR = "in 8 bit, the model is too far from float"
FEW_NODES, GROUPS, WORST = 16, 8, 2  # each alone; groups, and how many of these are taken apart
# Samples of the comparison: an eighth of all where that is fewer than four, and as many as take little time
LEAST, MOST, SHARE, LITTLE_TIME = 2, 16, 8, 5e7  # nanoseconds of float runs, by the table of kernel times


def fewest_for_use(variants: Variants, samples: Samples, reached: float) -> Choices:
    """Return the nodes to float that `GOALS` take.

    Args:
        variants: The quantized model, which falls short of `ENOUGH`.
        samples: Those that showed it.
        reached: dB that its worst output has on them.

    """
    plan = variants.prepared.plan
    nodes = [decision for decision in weighted_decisions(plan) if searchable(plan, decision)]
    if not nodes:
        return {}
    few = variants.judged_by(HoldoutSplit(variants.baseline, samples))
    try:
        if reached < HOPELESS:
            return widen_stored_weights(few, _stored(nodes), _shared_out(nodes, {}))
        whole = few.judge.noise(few.model({}))
        start = SearchResult({}, met=True, sqnr=worst_decibels(whole))
        found_noises = _contributions(few, nodes, whole)
        ranked = find_candidates(plan, found_noises, variants.prepared.model.opset)
        goals = GOALS if is_priced(plan) else GOALS[:1]
        found = towards_goals(few, ranked, start, goals=goals)
        missed = found.sqnr is None or found.sqnr < GOALS[0][0]
        choices = _stored(nodes) if missed else stored_unless_worthwhile(few, found.choices)
        return widen_stored_weights(few, choices, found_noises)
    except OnnxqError:  # the comparison says what is wrong
        return {}


def _stored(nodes: Sequence[Decision]) -> Choices:
    """Let all nodes compute in float, with weights stored in 8 bit: no few of them reach the first goal."""
    return {node_key(one.node): Override("weight-int8", TOO_FAR) for one in nodes if one.scheme != "weight-int8"}


def compared(run_time: float, count: int | None) -> int:
    """Return how many samples a fast run compares on: few where they take long, so that it takes little time itself.

    Args:
        run_time: What the float model takes for a sample, in nanoseconds by the table.
        count: How many samples there are; None where that is not known.

    """
    share = min((count or 0) // SHARE, 2 * LEAST)
    return max(LEAST, share, min(int(LITTLE_TIME / max(run_time, 1.0)), MOST))


def _contributions(few: Variants, nodes: Sequence[Decision], whole: np.ndarray) -> tuple[Contribution, ...]:
    """Share out among the nodes of each group what the error of values that miss the goal loses without the group.

    Args:
        few: The quantized model.
        nodes: Those that may compute in float.
        whole: The error of each value by its size with all of them quantized.

    """
    wrong = whole >= min(10 ** (-ENOUGH / 10), float(whole.max()))

    def gains(groups: Sequence[Group]) -> dict[Group, float]:
        kept = ({node_key(nodes[place].node): Override("float", ALONE) for place in group} for group in groups)
        lost = (float(_decrease(whole, noise)[wrong].sum()) for noise in few.noises(kept))
        return {group: max(gain, 0.0) for group, gain in zip(groups, lost, strict=True)}

    everything = range(len(nodes))
    found = gains(equal_parts(everything, len(nodes) if len(nodes) <= FEW_NODES else GROUPS))
    worst = [group for group in sorted(found, key=lambda group: (-found[group], group.start)) if len(group) > 1]
    if worst:
        again = gains([part for group in worst[:WORST] for part in equal_parts(group, GROUPS // WORST)])
        found = {group: gain for group, gain in found.items() if group not in worst[:WORST]} | again
    return _shared_out(nodes, {place: gain / len(group) for group, gain in found.items() for place in group})


def _decrease(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Return how much less error there is; none of what is infinite in both."""
    return np.asarray(np.subtract(before, after, out=np.zeros_like(before), where=before != after))


def _shared_out(nodes: Sequence[Decision], noises: Mapping[int, float]) -> tuple[Contribution, ...]:
    """Return what each node adds to the error, by its place; all the same where nothing is known."""
    return contributions(nodes, [noises.get(place, 1.0) for place in range(len(nodes))], [False] * len(nodes))
