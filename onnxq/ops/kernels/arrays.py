"""Helpers of every kernel family: the array type, axes that count from the end, and how to decline a case.

Tests: `tests/ops/test_construct.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from onnxq.errors import ModelError

Array = np.ndarray[Any, np.dtype[Any]]
EXCHANGED_ROWS = 32  # that are copied at a time where axes are exchanged
WORTH_ROWS = 1 << 15  # elements of a matrix from which on that is worth several calls


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


def transposed(matrices: Array) -> Array:
    """Return `[..., m, n]` as `[..., n, m]`, contiguous; a view where the elements lie so already.

    NumPy copies element by element along one of both axes. All elements of a column share a few lines of the cache if
    rows are 4096 bytes apart. A matrix of 1000 x 512 float64 numbers took 2.1 ms so, and 0.6 ms by 32 rows. A copy
    without an exchange takes 0.3 ms (Intel Sapphire Rapids, NumPy 2.4).
    """
    turned = np.swapaxes(matrices, -1, -2)
    rows, columns = matrices.shape[-2:]
    if turned.flags.c_contiguous or rows * columns < WORTH_ROWS or not matrices.flags.c_contiguous:
        return np.ascontiguousarray(turned)
    made = np.empty(turned.shape, matrices.dtype)
    for first in range(0, rows, EXCHANGED_ROWS):
        made[..., first : first + EXCHANGED_ROWS] = turned[..., first : first + EXCHANGED_ROWS]
    return made
