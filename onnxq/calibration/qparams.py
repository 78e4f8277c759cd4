"""Scales, zero points and codes: of activations from a range, of weights from their values.

Everything is computed in the precision that onnxruntime uses, so that the same model gives the same bytes everywhere.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np

from onnxq.errors import ModelError, RecipeError

TINY = np.finfo(np.float32).tiny  # smallest normal number: a subnormal scale loses precision, zero divides by zero
GRID = 40  # shrink factors that the squared-error search of a weight's scale tries
BLOCK = 1 << 16  # elements at a time in that search: the temporaries stay in the cache

WeightMethod = Literal["max", "mse"]
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


class QuantizedWeight(NamedTuple):
    """Codes of a weight with its parameters.

    Attributes:
        codes: The weight's shape, the type's container.
        scales: float32; shape `(channels,)`, or `()` for one scale.
        zero_points: Container dtype, shape of `scales`.

    """

    codes: np.ndarray
    scales: np.ndarray
    zero_points: np.ndarray


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
    scales, zeros = _affine(np.array([low]), np.array([high]), kind, symmetric)
    return np.float32(scales[0]), kind.container.type(zeros[0])


def _affine(low: np.ndarray, high: np.ndarray, kind: CodeType, symmetric: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return scales and zero points, both float32, of float32 ranges with zero; scale 1 where there is only zero."""
    if symmetric:
        scale = np.maximum(-low, high) / np.float32(kind.high - kind.middle)
        zero = np.full_like(scale, kind.middle)
    else:
        steps = np.float32(kind.high - kind.low)
        with np.errstate(over="ignore"):
            scale = (high - low) / steps
        scale = np.where(np.isfinite(scale), scale, high / steps - low / steps)  # hi - lo overflows, its share doesn't
        scale = np.maximum(scale, TINY)
        zero = np.rint(np.clip(np.float32(kind.low) - low / scale, np.float32(kind.low), np.float32(kind.high)))
    scale = np.where((low == 0) & (high == 0), np.float32(1), np.maximum(scale, TINY))
    return scale.astype(np.float32), zero


def quantize_weight(
    w: np.ndarray,
    axis: int | None,
    dtype: str = "int8",
    *,
    symmetric: bool = True,
    method: WeightMethod = "max",
) -> QuantizedWeight:
    """Quantize a weight by rounding to nearest.

    Args:
        w: Float array; computed with as float32.
        axis: The channel axis, one scale for each index along it; None for one scale.
        dtype: A name of `CODE_TYPES`.
        symmetric: Zero point in the middle of the type (0 for signed types); otherwise the range of every channel,
            widened to zero, is spread over all codes.
        method: `max` covers every value; `mse` tries 40 smaller ranges for every channel, down to half (a quarter below
            8 bits), and keeps the one of least squared error.

    Returns:
        Codes, scales and zero points. A channel that is all zero has scale 1 and codes at its zero point.

    Raises:
        ModelError: The weight holds NaN or infinity.
        RecipeError: The type or method is unknown.

    """
    kind = code_type(dtype)
    if method not in ("max", "mse"):
        raise RecipeError(f"there is no method '{method}' to scale weights", "Choose max or mse.")
    with np.errstate(over="ignore"):
        w = np.asarray(w, np.float32)
    if not np.isfinite(w).all():
        raise ModelError("a weight holds NaN or infinity", "Export the model again from sound weights.")
    channels = 1 if axis is None else w.shape[axis]
    rows = (np.moveaxis(w, axis, 0) if axis else w).reshape(channels, w.size // max(channels, 1))
    low = np.minimum(rows.min(axis=1, initial=0), np.float32(0))
    high = np.maximum(rows.max(axis=1, initial=0), np.float32(0))
    scales, zeros = _affine(low, high, kind, symmetric)
    if method == "mse":
        scales, zeros = _least_error(rows, low, high, kind, symmetric)
    codes = _round(rows, scales[:, None], zeros[:, None], _bottom(kind, symmetric), kind.high).astype(kind.container)
    if axis is None:
        return QuantizedWeight(codes.reshape(w.shape), scales.reshape(()), zeros.astype(kind.container).reshape(()))
    if axis == 0:
        return QuantizedWeight(codes.reshape(w.shape), scales, zeros.astype(kind.container))
    others = np.delete(w.shape, axis)
    codes = np.ascontiguousarray(np.moveaxis(codes.reshape(channels, *others), 0, axis))
    return QuantizedWeight(codes, scales, zeros.astype(kind.container))


def _bottom(kind: CodeType, symmetric: bool) -> int:
    return 2 * kind.middle - kind.high if symmetric else kind.low


def _round(rows: np.ndarray, scale: np.ndarray, zero: np.ndarray, bottom: int, top: int) -> np.ndarray:
    """QuantizeLinear in float32: divide, clip, round half to even, add the zero point."""
    codes: np.ndarray = rows / scale
    np.clip(codes, bottom - zero, top - zero, out=codes)
    np.rint(codes, out=codes)
    codes += zero
    return codes


def _least_error(
    rows: np.ndarray, low: np.ndarray, high: np.ndarray, kind: CodeType, symmetric: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Try shrunken ranges for every row and keep the one of least squared error, the larger range at a tie."""
    bottom = _bottom(kind, symmetric)
    best = np.full(len(rows), np.inf)
    chosen, chosen_zeros = _affine(low, high, kind, symmetric)
    depth = 0.5 if kind.high - kind.low >= 255 else 0.75
    # Denser near 1, where 8-bit codes have their optimum: 0.05 dB over even steps at 8 bits, the same at 4 and 2
    for factor in (1 - depth * np.linspace(0, 1, GRID) ** 2).astype(np.float32):
        scales, zeros = _affine(low * factor, high * factor, kind, symmetric)
        errors = _squared_errors(rows, scales, zeros, bottom, kind.high)
        better = errors < best * (1 - 1e-9)  # no choice hangs on the last bits of a sum
        best = np.where(better, errors, best)
        chosen, chosen_zeros = np.where(better, scales, chosen), np.where(better, zeros, chosen_zeros)
    return chosen, chosen_zeros


def _squared_errors(rows: np.ndarray, scales: np.ndarray, zeros: np.ndarray, bottom: int, top: int) -> np.ndarray:
    """Sum the squared rounding errors of each row, float64."""
    errors = np.zeros(len(rows))
    width = min(max(rows.shape[1], 1), BLOCK)
    height = max(BLOCK // width, 1)
    for i in range(0, len(rows), height):
        scale, zero = scales[i : i + height, None], zeros[i : i + height, None]
        for j in range(0, rows.shape[1], width):
            block = rows[i : i + height, j : j + width]
            difference = (_round(block, scale, zero, bottom, top) - zero) * scale - block
            errors[i : i + height] += np.square(difference, dtype=np.float64).sum(axis=1)
    return errors
