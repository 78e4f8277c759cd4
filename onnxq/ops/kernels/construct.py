"""Operators that make tensors or tell about them: constants, ranges, shapes, casts: https://onnx.ai/onnx/operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from onnxq.ops.kernels.arrays import Array, NotCovered, integers, normalize_axis
from onnxq.ops.kernels.registry import kernel

PLAIN = frozenset("?bBhHiIlLqQefd")  # NumPy's own types, whose conversions are those of C


@kernel("Constant")
def constant(
    *,
    value: Array | None = None,
    sparse_value: onnx.SparseTensorProto | None = None,
    value_float: float | None = None,
    value_floats: Sequence[float] | None = None,
    value_int: int | None = None,
    value_ints: Sequence[int] | None = None,
    value_string: str | None = None,
    value_strings: Sequence[str] | None = None,
) -> Array:
    """Return the tensor that the one attribute holds.

    Raises:
        NotCovered: For a sparse tensor.

    """
    if value is not None:
        return value
    if value_float is not None or value_floats is not None:
        return np.asarray(value_float if value_floats is None else value_floats, np.float32)
    if value_int is not None or value_ints is not None:
        return np.asarray(value_int if value_ints is None else value_ints, np.int64)
    if value_string is not None or value_strings is not None:
        return np.asarray(value_string if value_strings is None else value_strings, object)
    raise NotCovered("a sparse Constant is left to onnx.reference")


@kernel("ConstantOfShape", since=9)
def constant_of_shape(shape: Array, *, value: Array | None = None) -> Array:
    """Fill a shape with the one element of `value`, float32 zero without it."""
    if value is None:
        return np.zeros(integers(shape), np.float32)
    fill = value.reshape(-1)[0]
    return np.full(integers(shape), fill, value.dtype) if fill else np.zeros(integers(shape), value.dtype)


@kernel("Range", since=11)
def range_(start: Array, limit: Array, delta: Array) -> Array:
    """Numbers from start in steps of delta: max(ceil((limit - start) / delta), 0) of them."""
    first, last, step = (np.asarray(v).reshape(())[()] for v in (start, limit, delta))
    if first.dtype.kind in "iu":
        return np.arange(int(first), int(last), int(step), dtype=first.dtype)
    count = max(int(np.ceil((float(last) - float(first)) / float(step))), 0)
    result: Array = (first + np.arange(count).astype(first.dtype) * step).astype(first.dtype)
    return result


@kernel("Shape")
def shape(x: Array, *, start: int = 0, end: int | None = None) -> Array:
    """Return the dimensions from `start` up to `end` as int64."""
    return np.asarray(np.shape(x)[start:end], np.int64)


@kernel("Size")
def size(x: Array) -> Array:
    """Return the number of elements as int64."""
    return np.asarray(np.size(x), np.int64)


@kernel("EyeLike", since=9)
def eye_like(x: Array, *, dtype: int | None = None, k: int = 0) -> Array:
    """Ones on diagonal k of a zero matrix shaped like X."""
    wanted = x.dtype if dtype is None else helper.tensor_dtype_to_np_dtype(dtype)
    rows, columns = x.shape
    return np.eye(rows, columns, k, dtype=wanted)


@kernel("Trilu", since=14)
def trilu(x: Array, k: Array | None = None, *, upper: int = 1) -> Array:
    """Keep the upper or lower triangle of the matrices in the last two axes, from diagonal k on."""
    diagonal = 0 if k is None else int(np.asarray(k).reshape(()))
    return np.triu(x, diagonal) if upper else np.tril(x, diagonal)


@kernel("OneHot", since=9)
def one_hot(indices: Array, depth: Array, values: Array, *, axis: int = -1) -> Array:
    """Put values[1] where the position along a new axis equals the index (negative ones count from depth)."""
    count = int(np.asarray(depth).reshape(-1)[0])
    axis = normalize_axis(axis, indices.ndim + 1)
    indices = indices.astype(np.int64)
    outside = (indices < -count) | (indices >= count)
    found = np.where(outside, -1, np.where(indices < 0, indices + count, indices))
    shape = [1] * (indices.ndim + 1)
    shape[axis] = count
    hit = np.expand_dims(found, axis) == np.arange(count).reshape(shape)
    result: Array = np.where(hit, values[1], values[0])
    return result


@kernel("NonZero", since=9)
def non_zero(x: Array) -> Array:
    """Coordinates of the elements that are not zero: int64 [rank, count], in row-major order."""
    return np.asarray(np.nonzero(x), np.int64) if x.ndim else np.zeros((0, int(bool(x))), np.int64)


def _convert(x: Array, wanted: Any) -> Array:
    wanted = np.dtype(wanted)
    if x.dtype == wanted:
        return x
    if x.dtype.char in PLAIN and wanted.char in PLAIN:
        return x.astype(wanted)
    if {x.dtype.name, wanted.name} <= {"bfloat16", "float32", "float64", "float16"}:
        return x.astype(wanted)
    raise NotCovered("conversions of text, 8-bit floats and types below 8 bits are left to onnx.reference")


@kernel("Cast", since=6)
def cast(x: Array, *, to: int, saturate: int = 1, round_mode: str = "up") -> Array:
    """Convert to another element type.

    Raises:
        NotCovered: From or to text, 8-bit floats and types below 8 bits.

    """
    if to == TensorProto.STRING:
        raise NotCovered("conversions to text are left to onnx.reference")
    return _convert(x, helper.tensor_dtype_to_np_dtype(to))


@kernel("Cast", since=1)
def cast_1(x: Array, *, to: str) -> Array:
    """Cast of version 1, where the type is a name."""
    return cast(x, to=TensorProto.DataType.Value(to.upper()))


@kernel("CastLike", since=15)
def cast_like(x: Array, like: Array, *, saturate: int = 1, round_mode: str = "up") -> Array:
    """Convert to the element type of another tensor; the same cases are covered as for Cast."""
    return _convert(x, like.dtype)
