"""Nodes that are written in one way up to some operator set and in another one from there on.

Tests: `tests/simplify/test_mean_to_global_average_pool.py`.
"""

from __future__ import annotations

import numpy as np
import onnx

from onnxq.ir.graph import Node, Value
from onnxq.ir.patch import Patch

AXES_INPUT_OPSET = 13  # Squeeze has axes as an input


def squeezed(patch: Patch, value: Value, axis: int, opset: int) -> Value:
    """Take an axis of size 1 out; negative ones need opset 11."""
    if opset < AXES_INPUT_OPSET:
        return patch.op("Squeeze", value, axes=[axis])
    return patch.op("Squeeze", value, patch.constant(np.array([axis], np.int64), "axes"))


def add_scalar(patch: Patch, number: float, dtype: int, hint: str) -> Value:
    """Add a constant without axes."""
    return patch.constant(np.array(number, onnx.helper.tensor_dtype_to_np_dtype(dtype)), hint)


def axes_of(node: Node) -> list[int] | None:
    """Return the axes of a Squeeze or Unsqueeze; None where they are no constants, or not stated."""
    if len(node.inputs) > 1 and node.inputs[1] is not None:
        tensor = node.inputs[1].constant
        return None if tensor is None else [int(axis) for axis in tensor.numpy().reshape(-1)]
    axes = node.attribute("axes")
    return None if axes is None else [int(axis) for axis in axes]
