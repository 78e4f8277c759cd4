"""com.microsoft matrix products: QGemm, MatMulIntegerToFloat, DynamicQuantizeMatMul.

Source: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md.

Tests: `tests/ops/test_quantized_contrib.py`.
"""

from __future__ import annotations

import numpy as np

from onnxq.errors import ModelError
from onnxq.ir.graph import MICROSOFT
from onnxq.ops.kernels.registry import kernel
from onnxq.ops.quantized._requantize import checked_scalar, requantize, scale_of
from onnxq.ops.quantized._types import FLOAT32, INT32, Array, DType
from onnxq.ops.quantized.dynamic import dynamic_quantize_linear
from onnxq.ops.quantized.integer import check_8_bit, column_parameter, integer_product, scale_of_product


@kernel("QGemm", domain=MICROSOFT)
def q_gemm(
    A: Array,
    a_scale: Array,
    a_zero_point: Array,
    B: Array,
    b_scale: Array,
    b_zero_point: Array,
    C: Array | None = None,
    y_scale: Array | None = None,
    y_zero_point: Array | None = None,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Array:
    """Multiply quantized matrices and add an int32 bias; the result is quantized, or float32 without y_scale.

        y = saturate(round_half_even(float32(sum + C) * (alpha * a_scale * b_scale / y_scale)) + y_zero_point)
        y = float32(sum + C) * (alpha * a_scale * b_scale)

    Args:
        A: [M, K], or [K, M] with transA; uint8 or int8.
        a_scale: float32 scalar.
        a_zero_point: Scalar of the type of A.
        B: [K, N], or [N, K] with transB; uint8 or int8.
        b_scale: float32 scalar or [N].
        b_zero_point: Scalar or [N]; of the type of B.
        C: int32 that broadcasts to [M, N].
        y_scale: float32 scalar.
        y_zero_point: Scalar, uint8 or int8; goes with y_scale.
        alpha: Factor of the product.
        transA: A is transposed.
        transB: B is transposed.

    Raises:
        ModelError: Types or shapes do not fit, or only one of y_scale and y_zero_point is there.

    """
    name = "QGemm"
    a, b = np.asarray(A), np.asarray(B)
    if a.ndim != 2 or b.ndim != 2:
        raise ModelError(f"{name}: A of shape {list(a.shape)} and B of shape {list(b.shape)} are not matrices")
    if (y_scale is None) != (y_zero_point is None):
        raise ModelError(f"{name}: y_scale and y_zero_point go together, but one is absent")
    a, b = (a.T if transA else a), (b.T if transB else b)
    total, scale = _scaled_product(name, a, a_scale, a_zero_point, b, b_scale, b_zero_point, np.float32(alpha))
    if C is not None:
        bias = np.asarray(C)
        if bias.dtype != INT32 or not _broadcasts_to(bias.shape, total.shape):
            raise ModelError(f"{name}: C is {bias.dtype} {list(bias.shape)}, not int32 that fits {list(total.shape)}")
        np.add(total, bias, out=total)
    if y_scale is None:
        return _real(total, scale)
    y_zero = checked_scalar(name, "y_zero_point", y_zero_point)
    check_8_bit(name, "y", y_zero, None)
    with np.errstate(all="ignore"):
        return requantize(total, np.asarray(scale / scale_of(name, "y_scale", y_scale), FLOAT32), y_zero)


def _broadcasts_to(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    tail = target[len(target) - len(shape) :]
    return len(shape) <= len(target) and all(s in (1, t) for s, t in zip(shape, tail, strict=True))


def _scaled_product(
    name: str,
    a: Array,
    a_scale: Array,
    a_zero: Array | None,
    b: Array,
    b_scale: Array,
    b_zero: Array | None,
    alpha: np.float32,
) -> tuple[Array, Array]:
    """Return the int32 product, and alpha * a_scale * b_scale in float32, broadcastable to it."""
    check_8_bit(name, "A", a, a_zero)
    check_8_bit(name, "B", b, b_zero)
    za = None if a_zero is None else checked_scalar(name, "a_zero_point", a_zero)
    zb = None if b_zero is None else column_parameter(name, "b_zero_point", b_zero, b.shape)
    sb = column_parameter(name, "b_scale", np.asarray(b_scale, FLOAT32), b.shape)
    total = integer_product(name, a, b, za, zb)
    with np.errstate(all="ignore"):
        sa = np.asarray(alpha * scale_of(name, "a_scale", a_scale), FLOAT32)
        return total, scale_of_product(sa, sb, a.ndim, b.ndim, total.ndim)


def _real(total: Array, scale: Array, bias: Array | None = None) -> Array:
    y = total.astype(FLOAT32)
    with np.errstate(all="ignore"):
        np.multiply(y, scale, out=y)
        if bias is not None:
            np.add(y, bias, out=y)
    return y


def checked_bias(name: str, bias: Array | None, columns: int, dtype: DType) -> Array | None:
    """Return a bias of one value per column, or None; refuse another type or shape."""
    if bias is None:
        return None
    bias = np.asarray(bias)
    if bias.dtype != dtype or bias.shape != (columns,):
        raise ModelError(f"{name}: bias is {bias.dtype} {list(bias.shape)}, but it is {dtype} [{columns}]")
    return bias


@kernel("MatMulIntegerToFloat", domain=MICROSOFT)
def mat_mul_integer_to_float(
    A: Array,
    B: Array,
    a_scale: Array,
    b_scale: Array,
    a_zero_point: Array | None = None,
    b_zero_point: Array | None = None,
    bias: Array | None = None,
) -> Array:
    """Multiply quantized matrices: y = float32(sum) * (a_scale * b_scale) + bias.

    Args:
        A: [..., M, K]; uint8 or int8.
        B: [..., K, N]; uint8 or int8.
        a_scale: float32 scalar.
        b_scale: float32 scalar or [N].
        a_zero_point: Scalar of the type of A; absent: zero.
        b_zero_point: Scalar or [N]; absent: zero.
        bias: float32 [N].

    Returns:
        float32, shaped as numpy.matmul shapes it; K = 0 gives zeros and the bias.

    Raises:
        ModelError: Types or shapes do not fit.

    """
    name = "MatMulIntegerToFloat"
    a, b = np.asarray(A), np.asarray(B)
    for label, value in (("a_scale", a_scale), ("b_scale", b_scale)):
        if np.asarray(value).dtype != FLOAT32:
            raise ModelError(f"{name}: {label} has type {np.asarray(value).dtype}; onnxq computes float32 only")
    total, scale = _scaled_product(name, a, a_scale, a_zero_point, b, b_scale, b_zero_point, np.float32(1))
    return _real(total, scale, checked_bias(name, bias, b.shape[-1], FLOAT32))


@kernel("DynamicQuantizeMatMul", domain=MICROSOFT)
def dynamic_quantize_mat_mul(
    A: Array, B: Array, b_scale: Array, b_zero_point: Array | None = None, bias: Array | None = None
) -> Array:
    """Quantize A as `dynamic_quantize_linear` does, then multiply as `mat_mul_integer_to_float` does.

    Args:
        A: float32 [..., M, K].
        B: [..., K, N]; uint8 or int8.
        b_scale: float32 scalar or [N].
        b_zero_point: Scalar or [N]; absent: zero.
        bias: float32 [N].

    Raises:
        ModelError: Types or shapes do not fit.

    """
    a, a_scale, a_zero_point = dynamic_quantize_linear(A)
    return mat_mul_integer_to_float(a, B, a_scale, b_scale, a_zero_point, b_zero_point, bias)
