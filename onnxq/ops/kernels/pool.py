"""Pools: maxima and sums of shifted tensors, one spatial axis after the other.

https://onnx.ai/onnx/operators/onnx__AveragePool.html, onnx__MaxPool.html, onnx__LpPool.html
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from onnxq.ops.kernels.arrays import Array, in_float32
from onnxq.ops.kernels.registry import kernel
from onnxq.ops.kernels.windows import Windows, lay_windows, padded


def _slide(function: Callable[..., Any], x: Array, windows: Windows) -> Array:
    """Reduce every window of padded X; the windows are boxes, so one axis can go after the other."""
    for axis, (count, stride, dilation, output) in enumerate(
        zip(windows.kernel, windows.strides, windows.dilations, windows.output, strict=True), start=2
    ):
        ahead = (slice(None),) * axis
        total: Array | None = None
        for tap in range(count):
            start = tap * dilation
            part = x[(*ahead, slice(start, start + output * stride, stride))]
            if total is None:
                total = part.copy() if count > 1 else part
            else:
                function(total, part, out=total)
        assert total is not None
        x = total
    return x


def _lowest(dtype: np.dtype[Any]) -> Any:
    return np.iinfo(dtype).min if dtype.kind in "iu" else -np.inf


@kernel("MaxPool")
def max_pool(
    x: Array,
    *,
    kernel_shape: Sequence[int],
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    storage_order: int = 0,
    strides: Sequence[int] | None = None,
    output_count: int = 1,
) -> Array | tuple[Array, Array]:
    """Largest element of every window of X [N, C, D1, ...], and with a second output where in X flattened it stands."""
    windows = lay_windows(
        x.shape[2:], kernel_shape, strides=strides, dilations=dilations, pads=pads, auto_pad=auto_pad,
        ceil_mode=bool(ceil_mode), pool=True,
    )  # fmt: skip
    wide = padded(x, windows, _lowest(x.dtype))
    if output_count > 1:
        return _with_places(x, wide, windows, "F" if storage_order else "C")
    return np.ascontiguousarray(_slide(np.maximum, wide, windows))


def _with_places(x: Array, wide: Array, windows: Windows, order: Literal["C", "F"]) -> tuple[Array, Array]:
    """Return the first maximum of every window and its place; a map's places run in C order or in that of Fortran."""
    spatial, maps = x.shape[2:], math.prod(x.shape[:2])
    numbers = np.arange(math.prod(spatial), dtype=np.int64).reshape(spatial, order=order)
    of_map = padded(numbers[None, None], windows, -1)
    best = np.full((*x.shape[:2], *windows.output), _lowest(x.dtype), x.dtype)
    places = np.full(best.shape, -1, np.int64)
    first = np.arange(maps, dtype=np.int64).reshape(*x.shape[:2], *[1] * len(spatial)) * numbers.size
    for tap in np.ndindex(*windows.kernel):
        taken = (slice(None), slice(None), *windows.slices(tap))
        larger = (wide[taken] > best) | ((places < 0) & (of_map[taken] >= 0))  # an element may be the lowest number
        best = np.where(larger, wide[taken], best)
        places = np.where(larger, of_map[taken] + first, places)
    return best, places


@kernel("AveragePool")
@in_float32
def average_pool(
    x: Array,
    *,
    kernel_shape: Sequence[int],
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Array:
    """Mean of every window of X [N, C, D1, ...]; padding counts only with `count_include_pad`, `ceil_mode`'s never."""
    windows = lay_windows(
        x.shape[2:], kernel_shape, strides=strides, dilations=dilations, pads=pads, auto_pad=auto_pad,
        ceil_mode=bool(ceil_mode), pool=True,
    )  # fmt: skip
    total = _slide(np.add, padded(x, windows), windows)
    counts = np.ones((), np.int64)
    for axis, size in enumerate(x.shape[2:]):
        low, high = 0, size
        if count_include_pad:
            low, high = -windows.begin[axis], size + windows.end[axis]
        first = np.arange(windows.output[axis]) * windows.strides[axis] - windows.begin[axis]
        taps = first[:, None] + np.arange(windows.kernel[axis]) * windows.dilations[axis]
        counts = counts[..., None] * np.count_nonzero((taps >= low) & (taps < high), axis=1)
    return np.asarray(total / counts.astype(x.dtype))


@kernel("LpPool")
@in_float32
def lp_pool(
    x: Array,
    *,
    kernel_shape: Sequence[int],
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Sequence[int] | None = None,
    p: float = 2,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Array:
    """P-norm of every window of X [N, C, D1, ...]."""
    windows = lay_windows(
        x.shape[2:], kernel_shape, strides=strides, dilations=dilations, pads=pads, auto_pad=auto_pad,
        ceil_mode=bool(ceil_mode), pool=True,
    )  # fmt: skip
    powers = np.power(np.abs(x), x.dtype.type(p))
    result: Array = np.power(_slide(np.add, padded(powers, windows), windows), x.dtype.type(1 / p))
    return result


def _spatial(x: Array) -> tuple[int, ...]:
    return tuple(range(2, x.ndim))


@kernel("GlobalAveragePool")
@in_float32
def global_average_pool(x: Array) -> Array:
    """Mean over the spatial axes, which stay with length 1."""
    count = math.prod(x.shape[2:])
    result: Array = np.add.reduce(x, axis=_spatial(x), keepdims=True) / x.dtype.type(count)
    return result


@kernel("GlobalMaxPool")
def global_max_pool(x: Array) -> Array:
    """Maximum over the spatial axes, which stay with length 1."""
    result: Array = np.max(x, axis=_spatial(x), keepdims=True)
    return result


@kernel("GlobalLpPool")
@in_float32
def global_lp_pool(x: Array, *, p: float = 2) -> Array:
    """P-norm over the spatial axes, which stay with length 1."""
    total = np.add.reduce(np.power(np.abs(x), x.dtype.type(p)), axis=_spatial(x), keepdims=True)
    result: Array = np.power(total, x.dtype.type(1 / p))
    return result
