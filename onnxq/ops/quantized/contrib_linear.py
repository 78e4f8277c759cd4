"""com.microsoft QuantizeLinear and DequantizeLinear: the operators of ai.onnx with another rule for the axis.

Tests: `tests/ops/test_quantized_contrib.py`.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import ml_dtypes
import numpy as np

from onnxq.errors import ModelError
from onnxq.ir.graph import MICROSOFT
from onnxq.ops.kernels.registry import kernel
from onnxq.ops.quantized._types import FLOAT16, FLOAT32, INT8, INT32, UINT8, Array
from onnxq.ops.quantized.linear import dequantize_linear, quantize_linear

Semantics: TypeAlias = Literal["onnxruntime", "spec"]

_QUANTIZED = {UINT8, INT8, *(np.dtype(t) for t in (np.uint16, np.int16, ml_dtypes.uint4, ml_dtypes.int4))}


@kernel("QuantizeLinear", domain=MICROSOFT)
def microsoft_quantize_linear(
    x: Array,
    y_scale: Array,
    y_zero_point: Array | None = None,
    *,
    axis: int | None = None,
    semantics: Semantics = "onnxruntime",
) -> Array:
    """Quantize as `quantize_linear` does, dividing in float32.

    The page of the operator says: without `axis` scale and zero point are scalars, with it they are 1-D. Its own
    example breaks the rule (a vector of scales without `axis`), and onnxruntime follows the example.

    Args:
        x: float32 or float16, any shape.
        y_scale: Scalar or 1-D; of the type of x.
        y_zero_point: Of the scale's shape; uint8, int8, uint16, int16, uint4 or int4. Absent: uint8 zero.
        axis: Quantization axis, negative from the back.
        semantics: "onnxruntime": an absent axis is 1, and a scalar scale is per-tensor whatever the axis. "spec": the
            shape must be what the page says.

    Raises:
        ModelError: Types or shapes that do not fit; with "spec", a shape against the rule.

    """
    x, y_scale = np.asarray(x), np.asarray(y_scale)
    name = "com.microsoft QuantizeLinear"
    zero_point = None if y_zero_point is None else np.asarray(y_zero_point)
    if x.dtype not in (FLOAT32, FLOAT16) or y_scale.dtype != x.dtype:
        raise ModelError(f"{name}: x is {x.dtype} and the scale {y_scale.dtype}; both are float32, or both float16")
    if zero_point is not None and zero_point.dtype not in _QUANTIZED:
        raise ModelError(f"{name}: the zero point has type {zero_point.dtype}, which the operator does not take")
    _check_axis(name, axis, y_scale, semantics)
    return quantize_linear(x, y_scale, zero_point, axis=1 if axis is None else axis, opset=21)


@kernel("DequantizeLinear", domain=MICROSOFT)
def microsoft_dequantize_linear(
    x: Array,
    x_scale: Array,
    x_zero_point: Array | None = None,
    *,
    axis: int | None = None,
    semantics: Semantics = "onnxruntime",
) -> Array:
    """Dequantize as `dequantize_linear` does; `axis` and `semantics` as in `microsoft_quantize_linear`.

    Args:
        x: uint8, int8, uint16, int16, int32, uint4 or int4, any shape.
        x_scale: Scalar or 1-D; float32 or float16, which is the type of the result.
        x_zero_point: Of the scale's shape and the type of x; absent: zero.
        axis: Quantization axis, negative from the back.
        semantics: Which rule for the axis holds.

    Raises:
        ModelError: Types or shapes that do not fit; with "spec", a shape against the rule.

    """
    x, x_scale = np.asarray(x), np.asarray(x_scale)
    name = "com.microsoft DequantizeLinear"
    if x.dtype not in _QUANTIZED | {INT32} or x_scale.dtype not in (FLOAT32, FLOAT16):
        raise ModelError(f"{name}: x is {x.dtype} and the scale {x_scale.dtype}, which the operator does not take")
    _check_axis(name, axis, x_scale, semantics)
    return dequantize_linear(x, x_scale, x_zero_point, axis=1 if axis is None else axis, opset=21)


def _check_axis(name: str, axis: int | None, scale: Array, semantics: Semantics) -> None:
    if semantics not in ("onnxruntime", "spec"):
        raise ModelError(f"{name}: semantics is {semantics!r}, neither 'onnxruntime' nor 'spec'")
    if semantics == "onnxruntime":
        return
    if axis is None and scale.ndim:
        raise ModelError(f"{name}: without axis the scale is a scalar, but it has shape {list(scale.shape)}")
    if axis is not None and scale.ndim != 1:
        raise ModelError(f"{name}: with axis the scale is 1-D, but it has shape {list(scale.shape)}")
