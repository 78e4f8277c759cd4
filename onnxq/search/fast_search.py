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
from onnxq.planning.decision import Choices, Decision, Override, Plan, node_key
from onnxq.search.candidates import find_candidates, float_time, is_priced, searchable
from onnxq.search.held_out import HoldoutSplit
from onnxq.search.meet_budget import stored_unless_worthwhile, towards_goals
from onnxq.search.mixed_precision import SearchResult
from onnxq.search.sensitivity import ALONE, Group, contributions, equal_parts, weighted_decisions
from onnxq.search.sqnr_evaluator import worst_decibels
from onnxq.search.variants import Variants
from onnxq.search.wide_weights import widen_stored_weights
from onnxq.verification.records import Contribution

# dB, and the share of the saved time given back for each, with all goals before. Other samples lose some dB
GOALS = ((21.0, math.inf), (22.0, 0.3), (24.0, 0.1))
ENOUGH = GOALS[-1][0]
OF_USE = 20.0  # dB, below which all weights are only stored; the first goal is higher, for few samples judge it
HOPELESS = 16.0  # dB, below which few nodes are hardly ever enough, and a search would take seconds to show it
TOO_FAR = "in 8 bit, the model is too far from float"
GROUPS, FEWEST_TRIALS, MOST_TRIALS = 4, 10, 16  # at first; groups and halves of them that are run
# Nanoseconds of work that these may take, and what a node takes to be planned, written and loaded
BUDGET, NODE_WORK = 6e8, 2.5e5
UNSEEN = 0.1  # of a group's error, which a half has that was not run: without any, no price would return it to float
# Samples of the comparison: an eighth of all where that is fewer than four, and as many as take little time
LEAST, MOST, SHARE, LITTLE_TIME = 2, 16, 8, 5e7  # nanoseconds of float runs, by the table of kernel times
# Samples of the calibration. Its sums in float64 take four float runs. They may take as much as one run for each sample
# that there is, and some nanoseconds. Below sixteen samples, ranges are a matter of luck
FEWEST_CALIBRATED, FLOAT_RUNS, CALIBRATION_TIME = 16, 4, 5e8


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
        found_noises = _contributions(few, nodes, whole, _trials(plan, samples))
        ranked = find_candidates(plan, found_noises, variants.prepared.model.opset)
        goals = GOALS if is_priced(plan) else GOALS[:1]
        found = towards_goals(few, ranked, start, goals=goals)
        missed = found.sqnr is None or found.sqnr < OF_USE
        if missed:  # with the error of weights alone, which is another than what was found
            return widen_stored_weights(few, _stored(nodes), _shared_out(nodes, {}))
        return stored_unless_worthwhile(few, found.choices)
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


def calibrated(run_time: float, count: int) -> int:
    """Return how many of so many samples a fast run calibrates on; for the arguments see `compared`."""
    most = (count + CALIBRATION_TIME / max(run_time, 1.0)) / FLOAT_RUNS
    return min(max(int(most), FEWEST_CALIBRATED), count)


def _trials(plan: Plan, samples: Samples) -> int:
    """Return how many groups a fast run may try, by the work that one is expected to take: the same on any computer."""
    one = float_time(plan)
    work = NODE_WORK * len(plan.decisions) + one * (samples.count or LEAST)
    return min(max(int(BUDGET / work), FEWEST_TRIALS), MOST_TRIALS)


def _contributions(
    few: Variants, nodes: Sequence[Decision], whole: np.ndarray, trials: int
) -> tuple[Contribution, ...]:
    """Share out among the nodes of each group what the error of values that miss the goal loses without the group.

    Args:
        few: The quantized model.
        nodes: Those that may compute in float.
        whole: The error of each value by its size with all of them quantized.
        trials: How many groups may be run. The one that matters most is cut in two; one half is run, and the other has
            what is left.

    """
    wrong = whole >= min(10 ** (-ENOUGH / 10), float(whole.max()))

    def gains(groups: Sequence[Group]) -> dict[Group, float]:
        kept = ({node_key(nodes[place].node): Override("float", ALONE) for place in group} for group in groups)
        lost = (float(_decrease(whole, noise)[wrong].sum()) for noise in few.noises(kept))
        return {group: max(gain, 0.0) for group, gain in zip(groups, lost, strict=True)}

    everything = range(len(nodes))
    found = gains(equal_parts(everything, len(nodes) if len(nodes) <= trials else GROUPS))
    for _ in range(trials - len(found)):
        worst = min(
            (group for group in found if len(group) > 1), key=lambda one: (-found[one], one.start), default=None
        )
        if worst is None:
            break
        first, second = equal_parts(worst, 2)
        found |= gains([first])
        all_of_it = found.pop(worst)
        found[second] = max(all_of_it - found[first], UNSEEN * all_of_it)
    return _shared_out(nodes, {place: gain / len(group) for group, gain in found.items() for place in group})


def _decrease(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Return how much less error there is; none of what is infinite in both."""
    return np.asarray(np.subtract(before, after, out=np.zeros_like(before), where=before != after))


def _shared_out(nodes: Sequence[Decision], noises: Mapping[int, float]) -> tuple[Contribution, ...]:
    """Return what each node adds to the error, by its place; all the same where nothing is known."""
    return contributions(nodes, [noises.get(place, 1.0) for place in range(len(nodes))], [False] * len(nodes))
