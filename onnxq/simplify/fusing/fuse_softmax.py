"""Fuse a decomposed Softmax: exponentials divided by their sum along an axis; their logarithms are LogSoftmax."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from onnxq.ir.graph import Graph, Node
from onnxq.ir.model import Model
from onnxq.ir.pass_manager import Change, register_pass
from onnxq.ir.patch import named_after
from onnxq.ops.kernels.arrays import Array
from onnxq.simplify.cleanup.softmax_last_axis import can_turn, wide_behind
from onnxq.simplify.regions.find_reduction_regions import find_regions
from onnxq.simplify.regions.reduction_region import MOST_ELEMENTS, Exit, Region, pays, replace_region

OPSET = 13  # before, Softmax runs over all axes from `axis` on, which is the same for the last one
TOLERANCE = 1e-5  # of each element; for LogSoftmax of the largest one of a row
PROBES = 8
EXPONENTIALS = frozenset(("Exp", "ReduceLogSumExp"))


@register_pass(order=150, note="fused {} decomposed Softmax")
def fuse_softmax(model: Model) -> Iterator[Change]:
    """Describe one change for each decomposed softmax, in any spelling.

    exp(x)/Σexp(x) along one axis, with or without the maximum subtracted from x before. Without it, the sum of the
    exponentials may overflow; the operator then gives a result where the nodes gave none.
    """
    for graph in model.graph.graphs():
        yield from _in_graph(model, graph)


def _in_graph(model: Model, graph: Graph) -> Iterator[Change]:
    taken: set[Node] = set()
    for region in find_regions(model, graph):
        found = _recognise(region, taken)
        if found is not None:
            exit, op_type, axis = found
            taken.update(step.node for step in exit.steps)
            patch = replace_region(region, exit, "it is a softmax")
            patch.replace(exit.value, patch.op(op_type, region.entry, hint=exit.value.name, axis=axis))
            named_after(patch, exit.steps[-1].node)
            yield Change(patch, opset=OPSET if wide_behind(region.shape, axis) else 0)


def _recognise(region: Region, taken: set[Node]) -> tuple[Exit, str, int] | None:
    """Find the last value of a region that is Softmax or LogSoftmax of its entry; with the operator and its axis."""
    wide = [axis for axis in region.axes if region.shape[axis] != 1]
    if len(wide) != 1 or not _pays(region, wide[0]):
        return None
    if not any(step.node.op_type in EXPONENTIALS for step in region.steps):
        return None
    for exit in region.exits(taken):
        shape = region.probe_shape(exit.steps)
        if PROBES * math.prod(shape) <= MOST_ELEMENTS:
            rows = _rows(shape, wide[0])
            result = region.run(exit.steps, rows)
            op_type = _function(rows, result, wide[0] + 1) if result is not None else None
            if op_type is not None:
                return exit, op_type, wide[0]
    return None


def _pays(region: Region, axis: int) -> bool:
    """Whether one operator is faster than the decomposed form; `softmax_last_axis.py` is about axes in the middle."""
    few_behind = wide_behind(region.shape, axis) <= 1
    return pays(region, [axis]) and (few_behind or can_turn(region.shape, axis))


def _rows(shape: tuple[int, ...], axis: int) -> Array:
    """Return probes [probe, *shape]: equal elements, and rows of different spread, around zero and far from it."""
    count = shape[axis]
    noise = np.random.default_rng(0).standard_normal((PROBES, count))
    spread = np.array([[0], [0.01], [1], [6], [1], [1], [1], [1]])
    offset = np.array([[1], [0], [0], [0], [-60], [60], [-300], [300]])  # an ε in the sum, and any limit, would show
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
