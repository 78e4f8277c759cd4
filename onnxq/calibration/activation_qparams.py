"""Scale and zero point of an activation, from its statistics and the settings of the node that quantizes it.

Tests: `tests/calibration/test_sample_extremes.py`.
"""

from __future__ import annotations

import numpy as np

from onnxq.calibration.qparams import QParams, activation_qparams
from onnxq.calibration.ranges import METHODS, add_headroom, as_float32, choose_range, extrapolate_range
from onnxq.calibration.shallow_ends import shallow_end
from onnxq.calibration.stats import TensorStats
from onnxq.errors import ModelError
from onnxq.ir import Value
from onnxq.ops.forms.integer_domain import CLAMPS, MOVERS
from onnxq.ops.forms.scheme import Scheme
from onnxq.planning.decision import Plan
from onnxq.planning.logit_reach import NO_REACH, Reach
from onnxq.planning.reader_curves import Curve
from onnxq.planning.static_bounds import UNKNOWN

MOST_WIDENED = 4 / 3  # of a range of logits, for what no sample has shown
FINEST = 128  # steps of an average for one of what it averages: QLinearGlobalAveragePool refuses 256 and more
PASSED = (*MOVERS, *CLAMPS, "Identity")  # what onnxruntime leaves out between an average and its codes, or moves


def scheme_qparams(
    stats: TensorStats,
    scheme: Scheme,
    bounds: tuple[float, float] = UNKNOWN,
    reach: Reach = NO_REACH,
    curve: Curve | None = None,
) -> QParams:
    """Choose the range as the scheme says, and spread the codes of its activation type over it.

    An open choice is the range from the least to the greatest value, widened as far as other samples are expected to
    need. So is one by output error that covers all samples. The range ends at the bounds of the tensor's operator.
    Rounding in float32 may go beyond, and an absorbed Clip clamps at the ends of the codes. Logits keep their reach
    (`onnxq.planning.logit_reach`). An open range has few codes for negative values if readers make little of them
    (`onnxq.calibration.shallow_ends`), unless codes are symmetric.
    """
    method, symmetric = scheme.ranges, scheme.symmetric
    low, high = choose_range(stats, method, percentile=scheme.percentile, bits=scheme.bits, symmetric=symmetric)
    if METHODS[scheme.ranges].extrapolates:
        low, high = extrapolate_range(stats, low, high, bits=scheme.bits)
    low, high = add_headroom(stats, low, high, scheme.headroom)
    low, high = cover_reach(low, high, (stats.min, stats.max), reach)
    if scheme.symmetric:
        farthest = max(-bounds[0], bounds[1])
        bounds = -farthest, farthest
    low, high = max(low, bounds[0]), min(high, bounds[1])
    if curve is not None and curve.slope < 1 and METHODS[scheme.ranges].extrapolates and not scheme.symmetric:
        low = shallow_end(stats, low, high, curve, bits=scheme.bits)
    return activation_qparams(low, high, scheme.activations, symmetric=scheme.symmetric)


def cover_reach(low: float, high: float, seen: tuple[float, float], reach: Reach) -> tuple[float, float]:
    """Widen a range of logits to what was seen of them up to their reach, and towards their reach what was not.

    The latter makes codes coarser by a third at most: where all logits are small, what they say is in between.

    Args:
        low: Lower end, at most 0.
        high: Upper end, at least 0.
        seen: The least and the greatest value of the samples.
        reach: How far the range goes at least.

    """
    low, high = min(low, max(seen[0], -reach.logit)), max(high, min(seen[1], reach.logit))
    least = max(reach.logit, reach.share * max(-low, high))
    below, above = max(least + low, 0.0), max(least - high, 0.0)
    if below + above == 0.0 or high <= low:
        return low, high
    share = min((MOST_WIDENED - 1.0) * (high - low) / (below + above), 1.0)
    return as_float32(low - share * below, high + share * above)


def array_qparams(array: np.ndarray, scheme: Scheme) -> QParams:
    """Return scale and zero point of a constant that is coded as activations are, its range covered.

    Raises:
        ModelError: It holds NaN or infinity.

    """
    low, high = float(array.min(initial=0)), float(array.max(initial=0))
    if not np.isfinite([low, high]).all():
        raise ModelError("a constant holds NaN or infinity", "Export the model again from sound weights.")
    return activation_qparams(low, high, scheme.activations, symmetric=scheme.symmetric)


def coarsened(plan: Plan, qparams: dict[Value, QParams]) -> dict[Value, QParams]:
    """Return averages over whole channels steps that are not too fine for onnxruntime, compared with those of their
    input.

    Such an average is next to nothing, as behind an InstanceNormalization: its steps count what float32 rounded.
    """
    found = dict(qparams)
    for value in qparams:
        node = plan.range_owner(value).producer
        while node is not None and node.op_type in PASSED and not node.domain and node.inputs[0] is not None:
            node = node.inputs[0].producer
        if node is None or node.op_type != "GlobalAveragePool" or node.domain or node.inputs[0] is None:
            continue
        source = found.get(plan.scale_owner(node.inputs[0]))
        if source is not None:
            scale, zero = found[value]
            found[value] = max(scale, np.float32(source[0] / np.float32(FINEST))), zero
    return found
