"""From int32 sums back to 8 bits: y = saturate(round_half_even(float32(sum) * multiplier) + zero_point).

The multiplier is a_scale * b_scale / y_scale, computed in float32 in this order, as onnxruntime's CPU kernels do.

Tests: `tests/ops/test_quantized_mutants.py`.
"""

from __future__ import annotations

import math

import numpy as np

from onnxq.errors import ModelError
from onnxq.ops.quantized import _arithmetic as arithmetic
from onnxq.ops.quantized._layout import Expander, Layout, scratch
from onnxq.ops.quantized._parallel import spread
from onnxq.ops.quantized._types import FLOAT32, INT8, INTEGER_RANGE, UINT8, Array, DType


def checked_scalar(operator: str, name: str, value: Array | None) -> Array:
    """Return a required scalar (or one-element) input as a 0-d array.

    Raises:
        ModelError: It is absent or holds more than one value.

    """
    if value is None:
        raise ModelError(f"{operator}: {name} is required")
    value = np.asarray(value)
    if value.size != 1 or value.ndim > 1:
        raise ModelError(f"{operator}: {name} has shape {list(value.shape)}, but it is one value for the tensor")
    return value.reshape(())


def scale_of(operator: str, name: str, value: Array | None) -> Array:
    """Return a required scalar scale as a float32 0-d array."""
    return checked_scalar(operator, name, value).astype(FLOAT32)


def zero_of(operator: str, name: str, value: Array | None, tensor: Array) -> int:
    """Return an optional scalar zero point as an int; it has the type of its 8-bit tensor.

    Raises:
        ModelError: The tensor is not uint8 or int8, or the zero point has another type or more than one value.

    """
    if tensor.dtype not in (UINT8, INT8):
        raise ModelError(f"{operator}: the tensor of {name} has type {tensor.dtype}, not uint8 or int8")
    if value is None:
        return 0
    zero = checked_scalar(operator, name, value)
    if zero.dtype != tensor.dtype:
        raise ModelError(f"{operator}: {name} is {zero.dtype} and its tensor {tensor.dtype}; they must be the same")
    return int(zero)


def requantize(total: Array, multiplier: Array, zero_point: Array) -> Array:
    """Multiply sums by a float32 multiplier and quantize them.

    Args:
        total: int32 of any shape.
        multiplier: float32, of the rank of `total` with sizes 1 where it does not vary, or 0-d.
        zero_point: 0-d array of the output's type.

    Returns:
        Array of the shape of `total` and the type of `zero_point`.

    """
    layout = _layout_of(total, multiplier)
    if layout.params[1] != multiplier.size:  # it varies along several axes, and not along all
        multiplier = np.broadcast_to(multiplier, total.shape)
    y = np.empty(total.shape, zero_point.dtype)
    lowest, highest = INTEGER_RANGE[y.dtype]
    z = int(zero_point)
    limits = arithmetic.rounded_bounds(lowest - z, highest - z)
    offset = zero_point if z else None
    flat, result = total.reshape(-1), y.reshape(-1)
    chunks = layout.chunks()

    def work(first: int, last: int) -> None:
        expand = None if layout.per_tensor else Expander(layout, (multiplier, FLOAT32))
        factor = multiplier.reshape(()) if expand is None else multiplier
        with np.errstate(all="ignore"):
            for chunk in chunks[first:last]:
                part = flat[chunk.flat]
                if expand is not None:
                    (factor,) = expand(chunk)
                q = scratch(part.size)
                np.copyto(q, part, casting="unsafe")
                np.multiply(q, factor, out=q)
                arithmetic.to_integers(q, limits, offset, result[chunk.flat])

    spread(work, len(chunks), total.size)
    return y


def _layout_of(total: Array, multiplier: Array) -> Layout:
    varying = [axis for axis, size in enumerate(multiplier.shape) if size != 1]
    shape = total.shape
    if not varying:
        return Layout((1, 1, total.size), (1, 1, 1))
    if len(varying) == 1:
        axis = varying[0]
        return Layout((math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])), (1, shape[axis], 1))
    return Layout((1, total.size, 1), (1, total.size, 1))


def requantized_table(x_scale: Array, x_zero: int, y_scale: Array, y_zero: Array, source: Array) -> Array:
    """Return the 256 results of quantizing again what one 8-bit value stands for, indexed by its bits."""
    return quantized_table(real_values(x_scale, x_zero, source), y_scale, y_zero)


def real_values(scale: Array, zero_point: int, source: Array) -> Array:
    """Return what each of the 256 bit patterns of an 8-bit type stands for, as float32 indexed by the bits."""
    values = np.arange(256, dtype=UINT8).view(source.dtype).astype(FLOAT32)
    return np.asarray((values - np.float32(zero_point)) * scale, FLOAT32)


def quantized_table(values: Array, scale: Array, zero_point: Array) -> Array:
    """Quantize float32 values to the type of the zero point: divide, clamp, round half to even, add."""
    lowest, highest = INTEGER_RANGE[zero_point.dtype]
    z = int(zero_point)
    with np.errstate(all="ignore"):
        q = np.asarray(values / scale, FLOAT32)
    q = np.fmin(np.fmax(q, np.float32(lowest - z)), np.float32(highest - z))
    return np.asarray((np.rint(q).astype(np.int32) + z).astype(zero_point.dtype))


def rounded(values: Array, dtype: DType) -> Array:
    """Clamp float32 values that hold the zero point already, and round half to even; NaN becomes the lowest value."""
    lowest, highest = INTEGER_RANGE[dtype]
    q = np.fmin(np.fmax(values, np.float32(lowest)), np.float32(highest))
    return np.asarray(np.rint(q).astype(dtype))


def look_up(table: Array, x: Array) -> Array:
    """Map every 8-bit value through a table of 256 entries."""
    return np.asarray(table.take(np.ascontiguousarray(x).view(UINT8)))
