"""Biases of integer products: int32 codes at the scale of the sum, which must not overflow.

Tests: `tests/ops/test_conv.py`.
"""

from __future__ import annotations

import numpy as np

from onnxq.errors import ModelError
from onnxq.ir import Value
from onnxq.ops.forms.family import Rewriter

TINY = np.finfo(np.float32).tiny


def minimum_scale(bias: np.ndarray, x_scale: float) -> np.ndarray:
    """Least weight scale for which `bias / (x_scale * scale)` fits int32, with one bit to spare for the sum.

    A bias that overflows wraps and ruins its channel; only that channel's weights get coarser instead. The product of
    the scales stays a normal float32, so that no bias is divided by zero.
    """
    least = np.maximum(np.abs(bias.astype(np.float64)) / 2.0**30, 2 * TINY)
    return np.asarray(np.nextafter((least / x_scale).astype(np.float32), np.float32(np.inf)))


def integer_bias(patch: Rewriter, bias: np.ndarray, x_scale: float, w_scales: np.ndarray, name: str) -> Value:
    """Return a bias as DequantizeLinear of int32 codes at `x_scale * w_scale`, the scale of the integer sum.

    Raises:
        ModelError: The bias holds NaN or infinity.

    """
    if not np.isfinite(bias).all():
        raise ModelError(f"bias '{name}' holds NaN or infinity", "Export the model again from sound weights.")
    scales = np.float32(x_scale) * w_scales.astype(np.float32)
    codes = np.rint(bias.astype(np.float64) / scales.astype(np.float64))
    return patch.linear_weight(np.clip(codes, -(2**31), 2**31 - 1).astype(np.int32), scales, 0, name)
