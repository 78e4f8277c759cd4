"""Common-subexpression elimination over sizes: one mask for all layers, not one in each.

An exporter writes a module each time that it is called. So every layer asks for the sizes of its own input, and
computes shapes, positions and masks from them. If the sizes are proved to be equal, so is all that is computed from
them and from constants. Values that depend on data are left alone: with more readers, they could be quantized in
another way.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator

import numpy as np
import onnx

from onnxq.ir.graph import Graph, Node, Value
from onnxq.ir.model import Model
from onnxq.ir.pass_manager import Change, register_pass
from onnxq.ir.patch import Patch
from onnxq.ir.schemas import RANDOM
from onnxq.ir.shape_inference.dims import Shape, product
from onnxq.ir.shape_inference.symbolic import INTEGERS, Shapes, shapes_of
from onnxq.ir.shape_inference.values import MOST_CONTENT
from onnxq.ir.tensor import ArrayTensor
from onnxq.simplify.regions.constant_values import ARITHMETIC, known_array

KNOWN = "folded {} operator{s} on known sizes"
ASKED = "let {} Shape read an input of the same sizes"
SIZES = frozenset(("Shape", "Size"))
MAKERS = SIZES | {"ConstantOfShape", "EyeLike", "Range"}  # without any of them, nothing is computed from sizes
APART = RANDOM | {"DequantizeLinear", "Dropout", "DynamicQuantizeLinear", "QuantizeLinear"}
PLACED = ARITHMETIC | {"Mod", "Slice", "Transpose"}  # with which paddings are computed: PyTorch writes them in pairs
SMALL = 1024  # bytes of a constant that is compared by what is in it


@register_pass(order=60, note="removed {} repeated shape computation{s}")
def share_shape_computations(model: Model) -> Iterator[Change]:
    """Describe one change for each node of the main graph that computes from sizes what is there, or is a constant."""
    graph = model.graph
    if any(node.op_type in MAKERS and not node.domain for node in graph.nodes):
        yield from _Sizes(graph, shapes_of(model)).changes()


class _Sizes:
    """Values that follow from sizes and constants, and which of them are equal."""

    def __init__(self, graph: Graph, shapes: Shapes) -> None:
        self._graph = graph
        self._shapes = shapes
        self._kept: dict[Value, Value] = {}  # one that goes → an equal one that stays
        self._first: dict[Hashable, Node] = {}  # what is computed → the node that does it first
        self._derived: set[Value] = set()
        self._inputs: dict[Shape, Value] = {}
        for value in graph.inputs:
            shape = shapes.of(value)
            if shape is not None:
                self._inputs.setdefault(shape, value)

    def changes(self) -> Iterator[Change]:
        """Go through the graph in order."""
        for node in self._graph.nodes:
            if self._follows(node):
                yield from self._change(node)

    def _follows(self, node: Node) -> bool:
        """Whether a node gives the same wherever sizes and small constants are the same."""
        if node.domain or node.op_type in APART or node.bodies or any(v and v.dtype is None for v in node.outputs):
            return False
        if node.op_type in SIZES:
            return True
        given = node.reads
        if any(value in self._derived for value in given):
            return all(value in self._derived or value.constant is not None for value in given)
        return bool(given) and all(_is_small(value) for value in given)

    def _change(self, node: Node) -> Iterator[Change]:
        outputs = node.makes
        self._derived.update(outputs)
        known = self._known(node)
        first = self._first.setdefault(self._computed(node), node)
        seen = any(value.is_output for value in outputs)
        if first is not node and not seen and _alike(first, node):
            patch = Patch(node.graph, node, "it has been computed before")
            for old, new in zip(node.outputs, first.outputs, strict=True):
                if old is not None and new is not None:
                    self._kept[old] = new
                    patch.replace(old, new)
            yield Change(patch)
        elif known is not None and not seen:
            patch = Patch(node.graph, node, "its sizes are known")
            patch.freeze(outputs[0], ArrayTensor(known))
            yield Change(patch, KNOWN)
        elif node.op_type == "Shape":
            yield from self._asked(node)

    def _asked(self, node: Node) -> Iterator[Change]:
        """Let a Shape read an input of the same shape: what it reads inside may then be fused with what follows."""
        source, shape = node.inputs[0], self._shapes.of(node.inputs[0])
        same = self._inputs.get(shape) if shape is not None else None
        if same is not None and same is not source and source is not None and not source.is_input:
            patch = Patch(node.graph, node, "an input has the same shape")
            patch.rewire(node, 0, same)
            yield Change(patch, ASKED)

    def _known(self, node: Node) -> np.ndarray | None:
        """Return the elements of a node's output where they are numbers."""
        output = node.outputs[0]
        numbers, shape = self._shapes.numbers(output), self._shapes.of(output)
        if shape is None or output is None or output.dtype is None:
            return None
        dtype = onnx.helper.tensor_dtype_to_np_dtype(output.dtype)
        if numbers is not None:
            return np.array(numbers, dtype).reshape([size.number for size in shape])
        if output.dtype not in INTEGERS or product(shape).known is None or product(shape).number > MOST_CONTENT:
            return None
        array = known_array(output, self._shapes, operators=PLACED)
        sizes = tuple(size.number for size in shape)
        return array if array is not None and (array.dtype, array.shape) == (dtype, sizes) else None

    def _computed(self, node: Node) -> Hashable:
        """Return what is the same for nodes that compute the same: sizes, or operator, attributes and inputs."""
        output = node.outputs[0]
        content, shape = self._shapes.content(output), self._shapes.of(output)
        if content is not None and shape is not None and output is not None and len(node.outputs) == 1:
            return output.dtype, shape, content
        attributes = tuple(sorted((name, bytes(span)) for name, span in node.spans.items()))
        return node.op_type, attributes, tuple(self._read(value) for value in node.inputs)

    def _read(self, value: Value | None) -> Hashable:
        if value is None or not _is_small(value) or value.constant is None:
            return self._kept.get(value, value) if value is not None else None
        tensor = value.constant
        return tensor.dtype, tensor.shape, tensor.numpy().tobytes()


def _is_small(value: Value) -> bool:
    tensor = value.constant
    return tensor is not None and tensor.nbytes <= SMALL and tensor.dtype != onnx.TensorProto.STRING


def _alike(one: Node, other: Node) -> bool:
    """Whether the outputs of one node can take the place of another's."""
    return [v is None for v in one.outputs] == [v is None for v in other.outputs]
