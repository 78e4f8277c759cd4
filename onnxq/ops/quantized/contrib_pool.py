"""com.microsoft QLinearAveragePool and QLinearGlobalAveragePool."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from onnxq.errors import ModelError
from onnxq.ops.registry import kernel

from ._requantize import look_up, quantized_table, real_values, rounded, scale_of, zero_of
from ._types import FLOAT32, INT32, Array
from .convolution import per_dimension, resolve_pads


@kernel("QLinearAveragePool", domain="com.microsoft")
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

    Inputs: X uint8 or int8 [N, C, D1..Dn] with n = 1, 2 or 3, or [N, D1..Dn, C] with `channels_last`; scales float32
    scalars; zero points scalars of the type of X, zero when absent.

    Attributes: as those of AveragePool in ai.onnx; with `count_include_pad` the sum is divided by the whole window, not
    by its part inside X; `ceil_mode` rounds the output's size up.

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
    window = per_dimension(name, "kernel_shape", kernel_shape, n, (), 1)
    steps = per_dimension(name, "strides", strides, n, (1,) * n, 1)
    begins, ends = resolve_pads(
        name, auto_pad, per_dimension(name, "pads", pads, 2 * n, (0,) * 2 * n, 0), x.shape[2:], window, steps
    )
    if window == x.shape[2:] and not any((*begins, *ends)):
        # onnxruntime takes its global pool here, which adds the zero point after rounding.
        return q_linear_global_average_pool(
            X, x_scale, np.array(zx, X.dtype), y_scale, np.array(zy, X.dtype), channels_last=channels_last
        )
    real = look_up(real_values(scale_of(name, "x_scale", x_scale), zx, X), x)
    output = _output_shape(name, x.shape[2:], window, begins, ends, steps, bool(ceil_mode))
    total = _window_sums(real, window, begins, steps, output)
    count = np.array(math.prod(window), FLOAT32)
    if not count_include_pad:
        count = _window_sums(np.ones((1, 1, *x.shape[2:]), FLOAT32), window, begins, steps, output)
    with np.errstate(all="ignore"):
        y = rounded(total / count / scale_of(name, "y_scale", y_scale) + np.float32(zy), X.dtype)
    return np.ascontiguousarray(np.moveaxis(y, 1, -1)) if channels_last else y


def _output_shape(
    name: str,
    size: tuple[int, ...],
    window: tuple[int, ...],
    begins: tuple[int, ...],
    ends: tuple[int, ...],
    steps: tuple[int, ...],
    ceil: bool,
) -> list[int]:
    output = [_windows(*each, ceil) for each in zip(size, begins, ends, window, steps, strict=True)]
    if min(output) < 1:
        raise ModelError(f"{name}: a window of {list(window)} does not fit into {list(size)}")
    return output


def _windows(size: int, begin: int, end: int, window: int, step: int, ceil: bool) -> int:
    room = size + begin + end - window
    count = (-(-room // step) if ceil else room // step) + 1
    # A window that starts in the padding behind the tensor holds nothing and is not counted.
    return count - 1 if ceil and (count - 1) * step >= size + begin else count


def _window_sums(
    x: Array, window: tuple[int, ...], begins: tuple[int, ...], steps: tuple[int, ...], output: list[int]
) -> Array:
    """Add the values of each window, tap by tap; padding counts as zero."""
    reach = [(o - 1) * s + k for o, s, k in zip(output, steps, window, strict=True)]
    size = [max(r, b + d) for r, b, d in zip(reach, begins, x.shape[2:], strict=True)]
    padded = np.zeros((*x.shape[:2], *size), FLOAT32)
    inside = tuple(slice(b, b + d) for b, d in zip(begins, x.shape[2:], strict=True))
    padded[(slice(None), slice(None), *inside)] = x
    total = np.zeros((*x.shape[:2], *output), FLOAT32)
    for tap in np.ndindex(*window):
        cut = tuple(slice(t, t + (o - 1) * s + 1, s) for t, o, s in zip(tap, output, steps, strict=True))
        total += padded[(slice(None), slice(None), *cut)]
    return total


@kernel("QLinearGlobalAveragePool", domain="com.microsoft")
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
