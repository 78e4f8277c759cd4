"""com.microsoft GatherBlockQuantized: look rows up in a quantized table, and dequantize only those.

Tests: `tests/ops/test_quantized_contrib.py`.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

from onnxq.errors import ModelError
from onnxq.ir.graph import MICROSOFT
from onnxq.ops.kernels.registry import kernel
from onnxq.ops.quantized._layout import resolve_axis
from onnxq.ops.quantized._types import BFLOAT16, FLOAT8, FLOAT16, FLOAT32, UINT8, Array
from onnxq.ops.quantized.contrib_nbits import unpack_bits

_FOUR_BITS = {np.dtype(ml_dtypes.uint4), np.dtype(ml_dtypes.int4)}
_FLOATS = FLOAT8 | {np.dtype(ml_dtypes.float4_e2m1fn)}


@kernel("GatherBlockQuantized", domain=MICROSOFT)
def gather_block_quantized(
    data: Array,
    indices: Array,
    scales: Array,
    zero_points: Array | None = None,
    *,
    bits: int = 4,
    block_size: int = 128,
    gather_axis: int = 0,
    quantize_axis: int = 1,
) -> Array:
    """Gather from a blockwise quantized table and dequantize: (q - zero_point) * scale, in float32.

    Args:
        data: uint4, int4, float8 or float4 of any shape; or uint8, packed along its last axis when `bits` is 2 or 4,
            low bits first.
        indices: int32 or int64 of any shape; negative from the back. One out of range gives zeros.
        scales: Of the rank of `data`, with ceil(length / block_size) along `quantize_axis`; float32, float16, bfloat16.
            For float8 and float4 a size of 1 on another axis repeats.
        zero_points: As `scales`, of the type of `data` (packed if that is); absent: 0, or 2 ** (bits - 1) for uint8.
        bits: 2, 4 or 8: bits of a value in uint8 data.
        block_size: A power of two, at least 16; 0 for float8 and float4: the whole axis.
        gather_axis: Axis of `data` that the indices run along; 0 for uint8.
        quantize_axis: Axis of `data` that the blocks run along.

    Returns:
        The type of `scales`, in the shape that Gather gives.

    Raises:
        ModelError: Types, shapes or attributes do not fit.

    """
    name = "GatherBlockQuantized"
    data, scales, indices = np.asarray(data), np.asarray(scales), np.asarray(indices)
    zeros = None if zero_points is None else np.asarray(zero_points)
    gather, along = resolve_axis(name, gather_axis, data.ndim), resolve_axis(name, quantize_axis, data.ndim)
    _check(name, data, indices, scales, zeros, bits, block_size)
    if data.dtype == UINT8:
        if gather != 0 or (bits < 8 and along == gather):
            raise ModelError(f"{name}: uint8 data is gathered along axis 0 and quantized along another one")
        length = data.shape[-1] * (8 // bits)
        data = unpack_bits(data, bits, length)
        if zeros is not None:
            zeros = unpack_bits(zeros, bits, scales.shape[-1])
    block = block_size or max(1, data.shape[along])
    expected = tuple(-(-d // block) if axis == along else d for axis, d in enumerate(data.shape))
    loose = data.dtype in _FLOATS
    fits = len(scales.shape) == data.ndim and all(
        s == e or (loose and s == 1 and axis != along)
        for axis, (s, e) in enumerate(zip(scales.shape, expected, strict=True))
    )
    if not fits or (zeros is not None and zeros.shape != scales.shape):
        raise ModelError(f"{name}: scales and zero points of {list(data.shape)} have the shape {list(expected)}")
    scales = np.broadcast_to(scales, expected)
    half = 0 if zero_points is not None or data.dtype != UINT8 else 1 << (bits - 1)
    return _gathered(data, indices, scales, zeros, half, block, gather, along)


def _gathered(
    data: Array, indices: Array, scales: Array, zeros: Array | None, half: int, block: int, gather: int, along: int
) -> Array:
    """Take the values and their parameters, and dequantize what was taken."""
    size = data.shape[gather]
    valid = (indices >= -size) & (indices < size)
    safe = np.where(valid, indices, 0).astype(np.int64)
    safe[safe < 0] += size
    taken = data.take(safe, gather)
    if gather == along:
        parameters = [None if p is None else p.take(safe // block, gather) for p in (scales, zeros)]
    else:
        axis = along if along < gather else along + indices.ndim - 1
        number = np.arange(taken.shape[axis]) // block
        parameters = [None if p is None else p.take(safe, gather).take(number, axis) for p in (scales, zeros)]
    scale, zero = parameters
    assert scale is not None
    values = taken.astype(FLOAT32) - (np.float32(half) if zero is None else zero.astype(FLOAT32))
    with np.errstate(all="ignore"):
        y = values * scale.astype(FLOAT32)
    y[(slice(None),) * gather + (~valid,)] = 0
    return np.asarray(y.astype(scales.dtype, copy=False))


def _check(
    name: str, data: Array, indices: Array, scales: Array, zeros: Array | None, bits: int, block_size: int
) -> None:
    if data.dtype not in _FOUR_BITS | _FLOATS | {UINT8}:
        raise ModelError(f"{name}: data has type {data.dtype}, which the operator does not take")
    if scales.dtype not in (FLOAT32, FLOAT16, BFLOAT16) or indices.dtype not in (np.int32, np.int64):
        raise ModelError(f"{name}: scales are {scales.dtype} and indices {indices.dtype}; not floats and integers")
    if bits not in (2, 4, 8):
        raise ModelError(f"{name}: bits = {bits}, not 2, 4 or 8")
    whole = block_size == 0 and data.dtype in _FLOATS
    if not whole and (block_size < 16 or block_size & (block_size - 1)):
        raise ModelError(f"{name}: block_size = {block_size} is not a power of two from 16 on")
    if zeros is not None and (zeros.dtype != data.dtype or data.dtype in _FLOATS):
        raise ModelError(f"{name}: data of type {data.dtype} does not go with zero points of type {zeros.dtype}")
