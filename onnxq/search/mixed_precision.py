"""The search for the fewest nodes that have to compute in float, so that the outputs stay within a budget.

Nodes are ranked by the error that each removes for its time. Since errors add up, the node that removes most for the
least time goes first. Bisection finds the smallest number that meets the budget; each step runs the whole model. Nodes
compute in float with weights stored in 8 bit first. Only if that is not enough do weights get 12 bits, and float last.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from onnxq.ir import Model
from onnxq.planning.decision import Choices, Override, Plan, node_key
from onnxq.planning.latency import planned_time
from onnxq.search.candidates import (
    Candidate,
    Option,
    benefit_per_cost,
    option_at,
    reason_for,
    within_cost,
)
from onnxq.search.noise_cuts import NoiseCuts, shortest_prefix
from onnxq.search.sqnr_evaluator import ENOUGH
from onnxq.search.variants import Variants
from onnxq.search.wide_weights import can_be_wider, stored_wider
from onnxq.stages.prepare import expected_bytes, spared_bytes

# Terms of a trade: dB that are expected of a node, dB for the whole time (0.6 for 1 %), the most that it may take
LEAST_GAIN, GAIN_FOR_TIME, MOST_FOR_ONE = 1.0, 60.0, 0.03
# The same in bytes of the file, of a weight that is only stored in 8 bit, and takes no time in float
LEAST_FOR_BYTES, GAIN_FOR_BYTES = 0.1, 10.0
GAINS = 4  # nodes tried
# A node next to others in float removes more noise than its own: values between them are no longer rounded. So
# nodes that take little time in float are tried, whatever their own noise. A MobileNetV2 gains 0.5 dB by one Conv,
# for 0.3 % of the time; 0.2 dB were expected. AMD EPYC Zen 4, onnxruntime 1.32, 24 November 2026.
LITTLE_TIME, LEAST_FOR_LITTLE = 0.02, 0.3  # share of the time, dB
FREE_PLANS, FREE_TRIALS = 12, 4  # plans made, and of these models judged: where most error goes, neighbours included
# The same as measured on held-out samples: expectations come from single nodes and few samples
LEAST_SHOWN, SHOWN_FOR_TIME = 0.5, 30.0
KEPT_GAIN = 0.5  # of what was expected of a weight that is only stored in 8 bit


@dataclass(frozen=True)
class SearchResult:
    """The result of a search.

    Attributes:
        choices: For the nodes that are returned to float.
        met: Whether the budget is met.
        sqnr: What the model was judged at in dB; None where the search asks only whether it meets the budget.

    """

    choices: Choices
    met: bool
    sqnr: float | None = None


def decibels_without(share: float) -> float:
    """Return how many dB the outputs gain where a share of their squared error goes."""
    return -10 * math.log10(max(1 - share, 1e-9))


Predicate = Callable[[Model], bool]


def cheap_wins(variants: Variants, ranked: Sequence[Candidate]) -> SearchResult:
    """Return nodes to float, one by one, whose error is out of proportion to the time that 8 bit saves there.

    The cheapest of several ways for a node that keeps its promise is taken. A new plan shows the real cost of a node:
    its neighbours may follow it to float.
    """
    costs = variants.prepared.plan.costs
    choices: dict[str, Override] = {}
    left = [move for move in ranked if move.computes]
    noise = math.fsum(move.noise for move in ranked)
    best = variants.fine_judge.sqnr(variants.model(choices))
    time = planned_time(variants.prepared.plan, costs)
    for _ in range(GAINS):
        if best >= ENOUGH:
            break
        ways = [(move, way, _gain(move, way, noise)) for move in left for way in move.ways]
        worth = [one for one in ways if _pays(one[2], one[1].cost)]
        if not worth:
            break
        move = max(worth, key=lambda one: (one[2] / (one[1].cost + 1e-3), one[0].key))[0]
        left.remove(move)
        remaining = 0.0  # a node that gains too little for its time is not tried again
        for way, gain in [(way, gain) for other, way, gain in worth if other is move]:
            attempt = {**choices, move.key: way.choice}
            longer = planned_time(variants.planned(attempt), costs)
            cost = longer / time - 1
            if not _pays(gain, cost):
                continue
            least = best + max(LEAST_SHOWN, SHOWN_FOR_TIME * cost)
            reached = variants.fine_judge.sqnr_towards(variants.model(attempt), least)
            if reached >= least and reached > best:
                best, choices, time, remaining = reached, attempt, longer, move.noise * way.left
                break
        noise += remaining - move.noise
    return _free_wins(variants, left, SearchResult(choices, met=True, sqnr=best), time)


def _free_wins(variants: Variants, left: Sequence[Candidate], found: SearchResult, time: float) -> SearchResult:
    """Return nodes to float that take little time there, if held-out samples gain by it.

    Neighbours follow a node whose float form they would only add conversions to. Nodes that take most error with them
    are tried first.

    Args:
        variants: What is tried.
        left: Nodes that compute in 8 bit, those that buy most for their time first.
        found: Choices so far.
        time: What these are predicted to take.

    """
    costs, choices, best = variants.prepared.plan.costs, dict(found.choices), found.sqnr or 0.0
    tried: list[tuple[float, Candidate]] = []
    judged = [_decided(variants.planned(choices))]
    for move in [move for move in left if move.ways[-1].cost <= LITTLE_TIME][: FREE_PLANS * (best < ENOUGH)]:
        plan = variants.planned({**choices, move.key: move.ways[-1].choice})
        if planned_time(plan, costs) / time - 1 <= LITTLE_TIME:
            integer = {node_key(node) for node in plan.in_integers}
            tried.append((math.fsum(other.noise for other in left if other.key not in integer), move))
    for _, move in sorted(tried, key=lambda one: (-one[0], one[1].key))[:FREE_TRIALS]:
        attempt = {**choices, move.key: move.ways[-1].choice}
        plan = variants.planned(attempt)
        longer = planned_time(plan, costs)
        cost = longer / time - 1
        if best >= ENOUGH or cost > LITTLE_TIME or _decided(plan) in judged:
            continue
        judged.append(_decided(plan))
        least = best + max(LEAST_FOR_LITTLE, SHOWN_FOR_TIME * cost)
        reached = variants.fine_judge.sqnr_towards(variants.model(attempt), least)
        if reached >= least and reached > best:
            best, choices, time = reached, attempt, longer
    return replace(found, choices=choices, sqnr=best)


def _decided(plan: Plan) -> tuple[object, ...]:
    """Return what makes two plans of a model the same."""
    return tuple((one.scheme, one.settings, one.node in plan.in_integers) for one in plan.decisions)


def keep_small_weights_float(variants: Variants, ranked: Sequence[Candidate], found: SearchResult) -> SearchResult:
    """Keep weights in float that are only stored in 8 bit, where that gains much for few bytes and takes no time.

    The table of a vocabulary of characters, for example: what its rounding does is in everything behind.
    """
    plan, choices = variants.prepared.plan, dict(found.choices)
    noise, everything = (
        math.fsum(move.noise for move in ranked) or 1.0,
        expected_bytes(variants.prepared.model, plan) or 1,
    )
    nodes = {node_key(decision.node): decision.node for decision in plan.decisions}
    worth = []
    for move in ranked:
        gain, share = decibels_without(move.noise / noise), spared_bytes(nodes[move.key]) / everything
        small = share <= MOST_FOR_ONE and not move.computes and move.key not in choices
        if small and gain >= max(LEAST_FOR_BYTES, GAIN_FOR_BYTES * share):
            worth.append((move, gain))
    best = variants.judge.sqnr(variants.model(choices)) if worth else ENOUGH
    for move, gain in worth[:GAINS]:
        if best >= ENOUGH:
            break
        attempt = {**choices, move.key: _kept(move)}
        least = best + KEPT_GAIN * gain
        reached = variants.judge.sqnr_towards(variants.model(attempt), least)
        if reached >= least and reached > best:
            best, choices = reached, attempt
    return replace(found, choices=choices)


def _gain(move: Candidate, way: Option, noise: float) -> float:
    """Return the dB that the outputs are expected to gain by one way for a node, of all the noise that there is."""
    return decibels_without(move.noise * (1 - way.left) / (noise or 1.0))


def _pays(gain: float, cost: float) -> bool:
    return gain >= max(LEAST_GAIN, GAIN_FOR_TIME * cost) and cost <= MOST_FOR_ONE


def fewest_float_nodes(
    variants: Variants,
    ranked: Sequence[Candidate],
    meets: Predicate,
    settled: Choices,
    *,
    below: Choices | None = None,
    stages: int = 2,
    max_time: float = math.inf,
    missed: bool = False,
    cuts: NoiseCuts | None = None,
) -> SearchResult:
    """Find the fewest nodes to return to float until the model meets the budget.

    Args:
        variants: What is tried.
        ranked: The nodes, in the order in which they are returned.
        meets: Whether a quantized model meets the budget.
        settled: Choices that stay.
        below: Choices for nodes that are not returned.
        stages: 1 to store all weights in 8 bit whatever happens, 2 to store those in 12 bits or float that it takes.
        max_time: Time that may be spent, as a share of the model's.
        missed: Whether the choices that stay are known to miss the budget, and need not be tried alone.
        cuts: Plans to try in place of nodes in their order, where conversions between nodes decide.

    """
    computing = [move for move in ranked if move.computes and move.key not in settled]
    choices = {**(below or {}), **settled}
    if not missed and meets(variants.model(choices)):
        return SearchResult(choices, met=True)
    if cuts is not None:
        cheapest = cuts.meeting(lambda found: meets(variants.model(found)))
        if cheapest is not None:
            return SearchResult(cheapest, met=True)
    steps = max((len(move.ways) for move in computing), default=0) if cuts is None else 0
    for step in range(steps):
        stage = within_cost(sorted(computing, key=partial(benefit_per_cost, step)), max_time, step)
        to_try = _Stage(variants, meets, choices, partial(_chosen, step))
        if stage and to_try.suffices(stage):
            return SearchResult(_cheapened(to_try, shortest_prefix(stage, to_try.suffices), step), met=True)
    before, choices = choices, {**choices, **{move.key: move.ways[-1].choice for move in computing}}
    if missed and not computing and meets(variants.model(choices)):  # by what was settled for the goal before
        return SearchResult(choices, met=True)
    if stages > 1:
        by_noise = sorted(ranked, key=lambda move: (-move.noise, move.key))
        wider = can_be_wider(variants, choices)
        for moves, choose in (([move for move in by_noise if move.key in wider], _stored_wider), (by_noise, _kept)):
            to_try = _Stage(variants, meets, choices, choose)
            if moves and to_try.suffices(moves):
                kept = shortest_prefix(moves, to_try.suffices)
                return SearchResult(_put_back(to_try, kept, before, computing), met=True)
        choices = to_try.given(by_noise)
    return SearchResult(choices, met=False)


def _put_back(found: _Stage, kept: Sequence[Candidate], before: Choices, computing: Sequence[Candidate]) -> Choices:
    """Let those compute in 8 bit again whose weights did not have to be kept float, as far as the budget allows it.

    Not where that is nothing but operators without weights, which do no good alone.
    """
    choices, last = found.given(kept), max((len(move.ways) for move in computing), default=1) - 1
    plan = found.variants.planned(choices)
    weighted = {node_key(decision.node) for decision in plan.decisions if decision.scheme == "weight-int8"}
    rest = sorted((move for move in computing if move not in kept), key=partial(benefit_per_cost, last))
    if not any(move.key in weighted for move in rest):
        return choices
    again = replace(found, settled=replace(found, settled=before).given(kept), choose=partial(_chosen, last))
    few = rest[:0] if again.suffices(rest[:0]) else shortest_prefix(rest, again.suffices)
    return again.given(few) if any(move.key in weighted for move in rest[len(few) :]) else choices


@dataclass(frozen=True)
class _Stage:
    """One way for some nodes, on top of choices that stay."""

    variants: Variants
    meets: Predicate
    settled: Choices
    choose: Callable[[Candidate], Override]

    def given(self, moves: Sequence[Candidate]) -> dict[str, Override]:
        return {**self.settled, **{move.key: self.choose(move) for move in moves}}

    def suffices(self, moves: Sequence[Candidate]) -> bool:
        return self.meets(self.variants.model(self.given(moves)))


def _cheapened(found: _Stage, few: Sequence[Candidate], step: int) -> Choices:
    """Choose a cheaper way for nodes for which the budget allows it, the last ones first."""
    for lower in range(step):
        found, few = _lowered(found, few, lower)
    return found.given(few)


def _lowered(found: _Stage, few: Sequence[Candidate], lower: int) -> tuple[_Stage, Sequence[Candidate]]:
    def rest(kept: Sequence[Candidate]) -> _Stage:
        others = {move.key: _chosen(lower, move) for move in few[len(kept) :]}
        return replace(found, settled={**found.settled, **others})

    def suffices(kept: Sequence[Candidate]) -> bool:
        return rest(kept).suffices(kept)

    kept = few[:0] if suffices(few[:0]) else shortest_prefix(few, suffices)
    return rest(kept), kept


def _stored_wider(move: Candidate) -> Override:
    return stored_wider(move.share)


def _kept(move: Candidate) -> Override:
    return Override("float", f"kept float: {reason_for(move)}")


def _chosen(step: int, move: Candidate) -> Override:
    return option_at(step, move).choice
