"""Plans by the price of noise: how much goes to float, and that no other choice costs less for what it removes."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import combinations, pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers import build, floats, node

from onnxq.data.samples import input_specs, wrap_samples
from onnxq.ir import Model, load
from onnxq.planning.decision import Choices, Override
from onnxq.planning.latency import planned_time
from onnxq.progress import Silent
from onnxq.search.candidates import Candidate, predicted_time, time_to_spend
from onnxq.search.held_out import HoldoutSplit
from onnxq.search.noise_cuts import EXPONENTS, LAST, NO_PRICE, Judged, NoiseCuts, noise_cuts
from onnxq.search.variants import Variants, calibrate_and_round
from onnxq.stages.prepare import prepare

NOISES = (0.01, 0.4, 0.03, 0.5, 0.06)


@pytest.fixture(scope="module")
def variants(tmp_path_factory: pytest.TempPathFactory) -> Variants:
    """Five Convs of 32 channels, one behind the other, in 8 bit by `auto`."""
    nodes, weights, value = [], {}, "x"
    for index in range(len(NOISES)):
        weights[f"w{index}"] = floats(32, 32, 3, 3, seed=index) / 16
        nodes += [
            node("Conv", f"{value} w{index}", f"c{index}", pads=[1] * 4),
            node("Relu", f"c{index}", f"y{index}"),
        ]
        value = f"y{index}"
    path: Path = tmp_path_factory.mktemp("cuts") / "convs.onnx"
    path.write_bytes(build(nodes, {"x": [1, 32, 28, 28]}, [value], weights).SerializeToString())
    prepared = prepare(load(path), "auto", with_data=True)
    samples = wrap_samples([{"x": floats(1, 32, 28, 28, seed=50 + i)} for i in range(4)], input_specs(prepared.model))
    return calibrate_and_round(prepared, HoldoutSplit(prepared.model.copy(), samples), samples, None, Silent())


@pytest.fixture(scope="module")
def moves() -> list[Candidate]:
    return [Candidate(f"c{index}", noise, noise, 0.1, True) for index, noise in enumerate(NOISES)]


def test_higher_prices_return_more_nodes(variants: Variants, moves: list[Candidate]) -> None:
    cuts = NoiseCuts(variants, moves, {})
    plans = [set(cuts.plan(place)) for place in range(LAST + 1)]
    assert all(few <= more for few, more in pairwise(plans))
    assert not plans[0]
    assert plans[-1] == {move.key for move in moves}


def test_no_choice_of_nodes_costs_less_for_its_noise(variants: Variants, moves: list[Candidate]) -> None:
    plan = variants.prepared.plan
    whole, total = planned_time(plan, plan.costs), sum(NOISES)

    def price(choices: dict[str, Override], exponent: int) -> float:
        left = sum(move.noise for move in moves if move.key not in choices)
        taken = planned_time(variants.replan(choices)[0].plan, plan.costs)
        return taken + 2 ** (exponent / 2) * whole / total * left

    every = [
        {move.key: move.ways[-1].choice for move in some}
        for count in range(len(moves) + 1)
        for some in combinations(moves, count)
    ]
    cuts = NoiseCuts(variants, moves, {})
    for place, exponent in list(enumerate(EXPONENTS))[::4]:
        found = price(dict(cuts.plan(place)), exponent)
        assert found <= 1.02 * min(price(choices, exponent) for choices in every)


def reached_by(noises: dict[str, float]) -> Callable[[Choices], float]:
    return lambda choices: -10 * math.log10(sum(noise for key, noise in noises.items() if key not in choices) or 1e-9)


def test_the_lowest_price_that_meets_a_goal_is_found(variants: Variants, moves: list[Candidate]) -> None:
    cuts, tried = NoiseCuts(variants, moves, {}), []

    def meets(choices: Choices) -> bool:
        tried.append(choices)
        return sum(move.noise for move in moves if move.key not in choices) < 0.2

    found = cuts.meeting(meets)
    assert found is not None
    assert {"c1", "c3"} <= found.keys()
    assert len(tried) <= 6
    assert cuts.meeting(lambda choices: False) is None


@pytest.mark.parametrize("goal", [1.5, 3.0, 8.0, 12.0, 30.0])
def test_what_is_expected_leads_to_the_same_plan(variants: Variants, moves: list[Candidate], goal: float) -> None:
    """Nodes make twice, half or three times the error that was found for them: the plan is that of a bisection."""
    made = {move.key: factor * move.noise for factor, move in zip((2.0, 1.0, 3.0, 0.5, 1.0), moves, strict=True)}
    cuts, reached, tried = NoiseCuts(variants, moves, {}), reached_by(made), []

    def judged(choices: Choices) -> float:
        tried.append(frozenset(choices))
        return reached(choices)

    found = cuts.cheapest(NO_PRICE, LAST, goal, judged)
    assert found == cuts.meeting(lambda choices: reached(choices) >= goal)
    assert len(set(tried)) <= 6


def test_plans_that_reach_the_same_are_halved(variants: Variants, moves: list[Candidate]) -> None:
    cuts = NoiseCuts(variants, moves, {})
    assert cuts.cheapest(NO_PRICE, LAST, 20.0, lambda _: 20.0) == cuts.plan(0)  # none of them misses the goal


def test_time_ends_where_kernels_take_more(variants: Variants, moves: list[Candidate]) -> None:
    cuts = NoiseCuts(variants, moves, {})
    assert cuts.affordable(math.inf) == LAST
    assert cuts.affordable(-1.0) == NO_PRICE
    place = cuts.affordable(0.3)
    plans = [variants.replan(cuts.plan(at))[0].plan for at in (NO_PRICE, place, place + 1)]
    before, few, many = (predicted_time(plan, plan.costs) for plan in plans)
    assert few <= 1.3 * before < many


def test_any_time_may_be_spent_where_none_is_saved(
    variants: Variants, moves: list[Candidate], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = variants.prepared.plan
    assert 0 < time_to_spend(plan, 0.3) < time_to_spend(plan, 0.6)
    monkeypatch.setattr("onnxq.search.candidates.saved_time", lambda plan: 0.0)
    assert time_to_spend(plan, 0.6) == 0
    assert NoiseCuts(variants, moves, {}).affordable(time_to_spend(plan, math.inf)) == LAST


def test_a_plan_is_judged_once_for_goals_that_it_misses(variants: Variants, moves: list[Candidate]) -> None:
    asked = []

    def sqnr_towards(model: Model, goal: float) -> float:
        asked.append(goal)
        return 24.0

    judged = Judged(NoiseCuts(variants, moves, {}), SimpleNamespace(sqnr_towards=sqnr_towards), 20.0)
    choices = {"c0": moves[0].ways[-1].choice}
    assert [judged({}, goal) for goal in (10.0, 30.0)] == [20.0, 20.0]
    assert [judged(choices, goal) for goal in (27.0, 30.0, 25.0, 21.0, 25.0)] == [24.0] * 5
    assert asked == [27.0, 25.0, 21.0]


def test_nodes_between_two_plans_are_tried_one_by_one(variants: Variants, moves: list[Candidate]) -> None:
    """One Conv alone costs its conversions, which no price pays as long as all its neighbours come cheaper."""
    cuts = NoiseCuts(variants, moves, {})
    every = {move.key: move.ways[-1].choice for move in moves}
    found = cuts._between({}, every, 10.0, lambda choices: 20.0 * ("c3" in choices))
    assert list(found) == ["c3"]
    assert cuts._between({}, every, 10.0, lambda choices: 20.0 * (len(choices) == 5)) == every
    assert cuts._between({}, {"c3": every["c3"]}, 10.0, lambda choices: 20.0) == {"c3": every["c3"]}


def test_choices_that_stay_are_kept(variants: Variants, moves: list[Candidate]) -> None:
    settled = {"c0": moves[0].ways[-1].choice}
    found = NoiseCuts(variants, moves, settled).meeting(lambda choices: "c3" in choices)
    assert found is not None
    assert {"c0", "c3"} <= found.keys()


def test_nodes_with_forms_between_are_returned_one_by_one(variants: Variants, moves: list[Candidate]) -> None:
    assert noise_cuts(variants, moves, {}) is not None
    assert noise_cuts(variants, [Candidate("c0", 1.0, 1.0, 0.1, True, between=moves[0].ways)], {}) is None
