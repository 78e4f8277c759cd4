"""com.microsoft QLinearAveragePool and QLinearGlobalAveragePool.

Tests: `tests/ops/test_quantized_contrib.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from onnxq.errors import ModelError
from onnxq.ir.graph import MICROSOFT
from onnxq.ops.kernels.registry import kernel
from onnxq.ops.kernels.windows import Windows, padded
from onnxq.ops.quantized._requantize import look_up, quantized_table, real_values, rounded, scale_of, zero_of
from onnxq.ops.quantized._types import FLOAT32, INT32, Array
from onnxq.ops.quantized.convolution import whole_windows


@kernel("QLinearAveragePool", domain=MICROSOFT)
def q_linear_average_pool(
    X: Array,
    x_scale: Array,
    x_zero_point: Array | None,
    y_scale: Array,
    y_zero_point: Array | None = None,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    channels_last: int = 0,
    count_include_pad: int = 0,
    kernel_shape: Sequence[int],
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Array:
    """Average the dequantized values of each window and quantize: y = saturate(round_half_even(mean / y_scale + zero)).

    The values of a window are added in float32 in their order, and the zero point before rounding, as onnxruntime does.

    X is uint8 or int8 [N, C, D1..Dn] with n = 1, 2 or 3, or [N, D1..Dn, C] with `channels_last`. Scales are float32
    scalars, zero points scalars of the type of X, zero when absent.

    Attributes: as those of AveragePool in ai.onnx. With `count_include_pad` the sum is divided by the whole window, not
        by its part inside X. `ceil_mode` rounds the output's size up.

    Raises:
        ModelError: Types are not 8-bit or differ, or shapes and attributes do not fit.

    """
    name = "QLinearAveragePool"
    X = np.asarray(X)
    zx, zy = zero_of(name, "x_zero_point", x_zero_point, X), zero_of(name, "y_zero_point", y_zero_point, X)
    n = X.ndim - 2
    if n not in (1, 2, 3) or len(kernel_shape) != n:
        raise ModelError(f"{name}: a window of {list(kernel_shape)} does not fit a tensor of shape {list(X.shape)}")
    x = np.moveaxis(X, -1, 1) if channels_last else X
    windows = whole_windows(
        name, x.shape[2:], kernel_shape,
        strides=strides, dilations=None, pads=pads, auto_pad=auto_pad, ceil_mode=bool(ceil_mode),
        pool=True,
    )  # fmt: skip
    if windows.kernel == x.shape[2:] and not any((*windows.begin, *windows.end)):
        # onnxruntime takes its global pool here, which adds the zero point after rounding.
        return q_linear_global_average_pool(
            X, x_scale, np.array(zx, X.dtype), y_scale, np.array(zy, X.dtype), channels_last=channels_last
        )
    real = look_up(real_values(scale_of(name, "x_scale", x_scale), zx, X), x)
    total = _window_sums(real, windows)
    count = np.array(math.prod(windows.kernel), FLOAT32)
    if not count_include_pad:
        count = _window_sums(np.ones((1, 1, *x.shape[2:]), FLOAT32), windows)
    with np.errstate(all="ignore"):
        y = rounded(total / count / scale_of(name, "y_scale", y_scale) + np.float32(zy), X.dtype)
    return np.ascontiguousarray(np.moveaxis(y, 1, -1)) if channels_last else y


def _window_sums(x: Array, windows: Windows) -> Array:
    """Add the values of each window, tap by tap; padding counts as zero."""
    wide = padded(x, windows)
    total = np.zeros((*x.shape[:2], *windows.output), FLOAT32)
    for tap in np.ndindex(*windows.kernel):
        total += wide[(slice(None), slice(None), *windows.slices(tap))]
    return total


@kernel("QLinearGlobalAveragePool", domain=MICROSOFT)
def q_linear_global_average_pool(
    X: Array,
    x_scale: Array,
    x_zero_point: Array,
    y_scale: Array,
    y_zero_point: Array,
    *,
    channels_last: int = 0,
) -> Array:
    """Average every channel: y = saturate(round_half_even(sum * (x_scale / (y_scale * count))) + y_zero_point).

    Args:
        X: [N, C, D1..Dn], or [N, D1..Dn, C]; uint8 or int8.
        x_scale: float32 scalar.
        x_zero_point: Scalar of the type of X.
        y_scale: float32 scalar.
        y_zero_point: Scalar of the type of X.
        channels_last: The channels are the last axis of X and of the output.

    Returns:
        [N, C, 1..1], or [N, 1..1, C].

    Raises:
        ModelError: Types are not 8-bit or differ, or X has no spatial axis.

    """
    name = "QLinearGlobalAveragePool"
    X = np.asarray(X)
    zx, zy = zero_of(name, "x_zero_point", x_zero_point, X), zero_of(name, "y_zero_point", y_zero_point, X)
    if X.ndim < 3:
        raise ModelError(f"{name}: X of shape {list(X.shape)} has no spatial axis")
    axes = tuple(range(1, X.ndim - 1)) if channels_last else tuple(range(2, X.ndim))
    count = math.prod(X.shape[axis] for axis in axes)
    total = X.sum(axis=axes, dtype=INT32, keepdims=True) - np.int32(zx * count)
    with np.errstate(all="ignore"):
        divisor = scale_of(name, "y_scale", y_scale) * np.float32(count)
        real = total.astype(FLOAT32) * (scale_of(name, "x_scale", x_scale) / divisor)
    return quantized_table(real, np.array(1, FLOAT32), np.array(zy, X.dtype))
