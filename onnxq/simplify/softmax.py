"""Exponentials divided by their sum along an axis, spelled out, become Softmax; their logarithms LogSoftmax."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from onnxq.ir.graph import Graph, Node, Value
from onnxq.ir.model import Model
from onnxq.ops.arrays import Array
from onnxq.simplify.registry import Change, simplifies
from onnxq.simplify.rowwise import MOST_ELEMENTS, UNKNOWN, Region, find_regions, replace_region

SAYS = "wrote {} softmax function{s} as one operator"
OPSET = 13  # before, Softmax runs over all axes from `axis` on, which is the same for the last one
TOLERANCE = 1e-5  # of each element; for LogSoftmax of the largest one of a row
EXPONENTIALS = frozenset(("Exp", "ReduceLogSumExp"))


@simplifies(order=41)
def softmax(model: Model) -> Iterator[Change]:
    """Describe one change for each softmax that is spelled out, however it is.

    exp(x)/Σexp(x) along one axis, the maximum taken off x before or not: where it is not, the operator gives a result
    where the sum of the exponentials overflows.
    """
    for graph in model.graph.graphs():
        yield from _in_graph(graph, model.opset)


def _in_graph(graph: Graph, opset: int) -> Iterator[Change]:
    taken: set[Node] = set()
    for region in find_regions(graph, opset):
        found = _recognise(region, taken)
        if found is not None:
            exit, shapes, op_type, axis = found
            taken |= region.cone(exit)
            patch = replace_region(region, exit, shapes, "it is a softmax")
            patch.replace(exit, patch.op(op_type, region.entry, hint=exit.name, axis=axis))
            yield Change(patch, SAYS, 0 if axis == len(region.shape) - 1 else OPSET)


def _recognise(region: Region, taken: set[Node]) -> tuple[Value, list[Node], str, int] | None:
    """Find the last value of a region that is Softmax or LogSoftmax of its entry; with the operator and its axis."""
    wide = [axis for axis in region.axes if region.shape[axis] != 1]
    if len(wide) != 1 or not any(step.node.op_type in EXPONENTIALS for step in region.steps):
        return None
    rows = _rows(region.probe_shape(UNKNOWN), wide[0])
    if rows.size > MOST_ELEMENTS:
        return None
    results = None
    for exit, shapes in region.exits():
        if taken.isdisjoint(region.cone(exit)):
            results = region.run(rows) if results is None else results
            op_type = _function(rows, results[exit], wide[0] + 1) if exit in results else None
            if op_type is not None:
                return exit, shapes, op_type, wide[0]
    return None


def _rows(shape: tuple[int, ...], axis: int) -> Array:
    """Give probes [probe, *shape]: equal elements, and rows of different spread, around zero and far from it."""
    count = shape[axis]
    noise = np.random.default_rng(0).standard_normal((6, count))
    spread = np.array([[0], [0.01], [1], [6], [1], [1]])
    offset = np.array([[1], [0], [0], [0], [-60], [60]])  # an ε in the sum would show
    size = [count if other == axis else 1 for other in range(len(shape))]
    rows = np.clip(noise * spread, -20, 20) + offset
    return np.array(np.broadcast_to(rows.reshape(len(rows), *size), (len(rows), *shape)))


def _function(rows: Array, result: Array, axis: int) -> str | None:
    """Tell which function of the probes a result is."""
    shifted = rows - rows.max(axis, keepdims=True)
    logarithm = shifted - np.log(np.exp(shifted).sum(axis, keepdims=True))
    exponential = np.exp(logarithm)
    if (np.abs(result - exponential) <= TOLERANCE * exponential).all():
        return "Softmax"
    if (np.abs(result - logarithm) <= TOLERANCE * np.abs(logarithm).max(axis, keepdims=True)).all():
        return "LogSoftmax"
    return None
