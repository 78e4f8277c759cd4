"""Track the axes of a region's entry through its values, and which of them have length 1.

Tests: `tests/simplify/test_merge_transposes.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from onnxq.ir.graph import Node, Value
from onnxq.ir.shape_inference.dims import Size
from onnxq.ir.shape_inference.symbolic import Shapes
from onnxq.ops.kernels.arrays import Array

Dim = int | frozenset[str | Size]  # a size that is not known has names: that of shape inference, and what is followed
Dims = tuple[Dim, ...]
VIEWS = frozenset(("Expand", "Reshape", "Squeeze", "Unsqueeze"))
CASTS = frozenset(("Cast", "Identity"))  # between floats


@dataclass(frozen=True)
class AxisLayout:
    """The layout of a value.

    Attributes:
        layout: For each of its axes the axis of the entry that it is.
        narrow: The reduced axes of the entry along which it has length 1 or none.

    """

    layout: tuple[int, ...]
    narrow: frozenset[int] = frozenset()

    def dims(self, shape: Dims) -> Dims:
        """Return its shape, from that of the entry."""
        return tuple(1 if axis in self.narrow else shape[axis] for axis in self.layout)


def dims_of(value: Value | None, shapes: Shapes) -> Dims | None:
    """Return the shape of a value as far as shape inference or what is followed through `Shape` tells it."""
    if value is None:
        return None
    followed, inferred = shapes.of(value), value.shape
    if followed is None or (inferred is not None and len(inferred) != len(followed)):
        return None if inferred is None else tuple(_dim(size, None) for size in inferred)
    return tuple(_dim(a, b) for a, b in zip(inferred or (None,) * len(followed), followed, strict=True))


def _dim(inferred: int | str | None, followed: Size | None) -> Dim:
    if isinstance(inferred, int):
        return inferred
    if followed is not None and followed.known is not None:
        return followed.known
    return frozenset(name for name in (inferred, followed) if name is not None)


def same(one: Dim, other: Dim) -> bool:
    """Whether two sizes are known to be equal."""
    if isinstance(one, int) or isinstance(other, int):
        return one == other
    return not one.isdisjoint(other)


def constant_axes(node: Node) -> list[int] | None:
    """Return axes that are an attribute or a constant second input; None where they are absent or computed."""
    if node.input(1) is None:
        found = node.attribute("axes")
        return None if found is None else [int(axis) for axis in found]
    stated = node.constant(1)
    return None if stated is None else [int(axis) for axis in stated.numpy().reshape(-1)]


def reduced_axes(node: Node, rank: int | None) -> tuple[int, ...] | None:
    """Return the axes that a reduction of a tensor of known rank reduces, ascending; None where that is not certain."""
    if rank is None:
        return None
    if node.op_type.startswith("Global"):
        return tuple(range(2, rank))
    axes = constant_axes(node)
    if axes is None and node.input(1) is not None:
        return None
    if not axes:
        return None if node.attribute("noop_with_empty_axes", 0) else tuple(range(rank))
    if any(not -rank <= axis < rank for axis in axes):
        return None
    return tuple(sorted({axis % rank for axis in axes}))


def aligned(array: Array | None, layout: tuple[int, ...], shape: Dims) -> Array | None:
    """Return a constant as float64 with all axes of the entry and one more in front, as broadcasting aligns it.

    None where it is no number, would give the result more axes, or could make a tensor larger than the entry.
    """
    if array is None or array.dtype.kind not in "fiu" or array.ndim > len(layout):
        return None
    dims = [1] * (len(shape) + 1)
    for size, axis in zip(array.shape, layout[len(layout) - array.ndim :], strict=True):
        if size not in (1, shape[axis]):
            return None
        dims[axis + 1] = size
    return array.astype(np.float64).reshape(dims)


def view(node: Node, traced: AxisLayout, shape: Dims, axes: tuple[int, ...], shapes: Shapes) -> AxisLayout | None:
    """Return the layout behind an operator that moves no element, or None if it may be another one than it seems.

    Args:
        node: Reshape, Expand, Squeeze, Unsqueeze, Cast or Identity.
        traced: Layout of its first input.
        shape: Shape of the entry.
        axes: The reduced axes.
        shapes: Shapes of the graph.

    """
    source, output = node.inputs[0], node.outputs[0]
    assert source is not None
    assert output is not None
    if node.op_type in CASTS:
        return traced if source.dtype == output.dtype else None
    if node.op_type == "Unsqueeze":
        return _unsqueeze(node, traced, len(shape))
    if node.op_type == "Squeeze":
        return _squeeze(node, traced)
    before, after = dims_of(source, shapes), dims_of(output, shapes)
    if before is None or after is None:
        return None
    if node.op_type == "Expand":
        return _expand(traced, before, after, shape)
    return _reshape(traced, after, shape, axes)


def _unsqueeze(node: Node, traced: AxisLayout, rank: int) -> AxisLayout | None:
    axes = constant_axes(node)
    if axes is None or len(traced.layout) + len(axes) != rank:
        return None
    inserted = {axis % rank for axis in axes}
    kept = tuple(axis for axis in range(rank) if axis not in inserted)
    return AxisLayout(tuple(range(rank)), traced.narrow) if kept == traced.layout else None


def _squeeze(node: Node, traced: AxisLayout) -> AxisLayout | None:
    axes = constant_axes(node)
    if axes is None:
        return None
    gone = {traced.layout[axis] for axis in axes}
    kept = tuple(axis for axis in traced.layout if axis not in gone)
    return AxisLayout(kept, traced.narrow) if gone <= traced.narrow else None


def _expand(traced: AxisLayout, source: Dims, output: Dims, shape: Dims) -> AxisLayout | None:
    """Nothing but reduced axes may grow, and those to their length in the entry."""
    if len(source) != len(output):
        return None
    narrow = traced.narrow
    for axis, before, after in zip(traced.layout, source, output, strict=True):
        if axis in narrow and after != 1:
            if not isinstance(after, int) or after != shape[axis]:
                return None
            narrow -= {axis}
        elif not same(after, before) and not same(after, shape[axis]):
            return None
    return AxisLayout(traced.layout, narrow)


def _reshape(traced: AxisLayout, output: Dims, shape: Dims, axes: tuple[int, ...]) -> AxisLayout | None:
    """Lengths that are known decide; one that is not follows from the number of elements."""
    every = tuple(range(len(shape)))
    for layout in (every, tuple(axis for axis in every if axis not in axes)):
        new = AxisLayout(layout, traced.narrow)
        if set(every) - set(layout) <= traced.narrow and len(layout) == len(output):
            wanted = new.dims(shape)
            differing = [(a, b) for a, b in zip(wanted, output, strict=True) if not same(a, b)]
            surely = [pair for pair in differing if isinstance(pair[0], int) and isinstance(pair[1], int)]
            return new if len(differing) <= 1 and not surely else None
    return None
