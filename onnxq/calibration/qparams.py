"""Scales and zero points of activations from a range, and the types of codes.

Everything is computed in the precision that onnxruntime uses, so that the same model gives the same bytes everywhere.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from onnxq.errors import RecipeError

TINY = np.finfo(np.float32).tiny  # smallest normal number: a subnormal scale loses precision, zero divides by zero

QParams = tuple[np.float32, "np.integer[Any]"]  # scale and zero point of a tensor


class CodeType(NamedTuple):
    """A quantized type: codes are held one per element in `container`, from `low` to `high`.

    Symmetric codes leave out one value and reach equally far on both sides: int8 is -127 to 127, uint8 is 1 to 255.
    """

    container: np.dtype[Any]
    low: int
    high: int

    @property
    def middle(self) -> int:
        """Zero point of symmetric codes."""
        return (self.low + self.high + 1) // 2


def _code_types() -> dict[str, CodeType]:
    types = {}
    for bits in (2, 4, 7, 8, 12, 16):
        container = 8 if bits <= 8 else 16  # of 7 bits are weights whose products must not saturate
        types[f"int{bits}"] = CodeType(np.dtype(f"int{container}"), -(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        types[f"uint{bits}"] = CodeType(np.dtype(f"uint{container}"), 0, 2**bits - 1)
    return types


CODE_TYPES: dict[str, CodeType] = _code_types()


def code_type(dtype: str) -> CodeType:
    """Look up a quantized type.

    Raises:
        RecipeError: There is none of that name.

    """
    if dtype not in CODE_TYPES:
        raise RecipeError(f"there is no quantized type '{dtype}'", f"Choose one of {', '.join(CODE_TYPES)}.")
    return CODE_TYPES[dtype]


def activation_qparams(
    lo: float, hi: float, dtype: str = "uint8", *, symmetric: bool = False
) -> tuple[np.float32, np.integer[Any]]:
    """Compute scale and zero point of a tensor from its range, in float32 as onnxruntime does.

    The arithmetic is that of DynamicQuantizeLinear: `s = (hi - lo) / (qmax - qmin)`,
    `z = rint(clip(qmin - lo / s, qmin, qmax))` with the range widened to zero. Symmetric: `s = max(-lo, hi)` over the
    greatest symmetric code, `z` in the middle of the type.

    Args:
        lo: Least real value to represent.
        hi: Greatest real value to represent.
        dtype: A name of `CODE_TYPES`.
        symmetric: Put the zero point in the middle.

    Returns:
        The scale, a normal positive float32, and the zero point in the type's container. A range that is only zero has
        scale 1 and, unless symmetric, zero point 0, as in onnxruntime.

    Raises:
        RecipeError: There is no such type.
        ValueError: `lo` or `hi` is not finite as float32, or `lo > hi`.

    """
    kind = code_type(dtype)
    zero = np.float32(0)
    with np.errstate(over="ignore"):
        low, high = np.minimum(np.float32(lo), zero), np.maximum(np.float32(hi), zero)
    if not (np.isfinite(low) and np.isfinite(high)) or lo > hi:
        raise ValueError(f"({lo}, {hi}) is no range of finite numbers")
    if low == high:
        return np.float32(1), kind.container.type(kind.middle if symmetric else 0)
    if symmetric:
        scale, zero = np.maximum(-low, high) / np.float32(kind.high - kind.middle), np.float32(kind.middle)
    else:
        steps = np.float32(kind.high - kind.low)
        with np.errstate(over="ignore"):
            scale = (high - low) / steps
        scale = np.maximum(scale if np.isfinite(scale) else high / steps - low / steps, TINY)  # a share never overflows
        zero = np.rint(np.clip(np.float32(kind.low) - low / scale, np.float32(kind.low), np.float32(kind.high)))
    return np.float32(np.maximum(scale, TINY)), kind.container.type(zero)
