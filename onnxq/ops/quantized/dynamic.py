"""DynamicQuantizeLinear: scale and zero point from the tensor itself.

Tests: `tests/ops/test_quantized_mutants.py`.
"""

from __future__ import annotations

import math

import numpy as np

from onnxq.errors import ModelError
from onnxq.ops.kernels.registry import kernel
from onnxq.ops.quantized import _arithmetic as arithmetic
from onnxq.ops.quantized._layout import CHUNK, scratch
from onnxq.ops.quantized._parallel import spread
from onnxq.ops.quantized._types import FLOAT32, UINT8, Array

_ZERO, _TOP = np.float32(0), np.float32(255)


@kernel("DynamicQuantizeLinear", since=11)
def dynamic_quantize_linear(x: Array) -> tuple[Array, Array, Array]:
    """Quantize to uint8 with the range of the tensor, widened to hold zero.

    All in float32:

        y_scale = (max(0, max(x)) - min(0, min(x))) / 255
        y_zero_point = round_half_even(clamp(0 - min(0, min(x)) / y_scale, 0, 255))
        y = clamp(round_half_even(x / y_scale) + y_zero_point, 0, 255)

    A tensor of zeros, and an empty one, have scale 1 and zero point 0, as onnxruntime gives. A NaN, wherever it stands,
    makes the scale NaN, the zero point 255 and every element 0. A scale that underflows to zero gives zero point 255.

    Args:
        x: float32 of any shape.

    Returns:
        y (uint8, shape of x), y_scale (float32 scalar), y_zero_point (uint8 scalar).

    Raises:
        ModelError: x is not float32.

    Source: https://onnx.ai/onnx/operators/onnx__DynamicQuantizeLinear.html.

    """
    x = np.asarray(x)
    if x.dtype != FLOAT32:
        raise ModelError(f"DynamicQuantizeLinear: x has type {x.dtype}, but the operator takes float32 only")
    flat = x.reshape(-1)
    low, high = value_range(flat)
    scale, zero_point = dynamic_parameters(low, high)
    y = np.empty(x.shape, UINT8)
    _quantize(flat, scale, int(zero_point), (low, high), y.reshape(-1))
    return y, np.array(scale), np.array(zero_point)


def value_range(flat: Array) -> tuple[np.float32, np.float32]:
    """Return the smallest and largest value, each widened to zero; NaN when there is one. Empty: (0, 0)."""
    starts = range(0, flat.size, CHUNK)
    if len(starts) <= 1:
        return np.minimum.reduce(flat, initial=_ZERO), np.maximum.reduce(flat, initial=_ZERO)
    ends = np.zeros((2, len(starts)), FLOAT32)

    def work(first: int, last: int) -> None:
        for step in range(first, last):
            part = flat[starts[step] : starts[step] + CHUNK]
            ends[0, step] = np.minimum.reduce(part)
            ends[1, step] = np.maximum.reduce(part)

    spread(work, len(starts), flat.size)
    return np.float32(ends[0].min(initial=0)), np.float32(ends[1].max(initial=0))


def dynamic_parameters(low: np.float32, high: np.float32) -> tuple[np.float32, np.uint8]:
    """Return scale and zero point for a range that holds zero, in float32 throughout."""
    with np.errstate(all="ignore"):
        scale = np.float32(1) if high == low else np.float32((high - low) / _TOP)
        zero_point = np.rint(_saturated(_ZERO - low / scale))
    return scale, np.uint8(zero_point)


def _saturated(value: np.float32) -> np.float32:
    """Clamp to [0, 255]; NaN becomes 255, as std::min(255, NaN) does in onnxruntime."""
    return np.float32(_TOP) if math.isnan(value) else np.float32(min(max(value, _ZERO), _TOP))


def _quantize(flat: Array, scale: np.float32, z: int, ends: tuple[np.float32, np.float32], y: Array) -> None:
    starts = range(0, flat.size, CHUNK)
    offset = np.array(z, UINT8) if z else None
    divisor = np.array(scale)
    with np.errstate(all="ignore"):
        # Division and rounding keep order, so that the ends tell whether any element can leave the range.
        inside = np.rint(ends[0] / scale) >= -z and np.rint(ends[1] / scale) <= 255 - z
    limits = None if inside else arithmetic.rounded_bounds(-z, 255 - z)

    def work(first: int, last: int) -> None:
        with np.errstate(all="ignore"):
            for start in starts[first:last]:
                part = flat[start : start + CHUNK]
                q = scratch(part.size)
                arithmetic.quotient(part, divisor, FLOAT32, q)
                arithmetic.to_integers(q, limits, offset, y[start : start + CHUNK])

    spread(work, len(starts), flat.size)
