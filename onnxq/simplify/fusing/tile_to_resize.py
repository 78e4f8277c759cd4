"""Elements of a map that Tile repeats along its axes, between operators that move axes, are a Resize to the nearest.

Keras 3 upsamples so: Unsqueeze, Tile and Reshape for either axis, channels last. A Resize keeps channels where Conv
want them, in float and in 8 bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import permutations
from typing import NamedTuple

import numpy as np
from onnx import TensorProto

from onnxq.ir.graph import Graph, Node, Value
from onnxq.ir.model import Model
from onnxq.ir.pass_manager import register_pass
from onnxq.ir.patch import Patch, named_after
from onnxq.ir.schemas import RESIZE_WITHOUT_ROI
from onnxq.ir.shape_inference.symbolic import Shapes, shapes_of
from onnxq.ops.kernels.arrays import Array
from onnxq.simplify.regions.trial_moves import MOST_ELEMENTS, VIEWS, found_by_trial

RANK, SPATIAL = 4, (2, 3)
# Those of which onnxruntime resizes tensors, see the registrations in `resize.cc` of its CPU provider
TYPES = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT32, TensorProto.INT8, TensorProto.UINT8)
NEAREST = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}


class Repeated(NamedTuple):
    """The effect of a chain: it permutes axes, and repeats each element along them."""

    perm: tuple[int, ...]
    times: tuple[int, ...]


@register_pass(order=270, opset=RESIZE_WITHOUT_ROI, note="rewrote {} Tile upsampling{s} as Resize")
def tile_to_resize(model: Model) -> Iterator[Patch]:
    """Describe one change for each chain of Tile and operators that move axes which comes to a Resize."""
    shapes = shapes_of(model)
    for graph in model.graph.graphs():
        yield from _in_graph(graph, shapes)


def _in_graph(graph: Graph, shapes: Shapes) -> Iterator[Patch]:
    taken: set[Node] = set()
    for node in graph.nodes:
        source = node.inputs[0] if node.operator in MOVES else None
        if source is None or node in taken or source.constant is not None or source.dtype not in TYPES:
            continue
        best = found_by_trial(source, shapes, partial(_longest, node))
        if best is not None:
            taken.update(best[0])
            yield _written(graph, source, *best)


def _longest(first: Node, given: Array) -> tuple[list[Node], Repeated] | None:
    """Return the longest chain that starts with a node and comes to a Resize, and what it does."""
    best: tuple[list[Node], Repeated] | None = None
    chain, array = list[Node](), given
    node: Node | None = first if given.ndim == RANK else None
    while node is not None and node.operator in MOVES:
        moved = MOVES[node.op_type](array, node)
        if moved is None or moved.size > MOST_ELEMENTS:
            break
        chain, array = [*chain, node], moved
        if any(item.op_type == "Tile" for item in chain) and (found := _repeated(given, array)) is not None:
            best = chain, found
        output = node.outputs[0]
        use = output.only_use if output is not None else None
        node = use.node if use is not None and use.slot == 0 and use.node.graph is first.graph else None
    return best


def _repeated(given: Array, array: Array) -> Repeated | None:
    """Return what makes an array of another, if repetition along one or two axes of a map and a permutation do."""
    if array.ndim != RANK:
        return None
    for perm in permutations(range(RANK)):
        turned = given.transpose(perm)
        if perm[0] or any(large % small for large, small in zip(array.shape, turned.shape, strict=True)):
            continue
        times = tuple(large // small for large, small in zip(array.shape, turned.shape, strict=True))
        wide = tuple(axis for axis, count in enumerate(times) if count > 1)
        if not wide or not (set(wide) <= {*SPATIAL} or {perm[axis] for axis in wide} <= {*SPATIAL}):
            continue
        for axis in wide:
            turned = turned.repeat(times[axis], axis)
        if np.array_equal(turned, array):
            return Repeated(perm, times)
    return None


def _written(graph: Graph, source: Value, chain: list[Node], found: Repeated) -> Patch:
    """Describe the Resize, with a Transpose on the side on which what is repeated does not lie last."""
    output = chain[-1].outputs[0]
    assert output is not None
    patch = Patch(graph, chain[-1], "it repeats elements along axes")
    moves = found.perm != tuple(range(RANK))
    behind = {axis for axis, count in enumerate(found.times) if count > 1} <= {*SPATIAL}
    times = [1.0] * RANK
    for axis, count in enumerate(found.times):
        times[axis if behind else found.perm[axis]] = float(count)
    if moves and behind:
        source = patch.op("Transpose", source, hint=f"{output.name}_turned", perm=list(found.perm))
    scales = patch.constant(np.array(times, np.float32), f"{output.name}_scales")
    hint = f"{output.name}_repeated" if moves and not behind else output.name
    result = patch.op("Resize", source, None, scales, hint=hint, **NEAREST)
    if moves and not behind:
        result = patch.op("Transpose", result, hint=output.name, perm=list(found.perm))
    named_after(patch, chain[-1])
    patch.replace(output, result)
    return patch


def _tiled(array: Array, node: Node) -> Array | None:
    times = node.inputs[1].constant if len(node.inputs) == 2 and node.inputs[1] is not None else None
    counts = times.numpy().tolist() if times is not None else []
    if len(counts) != array.ndim or min(counts) < 1 or array.size * np.prod(counts) > MOST_ELEMENTS:
        return None
    return np.tile(array, counts)


MOVES = {**VIEWS, "Tile": _tiled}
