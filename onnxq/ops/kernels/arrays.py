"""Helpers of every kernel family: the array type, axes that count from the end, and how to decline a case.

Tests: `tests/ops/test_construct.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from onnxq.errors import ModelError

Array = np.ndarray[Any, np.dtype[Any]]


class NotCovered(ModelError):
    """A kernel declines this case of its operator; the evaluator then asks `onnx.reference`."""


def normalize_axis(axis: int, rank: int) -> int:
    """Return an axis as a number from 0 to rank - 1.

    Raises:
        ModelError: The axis is out of range.

    """
    axis = int(axis)
    if not -rank <= axis < rank:
        raise ModelError(f"axis {axis} is out of range for rank {rank}", "Correct the attribute or input `axis`.")
    return axis % rank


def normalize_axes(axes: Sequence[int] | Array | None, rank: int) -> tuple[int, ...] | None:
    """Return axes as numbers from 0 to rank - 1; None stays None."""
    if axes is None:
        return None
    return tuple(normalize_axis(axis, rank) for axis in np.asarray(axes, np.int64).reshape(-1).tolist())


def integers(values: Sequence[int] | Array) -> list[int]:
    """Return a shape or index input (an int tensor of rank 0 or 1) as Python integers."""
    return [int(v) for v in np.asarray(values).reshape(-1).tolist()]


def per_channel(parameter: Array, rank: int) -> Array:
    """Shape a per-channel vector [C] so that it broadcasts along axis 1 of a tensor [N, C, ...]."""
    return parameter.reshape(parameter.shape + (1,) * max(rank - 2, 0))
