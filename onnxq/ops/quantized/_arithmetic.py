"""The arithmetic of quantization on one cache-sized chunk, to the bit.

    q = fmin(fmax(x / s, lo - z), hi - z)        y = int(rint(q)) + z

Divide, never multiply by 1/s; round half to even before the zero point is added; NaN gives the lower bound. Source: the
text of QuantizeLinear; this order of steps is the one that onnxruntime's CPU kernels have, checked bit by bit in
tests/ops.

Rounding and clamping may change places, for the bounds are integers. So the quotient is rounded first, by adding
1.5 * 2**23, and clamped as an integer. The bits of float32 numbers keep their order when they are read as int32, if
negative ones only have to be below all others. One pass clamps both ends, where `fmax` and `fmin` take two.

Tests: `tests/ops/test_quantized_mutants.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxq.ops.quantized._types import FLOAT32, FLOAT64, Array, DType

ROUNDER = np.float32(3 << 22)
"""1.5 * 2**23: added to a float32 of magnitude below 2**22 it rounds half to even; the low bits are the integer."""


INFINITY = np.int32(0x7F800000)
"""Bits of +inf: the positive NaNs are above. Negative NaNs are negative as integers, as all negative numbers are."""

_INTEGER_ZERO = np.int32(ROUNDER.view(np.int32))
_NO_INTEGER = np.int32(-1)
SMALL = 1 << 12
"""Elements below which two passes with little to prepare are faster than one."""


def rounded_bounds(lowest: Any, highest: Any) -> tuple[Any, Any]:
    """Return the bits that integers, or int32 arrays, between -2**22 and 2**22 have once rounded; see `to_integers`."""
    return lowest + _INTEGER_ZERO, highest + _INTEGER_ZERO


def quotient(x: Array, scale: Array, precision: DType, out: Array) -> None:
    """Write x / scale, divided in `precision`, to a float32 buffer.

    A quotient in float64 is rounded to an integer first, so that it is not rounded twice.
    """
    if precision == FLOAT32:
        if x.dtype != FLOAT32:
            np.copyto(out, x, casting="unsafe")
            x = out
        np.divide(x, scale, out=out)
        return
    exact = np.divide(x.astype(precision, copy=False), scale)
    if precision == FLOAT64:
        np.rint(exact, out=exact)
    np.copyto(out, exact, casting="unsafe")


def to_integers(q: Array, limits: tuple[Any, Any] | None, zero_point: Array | None, out: Array) -> None:
    """Round half to even, clamp, add the zero point as an integer, and write the result.

    Args:
        q: 1-D float32, any values; overwritten.
        limits: Lowest and highest integer before the zero point is added, as `rounded_bounds` gives them: of no
            dimension, or one for each element. None where no value is outside, and none is NaN.
        zero_point: Of the output's type, or None for zero. The addition wraps back into range by construction.
        out: Integer array of 8 or 16 bits.

    """
    np.add(q, ROUNDER, out=q)
    bits = q.view(np.int32)
    if limits is not None:
        _clamp(bits, *limits)
    np.copyto(out, bits, casting="unsafe")
    if zero_point is not None:
        np.add(out, zero_point, out=out)


def _clamp(bits: Array, lowest: Any, highest: Any) -> None:
    if bits.size:
        greatest = np.maximum.reduce(bits)
        # Looking costs half of what clamping does, and most values of a calibrated tensor need none
        if not lowest.ndim and greatest <= highest and np.minimum.reduce(bits) >= lowest:
            return
        if greatest > INFINITY:
            bits[bits > INFINITY] = _NO_INTEGER
    if lowest.ndim or bits.size < SMALL:
        np.maximum(bits, lowest, out=bits)
        np.minimum(bits, highest, out=bits)
    else:
        bits.clip(lowest, highest, out=bits)


def dequantized(x: Array, scale: Array, zero_point: Array | None, out: Array) -> None:
    """Write float32(int32(x) - int32(z)) * float32(s) to a float32 buffer.

    Types of up to 16 bits are exact in float32, so that their difference is too; int32 is subtracted as int32 and
    wraps.
    """
    if zero_point is not None and x.dtype == np.int32:
        np.copyto(out, np.subtract(x, zero_point), casting="unsafe")
    else:
        np.copyto(out, x, casting="unsafe")
        if zero_point is not None:
            np.subtract(out, zero_point, out=out)
    np.multiply(out, scale, out=out)
