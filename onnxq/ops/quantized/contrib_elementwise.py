"""com.microsoft element-wise operators on 8-bit tensors, in the arithmetic of onnxruntime's CPU kernels (x86-64).

Source: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md for the meaning; the order of the
float32 steps was found by comparing with onnxruntime 1.31 (see docs/reference/operators.md).

Tests: `tests/ops/test_quantized_contrib.py`.
"""

from __future__ import annotations

import numpy as np

from onnxq.errors import ModelError
from onnxq.ir.graph import MICROSOFT
from onnxq.ops.kernels.registry import kernel
from onnxq.ops.quantized._layout import resolve_axis
from onnxq.ops.quantized._requantize import (
    checked_scalar,
    look_up,
    quantized_table,
    real_values,
    requantized_table,
    rounded,
    scale_of,
    zero_of,
)
from onnxq.ops.quantized._types import FLOAT32, FLOAT64, INTEGER_RANGE, UINT8, Array


@kernel("QLinearAdd", domain=MICROSOFT)
def q_linear_add(
    A: Array,
    A_scale: Array,
    A_zero_point: Array | None,
    B: Array,
    B_scale: Array,
    B_zero_point: Array | None,
    C_scale: Array,
    C_zero_point: Array | None = None,
) -> Array:
    """Add two quantized tensors with broadcasting.

    Let ra = A_scale / C_scale and rb = B_scale / C_scale in float32. The zero point is added before rounding, and each
    product is added without being rounded (fused), as onnxruntime does on x86-64:

        C = saturate(round_half_even(A * ra + (B * rb + (C_zero - (ra * A_zero + rb * B_zero)))))

    Args:
        A: uint8 or int8.
        A_scale: float32 scalar.
        A_zero_point: Scalar of the type of A; absent: zero.
        B: Of the type of A.
        B_scale: float32 scalar.
        B_zero_point: Scalar; absent: zero.
        C_scale: float32 scalar.
        C_zero_point: Scalar; absent: zero.

    Raises:
        ModelError: Types differ or are not 8-bit, or shapes do not broadcast.

    """
    name = "QLinearAdd"
    a, b, za, zb, zc = _operands(name, A, A_zero_point, B, B_zero_point, C_zero_point)
    sc = scale_of(name, "C_scale", C_scale)
    with np.errstate(all="ignore"):
        ra = scale_of(name, "A_scale", A_scale) / sc
        rb = scale_of(name, "B_scale", B_scale) / sc
        if _repeats_innermost(a.shape, b.shape):
            a, ra, za, b, rb, zb = b, rb, zb, a, ra, za
        fixed = np.float32(zc) - _fused(ra, np.array(za), rb * np.float32(zb))
        codes = np.arange(256, dtype=UINT8).view(a.dtype)
        inner = _fused(codes, rb, fixed).astype(FLOAT64)
        outer = codes.astype(FLOAT64) * np.float64(ra)
        return rounded(np.asarray(look_up(outer, a) + look_up(inner, b), FLOAT32), a.dtype)


def _fused(a: Array, b: Array, c: Array) -> Array:
    """Return a * b + c rounded to float32 once; the product of two float32 is exact in float64."""
    return np.asarray(np.asarray(a, FLOAT64) * np.asarray(b, FLOAT64) + np.asarray(c, FLOAT64), FLOAT32)


