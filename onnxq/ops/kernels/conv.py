"""Conv: https://onnx.ai/onnx/operators/onnx__Conv.html.

Columns are gathered tap by tap into a buffer that stays in the cache, then one BLAS product makes a block of the
output. A 1x1 kernel needs no gathering; a depthwise one is a sum of shifted products.

Tests: `tests/ops/test_conv_kernels.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np

from onnxq.errors import ModelError
from onnxq.ops.kernels.arrays import Array, in_float32, per_channel
from onnxq.ops.kernels.registry import kernel
from onnxq.ops.kernels.windows import Windows, lay_windows, padded

BUFFER_BYTES = 1 << 21
"""Size of the column buffer; measured best on a core with 2 MB of second-level cache, by up to a fifth."""

DEPTHWISE_BYTES = 1 << 18
"""Size of the part of the output that a depthwise convolution sums at a time."""

LEAST_POSITIONS = 4096
"""Columns of a product of a 1x1 kernel: BLAS takes longer for several narrow ones."""

Store = Callable[[Array, Array | None, Array], None]
"""Adds a bias, if there is one, to sums [N, M, ...], and writes them into a part of the result."""


@kernel("Conv")
@in_float32
def conv(x: Array, w: Array, b: Array | None = None, **attributes: Any) -> Array:
    """Convolve X [N, C, D1, ...] with W [M, C / group, k1, ...], over any number of spatial axes.

    B is [M] or None; attributes are those of `convolve`, as ONNX defines them. Gives [N, M, ...] in the type of X.

    Raises:
        ModelError: Channels or attributes do not fit.

    """
    return convolve(x, w, b, **attributes)


def store_sums(sums: Array, bias: Array | None, target: Array) -> None:
    """Add a bias to sums, which may change, and write them into a part of the result, whose type may be narrower."""
    if bias is not None and sums.dtype == target.dtype:
        np.add(sums, bias, out=target)
        return
    if bias is not None:
        sums += bias  # in place and then narrower: a sum into another type takes twice as long
    target[...] = sums


def convolve(
    x: Array,
    w: Array,
    b: Array | None = None,
    *,
    store: Store = store_sums,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Array:
    """Convolve float32 or float64 as `conv` does, with sums in the type of W; the result has the type of X.

    `store` writes sums into the result, some of them at a time, while they are in the cache.

    Raises:
        ModelError: Channels or attributes do not fit.

    """
    if x.ndim != w.ndim or x.shape[1] != w.shape[1] * group or w.shape[0] % group:
        raise ModelError(
            f"input {list(x.shape)} and weight {list(w.shape)} do not fit with group {group}", "Correct the weight."
        )
    windows = lay_windows(
        x.shape[2:], kernel_shape or w.shape[2:], strides=strides, dilations=dilations, pads=pads, auto_pad=auto_pad
    )
    result_shape = (x.shape[0], w.shape[0], *windows.output)
    if 0 in result_shape or not x.size:
        bias = np.zeros(w.shape[0], x.dtype) if b is None else b.astype(x.dtype)
        return np.broadcast_to(per_channel(bias, x.ndim), result_shape).copy()
    added = None if b is None else per_channel(b, x.ndim)
    x = padded(x, windows, lines=int(set(windows.strides) == {1}))  # room for the last taps, see `_flattened`
    if math.prod(windows.kernel) == 1:
        return _pointwise(x, w, added, group, windows, store)
    if group > 1 and is_depthwise(w.shape):
        return _depthwise(x, w, added, windows, store)
    return _by_columns(x, w, added, group, windows, store)


def is_depthwise(weight: Sequence[int]) -> bool:
    """Tell whether a weight of several groups has a filter of its own for each channel, larger than one element."""
    return weight[1] == 1 and math.prod(weight[2:]) > 1


def _pointwise(x: Array, w: Array, bias: Array | None, group: int, windows: Windows, store: Store) -> Array:
    """One product, summed in float64.

    BLAS sums the rows of a float32 product in different orders, so equal weights give unequal last bits. A Softmax of
    large logits behind such a layer (SqueezeNet) then picks one of several equal classes. Nothing is gathered here, so
    the wider type costs little.
    """
    x = x[(slice(None), slice(None), *windows.slices((0,) * len(windows.kernel)))]
    batch, channels = x.shape[:2]
    weight = w.astype(np.float64, copy=False).reshape(group, -1, channels // group)
    result = np.empty((batch, w.shape[0], *windows.output), x.dtype)
    row = math.prod(windows.output[1:])
    images, rows = _block(batch, windows.output[0], (channels + w.shape[0]) * row * weight.itemsize)
    rows = max(rows, LEAST_POSITIONS // max(row, 1))
    for first in range(0, batch, images):
        for top in range(0, windows.output[0], rows):
            part = np.s_[first : first + images, :, top : top + rows]
            columns = np.ascontiguousarray(x[part], np.float64)
            sums = np.matmul(weight, columns.reshape(len(columns), group, channels // group, -1))
            target = result[part]
            store(sums.reshape(target.shape), bias, target)
    return result


def _taps(windows: Windows) -> list[tuple[int, ...]]:
    """List the positions of the kernel, the last axis fastest."""
    return list(product(*map(range, windows.kernel)))


def _flattened(x: Array, windows: Windows) -> tuple[Array, tuple[int, ...]]:
    """Return padded X [N, C, D1, rest] as [N, C, D1 * rest], with a tail: every tap is one slice from its offset.

    With strides of 1, element `tap` of the windows has the same distance from each window's first element in the
    flattened tensor. So a whole row of windows is one contiguous run. Windows across the end of an axis are computed as
    well and left out of the result.
    """
    steps = [math.prod(x.shape[2 + i + 1 :]) for i in range(len(windows.kernel))]
    offsets = tuple(
        sum(t * d * step for t, d, step in zip(tap, windows.dilations, steps, strict=True)) for tap in _taps(windows)
    )
    length = math.prod(x.shape[2:])
    missing = max(offsets[-1] + windows.output[0] * steps[0] - length, 0)
    flat = x.reshape(*x.shape[:2], length)
    if missing:
        longer = np.empty((*x.shape[:2], length + missing), x.dtype)
        longer[:, :, :length] = flat
        longer[:, :, length:] = 0
        flat = longer
    return flat, offsets


def _by_columns(x: Array, w: Array, bias: Array | None, group: int, windows: Windows, store: Store) -> Array:
    batch, channels = x.shape[:2]
    taps = math.prod(windows.kernel)
    depth = channels // group * taps
    weight = w.reshape(group, w.shape[0] // group, depth)
    flat: Array | None = None
    inner = windows.output[1:]  # what one row of windows computes: its outputs, or whole input rows with stride 1
    if set(windows.strides) == {1}:
        flat, offsets = _flattened(x, windows)
        inner = x.shape[3:]
    places = [windows.slices(tap) for tap in _taps(windows)] if flat is None else []
    row = math.prod(inner)
    images, rows = _block(batch, windows.output[0], group * depth * row * w.itemsize)
    result = np.empty((batch, w.shape[0], *windows.output), x.dtype)
    buffer = np.empty(images * group * depth * rows * row, w.dtype)
    sums = np.empty(images * w.shape[0] * rows * row, w.dtype)
    crop = (slice(None), slice(None), slice(None), *(slice(0, size) for size in windows.output[1:]))
    for first in range(0, batch, images):
        chosen = slice(first, min(first + images, batch))
        count = chosen.stop - first
        for top in range(0, windows.output[0], rows):
            height = min(rows, windows.output[0] - top)
            size = height * row
            columns = buffer[: count * channels * taps * size].reshape(count, channels, taps, size)
            if flat is not None:
                for tap, offset in enumerate(offsets):
                    start = offset + top * row
                    columns[:, :, tap] = flat[chosen, :, start : start + size]
            else:
                _gather_strided(x[chosen], columns.reshape(count, channels, taps, height, *inner), places, top)
            out = sums[: count * w.shape[0] * size].reshape(count, group, -1, size)
            np.matmul(weight, columns.reshape(count, group, depth, size), out=out)
            block = out.reshape(count, w.shape[0], height, *inner)[crop]
            store(block, bias, result[chosen, :, top : top + height])
    return result


def _gather_strided(x: Array, columns: Array, places: Sequence[tuple[slice, ...]], top: int) -> None:
    height = columns.shape[3]
    for index, (first, *rest) in enumerate(places):
        start = first.start + top * first.step
        lines = slice(start, start + (height - 1) * first.step + 1, first.step)
        columns[:, :, index] = x[(slice(None), slice(None), lines, *rest)]


def _block(batch: int, rows: int, row_bytes: int) -> tuple[int, int]:
    """Say how many images, or rows of one image, fill the column buffer."""
    fitting = max(BUFFER_BYTES // max(row_bytes, 1), 1)
    if fitting < rows:
        return 1, -(-rows // -(-rows // fitting))
    return min(max(fitting // rows, 1), batch), rows


def _depthwise(x: Array, w: Array, bias: Array | None, windows: Windows, store: Store) -> Array:
    """Sum over the taps of shifted inputs times one weight per channel."""
    batch, channels = x.shape[:2]
    multiplier = w.shape[0] // channels
    if multiplier > 1:
        x = np.repeat(x, multiplier, axis=1)
    maps = w.shape[0]
    weights = np.ascontiguousarray(w.reshape(maps, -1).T)
    flat: Array | None = None
    inner = windows.output[1:]
    if set(windows.strides) == {1}:
        flat, offsets = _flattened(x, windows)
        inner = x.shape[3:]
    size, taps = windows.output[0] * math.prod(inner), _taps(windows)
    result = np.empty((batch, maps, *windows.output), x.dtype)
    step = max(1, DEPTHWISE_BYTES // max(batch * size * w.itemsize, 1))
    sums = np.empty((batch, min(step, maps), size), w.dtype)
    products = np.empty_like(sums)
    crop = tuple(slice(0, length) for length in windows.output)
    for first in range(0, maps, step):
        chosen = slice(first, min(first + step, maps))
        count = chosen.stop - first
        total, part = sums[:, :count], products[:, :count]
        shaped = (batch, count, windows.output[0], *inner)
        for index, tap in enumerate(taps):
            factor = weights[index, chosen]
            target = part if index else total
            if flat is not None:
                shifted = flat[:, chosen, offsets[index] : offsets[index] + size]
                np.multiply(shifted, factor[:, None], out=target)
            else:
                shifted = x[(slice(None), chosen, *windows.slices(tap))]
                np.multiply(shifted, per_channel(factor, x.ndim), out=target.reshape(shaped))
            if index:
                total += part
        block = total.reshape(shaped)[(slice(None), slice(None), *crop)]
        store(block, None if bias is None else bias[chosen], result[:, chosen])
    return result
