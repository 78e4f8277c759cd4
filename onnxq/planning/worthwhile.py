"""Decide whether a model gains enough by integer kernels; otherwise only its weights are stored in 8 bit.

Tests: `tests/planning/test_worthwhile.py`.
"""

from __future__ import annotations

from onnxq.planning.decision import Plan
from onnxq.planning.latency import times_on
from onnxq.targets import families_of, is_estimated
from onnxq.targets.target import load_target

WORTHWHILE = 0.97  # of float's latency: less gain than this is within what predictions are wrong by
# Nanoseconds: so much do predictions miss where a run takes but tens of microseconds. A step of an LSTM was to save 1.5
# of 27 by AVX2, and takes 1.02 to 1.06 of float. One that was to save 2.8 of 17 with VNNI takes 0.83.
# AMD EPYC Zen 4, also masked to AVX2, onnxruntime 1.32, 27 November 2026
LEAST_SAVED = 2000.0


def worthwhile(plan: Plan) -> bool:
    """Tell whether a plan is 3 % and 2 µs faster than float, on one of the families that its target is for.

    Families whose kernel times are estimated count where no others are known. Kernel times that were measured on the
    processor at hand have decided node by node, and are not questioned.

    Args:
        plan: A finished plan, before it is carried out.

    """
    target = plan.recipe.scheme.target
    if plan.costs.timings is not None or not load_target(target).timed or not plan.in_integers:
        return True
    families = families_of(target)
    known = [family for family in families if not is_estimated(family)] or list(families)
    return any(_gains(plan, family) for family in known)


def _gains(plan: Plan, family: str) -> bool:
    in_float, (taken,) = times_on(family, [plan])
    return taken <= WORTHWHILE * in_float and in_float - taken >= LEAST_SAVED
