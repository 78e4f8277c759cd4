"""Softmax along an axis with several behind it works on rows of a matrix, turned and turned back.

onnxruntime transposes by itself there, element by element (1.31, one thread): 613 µs for `[1, 21, 64, 64]` along axis
1. A Transpose that keeps the other axes in order, Softmax and a Transpose back take 182 µs. onnxruntime would push two
such Transpose through the operator; a Reshape between them prevents that. `tests/bench/bench_normalization.py`
measures it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from onnxq.ir.graph import Graph, Node, Value
from onnxq.ir.model import Model
from onnxq.ir.pass_manager import register_pass
from onnxq.ir.patch import Patch, named_after
from onnxq.ir.shape_inference.symbolic import shapes_of
from onnxq.simplify.regions.axis_tracking import Dims, dims_of

FIRST_OPSET = 13  # before, Softmax works on all axes from its own on
LEAST = 4  # elements of a row: for fewer, nothing is gained


@register_pass(order=240, note="moved {} Softmax to the last axis")
def softmax_last_axis(model: Model) -> Iterator[Patch]:
    """Describe one change for each Softmax or LogSoftmax along such an axis, if all inputs have one size only.

    Otherwise the sizes that an exporter has stated behind them are those of its own batch. onnxruntime believes them
    where a shape is computed.
    """
    if model.opset >= FIRST_OPSET and all(_fixed(value) for value in model.graph.inputs):
        for graph in model.graph.graphs():
            yield from _in_graph(graph, model)


def _fixed(value: Value) -> bool:
    return value.constant is not None or (value.shape is not None and all(isinstance(d, int) for d in value.shape))


def can_turn(shape: Dims, axis: int) -> bool:
    """Whether elements along an axis can be made rows of a matrix and come back: at most one other size is open."""
    others = [size for place, size in enumerate(shape) if place != axis]
    known = [size for size in others if isinstance(size, int)]
    return isinstance(shape[axis], int) and len(others) - len(known) <= 1 and 0 not in known


def wide_behind(shape: Dims, axis: int) -> int:
    """Return how many axes behind one have not length 1."""
    return sum(size != 1 for size in shape[axis + 1 :])


def _in_graph(graph: Graph, model: Model) -> Iterator[Patch]:
    nodes = [node for node in graph.nodes if node.op_type in ("Softmax", "LogSoftmax") and not node.domain]
    shapes = shapes_of(model, graph) if nodes else None
    for node in nodes:
        shape = dims_of(node.inputs[0], shapes) if shapes is not None else None
        if shape is None:
            continue
        axis = int(node.attribute("axis", -1)) % len(shape)
        size = shape[axis]
        if isinstance(size, int) and size >= LEAST and wide_behind(shape, axis) > 1 and can_turn(shape, axis):
            yield _turned(node, shape, axis, size)


def _turned(node: Node, shape: Dims, axis: int, size: int) -> Patch:
    source, output = node.inputs[0], node.outputs[0]
    assert source is not None
    assert output is not None
    order = [place for place in range(len(shape)) if place != axis] + [axis]
    patch = Patch(node.graph, node, "Softmax is fast along the last axis")
    name = output.name
    turned = patch.op("Transpose", source, hint=f"{name}_turned", perm=order)
    matrix = patch.constant(np.array([-1, size], np.int64), f"{name}_rows_shape")
    rows = patch.op("Reshape", turned, matrix, hint=f"{name}_rows")
    result = patch.op(node.op_type, rows, hint=f"{name}_normalized", axis=1)
    named_after(patch, node)
    whole = patch.op("Shape", turned, hint=f"{name}_whole_shape")
    whole_again = patch.op("Reshape", result, whole, hint=f"{name}_whole")
    back = [order.index(place) for place in range(len(shape))]
    patch.replace(output, patch.op("Transpose", whole_again, hint=name, perm=back))
    return patch
