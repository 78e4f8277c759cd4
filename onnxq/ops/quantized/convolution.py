"""ConvInteger, and the exact integer convolution that QLinearConv uses, in 1 to 3 spatial dimensions.

Tests: `tests/ops/test_quantized_mutants.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from onnxq.errors import ModelError
from onnxq.ops.kernels.registry import kernel
from onnxq.ops.kernels.windows import Windows, lay_windows
from onnxq.ops.quantized._columns import columns_view
from onnxq.ops.quantized._requantize import checked_scalar
from onnxq.ops.quantized._types import FLOAT32, INT32, Array
from onnxq.ops.quantized.integer import BLOCK, EXACT, check_8_bit, magnitude, shifted
from onnxq.ops.quantized.saturating_conv import subtract_lost_by_filters


@kernel("ConvInteger", since=10)
def conv_integer(
    x: Array,
    w: Array,
    x_zero_point: Array | None = None,
    w_zero_point: Array | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Array:
    """Convolve (x - x_zero_point) with (w - w_zero_point), summed in int32 that wraps. Padding counts as zero.

    The sums are exact, unless `integer_arithmetic` says that they saturate.

    Args:
        x: [N, C, D1..Dn] with n = 1, 2 or 3; uint8 or int8.
        w: [M, C / group, k1..kn]; uint8 or int8.
        x_zero_point: Scalar of the type of x.
        w_zero_point: Scalar, or [M]: one per output channel; of the type of w.
        auto_pad: NOTSET, SAME_UPPER, SAME_LOWER or VALID.
        dilations: n steps between the taps of the filter; absent: 1.
        group: Groups that channels are divided into.
        kernel_shape: Shape of the filter; absent: that of w.
        pads: n begins, then n ends; absent: 0.
        strides: n steps of the filter; absent: 1.

    Returns:
        int32 [N, M, o1..on].

    Raises:
        ModelError: Other types, or shapes and attributes that do not fit.

    Source: https://onnx.ai/onnx/operators/onnx__ConvInteger.html.

    """
    x, w = np.asarray(x), np.asarray(w)
    check_8_bit("ConvInteger", "x", x, x_zero_point)
    check_8_bit("ConvInteger", "w", w, w_zero_point)
    windows = convolution_windows(
        "ConvInteger", x.shape, w.shape, group, kernel_shape,
        auto_pad=auto_pad, dilations=dilations, pads=pads, strides=strides,
    )  # fmt: skip
    xz = None if x_zero_point is None else checked_scalar("ConvInteger", "x_zero_point", x_zero_point)
    wz = None if w_zero_point is None else channel_parameter("ConvInteger", "w_zero_point", w_zero_point, w.shape[0])
    total = integer_convolution(x, w, xz, wz, windows, group)
    subtract_lost_by_filters(x, w, xz, windows, group, total)
    return total


def convolution_windows(
    operator: str,
    x: tuple[int, ...],
    w: tuple[int, ...],
    group: int,
    kernel_shape: Sequence[int] | None,
    *,
    pads: Sequence[int] | None,
    auto_pad: str,
    **more: Any,
) -> Windows:
    """Work out how the filter lies on the input, from shapes and attributes (those of `lay_windows`).

    Raises:
        ModelError: They do not fit together, or pads and auto_pad are both given.

    """
    if len(x) not in (3, 4, 5) or len(w) != len(x):
        raise ModelError(f"{operator}: x of shape {list(x)} and w of shape {list(w)} are not a 1-D to 3-D convolution")
    if group < 1 or w[1] * group != x[1] or w[0] % group:
        raise ModelError(f"{operator}: w of shape {list(w)} in {group} groups does not fit the {x[1]} channels of x")
    if kernel_shape and tuple(kernel_shape) != w[2:]:
        raise ModelError(f"{operator}: kernel_shape {list(kernel_shape)} differs from w of shape {list(w)}")
    if auto_pad not in ("", "NOTSET") and any(pads or ()):
        raise ModelError(f"{operator}: pads {list(pads or ())} and auto_pad {auto_pad} exclude each other")
    return whole_windows(operator, x[2:], w[2:], pads=pads, auto_pad=auto_pad, **more)


def whole_windows(
    operator: str,
    shape: Sequence[int],
    kernel: Sequence[int],
    **attributes: Any,
) -> Windows:
    """Lay windows of which there is at least one, on an input that nothing is cut off from.

    Raises:
        ModelError: As `lay_windows`, or there is no window, or padding is negative.

    """
    windows = lay_windows(shape, kernel, **attributes)
    if min((*windows.begin, *windows.end)) < 0:
        raise ModelError(f"{operator}: pads {[*windows.begin, *windows.end]} are negative")
    if min(windows.output) < 1:
        raise ModelError(f"{operator}: a window of {list(kernel)} does not fit into {list(shape)}")
    return windows


def channel_parameter(operator: str, name: str, value: Array, channels: int) -> Array:
    """Return a scalar or per-output-channel input as a 0-d or 1-D array; refuse another shape."""
    value = np.asarray(value)
    if value.ndim <= 1 and value.size == 1:
        return value.reshape(())
    if value.shape != (channels,):
        raise ModelError(
            f"{operator}: {name} has shape {list(value.shape)}, but it is one value, "
            f"or one for each of {channels} channels"
        )
    return value


def integer_convolution(x: Array, w: Array, xz: Array | None, wz: Array | None, windows: Windows, group: int) -> Array:
    """Return the convolution of (x - xz) with (w - wz) as int32, exact but for the wrap at 32 bits.

    Args:
        x: [N, C, ...]; 8-bit integers.
        w: [M, C / group, ...]; 8-bit integers.
        xz: None or a 0-d array.
        wz: None, or a 0-d or [M] array.
        windows: How the filter lies on x.
        group: Groups that channels are divided into.

    """
    per_channel = None if wz is None else wz.reshape(-1, *(1,) * (w.ndim - 1))
    weight = shifted(w, per_channel).reshape(group, w.shape[0] // group, math.prod(w.shape[1:]))
    depth = EXACT // max(1, magnitude(x, xz) * magnitude(w, wz))
    total = np.zeros((x.shape[0], w.shape[0], *windows.output), INT32)
    if not total.size or not weight.size:
        return total
    padded = np.zeros(
        (x.shape[1], *(d + b + e for d, b, e in zip(x.shape[2:], windows.begin, windows.end, strict=True))), FLOAT32
    )
    inside = tuple(slice(b, b + d) for b, d in zip(windows.begin, x.shape[2:], strict=True))
    view = columns_view(padded, windows, group)
    for sample, sums in zip(x, total, strict=True):
        padded[(slice(None), *inside)] = shifted(sample, xz)
        if weight.shape[1:2] == (1,) and x.shape[1] == group and weight.shape[2] <= depth:
            _depthwise(view, weight[:, 0], sums)
        else:
            _blocks(view, weight, depth, sums.reshape(group, -1, *windows.output))
    return total


def _depthwise(view: Array, weight: Array, sums: Array) -> None:
    """One channel a group: shifted multiply-adds, one per tap of the filter."""
    n = (view.ndim - 2) // 2
    taps = view[:, 0]
    part = np.zeros(sums.shape, FLOAT32)
    for number, tap in enumerate(np.ndindex(*taps.shape[1 : 1 + n])):
        part += taps[(slice(None), *tap)] * weight[:, number].reshape(-1, *(1,) * n)
    sums[...] = part


def _blocks(view: Array, weight: Array, depth: int, sums: Array) -> None:
    """Columns of the windows times the filters, a block of output rows at a time so that memory stays bounded."""
    group, _, length = weight.shape
    output = sums.shape[2:]
    row = math.prod(output[1:])
    rows = max(1, BLOCK // (group * length * row))
    first = 2 + (view.ndim - 2) // 2
    for start in range(0, output[0], rows):
        cut = (slice(None),) * first + (slice(start, start + rows),)
        columns = view[cut].reshape(group, length, -1)
        for k in range(0, length, depth):
            product = np.matmul(weight[:, :, k : k + depth], columns[:, k : k + depth]).astype(INT32)
            target = sums[:, :, start : start + rows]
            np.add(target, product.reshape(target.shape), out=target)
