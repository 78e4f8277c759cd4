"""Comparisons, Boolean and bitwise operators, Where: https://onnx.ai/onnx/operators.

Tests: `tests/ops/test_elementwise.py`.
"""

from __future__ import annotations

import numpy as np

from onnxq.ops.kernels.arrays import Array
from onnxq.ops.kernels.elementwise import register_binary
from onnxq.ops.kernels.registry import kernel


def _shift(x: Array, y: Array, *, direction: str) -> Array:
    return np.left_shift(x, y) if direction == "LEFT" else np.right_shift(x, y)


register_binary("And", np.logical_and)
register_binary("Or", np.logical_or)
register_binary("Xor", np.logical_xor)
register_binary("Equal", np.equal)
register_binary("Less", np.less)
register_binary("Greater", np.greater)
register_binary("LessOrEqual", np.less_equal, since=12)
register_binary("GreaterOrEqual", np.greater_equal, since=12)
register_binary("BitwiseAnd", np.bitwise_and, since=18)
register_binary("BitwiseOr", np.bitwise_or, since=18)
register_binary("BitwiseXor", np.bitwise_xor, since=18)
kernel("BitShift", since=11)(_shift)


@kernel("Not")
def logical_not(x: Array) -> Array:
    """Boolean negation."""
    return np.logical_not(x)


@kernel("BitwiseNot", since=18)
def bitwise_not(x: Array) -> Array:
    """Flip every bit of an integer tensor."""
    return np.bitwise_not(x)


@kernel("IsNaN", since=9)
def is_nan(x: Array) -> Array:
    """True where X is not a number."""
    return np.isnan(x)


@kernel("IsInf", since=10)
def is_inf(x: Array, *, detect_negative: int = 1, detect_positive: int = 1) -> Array:
    """True where X is an infinity of a sign that is looked for."""
    found = np.isinf(x)
    if not detect_negative:
        found &= x > 0
    if not detect_positive:
        found &= x < 0
    return found


@kernel("Where", since=9)
def where(condition: Array, x: Array, y: Array) -> Array:
    """X where the condition holds, Y elsewhere; all three broadcast."""
    return np.where(condition, x, y)
