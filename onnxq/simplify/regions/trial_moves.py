"""A trial run of operators that only move elements: what they do to numbers from 0 on tells where each element goes.

Tests: `tests/simplify/test_shuffle_to_gather.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from onnxq.ir.graph import Node, Value
from onnxq.ir.shape_inference.symbolic import Shapes
from onnxq.ops.kernels.arrays import Array
from onnxq.simplify.regions.axis_tracking import constant_axes

SAMPLES = (2, 1)  # numbers of samples to try where that is open: a size that is stated may happen to be one of them
MOST_ELEMENTS = 1 << 22  # of a result
Found = TypeVar("Found")


def found_by_trial(value: Value, shapes: Shapes, find: Callable[[Array], Found | None]) -> Found | None:
    """Return what is found by the numbered elements of a value, if it is the same for any number of samples.

    Args:
        value: The value.
        shapes: What is known of sizes.
        find: Gets the numbers, in the shape of the value.

    Returns:
        None where nothing is found, the shape of the value is not known, or it has too many elements.

    """
    found: Found | None = None
    tried: Array | None = None
    for samples in SAMPLES:
        given = _numbered(value, shapes, samples)
        if given is not None and tried is not None and given.shape == tried.shape:
            return found  # the number of samples is stated
        again = find(given) if given is not None else None
        if again is None or (found is not None and again != found):
            return None
        found, tried = again, given
    return found


def _numbered(value: Value, shapes: Shapes, samples: int) -> Array | None:
    lengths = [size.known or (samples if axis == 0 else 0) for axis, size in enumerate(shapes.of(value) or ())]
    count = math.prod(lengths)
    return np.arange(count).reshape(lengths) if lengths and 0 < count <= MOST_ELEMENTS else None


def _reshaped(array: Array, node: Node) -> Array | None:
    target = node.constant(1)
    if target is None or node.attribute("allowzero", 0):
        return None
    sizes = target.numpy().tolist()
    if any(size == 0 and axis >= array.ndim for axis, size in enumerate(sizes)):
        return None
    sizes = [array.shape[axis] if size == 0 else size for axis, size in enumerate(sizes)]
    try:
        return array.reshape(sizes)
    except ValueError:  # a number of samples that is stated
        return None


def _transposed(array: Array, node: Node) -> Array | None:
    perm = node.attribute("perm")
    return array.transpose(perm) if perm is not None and len(perm) == array.ndim else None


def _unsqueezed(array: Array, node: Node) -> Array | None:
    axes = constant_axes(node)
    return None if not axes else np.expand_dims(array, tuple(axes))


def _squeezed(array: Array, node: Node) -> Array | None:
    axes = constant_axes(node)
    narrow = axes is not None and all(-array.ndim <= axis < array.ndim and array.shape[axis] == 1 for axis in axes)
    return array.squeeze(tuple(axes)) if axes and narrow else None


def _gathered(array: Array, node: Node) -> list[Array] | None:
    indices = node.constant(1)
    axis = int(node.attribute("axis", 0))
    if indices is None or not -array.ndim <= axis < array.ndim:
        return None
    chosen, length = indices.numpy(), array.shape[axis]
    inside = chosen.size and -length <= chosen.min() and chosen.max() < length
    return [array.take(chosen, axis)] if inside else None


def _split(array: Array, node: Node) -> list[Array] | None:
    axis, count = int(node.attribute("axis", 0)), len(node.outputs)
    if not -array.ndim <= axis < array.ndim:
        return None
    stated = node.constant(1)
    if stated is None and node.input(1) is not None:
        return None
    sizes = node.attribute("split") if stated is None else stated.numpy().tolist()
    if sizes is None:
        return np.split(array, count, axis) if array.shape[axis] % count == 0 else None
    fits = len(sizes) == count and sum(sizes) == array.shape[axis]
    return np.split(array, np.cumsum(sizes)[:-1], axis) if fits else None


# Each gives what becomes of an array, for PARTS of each output; None where that is not known
VIEWS = {"Reshape": _reshaped, "Squeeze": _squeezed, "Transpose": _transposed, "Unsqueeze": _unsqueezed}
PARTS = {"Gather": _gathered, "Split": _split}
