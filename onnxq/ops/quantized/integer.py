"""MatMulInteger, and the integer matrix product that the other quantized products use.

NumPy has no BLAS for integers, so the product goes through float32 BLAS in slices of the inner dimension. They are
short enough that no sum passes 2**24, below which float32 holds every integer. The slices are added as int32, which
wraps as the engines do.

Tests: `tests/ops/test_quantized_properties.py`.
"""

from __future__ import annotations

import math

import numpy as np

from onnxq.errors import ModelError
from onnxq.ops.kernels.registry import kernel
from onnxq.ops.quantized._types import FLOAT32, INT8, INT32, UINT8, Array
from onnxq.ops.quantized.saturating import saturates, subtract_lost

EXACT = 1 << 24
"""float32 holds every integer up to this magnitude."""

BLOCK = 1 << 20
"""Elements of the float32 copies and of the product worked on at once: 4 MiB each."""

LONGEST = 1 << 12
"""Longest slice of the inner dimension, whatever the values allow: longer ones would leave thin blocks."""


@kernel("MatMulInteger", since=10)
def mat_mul_integer(A: Array, B: Array, a_zero_point: Array | None = None, b_zero_point: Array | None = None) -> Array:
    """Multiply (A - a_zero_point) by (B - b_zero_point), summed in int32 that wraps.

    The sums are exact, unless `integer_arithmetic` says that they saturate.

    Args:
        A: [..., M, K] or [K]; uint8 or int8.
        B: [..., K, N] or [K]; uint8 or int8.
        a_zero_point: Scalar, or one per row: [M], [M, 1] or [..., M, 1]; of the type of A.
        b_zero_point: Scalar, or one per column: [N], [1, N] or [..., 1, N]; of the type of B.

    Returns:
        int32, shaped as numpy.matmul shapes it. K = 0 gives zeros.

    Raises:
        ModelError: Other types, or shapes that do not fit.

    Source: https://onnx.ai/onnx/operators/onnx__MatMulInteger.html.

    """
    a, b = np.asarray(A), np.asarray(B)
    for name, value, zero in (("A", a, a_zero_point), ("B", b, b_zero_point)):
        check_8_bit("MatMulInteger", name, value, zero)
    za = None if a_zero_point is None else row_parameter("MatMulInteger", "a_zero_point", a_zero_point, a.shape)
    zb = None if b_zero_point is None else column_parameter("MatMulInteger", "b_zero_point", b_zero_point, b.shape)
    return integer_product("MatMulInteger", a, b, za, zb)


def check_8_bit(operator: str, name: str, value: Array, zero_point: Array | None) -> None:
    """Refuse a tensor that is not uint8 or int8, and a zero point of another type than its tensor."""
    if value.dtype not in (UINT8, INT8):
        raise ModelError(f"{operator}: {name} has type {value.dtype}, but the operator takes uint8 and int8")
    if zero_point is not None and np.asarray(zero_point).dtype != value.dtype:
        raise ModelError(
            f"{operator}: {name} is {value.dtype} and its zero point {np.asarray(zero_point).dtype}; "
            "they must be the same"
        )


def row_parameter(operator: str, name: str, value: Array, shape: tuple[int, ...]) -> Array:
    """Shape a per-row parameter of a [..., M, K] operand so that it broadcasts to it.

    Args:
        operator: Name for messages.
        name: Name of the input for messages.
        value: Scalar or one element, [M], or [..., M, 1] with the operand's leading dimensions.
        shape: Shape of the operand.

    Raises:
        ModelError: It has another shape.

    """
    return _line_parameter(operator, name, value, shape, rows=True)


def column_parameter(operator: str, name: str, value: Array, shape: tuple[int, ...]) -> Array:
    """Shape a per-column parameter of a [..., K, N] operand so that it broadcasts to it; see `row_parameter`."""
    return _line_parameter(operator, name, value, shape, rows=False)


def _line_parameter(operator: str, name: str, value: Array, shape: tuple[int, ...], *, rows: bool) -> Array:
    value = np.asarray(value)
    if value.size == 1 and value.ndim <= max(1, len(shape)):
        return value.reshape(())
    if len(shape) >= 2:
        matrix = (shape[-2], 1) if rows else (1, shape[-1])
        if value.ndim == 1 and value.size == math.prod(matrix):
            return value.reshape(matrix)
        if value.shape in (matrix, (*shape[:-2], *matrix)):
            return value
    raise ModelError(
        f"{operator}: {name} of shape {list(value.shape)} fits neither the whole operand of shape {list(shape)} "
        f"nor its {'rows' if rows else 'columns'}"
    )


