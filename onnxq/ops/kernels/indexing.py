"""Gather and scatter: https://onnx.ai/onnx/operators/onnx__GatherND.html, onnx__ScatterElements.html, ..."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from onnxq.errors import ModelError
from onnxq.ops.kernels.arrays import Array, normalize_axis
from onnxq.ops.kernels.registry import kernel

_REDUCTIONS: dict[str, Any] = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


@kernel("Gather")
def gather(x: Array, indices: Array, *, axis: int = 0) -> Array:
    """Take slices of X along an axis; the axis is replaced by the axes of the indices, which may be negative."""
    if x.flags.aligned:
        return np.take(x, indices, axis=axis)
    # A table in a file starts at any byte, and `take` copies such a table as a whole
    return np.asarray(x[(slice(None),) * normalize_axis(axis, x.ndim) + (indices,)])


@kernel("GatherElements", since=11)
def gather_elements(x: Array, indices: Array, *, axis: int = 0) -> Array:
    """Take single elements along an axis, one for each index."""
    axis = normalize_axis(axis, x.ndim)
    inside = tuple(slice(0, n) if i != axis else slice(None) for i, n in enumerate(indices.shape))
    return np.take_along_axis(x[inside], indices.astype(np.int64, copy=False), axis=axis)


@kernel("GatherND", since=11)
def gather_nd(x: Array, indices: Array, *, batch_dims: int = 0) -> Array:
    """Take slices of X at the coordinates in the last axis of the indices, batch by batch."""
    depth = indices.shape[-1]
    batch = x.shape[:batch_dims]
    rows = math.prod(batch)
    flat = x.reshape(rows, *x.shape[batch_dims:])
    points = indices.reshape(rows, -1, depth)
    where = (np.arange(rows)[:, None], *np.moveaxis(points, -1, 0))
    result: Array = flat[where].reshape(*indices.shape[:-1], *x.shape[batch_dims + depth :])
    return result


@kernel("ScatterElements", since=11)
def scatter_elements(x: Array, indices: Array, updates: Array, *, axis: int = 0, reduction: str = "none") -> Array:
    """Write single elements into a copy of X along an axis, or combine them with what is there."""
    axis = normalize_axis(axis, x.ndim)
    where: list[Array] = list(np.indices(indices.shape, sparse=True))
    where[axis] = indices
    return _scatter(x, tuple(where), updates, reduction)


@kernel("Scatter", since=9)
def scatter(x: Array, indices: Array, updates: Array, *, axis: int = 0) -> Array:
    """Write single elements into a copy of X along an axis: the old name of ScatterElements."""
    return scatter_elements(x, indices, updates, axis=axis)


@kernel("ScatterND", since=11)
def scatter_nd(x: Array, indices: Array, updates: Array, *, reduction: str = "none") -> Array:
    """Write slices into a copy of X at the coordinates in the last axis of the indices, or combine them."""
    return _scatter(x, tuple(np.moveaxis(indices, -1, 0)), updates, reduction)


def _scatter(x: Array, where: tuple[Array, ...], updates: Array, reduction: str) -> Array:
    result = x.copy()
    if reduction == "none":
        result[where] = updates
    elif reduction in _REDUCTIONS:
        _REDUCTIONS[reduction].at(result, where, updates)
    else:
        raise ModelError(f"reduction '{reduction}' does not exist", "Use none, add, mul, max or min.")
    return result


@kernel("Compress", since=9)
def compress(x: Array, condition: Array, *, axis: int | None = None) -> Array:
    """Keep the slices along an axis (or the elements of the flattened tensor) for which the condition holds."""
    return np.compress(condition, x, axis=axis)
