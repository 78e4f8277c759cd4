"""The loss by saturation in integer convolutions, which onnxruntime's kernels compute as matrix products.

QLinearConv takes its input for the left matrix and the filters for the right one. Its inner dimension runs over kernel
positions outside and input channels inside. Its depthwise kernel, for one input and one output channel to a group, adds
in 32 bits. ConvInteger takes the filters for the left matrix, and its inner dimension runs over input channels outside.
Padding counts as the zero point's code. Sources: `ReorderFilter` and `Compute` in qlinearconv.cc, conv_integer.cc and
convsym.cpp of onnxruntime.

Tests: `tests/ops/test_quantized_saturating.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from onnxq.ops.kernels.windows import Windows
from onnxq.ops.quantized._columns import columns_view
from onnxq.ops.quantized._types import Array
from onnxq.ops.quantized.integer import BLOCK
from onnxq.ops.quantized.saturating import Lost, saturates


def subtract_lost_by_input(x: Array, w: Array, xz: Array | None, windows: Windows, group: int, total: Array) -> None:
    """Take off an exact convolution what the kernel of QLinearConv loses.

    Args:
        x: [N, C, ...]; 8-bit integers.
        w: [M, C / group, ...]; 8-bit integers.
        xz: None or a 0-d array.
        windows: How the filter lies on x.
        group: Groups that channels are divided into.
        total: int32 [N, M, ...]; changed.

    """
    depthwise = w.shape[1] == 1 and len(w) == group
    if depthwise or not saturates(x, w) or not total.size or not w.size:
        return
    zero = 0 if xz is None else int(xz)
    highest = x.max(axis=(0, *range(2, x.ndim)), initial=0).reshape(group, -1)
    if any((*windows.begin, *windows.end)):
        highest = np.maximum(highest, np.uint8(zero))
    filters = np.moveaxis(w.reshape(group, -1, w.shape[1], math.prod(w.shape[2:])), 1, -1).swapaxes(1, 2)
    weights = filters.reshape(group, -1, filters.shape[-1])  # [group, K, M / group]
    lost = [Lost(each, np.tile(most, filters.shape[1])) for each, most in zip(weights, highest, strict=True)]
    risky = [number for number, each in enumerate(lost) if each]
    for sample, number, rows, columns in _columns(x, zero, windows, group, risky, channels_inside=True):
        part = total[sample].reshape(group, -1, *windows.output)[number, :, rows]
        sums = np.ascontiguousarray(part.reshape(len(part), -1))
        lost[number].subtract(columns, sums)
        part[...] = sums.reshape(part.shape)


def subtract_lost_by_filters(x: Array, w: Array, xz: Array | None, windows: Windows, group: int, total: Array) -> None:
    """Take off an exact convolution what the kernel of ConvInteger loses; see `subtract_lost_by_input`."""
    if not saturates(w, x) or not total.size:
        return
    zero = 0 if xz is None else int(xz)
    filters = w.reshape(group, len(w) // group, -1)
    highest = filters.max(axis=1)
    groups = list(range(group))
    for sample, number, rows, columns in _columns(x, zero, windows, group, groups, channels_inside=False):
        lost = Lost(columns, highest[number])
        if lost:
            part = total[sample].reshape(group, -1, *windows.output)[number, :, rows]
            sums = part.reshape(len(part), -1).T.copy()
            lost.subtract(filters[number].T, sums)
            part[...] = sums.T.reshape(part.shape)


def _columns(
    x: Array, zero: int, windows: Windows, group: int, groups: list[int], *, channels_inside: bool
) -> Iterator[tuple[int, int, slice, Array]]:
    """Visit what the outputs read, some output rows at a time: sample, group, rows, and codes [K, outputs]."""
    sides = [(0, 0), *zip(windows.begin, windows.end, strict=True)]
    length = x.shape[1] // group * math.prod(windows.kernel)
    step = max(1, BLOCK // (length * math.prod(windows.output[1:])))
    for number, sample in enumerate(x if groups else ()):
        view = columns_view(np.pad(sample, sides, constant_values=zero), windows, group)
        if channels_inside:
            view = np.moveaxis(view, 1, 1 + len(windows.kernel))
        for start in range(0, windows.output[0], step):
            rows = slice(start, start + step)
            part = view[(slice(None),) * (2 + len(windows.kernel)) + (rows,)]
            for each in groups:
                yield number, each, rows, part[each].reshape(length, -1)
