"""Element types of the quantized operators: their codes, their ranges, and the opset that brought each one.

Source: the type constraints of QuantizeLinear and DequantizeLinear 10 to 28, and `TensorProto.DataType` in onnx.proto.
The codes are written out so that the kernels do not import onnx.

Tests: `tests/ops/test_quantized_conformance.py`.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from onnxq.errors import ModelError

Array: TypeAlias = NDArray[Any]
DType: TypeAlias = np.dtype[Any]

FLOAT32: DType = np.dtype(np.float32)
FLOAT16: DType = np.dtype(np.float16)
FLOAT64: DType = np.dtype(np.float64)
BFLOAT16: DType = np.dtype(ml_dtypes.bfloat16)
E8M0: DType = np.dtype(ml_dtypes.float8_e8m0fnu)
INT32: DType = np.dtype(np.int32)
UINT8: DType = np.dtype(np.uint8)
INT8: DType = np.dtype(np.int8)

INTEGER_RANGE: dict[DType, tuple[int, int]] = {
    UINT8: (0, 255),
    INT8: (-128, 127),
    np.dtype(np.uint16): (0, 65535),
    np.dtype(np.int16): (-32768, 32767),
    np.dtype(ml_dtypes.uint4): (0, 15),
    np.dtype(ml_dtypes.int4): (-8, 7),
    np.dtype(ml_dtypes.uint2): (0, 3),
    np.dtype(ml_dtypes.int2): (-2, 1),
}
"""Smallest and largest value of every integer type that QuantizeLinear can give."""

FLOAT8: frozenset[DType] = frozenset(
    np.dtype(t)
    for t in (
        ml_dtypes.float8_e4m3fn,
        ml_dtypes.float8_e4m3fnuz,
        ml_dtypes.float8_e5m2,
        ml_dtypes.float8_e5m2fnuz,
    )
)

SINCE: dict[DType, int] = {
    **dict.fromkeys((UINT8, INT8, INT32), 10),
    **dict.fromkeys(FLOAT8, 19),
    **{np.dtype(t): 21 for t in (np.uint16, np.int16, ml_dtypes.uint4, ml_dtypes.int4)},
    np.dtype(ml_dtypes.float4_e2m1fn): 23,
    np.dtype(ml_dtypes.uint2): 25,
    np.dtype(ml_dtypes.int2): 25,
    np.dtype(ml_dtypes.float6_e2m3fn): 28,
    np.dtype(ml_dtypes.float6_e3m2fn): 28,
}
"""First opset in which QuantizeLinear gives, and DequantizeLinear takes, the type."""

SCALE_SINCE: dict[DType, int] = {FLOAT32: 10, FLOAT16: 19, BFLOAT16: 19, INT32: 19, E8M0: 24}
"""First opset in which a scale may have the type (int32 scales: QuantizeLinear only)."""

_CODES: dict[int, DType] = {
    1: FLOAT32,
    2: UINT8,
    3: INT8,
    4: np.dtype(np.uint16),
    5: np.dtype(np.int16),
    6: INT32,
    10: FLOAT16,
    11: FLOAT64,
    16: BFLOAT16,
    17: np.dtype(ml_dtypes.float8_e4m3fn),
    18: np.dtype(ml_dtypes.float8_e4m3fnuz),
    19: np.dtype(ml_dtypes.float8_e5m2),
    20: np.dtype(ml_dtypes.float8_e5m2fnuz),
    21: np.dtype(ml_dtypes.uint4),
    22: np.dtype(ml_dtypes.int4),
    23: np.dtype(ml_dtypes.float4_e2m1fn),
    24: E8M0,
    25: np.dtype(ml_dtypes.uint2),
    26: np.dtype(ml_dtypes.int2),
    27: np.dtype(ml_dtypes.float6_e2m3fn),
    28: np.dtype(ml_dtypes.float6_e3m2fn),
}


def dtype_of_code(code: int, attribute: str) -> DType:
    """Return the NumPy type for a `TensorProto.DataType` code.

    Raises:
        ModelError: No quantized operator knows the code; `attribute` says where it stood.

    """
    if code not in _CODES:
        raise ModelError(f"{attribute} = {code} is not an element type that quantization knows")
    return _CODES[code]


def check_type(operator: str, role: str, dtype: DType, allowed: dict[DType, int], opset: int) -> None:
    """Refuse an element type that the operator does not have at this opset.

    Raises:
        ModelError: The sentence names the operator, the input and the opset that the type needs.

    """
    since = allowed.get(dtype)
    if since is None:
        raise ModelError(f"{operator}: {role} has type {dtype}, which the operator does not take")
    if since > opset:
        raise ModelError(
            f"{operator}: {role} has type {dtype}, which needs opset {since}; the operator is version {opset}",
            hint=f"Convert the model to opset {since} or newer.",
        )


def storage_of(dtype: DType) -> DType:
    """Return the NumPy integer type in which values of a quantized type are counted before they are packed."""
    if dtype.kind in "iu":
        return dtype
    return UINT8 if INTEGER_RANGE[dtype][0] == 0 else INT8
