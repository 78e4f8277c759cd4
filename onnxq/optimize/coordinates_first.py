"""Boxes and other short rows, taken apart and joined along an axis that lies in front of all others.

Detectors keep the coordinates of thousands of boxes on a last axis of 4. They split and join centres, sizes and corners
along it. There onnxruntime (1.31) copies each row's part by itself, 7 nanoseconds each. Along the first axis a part
lies in one piece. So these nodes get coordinates in front, if that is worth a Transpose of their inputs and outputs.
A face detector takes 0.98 of the time. A Reshape behind each Transpose keeps onnxruntime from merging them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from onnxq.ir import Graph, Model, Node, Patch, Value
from onnxq.ir.pass_manager import register_pass
from onnxq.ir.patch import named_after
from onnxq.ir.shape_inference.dims import Shape
from onnxq.ir.shape_inference.rules import slices
from onnxq.ir.shape_inference.symbolic import Shapes
from onnxq.optimize.sequence_rules import ELEMENTWISE

MOST = 8  # coordinates; from there on rows are copied fast enough
PARTS = ("Concat", "Slice", "Split")
COPY, ENTER, LEAVE, NODE = 7.0, 0.7, 1.2, 2000.0  # nanoseconds: a part of a row, an element twice, a node
LEAST_SAVED = 10_000.0  # nanoseconds
AXES_AS_INPUT = 10  # of Slice, from this operator set on


@register_pass(order=140, timed=True, operators=("Conv",), types=True)
def put_coordinates_first(model: Model) -> Iterator[Patch]:
    """Compute with coordinates in front where rows are taken apart and joined.

    Args:
        model: A model whose types are inferred. Its results stay the same to the bit.

    """
    for graph in model.graph.graphs():
        if any(node.op_type in PARTS and not node.domain for node in graph.nodes):
            regions = _regions(graph, Shapes(graph, model.opset))
            yield from (_written(region, model.opset) for region in regions if region.saved >= LEAST_SAVED)


@dataclass
class _Region:
    """Nodes that work on rows of as many boxes.

    Attributes:
        lead: The axes in front of the last.
        nodes: Those that work on such rows alone, in their order.
        last: How long the last axis of each value is that they read or make.

    """

    graph: Graph
    lead: Shape
    nodes: list[Node] = field(default_factory=list)
    last: dict[Value, int] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """How many rows there are, open sizes counted as one."""
        return math.prod(size.known or 1 for size in self.lead)

    def entering(self) -> list[Value]:
        """Return the values that the nodes read from others."""
        inside = set(self.nodes)
        return [value for value in self.last if value.producer not in inside]

    def leaving(self) -> list[Value]:
        """Return the values of the nodes that others read."""
        inside = set(self.nodes)
        made = [value for value in self.last if value.producer in inside]
        return [value for value in made if value.is_output or any(use.node not in inside for use in value.uses)]

    @property
    def saved(self) -> float:
        """Nanoseconds that are saved."""
        parts = [node for node in self.nodes if node.op_type in PARTS]
        pieces = sum(len(node.inputs if node.op_type == "Concat" else node.outputs) for node in parts)
        moved = ((ENTER, self.entering()), (LEAVE, self.leaving()))
        spent = sum(2 * NODE + cost * self.rows * self.last[value] for cost, values in moved for value in values)
        return COPY * self.rows * pieces - spent


def _regions(graph: Graph, shapes: Shapes) -> Iterator[_Region]:
    """Join nodes that pass rows on to one another."""
    fitting: dict[Node, _Region] = {}
    for node in graph.nodes:
        alone = _alone(node, shapes)
        if alone is not None:
            fitting[node] = alone
    seen: set[Node] = set()
    for node, region in fitting.items():
        if node in seen or node.op_type not in PARTS:
            continue
        inside, pending = {node}, [node]
        while pending:
            for other in _neighbours(pending.pop(), region):
                if other in fitting and other not in inside and fitting[other].lead == region.lead:
                    inside.add(other)
                    pending.append(other)
                    region.last |= fitting[other].last
        region.nodes = [one for one in fitting if one in inside]
        seen |= inside
        yield region


def _neighbours(node: Node, region: _Region) -> Iterator[Node]:
    for value in (*node.inputs, *node.outputs):
        if value is not None and value in region.last:
            yield from value.consumers()
            if value.producer is not None:
                yield value.producer


def _alone(node: Node, shapes: Shapes) -> _Region | None:
    """Describe what a node works on if it treats all rows alike; None where it does not, or its sizes are open."""
    elementwise = node.op_type in ELEMENTWISE and not {"axis", "broadcast"} & set(node.spans)
    supported = elementwise or (node.op_type in PARTS and _along_last(node, shapes))
    data = node.reads
    data = data[:1] if node.op_type in ("Slice", "Split") else [value for value in data if value.constant is None]
    if node.domain or not supported or not data or None in node.outputs:
        return None
    values = dict.fromkeys([*data, *node.makes])
    dims = {value: shapes.of(value) for value in values}
    first = dims[data[0]]
    if first is None or len(first) < 2 or sum(size.known is None for size in first[:-1]) > 1:
        return None
    region = _Region(node.graph, first[:-1])
    for value, shape in dims.items():
        last = shape[-1].known if shape else None
        if shape is None or shape[:-1] != region.lead or last is None or not 0 < last <= MOST:
            return None
        if value.graph is not node.graph or value.constant is not None:
            return None
        region.last[value] = last
    fits = all(_placed(value, region.lead) is not None for value in _constants(node))
    return region if fits else None


def _along_last(node: Node, shapes: Shapes) -> bool:
    """Whether a node takes apart or joins along the last axis, by constants."""
    rank = len(shapes.of(node.inputs[0]) or ())
    if node.op_type == "Concat":
        return rank > 0 and int(node.attribute("axis")) % rank == rank - 1 and not _constants(node)
    if any(value is None or value.constant is None for value in node.inputs[1:]):
        return False
    if node.op_type == "Split":
        return rank > 0 and int(node.attribute("axis", 0)) % rank == rank - 1
    found = slices(shapes, node, rank) if rank else None
    return found is not None and [axis for axis, *_ in found] == [rank - 1]


def _constants(node: Node) -> list[Value]:
    """Return the constants that a node computes with."""
    if node.op_type in ("Slice", "Split"):
        return []
    return [value for value in node.reads if value.constant is not None]


def _placed(value: Value, lead: Shape) -> np.ndarray | None:
    """Return a constant as `[last, rows]`, each 1 where it is the same for all; None where it does not fit."""
    array = value.elements.numpy()
    if array.ndim > len(lead) + 1:
        return None
    array = array.reshape((1,) * (len(lead) + 1 - array.ndim) + array.shape)
    sizes = array.shape[:-1]
    if all(size == 1 for size in sizes):
        return np.ascontiguousarray(array.reshape(1, -1).T)
    known = tuple(size.known or 0 for size in lead)
    if any(size not in (1, wanted) for size, wanted in zip(sizes, known, strict=True)) or 0 in known:
        return None
    array = np.broadcast_to(array, (*known, array.shape[-1]))
    return np.ascontiguousarray(array.reshape(-1, array.shape[-1]).T)


def _written(region: _Region, opset: int) -> Patch:
    """Describe the nodes with coordinates in front."""
    rank = len(region.lead) + 1
    patch = Patch(region.graph, region.nodes[0], "coordinates lie in front")
    first: dict[Value, Value] = {}
    for value in region.entering():
        moved = patch.op("Transpose", value, hint=f"{value.name}_moved", perm=[rank - 1, *range(rank - 1)])
        flat = patch.constant(np.array([region.last[value], -1], np.int64), f"{value.name}_flat")
        first[value] = patch.op("Reshape", moved, flat, hint=f"{value.name}_coordinates_first")
    for node in region.nodes:
        inputs = [_given(patch, node, slot, first, region, opset) for slot in range(len(node.inputs))]
        attributes = node.attributes() | ({"axis": 0} if node.op_type in ("Concat", "Split") else {})
        if node.op_type == "Slice" and opset < AXES_AS_INPUT:
            attributes["axes"] = [0]
        outputs = node.makes
        hints = [f"{value.name}_coordinates_first" for value in outputs]
        made = patch.node(node.op_type, inputs, outputs=hints, **attributes)
        named_after(patch, node)
        first |= dict(zip(outputs, made, strict=True))
    for value in region.leaving():
        sizes = [-1 if size.known is None else size.known for size in region.lead]
        shape = patch.constant(np.array([region.last[value], *sizes], np.int64), f"{value.name}_sizes")
        back = patch.op("Reshape", first[value], shape, hint=f"{value.name}_rows")
        patch.replace(value, patch.op("Transpose", back, hint=value.name, perm=[*range(1, rank), 0]))
    return patch


def _given(patch: Patch, node: Node, slot: int, first: dict[Value, Value], region: _Region, opset: int) -> Value | None:
    """Return what a node reads now in place of one of its inputs."""
    value = node.inputs[slot]
    if value is None or value in first:
        return first[value] if value is not None else None
    if node.op_type == "Slice" and slot == 3:
        return patch.constant(np.zeros(1, value.elements.numpy().dtype), f"{value.name}_first")
    if node.op_type in ("Slice", "Split") or (value.constant is not None and not value.constant.shape):
        return value
    array = _placed(value, region.lead)
    assert array is not None
    return patch.constant(array if array.size > 1 else array.reshape(()), f"{value.name}_coordinates_first")
