"""QLinearAdd in the arithmetic of the processor at hand, which differs where a sum is nearly a tie.

onnxruntime 1.32 has three kernels (onnxruntime/core/mlas/lib/qladd.cpp). On x86-64 with AVX2, multiply and add are
fused, which `onnxq.ops.quantized` follows. Older x86-64 rounds every product and every sum. Arm adds integers.
"""

from __future__ import annotations

import platform

import numpy as np
from numpy._core._multiarray_umath import __cpu_features__ as features
from quantized_support import run_kernel

F = np.float32
LEAST, MOST = F(2.0**-14), F(256)  # ratios of scales that are multiplied as integers on Arm


def host_sum(inputs):
    """Give what onnxruntime's QLinearAdd gives here.

    Args:
        inputs: A, its scale and zero point, those of B, and scale and zero point of the sum.

    """
    if platform.machine().lower() in ("aarch64", "arm64"):
        return integer_sum(*inputs)
    if not features["FMA3"]:
        return sum_of_rounded(*inputs)
    return run_kernel("QLinearAdd", inputs, domain="com.microsoft")[0]


def repeats_innermost(a, b):
    """Tell whether a is one value along the innermost axis that b is not."""
    rank = max(len(a), len(b))
    pairs = zip((1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b, strict=True)
    longer = [pair for pair in pairs if pair != (1, 1)]
    return bool(longer) and longer[-1][0] == 1


def sum_of_rounded(a, a_scale, a_zero, b, b_scale, b_zero, scale, zero):
    """Add as x86-64 without fused multiply-add: each product and each sum is rounded to float32."""
    ra, rb = F(a_scale) / F(scale), F(b_scale) / F(scale)
    dtype = a.dtype
    if repeats_innermost(a.shape, b.shape):
        a, ra, a_zero, b, rb, b_zero = b, rb, b_zero, a, ra, a_zero
    fixed = F(zero) - (ra * F(a_zero) + rb * F(b_zero))
    first, other = a.astype(F) * ra, b.astype(F) * rb
    one = repeats_innermost(b.shape, a.shape)
    return within(np.rint((fixed + other) + first if one else (fixed + first) + other), dtype)


def integer_sum(a, a_scale, a_zero, b, b_scale, b_zero, scale, zero):
    """Add as Arm64: in 32-bit integers, the larger ratio of scales a number of 22 bits; halves go away from zero."""
    ra, rb = F(a_scale) / F(scale), F(b_scale) / F(scale)
    first, other = a.astype(np.int64) - int(a_zero), b.astype(np.int64) - int(b_zero)
    shift = 21 - int(np.floor(np.log2(max(ra, rb))))
    if min(ra, rb) < LEAST or max(ra, rb) >= MOST or not 13 <= shift <= 31:
        total = (first.astype(F) * F(a_scale) + other.astype(F) * F(b_scale)) / F(scale)
        return within(np.rint(total) + int(zero), a.dtype)
    total = first * round(float(ra) * 2.0**shift) + other * round(float(rb) * 2.0**shift)
    halves = (np.abs(total) + (1 << (shift - 1))) >> shift
    return within(np.sign(total) * halves + int(zero), a.dtype)


def within(codes, dtype):
    """Clip codes to their type."""
    info = np.iinfo(dtype)
    return np.clip(codes, info.min, info.max).astype(dtype)
