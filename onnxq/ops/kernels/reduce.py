"""Reductions, ArgMax and ArgMin, TopK: https://onnx.ai/onnx/operators/onnx__ReduceSum.html.

The axes are an attribute before operator set 13 (ReduceSum) or 18 (the others), an input from there on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from onnxq.ops.kernels.arrays import Array, in_float32, normalize_axes, normalize_axis
from onnxq.ops.kernels.registry import kernel

Reduction = Callable[[Array, "tuple[int, ...] | None", bool], Any]


def _sum(x: Array, axes: tuple[int, ...] | None, keep: bool) -> Any:
    return np.sum(x, axis=axes, keepdims=keep, dtype=x.dtype)


def _mean(x: Array, axes: tuple[int, ...] | None, keep: bool) -> Any:
    return np.mean(x, axis=axes, keepdims=keep)


def _prod(x: Array, axes: tuple[int, ...] | None, keep: bool) -> Any:
    return np.prod(x, axis=axes, keepdims=keep, dtype=x.dtype)


def _extreme(function: Any, upper: bool) -> Reduction:
    def reduction(x: Array, axes: tuple[int, ...] | None, keep: bool) -> Any:
        if x.dtype == np.bool_:
            return function(x, axis=axes, keepdims=keep, initial=not upper)
        if x.dtype.kind in "iu":
            bounds = np.iinfo(x.dtype)
            return function(x, axis=axes, keepdims=keep, initial=bounds.min if upper else bounds.max)
        return function(x, axis=axes, keepdims=keep, initial=-np.inf if upper else np.inf)

    return reduction


def _l1(x: Array, axes: tuple[int, ...] | None, keep: bool) -> Any:
    return _sum(np.abs(x), axes, keep)


def _sum_square(x: Array, axes: tuple[int, ...] | None, keep: bool) -> Any:
    return _sum(x * x, axes, keep)


def _l2(x: Array, axes: tuple[int, ...] | None, keep: bool) -> Any:
    return np.sqrt(_sum_square(x, axes, keep))


def _log_sum(x: Array, axes: tuple[int, ...] | None, keep: bool) -> Any:
    return np.log(_sum(x, axes, keep))


def _log_sum_exp(x: Array, axes: tuple[int, ...] | None, keep: bool) -> Any:
    """Sum behind the maximum, so that exp never overflows."""
    high = np.max(x, axis=axes, keepdims=True, initial=-np.inf) if x.dtype.kind == "f" else np.zeros((), x.dtype)
    high = np.where(np.isfinite(high), high, 0).astype(x.dtype)
    total = np.log(np.sum(np.exp(x - high), axis=axes, keepdims=True)) + high
    if keep:
        return total
    return np.squeeze(total, axis=tuple(range(x.ndim)) if axes is None else axes)


def _register(op_type: str, function: Reduction, *, axes_input_since: int = 18) -> None:
    def by_input(x: Array, axes: Array | None = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Array:
        if axes is None or not axes.size:
            # With no axis to reduce the sum or maximum is over single elements; what else the operator does stays.
            found: tuple[int, ...] | None = () if noop_with_empty_axes else None
        else:
            found = normalize_axes(axes, x.ndim)
        return np.asarray(function(x, found, bool(keepdims))).astype(x.dtype, copy=False)

    def by_attribute(x: Array, *, axes: Sequence[int] | None = None, keepdims: int = 1) -> Array:
        found = normalize_axes(axes, x.ndim) if axes else None
        return np.asarray(function(x, found, bool(keepdims))).astype(x.dtype, copy=False)

    kernel(op_type, since=axes_input_since)(in_float32(by_input))
    kernel(op_type, since=1)(in_float32(by_attribute))


_register("ReduceSum", _sum, axes_input_since=13)
_register("ReduceMean", _mean)
_register("ReduceProd", _prod)
_register("ReduceMax", _extreme(np.max, upper=True))
_register("ReduceMin", _extreme(np.min, upper=False))
_register("ReduceL1", _l1)
_register("ReduceL2", _l2)
_register("ReduceSumSquare", _sum_square)
_register("ReduceLogSum", _log_sum)
_register("ReduceLogSumExp", _log_sum_exp)


def _position(function: Any, x: Array, axis: int, keepdims: int, last: int) -> Array:
    axis = normalize_axis(axis, x.ndim)
    if not last:
        return np.asarray(function(x, axis=axis, keepdims=bool(keepdims)), np.int64)
    found = x.shape[axis] - 1 - function(np.flip(x, axis), axis=axis, keepdims=bool(keepdims))
    return np.asarray(found, np.int64)


@kernel("ArgMax")
def arg_max(x: Array, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Array:
    """Position of the largest element along an axis (int64): the first, or the last when asked for."""
    return _position(np.argmax, x, axis, keepdims, select_last_index)


@kernel("ArgMin")
def arg_min(x: Array, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Array:
    """Position of the smallest element along an axis (int64): the first, or the last when asked for."""
    return _position(np.argmin, x, axis, keepdims, select_last_index)


@kernel("TopK", since=10)
def top_k(x: Array, k: Array, *, axis: int = -1, largest: int = 1, sorted: int = 1) -> tuple[Array, Array]:
    """The k largest or smallest elements along an axis and their positions (int64); among equals the first comes first.

    They come sorted, which satisfies `sorted = 0` too.
    """
    axis = normalize_axis(axis, x.ndim)
    count = int(np.asarray(k).reshape(()))
    if largest:
        # A stable ascending sort of the reversed tensor, read backwards: descending, and the first of equals first.
        order = x.shape[axis] - 1 - np.flip(np.argsort(np.flip(x, axis), axis=axis, kind="stable"), axis)
    else:
        order = np.argsort(x, axis=axis, kind="stable")
    chosen = np.take(order, np.arange(count), axis=axis).astype(np.int64)
    return np.take_along_axis(x, chosen, axis=axis), chosen


@kernel("TopK", since=1)
def top_k_attribute(x: Array, *, k: int, axis: int = -1) -> tuple[Array, Array]:
    """TopK of version 1, whose k is an attribute."""
    return top_k(x, np.asarray(k), axis=axis)
