"""Plans that trade time for error: minimum cuts in which the error of a node in 8 bit has a price.

A node costs time in float, and so do the conversions and changes of layout around it. Neighbours that go together share
them. A minimum cut over times and prices gives the plan of least error for its time, as a Lagrangian does. Plans by
higher prices have more nodes in float, so the lowest price can be searched for whose plan meets a goal. A price can
have no plan between two that differ by a whole region. Nodes of such a region go to float one by one, as far as it
takes.

To judge a plan takes much longer than to make it. So the errors of single nodes tell which plan to judge next. Between
two that were judged, the model is taken to gain in proportion to what is expected.

Tests: `tests/search/test_noise_cuts.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from onnxq.planning.decision import Choices, Plan, node_key
from onnxq.planning.latency import planned_time
from onnxq.planning.planner import plan_again
from onnxq.search.candidates import Candidate, benefit_per_cost, is_priced, predicted_time
from onnxq.search.sqnr_evaluator import SqnrEvaluator
from onnxq.search.variants import Variants

T = TypeVar("T")
Path = Callable[[int], Choices]  # from few nodes in float to many
Reached = Callable[[Choices], float]  # dB of a plan, or less than a goal that it misses

LEAST_GAP = 0.02  # of the time, between two plans from which on others between them are tried
EXPONENTS = range(-8, 25)  # all noise together is priced at so many powers of √2 of the time of the model
NO_PRICE, LAST = -1, len(EXPONENTS) - 1  # numbers of plans


class NoiseCuts:
    """The plans of a model by the price of its noise, numbered from the lowest price to the highest.

    Args:
        variants: What is tried.
        moves: Nodes that compute in 8 bit and may return to float.
        settled: Choices that stay.

    """

    def __init__(self, variants: Variants, moves: Sequence[Candidate], settled: Choices) -> None:
        self.variants, self.settled = variants, settled
        self._moves = [move for move in moves if move.computes and move.key not in settled]
        self._noise = math.fsum(move.noise for move in self._moves) or 1.0
        self._whole, self._kernels = self._times(variants.prepared.plan)
        self._made: dict[int, Choices] = {NO_PRICE: settled}
        self._costs: dict[frozenset[str], tuple[float, float]] = {frozenset(): (0.0, 0.0)}

    def plan(self, place: int) -> Choices:
        """Return float for those nodes that are too noisy for their time by a price, and the choices that stay."""
        if place not in self._made:
            self._made[place] = self._choices(EXPONENTS[place])
        return self._made[place]

    def cost(self, choices: Choices) -> float:
        """Return how much longer the model takes with some choices, as a share of its time without."""
        return self._longer(choices)[0]

    def affordable(self, most: float) -> int:
        """Return the last plan whose kernels take no more than so much longer, as a share of all kernels' time."""
        if math.isinf(most):
            return LAST
        few, many = NO_PRICE, LAST + 1  # `many` takes more
        while many - few > 1:
            middle = (few + many) // 2
            few, many = (middle, many) if self._longer(self.plan(middle))[1] <= most else (few, middle)
        return few

    def _longer(self, choices: Choices) -> tuple[float, float]:
        """Return how much longer the whole model takes with some choices, and its kernels alone, as shares."""
        keys = frozenset(choices)
        if keys not in self._costs:
            whole, kernels = self._times(self.variants.planned(choices))
            self._costs[keys] = whole / self._whole - 1, kernels / self._kernels - 1
        return self._costs[keys]

    def _times(self, plan: Plan) -> tuple[float, float]:
        costs = self.variants.prepared.plan.costs
        return planned_time(plan, costs), predicted_time(plan, costs)

    def gain(self, choices: Choices) -> float:
        """Return the dB that some choices are expected to gain."""
        left = math.fsum(move.noise for move in self._moves if move.key not in choices)
        return -10 * math.log10(max(left / self._noise, 1e-12))

    def cheapest(self, few: int, many: int, goal: float, reached: Reached) -> Choices:
        """Return the choices of the lowest price that reach a goal.

        Args:
            few: A plan that misses it.
            many: One that reaches it.
            goal: The goal in dB.
            reached: What the model of some choices reaches in dB, or something below the goal.

        """
        place = self._first(self.plan, few, many, goal, reached)
        return self._between(self.plan(place - 1), self.plan(place), goal, reached)

    def meeting(self, meets: Callable[[Choices], bool]) -> Choices | None:
        """Return the choices of the lowest price that meet a goal which has no figure; None where none does."""
        known: dict[frozenset[str], float] = {frozenset(self.settled): -math.inf}

        def reached(choices: Choices) -> float:
            keys = frozenset(choices)
            if keys not in known:
                known[keys] = math.inf if meets(choices) else -math.inf
            return known[keys]

        place = shortest_prefix(range(LAST + 2), lambda places: reached(self.plan(places[-1])) > 0)[-1]
        return self._between(self.plan(place - 1), self.plan(place), 0.0, reached) if place <= LAST else None

    def _between(self, missed: Choices, found: Choices, goal: float, reached: Reached) -> Choices:
        """Return choices that reach a goal between two plans, the first of which misses it, or the second."""
        more = [move for move in self._moves if move.key in found.keys() - missed.keys()]
        if len(more) < 2 or self.cost(found) - self.cost(missed) < LEAST_GAP:
            return found
        more.sort(key=partial(benefit_per_cost, max(len(move.ways) for move in more) - 1))

        def given(count: int) -> Choices:
            return {**missed, **{move.key: found[move.key] for move in more[:count]}} if count < len(more) else found

        few = given(self._first(given, 0, len(more), goal, reached))
        return few if self.cost(few) < self.cost(found) else found

    def _first(self, path: Path, few: int, many: int, goal: float, reached: Reached) -> int:
        """Find the first place on a path that reaches a goal, where `few` does not, and `many` does."""
        halved = True
        while many - few > 1:
            wide = many - few
            middle = self._guess(path, few, many, goal, reached) if halved else (few + many) // 2
            if reached(path(middle)) >= goal:
                many = middle
            else:
                few = middle
            halved = 2 * (many - few) <= wide
        return many

    def _guess(self, path: Path, few: int, many: int, goal: float, reached: Reached) -> int:
        """Return the place between two others that is expected to reach a goal first, by what those reach."""
        low, high = reached(path(few)), reached(path(many))
        first, last = self.gain(path(few)), self.gain(path(many))
        if not (math.isfinite(low) and math.isfinite(high) and low < high and first < last):
            return (few + many) // 2
        wanted = first + (goal - low) / (high - low) * (last - first)
        enough = many - 1
        while enough - few > 1:
            middle = (few + enough) // 2
            few, enough = (few, middle) if self.gain(path(middle)) >= wanted else (middle, enough)
        return enough

    def _choices(self, exponent: int) -> Choices:
        plan = self.variants.prepared.plan
        price = 2 ** (exponent / 2) * self._whole / self._noise
        prices = {move.key: price * move.noise for move in self._moves}
        settings = replace(plan, costs=plan.costs.with_prices(prices), choices={**plan.choices, **self.settled})
        made = plan_again(self.variants.prepared.model, settings)
        integer = {node_key(node) for node in made.in_integers}
        moved = {move.key: move.ways[-1].choice for move in self._moves if move.key not in integer}
        return {**self.settled, **moved}


