"""Shapes that are assumed where a model leaves sizes open, and the number of elements that follows.

Tests: `tests/simplify/test_fuse_activations.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from onnxq.ir import Value
from onnxq.targets import UNKNOWN_SIDE


def count(value: Value, shapes: Mapping[str, tuple[int, ...]] | None = None) -> int:
    """Number of elements, open dimensions guessed: one sample, a spatial side of 56; or as `shapes` has them."""
    shape = _shape(value, shapes or {})
    return 1 if shape is None else max(math.prod(shape), 1)


def _shape(value: Value, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...] | None:
    if value.name in shapes:
        return shapes[value.name]
    if value.shape is None:
        return None
    return tuple(
        size if isinstance(size, int) else (1 if axis == 0 else UNKNOWN_SIDE) for axis, size in enumerate(value.shape)
    )
