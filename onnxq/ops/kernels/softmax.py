"""Softmax, LogSoftmax and Hardmax: along one axis from operator set 13 on, over all axes behind `axis` before.

https://onnx.ai/onnx/operators/onnx__Softmax.html

Tests: `tests/ops/test_activation.py`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from onnxq.ops.kernels.arrays import Array, normalize_axis
from onnxq.ops.kernels.registry import kernel


def softmax(x: Array, *, axis: int = -1) -> Array:
    """exp(x - max) / sum(exp(x - max)) along an axis."""
    axis = normalize_axis(axis, x.ndim)
    if not x.size:
        return x.copy()
    result: Array = x - np.max(x, axis=axis, keepdims=True)
    np.exp(result, out=result)
    result /= np.add.reduce(result, axis=axis, keepdims=True)
    return result


def log_softmax(x: Array, *, axis: int = -1) -> Array:
    """X - max - log(sum(exp(x - max))) along an axis."""
    axis = normalize_axis(axis, x.ndim)
    if not x.size:
        return x.copy()
    shifted: Array = x - np.max(x, axis=axis, keepdims=True)
    shifted -= np.log(np.add.reduce(np.exp(shifted), axis=axis, keepdims=True))
    return shifted


def hardmax(x: Array, *, axis: int = -1) -> Array:
    """1 at the first largest element along an axis, 0 elsewhere."""
    axis = normalize_axis(axis, x.ndim)
    result = np.zeros(x.shape, x.dtype)
    if x.size:
        np.put_along_axis(result, np.argmax(x, axis=axis, keepdims=True), 1, axis=axis)
    return result


def _register(op_type: str, function: Callable[..., Array]) -> None:
    kernel(op_type, since=13)(function)

    def flattened(x: Array, *, axis: int = 1) -> Array:
        """Version 1 and 11: the tensor is seen as a matrix whose columns begin at `axis`."""
        axis = axis + x.ndim if axis < 0 else axis
        rows = int(np.prod(x.shape[:axis]))
        return function(x.reshape(rows, x.size // rows if rows else 0), axis=1).reshape(x.shape)

    kernel(op_type, since=1)(flattened)


_register("Softmax", softmax)
_register("LogSoftmax", log_softmax)
_register("Hardmax", hardmax)
