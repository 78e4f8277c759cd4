"""QLinearMatMul and QLinearConv: quantized in, quantized out.

Tests: `tests/ops/test_quantized_mutants.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onnxq.errors import ModelError
from onnxq.ops.kernels.registry import kernel
from onnxq.ops.quantized._requantize import checked_scalar, requantize, scale_of
from onnxq.ops.quantized._types import BFLOAT16, FLOAT8, FLOAT16, FLOAT32, INT32, Array
from onnxq.ops.quantized.convolution import channel_parameter, convolution_windows, integer_convolution
from onnxq.ops.quantized.integer import check_8_bit, column_parameter, integer_product, row_parameter, scale_of_product
from onnxq.ops.quantized.linear import dequantize_linear, quantize_linear
from onnxq.ops.quantized.saturating_conv import subtract_lost_by_input


@kernel("QLinearMatMul", since=10)
def q_linear_mat_mul(
    a: Array,
    a_scale: Array,
    a_zero_point: Array,
    b: Array,
    b_scale: Array,
    b_zero_point: Array,
    y_scale: Array,
    y_zero_point: Array,
) -> Array:
    """Multiply quantized matrices and quantize the product.

        y = saturate(round_half_even(float32(sum) * (a_scale * b_scale / y_scale)) + y_zero_point)

    where sum is the int32 product of (a - a_zero_point) and (b - b_zero_point), exact unless `integer_arithmetic` says
    that it saturates. Scales of other types than float32 are converted to it first. float8 operands (opset 21) are
    dequantized, multiplied in float32 and quantized.

    Args:
        a: [..., M, K] or [K]; uint8, int8 or float8.
        a_scale: Scalar, or one per row: [M], [M, 1] or [..., M, 1].
        a_zero_point: Of the shape of a_scale and the type of a.
        b: [..., K, N] or [K]; uint8, int8 or float8.
        b_scale: Scalar, or one per column: [N], [1, N] or [..., 1, N].
        b_zero_point: Of the shape of b_scale and the type of b.
        y_scale: Scalar.
        y_zero_point: Scalar of the type of y: uint8, int8 or float8.

    Raises:
        ModelError: Other types, or shapes that do not fit.

    Source: https://onnx.ai/onnx/operators/onnx__QLinearMatMul.html.

    """
    name = "QLinearMatMul"
    a, b = np.asarray(a), np.asarray(b)
    a_scale, b_scale = _scale(name, "a_scale", a_scale), _scale(name, "b_scale", b_scale)
    y_factor = _scale(name, "y_scale", checked_scalar(name, "y_scale", y_scale))
    y_zero = checked_scalar(name, "y_zero_point", y_zero_point)
    _same_shape(name, "a", a_scale, a_zero_point)
    _same_shape(name, "b", b_scale, b_zero_point)
    sa = row_parameter(name, "a_scale", a_scale, a.shape)
    sb = column_parameter(name, "b_scale", b_scale, b.shape)
    za = row_parameter(name, "a_zero_point", a_zero_point, a.shape)
    zb = column_parameter(name, "b_zero_point", b_zero_point, b.shape)
    if {a.dtype, b.dtype, y_zero.dtype} & FLOAT8:
        return _float8_product(a, sa, za, b, sb, zb, y_factor, y_zero)
    for label, value, zero in (("a", a, a_zero_point), ("b", b, b_zero_point), ("y", y_zero, None)):
        check_8_bit(name, label, value, zero)
    total = integer_product(name, a, b, za, zb)
    with np.errstate(all="ignore"):
        multiplier = np.asarray(scale_of_product(sa, sb, a.ndim, b.ndim, total.ndim) / y_factor, FLOAT32)
    return requantize(total, multiplier, y_zero)


def _scale(operator: str, name: str, value: Array) -> Array:
    value = np.asarray(value)
    if value.dtype not in (FLOAT32, FLOAT16, BFLOAT16):
        raise ModelError(f"{operator}: {name} has type {value.dtype}, not float32, float16 or bfloat16")
    return value.astype(FLOAT32)


def _same_shape(operator: str, name: str, scale: Array, zero_point: Array) -> None:
    zero_point = np.asarray(zero_point)
    if scale.shape != zero_point.shape and not (scale.size == zero_point.size == 1):
        raise ModelError(
            f"{operator}: {name}_scale has shape {list(scale.shape)} and {name}_zero_point {list(zero_point.shape)}; "
            "they must be the same"
        )


def _float8_product(
    a: Array, sa: Array, za: Array, b: Array, sb: Array, zb: Array, y_scale: Array, y_zero: Array
) -> Array:
    for value, zero in ((a, za), (b, zb)):
        if value.dtype != zero.dtype:
            raise ModelError(f"QLinearMatMul: a {value.dtype} operand has a zero point of type {zero.dtype}")
    one = np.array(1, FLOAT32)
    left = (dequantize_linear(a, one) - za.astype(FLOAT32)) * sa
    right = (dequantize_linear(b, one) - zb.astype(FLOAT32)) * sb
    if not left.ndim or not right.ndim or left.shape[-1] != right.shape[-min(2, right.ndim)]:
        raise ModelError(f"QLinearMatMul: shapes {list(a.shape)} and {list(b.shape)} do not fit for a matrix product")
    return quantize_linear(np.asarray(np.matmul(left, right), FLOAT32), y_scale, y_zero)


@kernel("QLinearConv", since=10)
def q_linear_conv(
    x: Array,
    x_scale: Array,
    x_zero_point: Array,
    w: Array,
    w_scale: Array,
    w_zero_point: Array,
    y_scale: Array,
    y_zero_point: Array,
    B: Array | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Array:
    """Convolve quantized tensors and quantize the result.

        y = saturate(round_half_even(float32(sum + B) * (x_scale * w_scale / y_scale)) + y_zero_point)

    where sum is the int32 convolution of (x - x_zero_point) with (w - w_zero_point); padding counts as zero.

    x [N, C, D1..Dn] with n = 1, 2 or 3 and w [M, C / group, k1..kn] are uint8 or int8. Scales are float32, zero
    points of the type of their tensor, y_zero_point uint8 or int8: scalars, for w also [M]. B is int32 [M] of scale
    x_scale * w_scale, added before the multiplication.

    Attributes: as those of `conv_integer`.

    Returns:
        [N, M, o1..on].

    Raises:
        ModelError: Other types, or shapes and attributes that do not fit.

    Source: https://onnx.ai/onnx/operators/onnx__QLinearConv.html.

    """
    name = "QLinearConv"
    x, w = np.asarray(x), np.asarray(w)
    y_zero = checked_scalar(name, "y_zero_point", y_zero_point)
    for label, value, zero in (("x", x, x_zero_point), ("w", w, w_zero_point), ("y", y_zero, None)):
        check_8_bit(name, label, value, zero)
    windows = convolution_windows(
        name, x.shape, w.shape, group, kernel_shape, auto_pad=auto_pad, dilations=dilations, pads=pads, strides=strides
    )
    _same_shape(name, "w", np.asarray(w_scale), w_zero_point)
    sw = channel_parameter(name, "w_scale", np.asarray(w_scale, FLOAT32), w.shape[0])
    zw = channel_parameter(name, "w_zero_point", w_zero_point, w.shape[0])
    xz = checked_scalar(name, "x_zero_point", x_zero_point)
    total = integer_convolution(x, w, xz, zw, windows, group)
    subtract_lost_by_input(x, w, xz, windows, group, total)
    spread = (-1, *(1,) * (x.ndim - 2))
    if B is not None:
        np.add(total, _bias(np.asarray(B), w.shape[0]).reshape(spread), out=total)
    with np.errstate(all="ignore"):
        multiplier = scale_of(name, "x_scale", x_scale) * sw / scale_of(name, "y_scale", y_scale)
    shape = (1, *np.asarray(multiplier).reshape(spread).shape) if np.ndim(multiplier) else ()
    return requantize(total, np.asarray(multiplier, FLOAT32).reshape(shape), y_zero)


def _bias(bias: Array, channels: int) -> Array:
    if bias.dtype != INT32 or bias.shape != (channels,):
        raise ModelError(f"QLinearConv: B is {bias.dtype} {list(bias.shape)}, but it is int32 [{channels}]")
    return bias
