"""Transposes that onnxruntime moves element by element, written as such that it moves in rows.

Its Transpose (1.31) is fast if a single axis changes its place, or if the innermost axes stay. For all others it
computes every element's place by itself, 6 to 30 nanoseconds each. In a super-resolution network in 8 bit the pixels of
the output took a seventh of the time. Two moves of single axes give the same order in an eighth to a thirtieth of that.
A Reshape between them takes no time and keeps onnxruntime from merging them. The same goes for DepthToSpace, which took
two to four times as long (`tests/bench/bench_transpose.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

import numpy as np

from onnxq.ir import Model, Node, Patch
from onnxq.ir.pass_manager import register_pass
from onnxq.ir.patch import named_after
from onnxq.targets import UNKNOWN_SIDE

LEAST_ELEMENTS = 4096  # fewer take no longer than the nodes that come in
ROW = 8  # elements that stay side by side from which on moving them is fast whatever the order
ORDERING = ("Transpose", "DepthToSpace")
Axes = tuple[int, ...]
AxisMove = tuple[tuple[Axes, ...], tuple[Axes, ...]]
T = TypeVar("T")


@dataclass(frozen=True)
class _Order:
    """The axes that a node puts in another order.

    Attributes:
        sizes: Of the axes; None where the model leaves one open.
        read: The axes that each axis of its input is made of.
        made: The same of its output; one behind the other, they are the new order.

    """

    sizes: tuple[int | None, ...]
    read: tuple[Axes, ...]
    made: tuple[Axes, ...]


@register_pass(order=130, timed=True, operators=ORDERING, types=True)
def move_single_axes(model: Model) -> Iterator[Patch]:
    """Write transpositions as moves of single axes where onnxruntime is fast for those alone.

    Args:
        model: A model whose types are inferred. Its results stay the same to the bit.

    """
    for graph in model.graph.graphs():
        yield from (patch for node in graph.nodes if (patch := _patch(node)) is not None)


def _patch(node: Node) -> Patch | None:
    order = _order(node)
    source, output = (values[0] if values else None for values in (node.inputs, node.outputs))
    if order is None or source is None or output is None or _elements(order.sizes) < LEAST_ELEMENTS:
        return None
    last = _behind(node)
    if last is None and node.op_type == "Transpose":
        return None
    groups = _groups(order)
    first = {group[0]: group for group in groups}
    steps = _moves([first[axis] for axes in order.made for axis in axes if axis in first], groups)
    shapes = _shapes(order, steps, last) if steps is not None else None
    if steps is None or shapes is None:
        return None
    patch = Patch(node.graph, node, "single axes are moved faster")
    value = source
    for number, (shape, (before, after)) in enumerate(zip(shapes, steps, strict=False), 1):
        hint = f"{output.name}_{number}"
        value = patch.op("Reshape", value, patch.constant(shape, f"{hint}_sizes"), hint=f"{hint}_groups")
        value = patch.op("Transpose", value, hint=hint, perm=[before.index(group) for group in after])
    result = last.outputs[0] if last is not None else output
    assert result is not None
    value = patch.op("Reshape", value, patch.constant(shapes[-1], f"{result.name}_sizes"), hint=result.name)
    patch.replace(result, value)
    named_after(patch, last or node)
    return patch


def _shapes(order: _Order, steps: Sequence[AxisMove], last: Node | None) -> list[np.ndarray] | None:
    """Return what the Reshapes read: one in front of each step, and one behind the last."""
    found, lies = [], order.read
    for before, after in steps:
        found.append(_shape(order.sizes, lies, before))
        lies = after
    found.append(_shape(order.sizes, lies, order.made) if last is None else _followed(last, order, lies))
    known = [shape for shape in found if shape is not None]
    return known if len(known) == len(found) else None


def _behind(node: Node) -> Node | None:
    """Return the Reshape behind a Transpose that alone reads it: onnxruntime moves a Transpose through one that splits.

    So the axes of a Transpose, which are split again where two have been joined, must not be seen.
    """
    output = node.outputs[0]
    use = output.only_use if output is not None else None
    if node.op_type != "Transpose" or use is None or use.node.graph is not node.graph:
        return None
    shape = use.node.inputs[1] if use.node.op_type == "Reshape" and not use.node.domain and not use.slot else None
    plain = shape is not None and shape.constant is not None and not use.node.attribute("allowzero", 0)
    return use.node if plain else None


def _followed(reshape: Node, order: _Order, lies: Sequence[Axes]) -> np.ndarray | None:
    """Return what a Reshape reads if the axes in front of it are others; None where it copies a length that is open."""
    value = reshape.inputs[1]
    assert value is not None
    shape = np.array(value.elements.numpy(), np.int64)
    for place in np.flatnonzero(shape == 0).tolist():
        (axis,) = order.made[place]
        size = order.sizes[axis]
        if size is not None:
            shape[place] = size
        elif place >= len(lies) or _long(order.sizes, lies[place]) != [axis]:
            if -1 in shape:
                return None
            shape[place] = -1
    return shape


def _order(node: Node) -> _Order | None:
    """Read the order of a Transpose or DepthToSpace that is slow; None for everything else."""
    source = node.inputs[0] if node.op_type in ORDERING and not node.domain else None
    shape = source.shape if source is not None and source.constant is None else None
    if shape is None:
        return None
    sizes = tuple(size if isinstance(size, int) else None for size in shape)
    if node.op_type == "Transpose":
        axes = tuple(range(len(sizes)))
        perm = tuple(node.attribute("perm", axes[::-1]))
        order = _Order(sizes, tuple((axis,) for axis in axes), tuple((axis,) for axis in perm))
        return None if _is_move(perm) or _stays(sizes, perm) >= ROW else order
    if len(sizes) != 4:
        return None
    block = int(node.attribute("blocksize"))
    batch, channels, height, width = sizes
    if not channels:
        return None
    of_one = channels // block**2
    if node.attribute("mode", "DCR") == "CRD":
        split = (batch, of_one, block, block, height, width)
        return _Order(split, ((0,), (1, 2, 3), (4,), (5,)), ((0,), (1,), (4, 2), (5, 3)))
    split = (batch, block, block, of_one, height, width)
    return _Order(split, ((0,), (1, 2, 3), (4,), (5,)), ((0,), (3,), (4, 1), (5, 2)))


def _elements(sizes: Sequence[int | None]) -> int:
    return math.prod(UNKNOWN_SIDE if size is None else size for size in sizes)


def _stays(sizes: Sequence[int | None], perm: Sequence[int]) -> int:
    """Return how many elements stay side by side."""
    count = 1
    for axis in reversed(range(len(perm))):
        if perm[axis] != axis:
            break
        size = sizes[axis]
        count *= UNKNOWN_SIDE if size is None else size
    return count


def _is_move(perm: Sequence[int]) -> bool:
    """Whether all axes but one stay in order."""
    return any(list(rest) == sorted(rest) for axis in perm for rest in [[other for other in perm if other != axis]])


def _groups(order: _Order) -> tuple[Axes, ...]:
    """Join axes that stay behind one another; axes of length 1 belong anywhere."""
    old, new = ([axis for axes in side for axis in axes if order.sizes[axis] != 1] for side in (order.read, order.made))
    return tuple(tuple(run) for run in _runs(old, new))


def _runs(items: Sequence[T], order: Sequence[T]) -> list[list[T]]:
    """Join items that are behind one another in another order, too."""
    behind = dict(pairwise(order))
    runs: list[list[T]] = []
    for item in items:
        if runs and behind.get(runs[-1][-1]) == item:
            runs[-1].append(item)
        else:
            runs.append([item])
    return runs


def _moves(wanted: Sequence[Axes], groups: tuple[Axes, ...]) -> list[AxisMove] | None:
    """Find two moves of a single group each that lead to an order: what they start from, and what comes out.

    The second starts from groups that are joined again: at least two of the first are adjacent then. If one move is
    enough, onnxruntime finds it by itself.
    """
    goal, best = tuple(wanted), None
    if _is_move([groups.index(group) for group in goal]):
        return None
    for group in groups:
        rest = [other for other in groups if other != group]
        for place in range(len(groups)):
            between = (*rest[:place], group, *rest[place:])
            order = [between.index(other) for other in goal]
            if not _is_move(order):
                continue
            joined = _joined(between, goal)
            if len(joined[0]) < len(groups) and (best is None or between[-1] == goal[-1]):
                best = [(groups, between), joined]
                if between[-1] == goal[-1]:
                    return best
    return best


def _joined(before: tuple[Axes, ...], after: tuple[Axes, ...]) -> AxisMove:
    """Join groups that the second move leaves together."""
    runs = _runs(before, after)
    joined = {run[0]: tuple(axis for group in run for axis in group) for run in runs}
    return tuple(joined[run[0]] for run in runs), tuple(joined[group] for group in after if group in joined)


def _shape(sizes: Sequence[int | None], lies: Sequence[Axes], wanted: Sequence[Axes]) -> np.ndarray | None:
    """Return what a Reshape reads for the axes wanted; None where more than one length is open that it cannot copy."""
    shape = []
    for place, axes in enumerate(wanted):
        known = [sizes[axis] for axis in axes]
        if None not in known:
            shape.append(math.prod(size for size in known if size is not None))
        elif place < len(lies) and _long(sizes, lies[place]) == _long(sizes, axes):
            shape.append(0)
        else:
            shape.append(-1)
    return None if shape.count(-1) > 1 else np.array(shape, np.int64)


def _long(sizes: Sequence[int | None], axes: Axes) -> list[int]:
    return [axis for axis in axes if sizes[axis] != 1]
