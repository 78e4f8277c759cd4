"""Small constants: initializers and the outputs of Constant nodes.

Tests: `tests/verification/test_wellformed.py`.
"""

from __future__ import annotations

import numpy as np
import onnx

from onnxq.ir import Tensor, Value


def tensor_of(value: Value | None) -> Tensor | None:
    """Return the handle of a constant, be it an initializer or a Constant node's tensor; None for what is computed."""
    if value is None:
        return None
    producer = value.producer
    if producer is not None and producer.op_type == "Constant" and not producer.domain:
        return producer.tensor_attribute("value")
    return value.constant


def numbers_of(value: Value | None) -> np.ndarray | None:
    """Read a constant that is a scale or zero point; None for what is computed.

    Raises:
        ModelError: Its elements are in a file that is missing or too short.

    """
    tensor = tensor_of(value)
    if tensor is not None:
        return tensor.numpy()
    producer = value.producer if value is not None else None
    if producer is not None and producer.op_type == "Constant" and not producer.domain:
        number = producer.attribute("value_float", producer.attribute("value_floats"))
        return None if number is None else np.asarray(number, np.float32)
    return None


def dtype_of(value: Value | None) -> int | None:
    """Return the `TensorProto.DataType` of a value, None where nothing states it."""
    tensor = tensor_of(value)
    return tensor.dtype if tensor is not None else value.dtype if value is not None else None


def shape_of(value: Value | None) -> tuple[int | str | None, ...] | None:
    """Return the dimensions of a value, None where the rank is unknown."""
    tensor = tensor_of(value)
    return tensor.shape if tensor is not None else value.shape if value is not None else None


def type_name(dtype: int) -> str:
    """Name an element type as users know it: `uint8`."""
    return str(onnx.TensorProto.DataType.Name(dtype)).lower()
