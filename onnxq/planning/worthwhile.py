"""Decide whether a model gains enough by integer kernels; otherwise only its weights are stored in 8 bit.

Tests: `tests/planning/test_worthwhile.py`.
"""

from __future__ import annotations

from onnxq.planning.decision import Plan
from onnxq.planning.latency import predicted_latency
from onnxq.targets import families_of, is_estimated
from onnxq.targets.target import load_target

WORTHWHILE = 0.97  # of float's latency: less gain than this is within what predictions are wrong by


def worthwhile(plan: Plan) -> bool:
    """Tell whether a plan is at least 3 % faster than float, on one of the families that its target is for.

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
    return any(predicted_latency(plan, family) <= WORTHWHILE for family in known)