def _repeats_innermost(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    """Whether a is one value along the innermost axis that b is not: onnxruntime exchanges the operands then."""
    rank = max(len(a), len(b))
    pairs = zip((1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b, strict=True)
    longer = [(m, n) for m, n in pairs if (m, n) != (1, 1)]
    return bool(longer) and longer[-1][0] == 1


@kernel("QLinearMul", domain=MICROSOFT)
def q_linear_mul(
    A: Array,
    A_scale: Array,
    A_zero_point: Array | None,
    B: Array,
    B_scale: Array,
    B_zero_point: Array | None,
    C_scale: Array,
    C_zero_point: Array | None = None,
) -> Array:
    """Multiply two quantized tensors with broadcasting; arguments as in `q_linear_add`.

    In float32, the zero point added before rounding:

        C = saturate(round_half_even((A - A_zero) * (B - B_zero) * (A_scale * B_scale / C_scale) + C_zero))

    Raises:
        ModelError: Types differ or are not 8-bit, or shapes do not broadcast.

    """
    name = "QLinearMul"
    a, b, za, zb, zc = _operands(name, A, A_zero_point, B, B_zero_point, C_zero_point)
    with np.errstate(all="ignore"):
        factor = scale_of(name, "A_scale", A_scale) * scale_of(name, "B_scale", B_scale)
        factor = factor / scale_of(name, "C_scale", C_scale)
        product = (a.astype(FLOAT32) - np.float32(za)) * (b.astype(FLOAT32) - np.float32(zb))
        product = product * factor + np.float32(zc)
        return rounded(product, a.dtype)


def _operands(
    name: str, A: Array, az: Array | None, B: Array, bz: Array | None, cz: Array | None
) -> tuple[Array, Array, int, int, int]:
    a, b = np.asarray(A), np.asarray(B)
    if a.dtype != b.dtype:
        raise ModelError(f"{name}: A is {a.dtype} and B {b.dtype}; they must be the same")
    try:
        np.broadcast_shapes(a.shape, b.shape)
    except ValueError as error:
        raise ModelError(f"{name}: shapes {list(a.shape)} and {list(b.shape)} do not broadcast") from error
    zeros = zero_of(name, "A_zero_point", az, a), zero_of(name, "B_zero_point", bz, b)
    return a, b, *zeros, zero_of(name, "C_zero_point", cz, a)


@kernel("QLinearSigmoid", domain=MICROSOFT)
def q_linear_sigmoid(
    X: Array,
    X_scale: Array,
    X_zero_point: Array | None,
    Y_scale: Array,
    Y_zero_point: Array | None = None,
) -> Array:
    """Quantize 1 / (1 + exp(-x)) of the dequantized values, through a table of 256 entries.

    Args:
        X: uint8 or int8.
        X_scale: float32 scalar.
        X_zero_point: Scalar of the type of X; absent: zero.
        Y_scale: float32 scalar.
        Y_zero_point: Scalar of the type of X; absent: zero.

    Raises:
        ModelError: Types are not 8-bit or differ, or parameters are not scalar.

    """
    x, real, sy, zy = _unary("QLinearSigmoid", X, X_scale, X_zero_point, Y_scale, Y_zero_point)
    with np.errstate(all="ignore"):
        values = 1 / (1 + np.exp(-real.astype(FLOAT64)))
    return look_up(quantized_table(values.astype(FLOAT32), sy, zy), x)


@kernel("QLinearLeakyRelu", domain=MICROSOFT)
def q_linear_leaky_relu(
    X: Array,
    X_scale: Array,
    X_zero_point: Array | None,
    Y_scale: Array,
    Y_zero_point: Array | None = None,
    *,
    alpha: float = 0.01,
) -> Array:
    """Quantize x, or alpha * x where x is negative, of the dequantized values; arguments as in `q_linear_sigmoid`.

    Raises:
        ModelError: Types are not 8-bit or differ, or parameters are not scalar.

    """
    x, real, sy, zy = _unary("QLinearLeakyRelu", X, X_scale, X_zero_point, Y_scale, Y_zero_point)
    values = np.where(real >= 0, real, np.float32(alpha) * real)
    return look_up(quantized_table(values, sy, zy), x)


def _unary(
    name: str, X: Array, sx: Array, zx: Array | None, sy: Array, zy: Array | None
) -> tuple[Array, Array, Array, Array]:
    x = np.asarray(X)
    real = real_values(scale_of(name, "X_scale", sx), zero_of(name, "X_zero_point", zx, x), x)
    return x, real, scale_of(name, "Y_scale", sy), np.array(zero_of(name, "Y_zero_point", zy, x), x.dtype)


@kernel("QLinearSoftmax", domain=MICROSOFT)
def q_linear_softmax(
    X: Array,
    X_scale: Array,
    X_zero_point: Array | None,
    Y_scale: Array,
    Y_zero_point: Array,
    *,
    axis: int = -1,
    opset: int,
) -> Array:
    """Quantize the softmax of the dequantized values, computed in float64. The zero point of X cancels out.

    Args:
        X: uint8 or int8.
        X_scale: float32 scalar.
        X_zero_point: Scalar of the type of X; absent: zero.
        Y_scale: float32 scalar.
        Y_zero_point: Scalar of the type of X.
        axis: Axis of the softmax; before opset 13 all axes from it on together.
        opset: Opset of the Softmax that this stands for.

    Raises:
        ModelError: Types are not 8-bit or differ, or the axis is out of range.

    """
    name = "QLinearSoftmax"
    x = np.asarray(X)
    zero_of(name, "X_zero_point", X_zero_point, x)
    zy = zero_of(name, "Y_zero_point", Y_zero_point, x)
    axis = resolve_axis(name, axis, x.ndim)
    axes = (axis,) if opset >= 13 else tuple(range(axis, x.ndim))
    if not x.size:
        return x.copy()
    real = x.astype(FLOAT64) * float(scale_of(name, "X_scale", X_scale))
    exponents = np.exp(real - real.max(axis=axes, keepdims=True))
    values = exponents / exponents.sum(axis=axes, keepdims=True)
    lowest, highest = INTEGER_RANGE[x.dtype]
    q = np.rint(values / float(scale_of(name, "Y_scale", Y_scale))) + zy
    return np.asarray(np.clip(q, lowest, highest).astype(x.dtype))


@kernel("QLinearConcat", domain=MICROSOFT)
def q_linear_concat(Y_scale: Array, Y_zero_point: Array, *inputs: Array, axis: int) -> Array:
    """Quantize every input to the output's scale, then concatenate.

    Args:
        Y_scale: float32 scalar.
        Y_zero_point: Scalar of the output's type, uint8 or int8.
        inputs: Tensor, scale, zero point of each input in turn.
        axis: Axis to concatenate along.

    Raises:
        ModelError: Inputs are not triples, types differ, or shapes do not fit.

    """
    name = "QLinearConcat"
    if not inputs or len(inputs) % 3:
        raise ModelError(f"{name}: inputs after the output's parameters come in threes, but there are {len(inputs)}")
    sy, zy = scale_of(name, "Y_scale", Y_scale), checked_scalar(name, "Y_zero_point", Y_zero_point)
    triples = zip(inputs[::3], inputs[1::3], inputs[2::3], strict=True)
    parts = [_again(name, tensor, scale, zero, sy, zy) for tensor, scale, zero in triples]
    try:
        return np.concatenate(parts, axis=resolve_axis(name, axis, parts[0].ndim))
    except ValueError as error:
        raise ModelError(f"{name}: shapes {[list(p.shape) for p in parts]} do not fit along axis {axis}") from error


@kernel("QLinearWhere", domain=MICROSOFT)
def q_linear_where(
    condition: Array,
    X: Array,
    x_scale: Array,
    x_zero_point: Array,
    Y: Array,
    y_scale: Array,
    y_zero_point: Array,
    z_scale: Array,
    z_zero_point: Array,
) -> Array:
    """Quantize X and Y to the output's scale and choose between them, with broadcasting.

    Args:
        condition: bool.
        X: uint8 or int8; taken where the condition holds.
        x_scale: float32 scalar.
        x_zero_point: Scalar of the type of X.
        Y: Of the type of X.
        y_scale: float32 scalar.
        y_zero_point: Scalar of the type of Y.
        z_scale: float32 scalar of the output.
        z_zero_point: Scalar of the output's type.

    Raises:
        ModelError: Types differ, or shapes do not broadcast.

    """
    name = "QLinearWhere"
    sz, zz = scale_of(name, "z_scale", z_scale), checked_scalar(name, "z_zero_point", z_zero_point)
    x, y = _again(name, X, x_scale, x_zero_point, sz, zz), _again(name, Y, y_scale, y_zero_point, sz, zz)
    try:
        return np.where(np.asarray(condition), x, y)
    except ValueError as error:
        shapes = [list(np.shape(v)) for v in (condition, X, Y)]
        raise ModelError(f"{name}: shapes {shapes} do not broadcast") from error


def _again(name: str, tensor: Array, scale: Array, zero: Array, to_scale: Array, to_zero: Array) -> Array:
    tensor, zero = np.asarray(tensor), np.asarray(zero)
    z = zero_of(name, "a zero point", zero, tensor)
    if tensor.dtype != to_zero.dtype:
        raise ModelError(f"{name}: an input is {tensor.dtype} and the output {to_zero.dtype}; they must be the same")
    source = scale_of(name, "a scale", scale)
    if source == to_scale and z == int(to_zero):
        return tensor
    return look_up(requantized_table(source, z, to_scale, to_zero, tensor), tensor)
