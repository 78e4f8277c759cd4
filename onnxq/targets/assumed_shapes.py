"""Shapes that are assumed where a model leaves sizes open, and the number of elements that follows."""

from __future__ import annotations

import math
from collections.abc import Mapping

from onnxq.ir import Value
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
