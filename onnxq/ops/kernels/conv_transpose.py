"""ConvTranspose: https://onnx.ai/onnx/operators/onnx__ConvTranspose.html.

One product gives what every input element adds to every place of its window; the places are then added up tap by tap.

Tests: `tests/ops/test_conv_kernels.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from onnxq.errors import ModelError
from onnxq.ops.kernels.arrays import Array, in_float32, per_channel
from onnxq.ops.kernels.registry import kernel
from onnxq.ops.kernels.windows import Windows


@kernel("ConvTranspose")
@in_float32
def conv_transpose(
    x: Array,
    w: Array,
    b: Array | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    output_padding: Sequence[int] | None = None,
    output_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Array:
    """Spread every element of X [N, C, D1, ...] over its window with W [C, M / group, k1, ...]: the transpose of Conv.

    B is [M] or None; attributes are as ONNX defines them. Gives [N, M, ...] in the type of X.

    Raises:
        ModelError: Channels do not fit.

    """
    rank = x.ndim - 2
    if x.ndim != w.ndim or x.shape[1] != w.shape[0] or w.shape[0] % group:
        raise ModelError(
            f"input {list(x.shape)} and weight {list(w.shape)} do not fit with group {group}", "Correct the weight."
        )
    kernel_shape = tuple(kernel_shape or w.shape[2:])
    strides = tuple(strides or (1,) * rank)
    dilations = tuple(dilations or (1,) * rank)
    extra = tuple(output_padding or (0,) * rank)
    full = [
        (size - 1) * stride + (k - 1) * d + 1
        for size, stride, k, d in zip(x.shape[2:], strides, kernel_shape, dilations, strict=True)
    ]
    begin, output = _transposed_padding(x.shape[2:], full, strides, extra, pads, output_shape, auto_pad or "NOTSET")
    maps, channels = w.shape[1] * group, w.shape[0] // group
    positions = math.prod(x.shape[2:])
    weight = w.reshape(group, channels, -1).transpose(0, 2, 1)
    columns = np.matmul(weight, x.reshape(x.shape[0], group, channels, positions))
    columns = columns.reshape(x.shape[0], maps, math.prod(kernel_shape), *x.shape[2:])
    room = [max(f, b_ + o) for f, b_, o in zip(full, begin, output, strict=True)]
    canvas = np.zeros((x.shape[0], maps, *room), x.dtype)
    windows = Windows(kernel_shape, strides, dilations, (0,) * rank, (0,) * rank, (0,) * rank, tuple(x.shape[2:]))
    if positions:
        for index, tap in enumerate(np.ndindex(*kernel_shape)):
            canvas[(slice(None), slice(None), *windows.slices(tap))] += columns[:, :, index]
    inside = tuple(slice(b_, b_ + o) for b_, o in zip(begin, output, strict=True))
    result = np.ascontiguousarray(canvas[(slice(None), slice(None), *inside)])
    if b is not None:
        result += per_channel(b, x.ndim)
    return result


def _transposed_padding(
    shape: Sequence[int],
    full: Sequence[int],
    strides: Sequence[int],
    extra: Sequence[int],
    pads: Sequence[int] | None,
    output_shape: Sequence[int] | None,
    auto_pad: str,
) -> tuple[list[int], list[int]]:
    """Return where the output begins on the full canvas, and its size, for each spatial axis."""
    rank = len(shape)
    begin, output = [0] * rank, [0] * rank
    given = list(pads) if pads and auto_pad == "NOTSET" else [0] * (2 * rank)
    wanted = list(output_shape[-rank:]) if output_shape else None
    for i in range(rank):
        if wanted is None and not auto_pad.startswith("SAME"):
            begin[i] = given[i]
            output[i] = full[i] + extra[i] - given[i] - given[rank + i]
            continue
        # Nothing fills up a window narrower than the stride: onnxruntime gives less than the operator's page says
        output[i] = wanted[i] if wanted is not None else min(shape[i] * strides[i], full[i] + extra[i])
        total = max(full[i] + extra[i] - output[i], 0)
        begin[i] = total // 2 if auto_pad == "SAME_UPPER" else total - total // 2
    return begin, output