def scale_of_product(a_scale: Array, b_scale: Array, a_rank: int, b_rank: int, rank: int) -> Array:
    """Return a_scale * b_scale in float32, broadcastable to a product of two operands.

    The product has no rows if A is 1-D, and no columns if B is.

    Args:
        a_scale: From `row_parameter`.
        b_scale: From `column_parameter`.
        a_rank: Number of axes of A.
        b_rank: Number of axes of B.
        rank: Number of axes of the product.

    """
    if b_rank == 1 and a_scale.ndim >= 2:
        a_scale = a_scale[..., 0]
    if a_rank == 1 and b_scale.ndim >= 2:
        b_scale = b_scale[..., 0, :]
    product = np.asarray(a_scale * b_scale, FLOAT32)
    return product.reshape((1,) * (rank - product.ndim) + product.shape) if product.ndim else product


def integer_product(operator: str, a: Array, b: Array, za: Array | None, zb: Array | None) -> Array:
    """Return (a - za) @ (b - zb) as int32, exact but for the wrap at 32 bits, or as `integer_arithmetic` says.

    Args:
        operator: Name for messages.
        a: [..., M, K] or [K]; 8-bit integers.
        b: [..., K, N] or [K]; 8-bit integers.
        za: None or integers that broadcast to a.
        zb: None or integers that broadcast to b.

    """
    if not a.ndim or not b.ndim:
        raise ModelError(f"{operator}: a matrix product of a scalar is not defined")
    a2, b2 = (a[None, :] if a.ndim == 1 else a), (b[:, None] if b.ndim == 1 else b)
    if a2.shape[-1] != b2.shape[-2]:
        raise ModelError(f"{operator}: shapes {list(a.shape)} and {list(b.shape)} do not fit for a matrix product")
    try:
        batch = np.broadcast_shapes(a2.shape[:-2], b2.shape[:-2])
    except ValueError as error:
        raise ModelError(f"{operator}: batch dimensions of {list(a.shape)} and {list(b.shape)} differ") from error
    total = np.zeros((*batch, a2.shape[-2], b2.shape[-1]), INT32)
    if total.size and a2.shape[-1]:
        if b2.ndim == 2 and a2.ndim > 2 and (za is None or za.ndim < 3):
            rows = a2.reshape(-1, a2.shape[-1])
            za_rows = None if za is None else np.broadcast_to(za, (*a2.shape[:-1], 1)).reshape(-1, 1)
            _accumulate(
                rows, b2, za_rows if za is not None and za.size > 1 else za, zb, total.reshape(rows.shape[0], -1)
            )
        else:
            _accumulate_batches(a2, b2, za, zb, total)
    if a.ndim == 1:
        total = total[..., 0, :]
    if b.ndim == 1:
        total = total[..., 0]
    return total


def _accumulate_batches(a: Array, b: Array, za: Array | None, zb: Array | None, total: Array) -> None:
    batch = total.shape[:-2]
    a_all = np.broadcast_to(a, batch + a.shape[-2:])
    b_all = np.broadcast_to(b, batch + b.shape[-2:])
    za_all = None if za is None else np.broadcast_to(za, (*batch, a.shape[-2], 1))
    zb_all = None if zb is None else np.broadcast_to(zb, (*batch, 1, b.shape[-1]))
    for index in np.ndindex(*batch):
        _accumulate(
            a_all[index],
            b_all[index],
            None if za_all is None else za_all[index],
            None if zb_all is None else zb_all[index],
            total[index],
        )


def _accumulate(a: Array, b: Array, za: Array | None, zb: Array | None, total: Array) -> None:
    """Add the product of two matrices to `total`, in blocks of rows, columns and the inner dimension."""
    depth = EXACT // max(1, magnitude(a, za) * magnitude(b, zb))
    inner = min(a.shape[1], depth, LONGEST)
    columns = max(1, min(b.shape[1], BLOCK // inner))
    rows = max(1, min(a.shape[0], BLOCK // max(inner, columns)))
    for n in range(0, b.shape[1], columns):
        for k in range(0, a.shape[1], inner):
            right = shifted(b[k : k + inner, n : n + columns], _part(zb, 1, n, columns))
            for m in range(0, a.shape[0], rows):
                left = shifted(a[m : m + rows, k : k + inner], _part(za, 0, m, rows))
                part = total[m : m + rows, n : n + columns]
                np.add(part, np.matmul(left, right).astype(INT32), out=part)
    if saturates(a, b):
        subtract_lost(a, b, total)


def _part(zero: Array | None, axis: int, start: int, length: int) -> Array | None:
    if zero is None or zero.ndim == 0 or zero.shape[axis] == 1:
        return zero
    return zero[start : start + length] if axis == 0 else zero[:, start : start + length]


def shifted(values: Array, zero_point: Array | None) -> Array:
    """Return values - zero_point as float32, which is exact for 8 bits."""
    result = values.astype(FLOAT32)
    if zero_point is not None and zero_point.any():
        np.subtract(result, zero_point.astype(FLOAT32), out=result)
    return result


def magnitude(values: Array, zero_point: Array | None) -> int:
    """Return a bound on |values - zero_point| that costs one pass: the ends of both ranges."""
    if not values.size:
        return 0
    low, high = int(values.min()), int(values.max())
    if zero_point is None:
        return max(abs(low), abs(high))
    return max(abs(low - int(zero_point.max())), abs(high - int(zero_point.min())))
