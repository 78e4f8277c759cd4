"""com.microsoft MatMulNBits: a matrix product with blockwise quantized, bit-packed weights.

Source: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md.

Tests: `tests/ops/test_stored_weights.py`.
"""

from __future__ import annotations

import math

import numpy as np

from onnxq.errors import ModelError
from onnxq.ir.graph import MICROSOFT
from onnxq.ops.kernels.registry import kernel
from onnxq.ops.quantized._types import BFLOAT16, FLOAT16, FLOAT32, UINT8, Array
from onnxq.ops.quantized.contrib_matmul import checked_bias
from onnxq.ops.quantized.integer import BLOCK

NAME = "MatMulNBits"


def unpack_bits(packed: Array, bits: int, length: int) -> Array:
    """Return the unsigned values of a byte array packed along its last axis, low bits first, cut to `length`."""
    if bits == 8:
        return packed[..., :length]
    shifts = np.arange(0, 8, bits, dtype=UINT8)
    values = (packed[..., None] >> shifts) & UINT8.type((1 << bits) - 1)
    return np.asarray(values.reshape(*packed.shape[:-1], -1)[..., :length])


@kernel(NAME, domain=MICROSOFT)
def mat_mul_n_bits(
    A: Array,
    B: Array,
    scales: Array,
    zero_points: Array | None = None,
    g_idx: Array | None = None,
    bias: Array | None = None,
    *,
    K: int,
    N: int,
    bits: int = 4,
    block_size: int,
    accuracy_level: int = 0,
    weight_prepacked: int = 0,
) -> Array:
    """Multiply A by blockwise quantized weights, dequantized to float32: (q - zero_point) * scale.

    Args:
        A: [..., K]; float32, float16 or bfloat16.
        B: uint8 [N, ceil(K / block_size), block_size * bits / 8], low bits first.
        scales: [N, blocks] (or flat) of the type of A.
        zero_points: [N, ceil(blocks * bits / 8)] packed as B, or [N, blocks] like A; absent: 2 ** (bits - 1).
        g_idx: int32 [K]: the block of each input feature; absent: block_size in a row share one.
        bias: [N] of the type of A.
        K: Input features.
        N: Output features.
        bits: 2, 4 or 8.
        block_size: A power of two, at least 16.
        accuracy_level: Lowest accuracy allowed, 0 to 4; float32 meets every level (onnxruntime's level 4 is int8).
        weight_prepacked: Must be 0: other layouts belong to CUDA.

    Returns:
        [..., N] of the type of A.

    Raises:
        ModelError: Types, shapes or attributes do not fit.

    """
    a, packed = np.asarray(A), np.asarray(B)
    _check(a, packed, K, N, bits, block_size, accuracy_level, weight_prepacked)
    blocks = -(-K // block_size)
    scale = _per_block("scales", scales, a, N, blocks)
    zero = _zero_points(zero_points, a, N, blocks, bits)
    group = np.arange(K) // block_size if g_idx is None else _groups(np.asarray(g_idx), K, blocks)
    codes = packed.reshape(N, blocks, -1)
    # Sums are in float64 and rounded once: in float32 BLAS makes other last bits of them on every processor
    flat = a.reshape(-1, K).astype(np.float64)
    y = np.empty((flat.shape[0], N), FLOAT32)
    step = max(1, BLOCK // max(1, K))
    with np.errstate(all="ignore"):
        for n in range(0, N, step):
            rows = slice(n, n + step)
            weight = unpack_bits(codes[rows], bits, block_size).reshape(-1, blocks * block_size)[:, :K]
            weight = (weight.astype(FLOAT32) - zero[rows][:, group]) * scale[rows][:, group]
            y[:, rows] = flat @ weight.T.astype(np.float64)
        offset = checked_bias(NAME, bias, N, a.dtype)
        if offset is not None:
            y += offset.astype(FLOAT32)
    return y.reshape(*a.shape[:-1], N).astype(a.dtype, copy=False)


def _check(
    a: Array, packed: Array, K: int, N: int, bits: int, block_size: int, accuracy_level: int, weight_prepacked: int
) -> None:
    if bits not in (2, 4, 8) or block_size < 16 or block_size & (block_size - 1):
        raise ModelError(
            f"{NAME}: bits = {bits} and block_size = {block_size}; 2, 4 or 8 and a power of two from 16 on"
        )
    if weight_prepacked or not 0 <= accuracy_level <= 4:
        raise ModelError(
            f"{NAME}: weight_prepacked = {weight_prepacked}, accuracy_level = {accuracy_level} are not known"
        )
    if a.dtype not in (FLOAT32, FLOAT16, BFLOAT16) or not a.ndim or a.shape[-1] != K:
        raise ModelError(f"{NAME}: A is {a.dtype} {list(a.shape)}, but it is a floating tensor [..., {K}]")
    shape = (N, -(-K // block_size), block_size * bits // 8)
    if packed.dtype != UINT8 or packed.size != math.prod(shape):
        raise ModelError(f"{NAME}: B is {packed.dtype} {list(packed.shape)}, but it is uint8 {list(shape)}")


def _groups(g_idx: Array, K: int, blocks: int) -> Array:
    if g_idx.shape != (K,) or (K and not 0 <= g_idx.min() <= g_idx.max() < blocks):
        raise ModelError(f"{NAME}: g_idx does not name one of {blocks} blocks for each of {K} features")
    return g_idx


def _per_block(label: str, value: Array, a: Array, N: int, blocks: int) -> Array:
    value = np.asarray(value)
    if value.dtype != a.dtype or value.size != N * blocks:
        raise ModelError(f"{NAME}: {label} is {value.dtype} {list(value.shape)}, but it is {a.dtype} [{N}, {blocks}]")
    return value.reshape(N, blocks).astype(FLOAT32)


def _zero_points(value: Array | None, a: Array, N: int, blocks: int, bits: int) -> Array:
    if value is None:
        return np.full((N, blocks), 1 << (bits - 1), FLOAT32)
    value = np.asarray(value)
    if value.dtype != UINT8:
        return _per_block("zero_points", value, a, N, blocks)
    width = -(-blocks * bits // 8)
    if value.size != N * width:
        raise ModelError(f"{NAME}: zero_points is uint8 {list(value.shape)}, but packed it is [{N}, {width}]")
    return unpack_bits(value.reshape(N, width), bits, blocks).astype(FLOAT32)
