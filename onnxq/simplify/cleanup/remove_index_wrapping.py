"""Negative indices that are counted from the end before a Gather are left to it.

Keras looks up a row with `where(i < 0, i + n, i)`, which reaches ONNX as eight operators on small integers; a Gather
does the same by itself. They are half of the operators of a network for tables with four embeddings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from onnxq.ir.graph import Node, Value
from onnxq.ir.model import Model
from onnxq.ir.pass_manager import register_pass
from onnxq.ir.patch import Patch
from onnxq.ops.kernels.arrays import Array

NEGATIVE_OPSET = 11  # Gather counts negative indices from the end; source: onnx operator specification, Gather-11
INTEGERS = (TensorProto.INT32, TensorProto.INT64)
MOST_NODES = 16
MOST_TRIED = 1 << 16  # indices, at both ends and around zero


@register_pass(order=100, opset=NEGATIVE_OPSET, note="removed index wrapping before {} Gather")
def remove_index_wrapping(model: Model) -> Iterator[Patch]:
    """Describe one change for each Gather whose indices are others, with the length added where they are negative."""
    for graph in model.graph.graphs():
        for node in graph.nodes:
            if node.operator != "Gather":
                continue
            data, indices = node.inputs[0], node.inputs[1]
            axis = node.attribute("axis", 0)
            shape = data.shape if data is not None else None
            size = shape[axis] if shape and -len(shape) <= axis < len(shape) else None
            given = _before(indices, size) if indices is not None and isinstance(size, int) and size > 0 else None
            if given is not None:
                patch = Patch(graph, node, "it counts negative indices from the end itself")
                patch.rewire(node, 1, given)
                yield patch


def _before(indices: Value, size: int) -> Value | None:
    """Return the value that indices are made of, if they are the same to a Gather; None where there is none."""
    cone, order = dict[Value, Node](), [indices]
    for value in order:
        node = value.producer
        if node is None or node.domain or node.graph is not indices.graph or node.op_type not in COMPUTE:
            continue
        if len(cone) == MOST_NODES:
            return None
        cone[value] = node
        order += [read for read in node.reads if read not in order]
    for given in reversed(order):  # from as far back as possible
        if given is not indices and given.constant is None and given.dtype in INTEGERS and given.shape is not None:
            tried = _tried(size).astype(onnx.helper.tensor_dtype_to_np_dtype(given.dtype))
            found = _computed(indices, given, {given: tried}, cone)
            if found is not None and found.shape == tried.shape and _same(found, tried, size):
                return given
    return None


def _same(found: Array, tried: Array, size: int) -> bool:
    return bool(((found >= -size) & (found < size) & (found % size == tried % size)).all())


def _tried(size: int) -> Array:
    if 2 * size <= MOST_TRIED:
        return np.arange(-size, size)
    ends = np.arange(MOST_TRIED // 4)
    return np.concatenate([ends - size, -1 - ends, ends, size - 1 - ends])


def _computed(value: Value, given: Value, known: Mapping[Value, Array], cone: Mapping[Value, Node]) -> Array | None:
    """Compute a value from one that is given and constants of one element; None where it needs anything else."""
    if value in known:
        return known[value]
    stored, node = value.constant, cone.get(value)
    if stored is not None:
        # one of more axes than the indices would give the result more axes, too
        small = stored.size == 1 and len(stored.shape) <= len(given.shape or ())
        return stored.numpy().reshape(()) if small else None
    if node is None:
        return None
    inputs = [None if read is None else _computed(read, given, known, cone) for read in node.inputs]
    if any(array is None for array in inputs):
        return None
    if node.op_type == "Cast":
        if node.attribute("to") not in CASTS:
            return None
        return np.asarray(inputs[0], onnx.helper.tensor_dtype_to_np_dtype(node.attribute("to")))
    return np.asarray(COMPUTE[node.op_type](*inputs))


CASTS = (*INTEGERS, TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.BOOL)
COMPUTE: dict[str, Callable[..., Any]] = {
    "Add": np.add, "Cast": np.asarray, "Greater": np.greater, "GreaterOrEqual": np.greater_equal, "Less": np.less,
    "LessOrEqual": np.less_equal, "Mul": np.multiply, "Not": np.logical_not, "Sub": np.subtract, "Where": np.where,
}  # fmt: skip
