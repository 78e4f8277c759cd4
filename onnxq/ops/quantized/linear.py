"""QuantizeLinear and DequantizeLinear of ai.onnx, every version from 10 to 28.

Tests: `tests/ops/test_quantized_basics.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxq.errors import ModelError
from onnxq.ops.kernels.registry import kernel
from onnxq.ops.quantized import _arithmetic as arithmetic
from onnxq.ops.quantized._floats import quantize_floats
from onnxq.ops.quantized._layout import Expander, Layout, resolve, scratch
from onnxq.ops.quantized._parallel import spread
from onnxq.ops.quantized._types import (
    BFLOAT16,
    E8M0,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INT32,
    INTEGER_RANGE,
    SCALE_SINCE,
    SINCE,
    UINT8,
    Array,
    DType,
    check_type,
    dtype_of_code,
    storage_of,
)

NEWEST = 28


def quantize_linear(
    x: Array,
    y_scale: Array,
    y_zero_point: Array | None = None,
    *,
    axis: int = 1,
    saturate: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
    precision: int = 0,
    opset: int = NEWEST,
) -> Array:
    """Quantize: y = saturate(round_half_even(x / y_scale) + y_zero_point).

    Args:
        x: Any shape; float32, float16, bfloat16 or int32. A copy is made when it is not C-contiguous.
        y_scale: Scalar (or shape [1]), 1-D of the length of `axis`, or with `block_size` of the rank of x with
            ceil(length / block_size) along `axis`. float32, float16, bfloat16, int32, or float8_e8m0fnu.
        y_zero_point: Of the scale's shape and of the output's type; absent: zero.
        axis: Quantization axis, negative from the back; not read for one scale.
        saturate: 0: a float8 output gets NaN or infinity beyond its range, as ml_dtypes casts. 1: the largest value.
        block_size: Elements per scale along `axis`; 0 when not blocked.
        output_dtype: `TensorProto` code of the output when there is no zero point; 0: uint8.
        precision: `TensorProto` code of the type to divide in; 0: the type of y_scale from opset 23, float32 before,
            where the text does not say. int32 scales divide in float64, e8m0 scales (powers of two) in float32.
        opset: Version of the operator whose types and default precision hold.

    Returns:
        Array of the shape of x and the type of y_zero_point or `output_dtype`. NaN gives the lowest integer.

    Raises:
        ModelError: A type that this version does not take, or shapes that would only fit by broadcasting.

    Source: https://onnx.ai/onnx/operators/onnx__QuantizeLinear.html.

    """
    x, y_scale = np.asarray(x), np.asarray(y_scale)
    zero_point = None if y_zero_point is None else np.asarray(y_zero_point)
    dtype = _output_type(zero_point, output_dtype)
    check_type("QuantizeLinear", "the output", dtype, SINCE, opset)
    check_type("QuantizeLinear", "y_scale", y_scale.dtype, SCALE_SINCE, opset)
    check_type("QuantizeLinear", "x", x.dtype, _INPUT_SINCE, opset)
    layout = resolve("QuantizeLinear", x, y_scale, zero_point, axis, block_size)
    divide_in = _precision(precision, y_scale.dtype, opset)
    y = np.empty(x.shape, dtype)
    if dtype in INTEGER_RANGE:
        _quantize_integers(x, y_scale, zero_point, divide_in, layout, y)
    else:
        quantize_floats(x, y_scale, zero_point, divide_in, layout, y, saturate=bool(saturate))
    return y


_INPUT_SINCE: dict[DType, int] = {FLOAT32: 10, INT32: 10, FLOAT16: 19, BFLOAT16: 19}


def _output_type(zero_point: Array | None, output_dtype: int) -> DType:
    asked = dtype_of_code(output_dtype, "output_dtype") if output_dtype else None
    if zero_point is None:
        dtype = asked or UINT8
    else:
        dtype = zero_point.dtype
        if asked is not None and asked != dtype:
            raise ModelError(
                f"QuantizeLinear: output_dtype is {asked} and the zero point {dtype}; they must be the same"
            )
    if dtype == INT32:
        raise ModelError("QuantizeLinear: the output cannot be int32")
    return dtype


def _precision(precision: int, scale: DType, opset: int) -> DType:
    asked = dtype_of_code(precision, "precision") if precision else scale
    if precision and asked not in (FLOAT32, FLOAT16, BFLOAT16, FLOAT64):
        raise ModelError(f"QuantizeLinear: precision is {asked}; only a floating type of 16 bits or more can divide")
    if asked == INT32:
        return FLOAT64
    if asked == E8M0 or opset < 23:
        return FLOAT32
    return asked


def _quantize_integers(
    x: Array, scale: Array, zero_point: Array | None, divide_in: DType, layout: Layout, y: Array
) -> None:
    lowest, highest = INTEGER_RANGE[y.dtype]
    storage = storage_of(y.dtype)
    flat, target = x.reshape(-1), y.view(storage).reshape(-1)
    scale = scale.astype(divide_in)
    zero = np.zeros(scale.shape, INT32) if zero_point is None else zero_point.astype(INT32)
    z = int(zero.reshape(())) if layout.per_tensor else 0
    limits_of_all = arithmetic.rounded_bounds(lowest - z, highest - z)
    offset_of_all = np.array(z, storage) if z else None
    wanted = [(scale, divide_in)]
    if not layout.per_tensor and zero.any():
        wanted += [(limit, INT32) for limit in arithmetic.rounded_bounds(lowest - zero, highest - zero)]
        wanted.append((zero.astype(storage), storage))
    chunks = layout.chunks()

    def work(first: int, last: int) -> None:
        expand = None if layout.per_tensor else Expander(layout, *wanted)
        s = scale.reshape(()) if expand is None else scale
        limits, offset = limits_of_all, offset_of_all
        with np.errstate(all="ignore"):
            for chunk in chunks[first:last]:
                part = flat[chunk.flat]
                if expand is not None:
                    s, *rest = expand(chunk)
                    if rest:
                        limits, offset = (rest[0], rest[1]), rest[2]
                q = scratch(part.size)
                arithmetic.quotient(part, s, divide_in, q)
                out = target[chunk.flat]
                arithmetic.to_integers(q, limits, offset, out)
                if y.dtype != storage and lowest < 0:
                    np.bitwise_and(out, -2 * lowest - 1, out=out)  # ml_dtypes keeps sub-byte values in the low bits

    spread(work, len(chunks), x.size)


def dequantize_linear(
    x: Array,
    x_scale: Array,
    x_zero_point: Array | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
    opset: int = NEWEST,
) -> Array:
    """Dequantize: y = (x - x_zero_point) * x_scale, in float32, then rounded once to the output's type.

    Args:
        x: Any shape and quantized type, or int32. A copy is made when it is not C-contiguous.
        x_scale: As in `quantize_linear`; float32, float16, bfloat16 or float8_e8m0fnu.
        x_zero_point: Of the scale's shape and of the type of x; absent: zero. int32 differences wrap at 32 bits.
        axis: Quantization axis, negative from the back; not read for one scale.
        block_size: Elements per scale along `axis`; 0 when not blocked.
        output_dtype: `TensorProto` code of float32, float16 or bfloat16; 0: the type of x_scale.
        opset: Version of the operator whose types hold.

    Returns:
        Array of the shape of x.

    Raises:
        ModelError: A type that this version does not take, or shapes that would only fit by broadcasting.

    Source: https://onnx.ai/onnx/operators/onnx__DequantizeLinear.html.

    """
    x, x_scale = np.asarray(x), np.asarray(x_scale)
    zero_point = None if x_zero_point is None else np.asarray(x_zero_point)
    check_type("DequantizeLinear", "x", x.dtype, SINCE, opset)
    if x_scale.dtype == INT32:
        raise ModelError("DequantizeLinear: x_scale has type int32, which the operator does not take")
    check_type("DequantizeLinear", "x_scale", x_scale.dtype, SCALE_SINCE, opset)
    if zero_point is not None and zero_point.dtype != x.dtype:
        raise ModelError(
            f"DequantizeLinear: x is {x.dtype} and the zero point {zero_point.dtype}; they must be the same"
        )
    dtype = dtype_of_code(output_dtype, "output_dtype") if output_dtype else x_scale.dtype
    if dtype not in (FLOAT32, FLOAT16, BFLOAT16):
        raise ModelError(
            f"DequantizeLinear: the output cannot be {dtype}",
            hint="Set output_dtype to float32, float16 or bfloat16.",
        )
    layout = resolve("DequantizeLinear", x, x_scale, zero_point, axis, block_size)
    y = np.empty(x.shape, dtype)
    _dequantize(x, x_scale, zero_point, layout, y)
    return y


def _dequantize(x: Array, scale: Array, zero_point: Array | None, layout: Layout, y: Array) -> None:
    flat, result = x.reshape(-1), y.reshape(-1)
    offset_type = INT32 if x.dtype == INT32 else FLOAT32
    scale = scale.astype(FLOAT32)
    wanted: list[tuple[Array, DType]] = [(scale, FLOAT32)]
    if zero_point is not None:
        zero = zero_point.astype(offset_type)
        if zero.any():
            wanted.append((zero, offset_type))
    chunks = layout.chunks()

    def work(first: int, last: int) -> None:
        direct = y.dtype == FLOAT32
        expand = None if layout.per_tensor else Expander(layout, *wanted)
        params = [value.reshape(()) for value, _ in wanted] if expand is None else []
        with np.errstate(all="ignore"):
            for chunk in chunks[first:last]:
                part = flat[chunk.flat]
                if expand is not None:
                    params = expand(chunk)
                out = result[chunk.flat]
                target = out if direct else scratch(part.size)
                arithmetic.dequantized(part, params[0], params[1] if len(params) > 1 else None, target)
                if not direct:
                    np.copyto(out, target, casting="unsafe")

    spread(work, len(chunks), x.size)


_QUANTIZE_ATTRIBUTES: dict[int, tuple[str, ...]] = {
    10: (),
    13: ("axis",),
    19: ("axis", "saturate"),
    21: ("axis", "saturate", "block_size", "output_dtype"),
    **dict.fromkeys((23, 24, 25, 28), ("axis", "saturate", "block_size", "output_dtype", "precision")),
}
_DEQUANTIZE_ATTRIBUTES: dict[int, tuple[str, ...]] = {
    10: (),
    **dict.fromkeys((13, 19), ("axis",)),
    21: ("axis", "block_size"),
    **dict.fromkeys((23, 24, 25, 28), ("axis", "block_size", "output_dtype")),
}


def _register(operator: str, function: Any, opset: int, known: tuple[str, ...]) -> None:
    @kernel(operator, since=opset)
    def versioned(x: Array, scale: Array, zero_point: Array | None = None, **attributes: int) -> Array:
        unknown = sorted(set(attributes) - set(known))
        if unknown:
            raise ModelError(f"{operator}: version {opset} has no attribute {unknown[0]}")
        if opset < 13 and np.ndim(scale) and np.size(scale) != 1:
            raise ModelError(
                f"{operator}: version {opset} takes one scale for the tensor, not {np.size(scale)}",
                hint="Convert the model to opset 13 or newer for one scale per channel.",
            )
        result: Array = function(x, scale, zero_point, opset=opset, **attributes)
        return result


for _opset, _known in _QUANTIZE_ATTRIBUTES.items():
    _register("QuantizeLinear", quantize_linear, _opset, _known)
for _opset, _known in _DEQUANTIZE_ATTRIBUTES.items():
    _register("DequantizeLinear", dequantize_linear, _opset, _known)
