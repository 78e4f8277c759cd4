"""Sizes of axes as products of numbers and symbols, so that two tensors can be proved to have the same shape.

ONNX shape inference invents a new name where it cannot tell a size, and trusts that inputs keep to the names that they
state. Here a symbol stands for one axis of one tensor, and sizes that come from `Shape` are followed through the
integer arithmetic around it.
"""

from __future__ import annotations

from onnx import TensorProto

from onnxq.ir.graph import Graph, Node, Value
from onnxq.ir.model import Model
from onnxq.ir.shape_inference.dims import Shape, Size, fresh
from onnxq.ir.shape_inference.rules import RULES
from onnxq.ir.shape_inference.values import MOST_CONTENT, content_of

INTEGERS = (TensorProto.INT64, TensorProto.INT32)


class Shapes:
    """Shapes of the values of a main graph, and what is in its small integer vectors.

    Args:
        graph: The graph, types inferred.
        opset: Its operator set.

    """

    def __init__(self, graph: Graph, opset: int) -> None:
        self.opset = opset
        self._shapes: dict[Value, Shape | None] = {}
        self._contents: dict[Value, Shape] = {}
        for node in graph.nodes:
            for output in node.outputs:
                if output is not None:
                    self._shapes[output] = self._merged(output, self._shape(node, output))
            found = content_of(self, node)
            if found is not None and node.outputs[0] is not None:
                self._contents[node.outputs[0]] = found

    def of(self, value: Value | None) -> Shape | None:
        """Return a shape; None where the rank is unknown."""
        if value is None:
            return None
        if value not in self._shapes:
            self._shapes[value] = self._merged(value, None)
        return self._shapes[value]

    def content(self, value: Value | None) -> Shape | None:
        """Return the elements of an integer vector or scalar, as far as they are followed."""
        if value is None:
            return None
        tensor = value.constant
        if tensor is not None and tensor.dtype in INTEGERS and tensor.size <= MOST_CONTENT:
            return tuple(Size(int(item)) for item in tensor.numpy().reshape(-1))
        return self._contents.get(value)

    def numbers(self, value: Value | None) -> list[int] | None:
        """Return the elements of an integer constant."""
        content = self.content(value)
        if content is None or any(item.known is None for item in content):
            return None
        return [item.number for item in content]

    def axes(self, node: Node, slot: int = 1) -> list[int] | None:
        """Return axes stated as an input or, in older operator sets, as an attribute; None where neither is known."""
        if node.input(slot) is not None:
            return self.numbers(node.inputs[slot])
        axes = node.attribute("axes")
        return None if axes is None else [int(axis) for axis in axes]

    def _merged(self, value: Value, ours: Shape | None) -> Shape | None:
        """Prefer numbers of shape inference; what a file states about its outputs is not believed."""
        if value.tensor is not None and value.constant is not None:
            return tuple(Size(size) for size in value.tensor.shape)
        theirs = value.shape
        if theirs is None or (ours is not None and len(ours) != len(theirs)):
            return ours
        believed = not (value.is_output and value.producer is not None)
        return tuple(
            Size(size) if isinstance(size, int) and believed else ours[axis] if ours is not None else fresh(value, axis)
            for axis, size in enumerate(theirs)
        )

    def _shape(self, node: Node, output: Value) -> Shape | None:
        rule = RULES.get(node.op_type)
        if node.domain or rule is None or (output is not node.outputs[0] and node.op_type != "Split"):
            return None
        shapes = [self.of(value) for value in node.inputs]
        if not shapes or shapes[0] is None:
            return None
        try:
            return rule(self, node, output, shapes)
        except (IndexError, TypeError):  # an input of a rank that the operator does not take, or of unknown rank
            return None


def shapes_of(model: Model, graph: Graph | None = None) -> Shapes:
    """Return the shapes of a model's main graph, found once until something changes, or those of a body.

    Args:
        model: The model.
        graph: The body.

    """
    if not model.is_typed or (graph is not None and graph is not model.graph):
        return Shapes(graph or model.graph, model.opset)
    known = model.symbolic
    if known is None or known[0] is not model.typed:
        known = model.symbolic = model.typed, Shapes(model.graph, model.opset)
    shapes: Shapes = known[1]
    return shapes
