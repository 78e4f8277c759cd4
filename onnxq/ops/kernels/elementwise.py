"""Arithmetic, element by element: https://onnx.ai/onnx/operators (Add, Mul, Pow, Clip, ...).

Inputs broadcast as in NumPy (ONNX from operator set 7 on); before, only the second one, when `broadcast` says so.
Results have the type of the inputs: float32 stays float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np

from onnxq.ops.kernels.arrays import Array, in_float32, normalize_axis
from onnxq.ops.kernels.registry import kernel

Binary = Callable[[Array, Array], Array]


def align(a: Array, b: Array, *, broadcast: int, axis: int | None) -> Array:
    """Shape B for the broadcasting of operator sets 1 to 6: its axes lie on A's from `axis` on, or on A's last ones."""
    if not broadcast or axis is None:
        return b
    start = normalize_axis(axis, max(a.ndim, 1))
    return b.reshape(b.shape + (1,) * (a.ndim - start - b.ndim))


def register_binary(op_type: str, function: Binary, *, since: int = 7) -> None:
    """Register a binary operator: with NumPy's broadcasting, and with the older rules below operator set 7."""
    kernel(op_type, since=since)(lambda a, b: function(a, b))

    def legacy(
        a: Array, b: Array, *, broadcast: int = 0, axis: int | None = None, consumed_inputs: Sequence[int] = ()
    ) -> Array:
        return function(a, align(a, b, broadcast=broadcast, axis=axis))

    if since == 7:
        kernel(op_type, since=1)(legacy)


def divide(a: Array, b: Array) -> Array:
    """A / B; integers truncate towards zero, as in C."""
    if a.dtype.kind not in "iu":
        return np.true_divide(a, b)
    quotient = np.floor_divide(a, b)
    if a.dtype.kind == "i":
        inexact = quotient * b != a
        quotient = np.where(inexact & ((a < 0) != (b < 0)), quotient + 1, quotient).astype(a.dtype)
    return quotient


def power(x: Array, y: Array) -> Array:
    """X ** Y in the type of X. Squares, cubes and roots of a whole tensor need no logarithm."""
    if np.size(y) == 1 and np.ndim(y) <= np.ndim(x) and x.dtype.kind == "f":
        exponent = float(y.reshape(()))
        if exponent in (2.0, 3.0):
            return np.square(x) if exponent == 2.0 else np.multiply(np.square(x), x)
        if exponent == 0.5:
            return np.sqrt(x)
        return np.power(x, x.dtype.type(exponent)) if x.dtype != np.float16 else np.power(x, y).astype(x.dtype)
    if x.dtype.kind in "iu" and y.dtype.kind == "i":
        return np.power(x.astype(np.float64), y).astype(x.dtype) if np.any(y < 0) else np.power(x, y).astype(x.dtype)
    return np.power(x, y).astype(x.dtype)


register_binary("Add", np.add)
register_binary("Sub", np.subtract)
register_binary("Mul", np.multiply)
register_binary("Div", divide)
register_binary("Pow", power)


@kernel("Mod", since=10)
def mod(a: Array, b: Array, *, fmod: int = 0) -> Array:
    """Remainder with the sign of B, or with the sign of A when `fmod` is set."""
    return np.fmod(a, b) if fmod else np.mod(a, b)


def _register_unary(op_type: str, function: Callable[..., Array]) -> None:
    kernel(op_type, since=6)(lambda x: function(x))

    def legacy(x: Array, *, consumed_inputs: Sequence[int] = ()) -> Array:
        return function(x)

    kernel(op_type, since=1)(legacy)


def _reciprocal(x: Array) -> Array:
    result: Array = np.true_divide(x.dtype.type(1), x)
    return result


_UNARY: dict[str, Callable[..., Array]] = {
    "Abs": np.abs,
    "Acos": np.arccos,
    "Acosh": np.arccosh,
    "Asin": np.arcsin,
    "Asinh": np.arcsinh,
    "Atan": np.arctan,
    "Atanh": np.arctanh,
    "Ceil": np.ceil,
    "Cos": np.cos,
    "Cosh": np.cosh,
    "Exp": np.exp,
    "Floor": np.floor,
    "Log": np.log,
    "Neg": np.negative,
    "Reciprocal": _reciprocal,
    "Round": np.rint,  # half to even, as ONNX says
    "Sign": np.sign,
    "Sin": np.sin,
    "Sinh": np.sinh,
    "Sqrt": np.sqrt,
    "Tan": np.tan,
    "Tanh": np.tanh,
}
for _op_type, _function in _UNARY.items():
    _register_unary(_op_type, _function)


def _register_variadic(op_type: str, function: Binary) -> None:
    def variadic(*inputs: Array, consumed_inputs: Sequence[int] = ()) -> Array:
        return reduce(function, inputs) if len(inputs) > 1 else inputs[0]

    kernel(op_type)(in_float32(variadic))


_register_variadic("Max", np.maximum)
_register_variadic("Min", np.minimum)
_register_variadic("Sum", np.add)


@kernel("Mean")
@in_float32
def mean(*inputs: Array, consumed_inputs: Sequence[int] = ()) -> Array:
    """Mean of the inputs, element by element."""
    total: Array = reduce(np.add, inputs)
    result: Array = np.true_divide(total, total.dtype.type(len(inputs)))
    return result


@kernel("Clip", since=11)
def clip(x: Array, low: Array | None = None, high: Array | None = None) -> Array:
    """Limit X to [low, high]; where low > high the result is high, as ONNX says. NaN stays NaN."""
    if low is not None:
        x = np.maximum(x, low)
    return x if high is None else np.minimum(x, high)


@kernel("Clip", since=1)
def clip_with_attributes(
    x: Array, *, min: float | None = None, max: float | None = None, consumed_inputs: Sequence[int] = ()
) -> Array:
    """Clip of operator sets 1 to 10, whose limits are attributes."""
    limits: list[Any] = [None if limit is None else np.asarray(limit, x.dtype) for limit in (min, max)]
    return clip(x, *limits)
