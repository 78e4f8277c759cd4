"""A plan for several families of processors has the least regret on any of them."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import build, floats, node, typed

from onnxq.planning.latency import predicted_latency
from onnxq.planning.planner import make_plan
from onnxq.planning.portable import SLOWEST, _least_regret, is_slow, portable_costs
from onnxq.planning.recipe import load_recipe
from onnxq.stages.prepare import prepare
from onnxq.targets import Costs, families_of, load_costs, load_mixes

MEASURED = [False, False]


def mobile(channels: int = 32, side: int = 28, blocks: int = 3):
    """Depthwise and pointwise Convs in turn, which families disagree about."""
    nodes, weights, read = [], {}, "x"
    for index in range(blocks):
        weights[f"d{index}"] = floats(channels, 1, 3, 3, seed=index)
        weights[f"p{index}"] = floats(channels, channels, 1, 1, seed=index)
        nodes.append(node("Conv", f"{read} d{index}", f"a{index}", pads=[1] * 4, group=channels))
        nodes.append(node("Conv", f"a{index} p{index}", f"b{index}"))
        read = f"b{index}"
    return build(nodes, {"x": [1, channels, side, side]}, [read], weights)


@pytest.mark.parametrize(
    ("latencies", "chosen"),
    [
        ([[0.5, 0.9], [0.5, 0.5]], 1),  # as good on one family, better on the other
        ([[0.5, 0.51], [0.5, 0.505]], 0),  # not clearly better
        ([[1.1, 0.5], [1.0, 1.0]], 1),  # slower than float on one family, whatever it gains on the other
        ([[1.06, 0.86], [1.0, 1.0]], 0),  # hardly slower, and much faster on the other
        ([[1.05, 0.97], [1.0, 1.0]], 1),  # as much slower as it is faster
        ([[1.1, 0.5], [1.4, 0.45]], 0),  # all are slower than float somewhere
        ([[0.8, 0.4], [0.7, 0.6]], 0),  # 8 / 7 is less than 6 / 4
    ],
)
def test_the_least_regret_in_the_worst_case_is_chosen(latencies: list[list[float]], chosen: int) -> None:
    assert _least_regret(latencies, MEASURED) == chosen


def test_regret_counts_for_half_where_times_are_estimated() -> None:
    latencies = [[1.0, 0.62], [0.8, 0.9]]  # regrets 1.25 and 1.0; 1.0 and 1.45
    assert _least_regret(latencies, [False, False]) == 0
    assert _least_regret(latencies, [False, True]) == 1
    assert _least_regret([[0.9, 1.5], [0.97, 1.0]], [False, False]) == 1
    assert SLOWEST > 1


def test_a_family_without_a_mix_is_planned_once_by_its_own_times() -> None:
    plan = make_plan(typed(mobile()), load_recipe("auto").for_target("cpu-vnni"), with_data=True)
    assert plan.costs is load_costs("cpu-vnni")
    assert portable_costs(plan, lambda _: pytest.fail("planned again")) is plan.costs
    assert families_of("cpu-vnni") == ("cpu-vnni",)


def test_a_family_with_a_mix_has_a_plan_that_is_no_slower_there() -> None:
    prepared = prepare(typed(mobile()), load_recipe("auto").for_target("cpu-avx2"), with_data=True)
    own = make_plan(prepared.model, prepared.plan.recipe, with_data=True)
    assert families_of("cpu-avx2") == ("cpu-avx2",)
    assert load_mixes("cpu-avx2")[0].table["matmul"]["float"] == load_costs("cpu-avx2").table["matmul"]["float"]
    assert predicted_latency(prepared.plan, "cpu-avx2") <= predicted_latency(own, "cpu-avx2")


@pytest.mark.parametrize("channels", [16, 32, 64, 128])
def test_no_plan_for_all_is_slower_than_float_where_one_is_not(channels: int) -> None:
    prepared = prepare(typed(mobile(channels)), with_data=True)
    families = families_of("cpu")
    found = [predicted_latency(prepared.plan, family) for family in families]

    def latencies(costs: Costs) -> list[float]:
        plan = make_plan(prepared.model, prepared.plan.recipe, with_data=True, costs=costs)
        return [predicted_latency(plan, family) for family in families]

    others = [latencies(costs) for costs in load_mixes("cpu")]
    measured = [index for index, family in enumerate(families) if family != "cpu-arm64"]
    if not all(is_slow([other[index] for index in measured]) for other in others):
        assert not is_slow([found[index] for index in measured])
    assert found in others


def test_the_same_model_is_planned_the_same_every_time() -> None:
    first, second = (prepare(typed(mobile()), with_data=True).plan for _ in range(2))
    assert [d.scheme for d in first.decisions] == [d.scheme for d in second.decisions]
    assert np.array_equal(first.costs.table["matmul"]["float"], second.costs.table["matmul"]["float"])
