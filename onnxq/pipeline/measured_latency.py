"""A model for this very computer has to be faster here: if not, it computes in float, with weights stored in 8 bits.

Tables of kernel times are good to some hundredths. A target that is this computer can be measured instead.

Tests: `tests/pipeline/test_measured_latency.py`.
"""

from __future__ import annotations

from onnxq.planning.worthwhile import WORTHWHILE
from onnxq.stages.kernel_timing import stored_only
from onnxq.stages.prepared import Prepared
from onnxq.stages.replan import copy_prepared
from onnxq.stages.strategy import Strategy
from onnxq.verification.records import Comparison

SLOWER = "with integer kernels, its latency here is {:.2f} of float's: it computes in float, with weights in 8 bits"


def stored_copy(prepared: Prepared) -> Prepared | None:
    """Return a copy that computes in float, to be taken where integer kernels are not faster on this computer.

    None where latency is not going to be measured, the target is another computer, or no weight can be stored.

    Args:
        prepared: The plan that is going to be carried out.

    """
    measured = prepared.here and not prepared.fast and prepared.strategy is Strategy.IN_MEMORY
    if not measured or not prepared.plan.in_integers:
        return None
    spare = stored_only(copy_prepared(prepared))
    return spare if spare is not None and not spare.plan.in_integers else None


def slower_here(comparison: Comparison | None) -> str | None:
    """Say how slow a quantized model is that is less than 3 % faster than float; None where it is faster, or unknown.

    Args:
        comparison: Of that model with float, timed in turn.

    """
    latency = comparison.latency if comparison is not None else None
    if latency is None or latency.ratio <= WORTHWHILE:
        return None
    return SLOWER.format(latency.ratio)
