"""The arithmetic of quantization on one cache-sized chunk, to the bit.

    q = fmin(fmax(x / s, lo - z), hi - z)        y = int(rint(q)) + z

Divide, never multiply by 1/s; clamp before the conversion to an integer; round half to even before the zero point is
added. fmax drops NaN, so that NaN gives the lower bound. Source: the text of QuantizeLinear; this order of steps is the
one that onnxruntime's CPU kernels have, checked bit by bit in tests/ops.
"""

from __future__ import annotations

import numpy as np

from ._types import FLOAT32, FLOAT64, Array, DType

ROUNDER = np.float32(3 << 22)
"""1.5 * 2**23: added to a float32 of magnitude below 2**22 it rounds half to even; the low bits are the integer."""


SMALL = 1 << 12
"""Elements below which an array of bounds does not pay."""

ROW = 1 << 14
"""Elements of an array of bounds: 64 KiB, which stay in the cache beside the chunk: a fifth faster."""


def bound(value: int, size: int) -> Array:
    """Give one float32 value min(size, ROW) times, or once when size is small, for `clamp`.

    `fmax` of two arrays is vectorised, of an array and a scalar it is not; few elements do not repay the filling.
    """
    return np.full(1 if size < SMALL else min(size, ROW), value, FLOAT32)


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


def clamp(q: Array, lowest: Array, highest: Array) -> None:
    """Clamp in place to [lowest, highest]; NaN becomes lowest.

    Args:
        q: 1-D float32.
        lowest: As long as q, or shorter and all one value: see `bound`.
        highest: Of the length of `lowest`.

    """
    row = lowest.size
    whole = q.size // row * row if 1 < row < q.size else 0
    if whole:
        block = q[:whole].reshape(-1, row)
        np.fmax(block, lowest, out=block)
        np.fmin(block, highest, out=block)
    if whole < q.size:
        rest = q[whole:]
        np.fmax(rest, lowest[: rest.size], out=rest)
        np.fmin(rest, highest[: rest.size], out=rest)


def to_integers(q: Array, zero_point: Array | None, out: Array) -> None:
    """Round the clamped values half to even, add the zero point as an integer, and write the result.

    Args:
        q: float32 of magnitude below 2**22; overwritten.
        zero_point: Of the output's type, or None for zero. The addition wraps back into range by construction.
        out: Integer array of 8 or 16 bits.

    """
    np.add(q, ROUNDER, out=q)
    np.copyto(out, q.view(np.int32), casting="unsafe")
    if zero_point is not None:
        np.add(out, zero_point, out=out)


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
