"""Biases of integer products: int32 codes at the scale of the sum, which must not overflow."""

from __future__ import annotations

import numpy as np

from onnxq.ir import Value
from onnxq.ops.family import Rewriter


def minimum_scale(bias: np.ndarray, x_scale: float) -> np.ndarray:
    """Least weight scale for which `bias / (x_scale * scale)` fits int32, with one bit to spare for the sum.

    A bias that overflows wraps and ruins its channel; only that channel's weights get coarser instead.
    """
    return (np.abs(bias.astype(np.float64)) / (x_scale * 2.0**30)).astype(np.float32)


def integer_bias(patch: Rewriter, bias: np.ndarray, x_scale: float, w_scales: np.ndarray, name: str) -> Value:
    """Give a bias as DequantizeLinear of int32 codes at `x_scale * w_scale`, the scale of the integer sum."""
    scales = np.broadcast_to(np.float32(x_scale) * w_scales.astype(np.float32), w_scales.shape).astype(np.float32)
    codes = np.rint(bias.astype(np.float64) / scales.astype(np.float64))
    return patch.linear_weight(np.clip(codes, -(2**31), 2**31 - 1).astype(np.int32), scales, 0, name)
