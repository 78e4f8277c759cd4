"""Shapes that are assumed where a model leaves sizes open, and the elements and bytes that follow."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from onnx import TensorProto
from onnx.helper import tensor_dtype_to_np_dtype

from onnxq.ir import Model, Value
from onnxq.targets import UNKNOWN_SIDE


def count(value: Value, shapes: Mapping[str, tuple[int, ...]] | None = None) -> int:
    """Number of elements, open dimensions guessed: one sample, a spatial side of 56; or as `shapes` has them."""
    shape: tuple[int | str | None, ...] | None = shapes.get(value.name) if shapes else None
    elements = 1
    for axis, size in enumerate((value.shape or ()) if shape is None else shape):
        elements *= size if isinstance(size, int) else UNKNOWN_SIDE if axis else 1
    return max(elements, 1)


def known_count(value: Value, shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Number of elements of a sample as `shapes` or the model itself have them; 0 where another size is open."""
    shape = shapes.get(value.name, value.shape) or ()
    known = [size for axis, size in enumerate(shape) if isinstance(size, int) or axis]
    return math.prod(size for size in known if isinstance(size, int)) if all(isinstance(n, int) for n in known) else 0


def assumed_shape(value: Value, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...] | None:
    """Return a value's shape as `shapes` or the model has it, open sizes as in `count`; None where its rank is open."""
    if value.name in shapes:
        return shapes[value.name]
    shape = value.shape
    if shape is None or all(type(size) is int for size in shape):
        return shape  # type: ignore[return-value]  # most are known: nothing to guess
    return tuple(size if isinstance(size, int) else (UNKNOWN_SIDE if axis else 1) for axis, size in enumerate(shape))


class TensorBytes:
    """Bytes of the tensors that a sample makes in a model and in quantized copies of it, without a run.

    An open size that has a name is the same wherever that name is; the first axis counts one where nothing is known.

    Args:
        model: The model, of types that are known.
        sample: The sample.
        shapes: Of values whose sizes the model leaves open.

    """

    def __init__(self, model: Model, sample: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> None:
        self._shapes = {**shapes, **{name: array.shape for name, array in sample.items() if hasattr(array, "shape")}}
        self._named: dict[str, int] = {}
        for name, known in self._shapes.items():
            value = model.graph.values.get(name)
            for size, number in zip((value.shape if value is not None else None) or (), known, strict=False):
                if isinstance(size, str):
                    self._named[size] = max(number, self._named.get(size, 0))

    def of(self, value: Value) -> int | None:
        """Return the bytes of a tensor; None where they are not known."""
        shape = self._shapes.get(value.name, value.shape)
        if shape is None or value.dtype in (None, TensorProto.UNDEFINED, TensorProto.STRING):
            return None
        count = 1
        for axis, size in enumerate(shape):
            known = size if isinstance(size, int) else self._named.get(size or "", None if axis else 1)
            if known is None:
                return None
            count *= known
        return count * np.dtype(tensor_dtype_to_np_dtype(value.dtype)).itemsize
