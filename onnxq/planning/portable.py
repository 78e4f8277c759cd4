"""The plan for several families of processors: of plans by several mixes of kernel times, the one of least regret."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from onnxq.planning.decision import Plan
from onnxq.planning.latency import latencies_on
from onnxq.targets import Costs, families_of, is_estimated, load_mixes

SLOWEST = 1.03  # of float's latency, on a family whose times are measured: predictions are good to some hundredths
# And where another such family gains `GAINS` times what this one loses. With AVX2, CNNs take 0.03 to 0.09 less than
# predicted. The face detector yunet_n is predicted at 1.06 and measured at 1.00; with VNNI it takes 0.80.
# AMD EPYC Zen 4, CPUID masked to AVX2, onnxruntime 1.32, 24 November 2026
SLOWEST_FOR_GAIN = 1.07
GAINS = 2.0
ESTIMATED = 0.5  # of its regret counts where a family's times are estimated
CLEARLY = 0.02  # less regret than the first mix has, or that one stays


def portable_costs(plan: Plan, plan_by: Callable[[Costs], Plan]) -> Costs:
    """Return the kernel times by which a plan is good on every family that a target is for.

    Regret is a plan's time on a family over the least time of any plan there. The plan of least worst regret is taken.
    Plans that are slower than float on a family come last, unless others gain much more.

    Args:
        plan: By the first mix.
        plan_by: Gives the plan by kernel times.

    Returns:
        Those of `plan` where the target is for one family, or no other mix is clearly better.

    """
    target = plan.recipe.scheme.target
    mixes = load_mixes(target)
    if len(mixes) < 2:
        return plan.costs
    costs = [plan.costs, *(mix.with_shapes(plan.costs.shapes) for mix in mixes[1:])]
    plans = [plan, *map(plan_by, costs[1:])]
    families = families_of(target)
    found = list(zip(*(latencies_on(family, plans) for family in families), strict=True))
    return costs[_least_regret(found, [is_estimated(family) for family in families])]


def _least_regret(latencies: Sequence[Sequence[float]], estimated: Sequence[bool]) -> int:
    """Return which plan has the least regret in the worst case.

    Args:
        latencies: Of each plan on each family, by float's.
        estimated: Of each family, whether its times are.

    """
    least = [min(column) for column in zip(*latencies, strict=True)]
    weights = [ESTIMATED if guess else 1.0 for guess in estimated]

    def regret(plan: int) -> float:
        pairs = zip(latencies[plan], least, weights, strict=True)
        worst: float = max((taken / best - 1) * weight for taken, best, weight in pairs)
        return worst - (CLEARLY if plan == 0 else 0.0)

    def slow(plan: int) -> bool:
        measured = [taken for taken, guess in zip(latencies[plan], estimated, strict=True) if not guess]
        return is_slow(measured)

    return min(range(len(latencies)), key=lambda plan: (slow(plan), round(regret(plan), 3), plan))


def is_slow(latencies: Sequence[float]) -> bool:
    """Return whether a plan is slower than float on one family without gaining much more on another.

    Args:
        latencies: Of the plan on each family whose times are measured, by float's.

    """
    most, least = max(latencies, default=0.0), min(latencies, default=0.0)
    if most <= SLOWEST:
        return False
    return most > SLOWEST_FOR_GAIN or 1 - least < GAINS * (most - 1)
