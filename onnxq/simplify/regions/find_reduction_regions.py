"""Find the regions of a graph that compute something along axes of one value: grown from the reductions in it.

Tests: `tests/simplify/test_fuse_layer_normalization.py`.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from onnx import TensorProto

from onnxq.evaluator.schedule import bind
from onnxq.ir import Graph, Model, Node, Value
from onnxq.ir.operator_traits import Trait, operators_with
from onnxq.ir.schemas import BROADCASTING
from onnxq.ir.shape_inference.symbolic import shapes_of
from onnxq.ops.kernels.arrays import Array
from onnxq.ops.kernels.registry import find_kernel
from onnxq.simplify.regions.axis_tracking import CASTS, VIEWS, AxisLayout, aligned, dims_of, reduced_axes, view
from onnxq.simplify.regions.constant_values import known_array
from onnxq.simplify.regions.reduction_region import POOLS, REDUCTIONS, Region, RegionStep

FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE)
AXES_AS_INPUT = 18  # from this operator set on the kernels of all reductions take axes as an input
MOST_NODES = 64  # longest spelling seen in exports: 30 nodes
ELEMENTWISE = operators_with(Trait.ELEMENTWISE) - CASTS
# Their behaviour can change beyond the probes: they may work on reduced values only, whose probes cover float32.
KINKED = operators_with(Trait.KINKED)


def find_regions(model: Model, graph: Graph) -> Iterator[Region]:
    """Visit the regions of a graph (its bodies not included) around each reduction, in graph order.

    A region's entry is what the reduction reads, or what the operator before reads.
    """
    opset = model.opset
    if opset < BROADCASTING:
        return
    reductions = [node for node in graph.nodes if node.op_type in REDUCTIONS and not node.domain and node.inputs[0]]
    if not reductions:
        return
    position = {node: index for index, node in enumerate(graph.nodes)}
    shapes = shapes_of(model, graph)
    for node in reductions:
        source = node.inputs[0]
        dims = dims_of(source, shapes)
        found = reduced_axes(node, None if dims is None else len(dims))
        if source is None or dims is None or not found:
            continue
        before = source.producer
        earlier = before.inputs if before is not None and _is_elementwise(before) else []
        for entry in dict.fromkeys((source, *earlier)):
            shape = dims_of(entry, shapes)
            if entry is None or shape is None or entry.constant is not None or entry.dtype not in FLOATS:
                continue
            if len(shape) == len(dims):
                yield _grow(Region(entry, found, opset, shapes), graph, position)


def _is_elementwise(node: Node) -> bool:
    return not node.domain and node.op_type in ELEMENTWISE


def _grow(region: Region, graph: Graph, position: Mapping[Node, int]) -> Region:
    """Take in every node whose inputs are in the region or constants, in graph order."""
    region.traced[region.entry] = AxisLayout(tuple(range(len(region.shape))))
    waiting: list[int] = []
    seen: set[Node] = set()
    _announce(region.entry, position, waiting, seen)
    while waiting and len(region.steps) < MOST_NODES:
        node = graph.nodes[heapq.heappop(waiting)]
        step = _step(node, region)
        if step is not None:
            region.steps.append(step)
            _announce(step.output, position, waiting, seen)
    return region


def _announce(value: Value, position: Mapping[Node, int], waiting: list[int], seen: set[Node]) -> None:
    for node in value.consumers():
        if node in position and node not in seen:
            seen.add(node)
            heapq.heappush(waiting, position[node])


def _step(node: Node, region: Region) -> RegionStep | None:
    """Take a node into the region, or leave it out."""
    output = node.outputs[0] if node.outputs else None
    if node.domain or node.bodies or output is None or any(node.outputs[1:]):
        return None
    if output.dtype not in (region.entry.dtype, TensorProto.BOOL):
        return None
    if node.op_type in ELEMENTWISE:
        return _elementwise(node, output, region)
    if node.op_type in REDUCTIONS:
        return _reduction(node, output, region)
    source = node.inputs[0] if node.inputs else None
    traced = region.traced.get(source) if source is not None else None
    if source is None or traced is None or node.op_type not in VIEWS | CASTS:
        return None
    laid_out = view(node, traced, region.shape, region.axes, region.shapes)
    if laid_out is None:
        return None
    region.traced[output] = laid_out
    return RegionStep(node, output, (source,), lambda array: array)


def _elementwise(node: Node, output: Value, region: Region) -> RegionStep | None:
    kernel = find_kernel(node.op_type, "", region.opset)
    call = None if kernel is None else bind(kernel, node)
    known = [region.traced[value] for value in node.reads if value in region.traced]
    if call is None or not known:
        return None
    widest = max(known, key=lambda item: len(item.layout))
    if any(item.layout != widest.layout[len(widest.layout) - len(item.layout) :] for item in known):
        return None  # axes that broadcasting pairs are not the same
    narrow = frozenset.intersection(*(item.narrow for item in known))
    sources: list[Value | Array | None] = []
    for value in node.inputs:
        if value is None or value in region.traced:
            sources.append(value)
            continue
        array = aligned(known_array(value, region.shapes), widest.layout, region.shape)
        if array is None:
            return None
        narrow -= {axis for axis, size in enumerate(array.shape[1:]) if size > 1}
        sources.append(array)
    if not set(region.axes) - set(widest.layout) <= narrow:
        return None
    reduced = frozenset(region.axes)
    if node.op_type in KINKED and not reduced <= narrow:
        return None
    condition = node.inputs[0] if node.op_type == "Where" else None
    if condition is not None and not reduced <= region.traced[condition].narrow:  # no constant is a condition
        return None
    region.traced[output] = AxisLayout(widest.layout, narrow)
    return RegionStep(node, output, tuple(sources), call)


def _reduction(node: Node, output: Value, region: Region) -> RegionStep | None:
    source = node.inputs[0]
    traced = region.traced.get(source) if source is not None else None
    kernel = find_kernel(POOLS.get(node.op_type, node.op_type), "", AXES_AS_INPUT)
    rank = len(region.shape)
    if source is None or traced is None or kernel is None or len(traced.layout) != rank:
        return None
    if reduced_axes(node, rank) != region.axes:
        return None
    wide = [axis for axis in region.axes if axis not in traced.narrow]
    layout = traced.layout if node.attribute("keepdims", 1) else tuple(a for a in traced.layout if a not in region.axes)

    def reduce(array: Array) -> Any:
        shape = list(array.shape)
        for axis in wide:
            shape[axis + 1] = region.length(axis)
        return kernel(np.broadcast_to(array, shape), np.array(region.axes, np.int64) + 1, keepdims=1)

    region.traced[output] = AxisLayout(layout, frozenset(region.axes))
    return RegionStep(node, output, (source,), reduce)
