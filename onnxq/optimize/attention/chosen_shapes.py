"""Shapes of all values of a graph, for chosen sizes of its inputs.

Shape inference invents a name where it cannot tell a size. The batch has another name behind each `view(-1, n)` of
PyTorch. With sizes that are chosen, such targets of a Reshape are numbers.

Tests: `tests/optimize/test_cached_attention.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from onnxq.evaluator.schedule import bound_kernel
from onnxq.ir.graph import MICROSOFT, Graph, Node, Value
from onnxq.ir.operator_traits import Trait, operators_with
from onnxq.ops.kernels.arrays import NotCovered
from onnxq.optimize.attention.sizes import NotKnown, Sizes

SampleShape = tuple[int, ...]

SAME = frozenset(("Cast", "DequantizeLinear", "LayerNormalization", "LogSoftmax", "RMSNormalization", "Softmax"))
MOVING = frozenset(("Expand", "Flatten", "Reshape", "Slice", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze"))
ELEMENTWISE = operators_with(Trait.ELEMENTWISE)


def chosen_shapes(
    graph: Graph, names: Mapping[str, int], opset: int, given: Mapping[Value, Any]
) -> dict[Value, SampleShape]:
    """Return the shape of every value that these sizes decide.

    Args:
        graph: The graph, types inferred.
        names: Name of an axis → its size.
        opset: Operator set of the model.
        given: Values that are known.

    """
    found: dict[Value, SampleShape] = {}
    sizes = Sizes(names, opset, given, found)
    for node in graph.nodes:
        try:
            shapes = _shapes(node, sizes, opset)
        except (NotKnown, NotCovered, ValueError, TypeError, IndexError, ArithmeticError):
            continue
        found.update((value, shape) for value, shape in zip(node.outputs, shapes, strict=False) if value is not None)
    return found


def _shapes(node: Node, sizes: Sizes, opset: int) -> list[SampleShape]:
    """Return the shapes of a node's outputs, as far as a rule tells them."""
    values = node.reads
    if node.domain == MICROSOFT:
        if node.op_type == "MatMulNBits":
            return [(*sizes.shape(values[0])[:-1], int(node.attribute("N")))]
        if node.op_type == "GatherBlockQuantized" and node.outputs[0] is not None and node.outputs[0].shape:
            width = node.outputs[0].shape[-1]
            return [(*sizes.shape(values[1]), width)] if isinstance(width, int) else []
    if node.domain:
        return []
    if node.op_type in SAME:
        return [sizes.shape(values[0])]
    if node.op_type in ELEMENTWISE:
        return [np.broadcast_shapes(*map(sizes.shape, values))]
    if node.op_type == "ReduceMean" and node.attribute("keepdims", 1):
        read, axes = sizes.shape(values[0]), node.attribute("axes") or sizes.of(values[1])
        kept = {int(axis) % len(read) for axis in axes}
        return [tuple(1 if place in kept else size for place, size in enumerate(read))]
    if node.op_type in ("MatMul", "Gemm"):
        return [_product(node, *map(sizes.shape, values[:2]))]
    if node.op_type == "Gather":
        data, ids = map(sizes.shape, values)
        axis = int(node.attribute("axis", 0)) % len(data)
        return [(*data[:axis], *ids, *data[axis + 1 :])]
    if node.op_type in MOVING:
        return _moved(node, [_stand_in(sizes.shape(values[0])), *map(sizes.of, values[1:])], opset)
    if node.op_type == "Concat":
        return _moved(node, [_stand_in(sizes.shape(value)) for value in values], opset)
    return []


def _product(node: Node, left: SampleShape, right: SampleShape) -> SampleShape:
    """Return the shape of a MatMul or Gemm."""
    if node.op_type == "Gemm":
        rows, columns = left[1 if node.attribute("transA", 0) else 0], right[0 if node.attribute("transB", 0) else 1]
        return rows, columns
    return (*np.broadcast_shapes(left[:-2], right[:-2]), left[-2], right[-1])


def _stand_in(shape: SampleShape) -> np.ndarray:
    return np.broadcast_to(np.int8(0), shape)


def _moved(node: Node, inputs: list[Any], opset: int) -> list[SampleShape]:
    """Return the shapes that a kernel gives which only moves elements."""
    call = bound_kernel(node, opset)
    if call is None:
        return []
    results = call(*inputs)
    return [np.shape(result) for result in (results if isinstance(results, tuple) else (results,))]
