"""Scale and zero point of an activation, from its statistics and the settings of whoever quantizes it."""

from __future__ import annotations

from onnxq.ops.scheme import Scheme
from onnxq.quant.qparams import QParams, activation_qparams
from onnxq.quant.ranges import choose_range
from onnxq.quant.stats import TensorStats


def scheme_qparams(stats: TensorStats, scheme: Scheme) -> QParams:
    """Choose the range as the scheme says, and spread the codes of its activation type over it."""
    low, high = choose_range(
        stats, scheme.ranges, percentile=scheme.percentile, bits=scheme.bits, symmetric=scheme.symmetric
    )
    return activation_qparams(low, high, scheme.activations, symmetric=scheme.symmetric)
