"""Helpers of every kernel family: the array type, axes that count from the end, 16-bit floats, declining a case."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeVar, cast

import numpy as np

from onnxq.errors import ModelError

Array = np.ndarray[Any, np.dtype[Any]]
F = TypeVar("F", bound=Callable[..., Any])


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


def at_least_float32(x: Any) -> Any:
    """Return an array of float16 or bfloat16 as float32; anything else as it is."""
    return x.astype(np.float32) if isinstance(x, np.ndarray) and x.dtype.name in ("float16", "bfloat16") else x


def in_float32(function: F) -> F:
    """Let a kernel compute in float32 in place of 16 bits, as onnxruntime does on CPUs: sums would overflow otherwise.

    Float results have the type of the first input again.
    """

    @wraps(function)
    def run(x: Array, *others: Any, **attributes: Any) -> Any:
        wide = at_least_float32(x)
        if wide is x:
            return function(x, *others, **attributes)
        made = function(wide, *map(at_least_float32, others), **attributes)
        return tuple(_narrowed(each, x) for each in made) if isinstance(made, tuple) else _narrowed(made, x)

    return cast("F", run)


def _narrowed(made: Any, like: Array) -> Any:
    return made.astype(like.dtype) if getattr(made, "dtype", None) == np.float32 else made
