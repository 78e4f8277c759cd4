"""Attention over values that hold the sequence on their first axis and the batch on their second.

A Transpose of queries, keys and values each puts heads in front of the sequence, as batched products want it.
onnxruntime's kernel can read them in place, without a Transpose, but only from a tensor whose axes are sequence, batch,
heads, channels. Source: FusedMatMul with `transBatchA` and `transBatchB`, 1.31, `matmul_transpose_fusion.cc`. Most of a
transformer works on each place of a sequence by itself. So the layout is changed once in front and once behind: the
attention of a MiniLM takes a fifth less, the whole model 5 %.

A minimum cut decides for which nodes the first two axes are swapped. A Transpose that a product could do without gains,
and every value between the two layouts costs a Transpose of whole rows.
"""

from __future__ import annotations

import math

import numpy as np

from onnxq.ir import Graph, Model, Node, Patch, Value, commit
from onnxq.ir.graph import Use
from onnxq.ir.min_cut import INFINITE, Flow
from onnxq.ir.pass_manager import register_pass
from onnxq.ir.schemas import MAX_BROADCASTS
from onnxq.ir.shape_inference.symbolic import Shapes
from onnxq.ir.shape_inference.types import infer_types
from onnxq.optimize.sequence_rules import FEWEST_AXES, Swappable, swappable

SWAPPED = "_sequence_first"  # behind the name of a value whose first two axes are swapped
ROWS = 1.0  # what moving whole rows takes, in relation to moving heads, at most: measured at 0.3 to 0.9
UNKNOWN_SIDE = 64
HEADS = ([0, 2, 1, 3], [0, 2, 3, 1])  # Transposes that a product can do itself if the first two axes are swapped
TURNED = [0, 1, 3, 2]  # what a product does itself in any case
SCALING = ("Div", "Mul")


@register_pass(order=30, opset=MAX_BROADCASTS, timed=True)
def put_sequence_first(model: Model) -> int:
    """Swap batch and sequence where products of attention then do without a Transpose.

    Args:
        model: A model; it is changed. Its outputs stay the same, to the bit but for what onnxruntime's kernels for
            products in another layout round otherwise.

    Returns:
        How many Transposes products do without; some are added where the layouts meet.

    """
    if not any(_spared(node) for node in model.graph.nodes):
        return 0
    infer_types(model)
    layout = _Layout(model.graph, Shapes(model.graph, model.opset))
    spared = sum(_spared(node) for node in layout.reads if layout.reads_swapped(node))
    commit(layout.patches())
    commit([patch for node in model.graph.nodes if (patch := layout.permuted(node)) is not None])
    return spared


