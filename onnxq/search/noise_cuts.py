"""Plans that trade time for error: minimum cuts in which the error of a node in 8 bit has a price.

A node costs time in float, and so do the conversions and changes of layout around it. Neighbours that go together share
them. A minimum cut over times and prices gives the plan of least error for its time, as a Lagrangian does. Plans by
higher prices have more nodes in float, so bisection finds the lowest price whose plan meets a goal. A price can have no
plan between two that differ by a whole region. Nodes of such a region go to float one by one, as far as it takes.

Tests: `tests/search/test_noise_cuts.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TypeVar

from onnxq.planning.decision import Choices, node_key
from onnxq.planning.latency import planned_time
from onnxq.planning.planner import plan_again
from onnxq.search.candidates import Candidate, benefit_per_cost, is_priced
from onnxq.search.variants import Variants

T = TypeVar("T")

LEAST_GAP = 0.02  # of the time, between two plans from which on others between them are tried
EXPONENTS = range(-8, 25)  # all noise together is priced at so many powers of √2 of the time of the model


@dataclass(frozen=True)
class NoiseCuts:
    """The plans of a model by the price of its noise."""

    variants: Variants

    @cached_property
    def _whole(self) -> float:
        """Time of the plan without choices, in nanoseconds."""
        plan = self.variants.prepared.plan
        return planned_time(plan, plan.costs)

    def cheapest(
        self, moves: Sequence[Candidate], settled: Choices, meets: Callable[[Choices], bool], max_time: float
    ) -> Choices | None:
        """Return the choices of the lowest price that meet a goal.

        Args:
            moves: Nodes that compute in 8 bit and may return to float.
            settled: Choices that stay.
            meets: Whether the model of some choices meets the goal.
            max_time: Time that may be spent beyond that of `settled`, as a share of the model's.

        Returns:
            None where no price meets the goal, or that takes too much time.

        """
        low, high = 0, len(EXPONENTS) - 1
        tried: dict[frozenset[str], bool] = {frozenset(settled): False}
        found, missed = None, settled
        while low <= high:
            middle = (low + high) // 2
            choices = self._choices(moves, settled, EXPONENTS[middle])
            keys = frozenset(choices)
            tried[keys] = tried[keys] if keys in tried else meets(choices)
            if tried[keys]:
                found, high = choices, middle - 1
            else:
                missed, low = choices, middle + 1
        if found is None:
            return None
        found = self._between(missed, found, moves, meets)
        return found if self._cost(found) - self._cost(settled) <= max_time else None

    def _between(
        self, missed: Choices, found: Choices, moves: Sequence[Candidate], meets: Callable[[Choices], bool]
    ) -> Choices:
        """Return choices that meet a goal between two plans, the first of which misses it, or the second."""
        more = [move for move in moves if move.key in found.keys() - missed.keys()]
        if len(more) < 2:
            return found
        cost = self._cost(found)
        if cost - self._cost(missed) < LEAST_GAP:
            return found
        more.sort(key=partial(benefit_per_cost, max(len(move.ways) for move in more) - 1))

        def given(few: Sequence[Candidate]) -> Choices:
            return {**missed, **{move.key: found[move.key] for move in few}}

        few = given(shortest_prefix(more, lambda few: meets(given(few))))
        return few if self._cost(few) < cost else found

    def _choices(self, moves: Sequence[Candidate], settled: Choices, exponent: int) -> Choices:
        """Return float for those nodes that are too noisy for their time by a price."""
        plan = self.variants.prepared.plan
        price = 2 ** (exponent / 2) * self._whole / (math.fsum(move.noise for move in moves) or 1.0)
        prices = {move.key: price * move.noise for move in moves}
        settings = replace(plan, costs=plan.costs.with_prices(prices), choices={**plan.choices, **settled})
        made = plan_again(self.variants.prepared.model, settings)
        integer = {node_key(node) for node in made.in_integers}
        return {**settled, **{move.key: move.ways[-1].choice for move in moves if move.key not in integer}}

    def _cost(self, choices: Choices) -> float:
        """Return how much longer the model takes with some choices, as a share of its time without."""
        costs = self.variants.prepared.plan.costs
        return planned_time(self.variants.replan(choices)[0].plan, costs) / self._whole - 1


def noise_cuts(variants: Variants, ranked: Sequence[Candidate]) -> NoiseCuts | None:
    """Return the plans of a model by the price of its noise; None where nodes are returned one by one.

    That is so where the times of the target are not known. Most products have something between 8 bit and float, and
    are returned one by one, too.
    """
    moves = [move for move in ranked if move.computes]
    one_way = sum(len(move.ways) == 1 for move in moves)
    return NoiseCuts(variants) if is_priced(variants.prepared.plan) and 2 * one_way > len(moves) else None


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
