"""Nodes that are written in one way up to some operator set and in another one from there on.

Tests: `tests/simplify/test_one_hot_to_gather.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx

from onnxq.ir.graph import Value
from onnxq.ir.patch import Patch

AXES_INPUT_OPSET = 13  # Squeeze and Unsqueeze have axes as an input; an attribute before


def add_with_axes(patch: Patch, op_type: str, value: Value, axes: Sequence[int], opset: int, hint: str = "") -> Value:
    """Add a Squeeze or Unsqueeze over these axes, named `hint`; negative ones need opset 11."""
    if opset < AXES_INPUT_OPSET:
        return patch.op(op_type, value, hint=hint, axes=list(axes))
    constant = patch.constant(np.array(axes, np.int64), f"{hint}_axes" if hint else "axes")
    return patch.op(op_type, value, constant, hint=hint)


def add_scalar(patch: Patch, number: float, dtype: int, hint: str) -> Value:
    """Add a constant without axes."""
    return patch.constant(np.array(number, onnx.helper.tensor_dtype_to_np_dtype(dtype)), hint)