class _Layout:
    """Which values of a graph have their first two axes swapped.

    A node that works on any layout has one place in the cut; a Transpose has one for its input and one for its
    output.

    Attributes:
        reads, makes: Places of nodes that can read and make swapped values.
        ways: What has to change with those that are no Transpose.

    """

    def __init__(self, graph: Graph, shapes: Shapes) -> None:
        self.graph, self.shapes = graph, shapes
        self.reads: dict[Node, int] = {}
        self.makes: dict[Node, int] = {}
        self.ways: dict[Node, Swappable] = {}
        flow = Flow()
        for node in graph.nodes:
            self._enter(node, flow)
        self._values = [value for value in graph.values.values() if value.tensor is None and self._rank(value) > 2]
        for value in self._values:
            self._connect(value, flow)
        self._chosen = flow.source_side()

    def _rank(self, value: Value | None) -> int:
        return len(self.shapes.of(value) or ())

    def _enter(self, node: Node, flow: Flow) -> None:
        if any(value is not None and value.is_output for value in node.outputs):
            return
        way = swappable(node, self.shapes)
        if way is not None:
            self.ways[node] = way
            self.reads[node] = self.makes[node] = flow.node()
        elif node.op_type == "Transpose" and not node.domain and self._rank(node.inputs[0]) >= FEWEST_AXES:
            self.reads[node], self.makes[node] = flow.node(), flow.node()
            if _spared(node):
                flow.edge(0, self.reads[node], self._size(node.inputs[0]))

    def _connect(self, value: Value, flow: Flow) -> None:
        """Let it cost a Transpose where some of those that make and read a value have it swapped and others not."""
        maker = self._maker(value)
        places = {self._reader(use) for use in value.uses if not _takes_shape(use.node)} | (
            {1} if value.is_output else set()
        )
        if not places - {maker}:
            return
        cost = ROWS * self._size(value)
        made, read = flow.node(), flow.node()
        if maker != 1:
            flow.edge(maker, made, cost)
        flow.edge(read, maker, cost)
        for place in sorted(places):
            flow.edge(made, place, INFINITE)
            if place != 1:
                flow.edge(place, read, INFINITE)

    def _maker(self, value: Value) -> int:
        return self.makes.get(value.producer, 1) if value.producer is not None else 1

    def _reader(self, use: Use) -> int:
        way = self.ways.get(use.node)
        return 1 if way is not None and use.slot not in way.slots else self.reads.get(use.node, 1)

    def _size(self, value: Value | None) -> int:
        shape = self.shapes.of(value) or ()
        return math.prod(size.known or UNKNOWN_SIDE for size in shape[2:])

    def reads_swapped(self, node: Node) -> bool:
        """Whether a node reads values whose first two axes are swapped."""
        return self.reads.get(node) in self._chosen

    def patches(self) -> list[Patch]:
        """Describe everything but the Transposes that are there already."""
        patches = [patch for value in self._values if (patch := self._converted(value)) is not None]
        for node, way in self.ways.items():
            if self.reads_swapped(node):
                patch = Patch(self.graph, node, f"put the sequence first in {node.label}")
                for slot, array in way.constants.items():
                    old = node.inputs[slot]
                    assert old is not None
                    patch.rewire(node, slot, patch.constant(array, old.name + SWAPPED))
                patches.append(patch)
        return patches

    def _converted(self, value: Value) -> Patch | None:
        """Put a Transpose in front of readers of the other layout, and rename a swapped value."""
        swapped = self._maker(value) in self._chosen
        others = [
            use for use in value.uses if (self._reader(use) in self._chosen) != swapped and not _takes_shape(use.node)
        ]
        if not swapped and not others:
            return None
        patch = Patch(self.graph, value.producer or self.graph.nodes[0], f"put the sequence first in '{value.name}'")
        order = [1, 0, *range(2, self._rank(value))]
        if others:
            hint = f"{value.name}_batch_first" if swapped else value.name + SWAPPED
            converted = patch.op("Transpose", value, hint=hint, perm=order)
            for use in others:
                patch.rewire(use.node, use.slot, converted)
        if swapped:
            patch.rename(value, value.name + SWAPPED)
            for node in filter(_takes_shape, value.consumers()):
                result = node.outputs[0]
                assert result is not None
                sizes = patch.op("Shape", value, hint=result.name + SWAPPED)
                places = patch.constant(np.array(order, np.int64), f"{result.name}_order")
                patch.replace(result, patch.op("Gather", sizes, places, hint=result.name, axis=0))
            if value.shape is not None:
                value.shape = tuple(value.shape[axis] for axis in order)
        return patch

    def permuted(self, node: Node) -> Patch | None:
        """Let a Transpose read and make what it does in the layouts of the values on both sides."""
        source, result = (node.inputs[0], node.outputs[0]) if node in self.reads else (None, None)
        if node in self.ways or source is None or result is None:
            return None
        axes = list(range(self._rank(source)))
        order = old = [int(axis) for axis in node.attribute("perm") or axes[::-1]]
        if self.reads_swapped(node):
            order = [{0: 1, 1: 0}.get(axis, axis) for axis in order]
        if self.makes[node] in self._chosen:
            order = [order[1], order[0], *order[2:]]
        if order == old:
            return None
        patch = Patch(self.graph, node, f"let {node.label} read the sequence first")
        made = source if order == axes else patch.op("Transpose", source, hint=result.name, perm=order)
        patch.replace(result, made)
        return patch


def _takes_shape(node: Node) -> bool:
    """Whether a node tells the sizes of all axes."""
    return node.op_type == "Shape" and not node.domain and not node.spans


def _spared(node: Node) -> bool:
    """Whether a Transpose brings heads to the front that nothing but products of two activations read."""
    if node.op_type != "Transpose" or node.domain or node.attribute("perm") not in HEADS or node.outputs[0] is None:
        return False
    pending, products = [node.outputs[0]], 0
    while pending:
        value = pending.pop()
        for use in value.uses:
            if use.node.op_type == "MatMul" and not use.node.domain and not use.node.constants:
                products += 1
            elif _passed(use.node):
                pending += use.node.makes
            else:
                return False
        if value.is_output:
            return False
    return products > 0


def _passed(node: Node) -> bool:
    """Whether onnxruntime computes a node together with the product behind: it scales everything, or turns matrices."""
    if node.op_type in SCALING and not node.domain:
        return [constant.size for constant in node.constants] == [1]
    return node.op_type == "Transpose" and not node.domain and node.attribute("perm") == TURNED