class Judged:
    """The dB that plans reach by some samples, each judged once for all goals that it is held against.

    Args:
        cuts: The plans.
        judge: What they are judged by.
        sqnr: What the one without a price reaches, in dB.

    """

    def __init__(self, cuts: NoiseCuts, judge: SqnrEvaluator, sqnr: float) -> None:
        self._variants, self._judge = cuts.variants, judge
        # By choices: dB, and the goal that they were held against
        self._known = {frozenset(cuts.plan(NO_PRICE)): (sqnr, -math.inf)}

    def __call__(self, choices: Choices, goal: float) -> float:
        """Return the dB of the model of some choices, or of a part of the samples that misses a goal already."""
        keys = frozenset(choices)
        found, against = self._known.get(keys, (-math.inf, math.inf))
        if found < against and goal < against:
            found = self._judge.sqnr_towards(self._variants.model(choices), goal)
            self._known[keys] = found, goal
        return found


def noise_cuts(variants: Variants, ranked: Sequence[Candidate], settled: Choices) -> NoiseCuts | None:
    """Return the plans of a model by the price of its noise; None where nodes are returned one by one.

    That is so where the times of the target are not known. Most products have something between 8 bit and float, and
    are returned one by one, too.
    """
    moves = [move for move in ranked if move.computes]
    one_way = sum(len(move.ways) == 1 for move in moves)
    if not is_priced(variants.prepared.plan) or 2 * one_way <= len(moves):
        return None
    return NoiseCuts(variants, moves, settled)


def shortest_prefix(ranked: Sequence[T], suffices: Callable[[Sequence[T]], bool]) -> Sequence[T]:
    """Find by bisection how much of a list suffices from its front, if all of it does and nothing does not."""
    few, enough = 0, len(ranked)  # `few` is not enough
    while enough - few > 1:
        middle = (few + enough) // 2
        if suffices(ranked[:middle]):
            enough = middle
        else:
            few = middle
    return ranked[:enough]
