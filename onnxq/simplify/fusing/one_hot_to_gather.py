"""A product of a one-hot tensor with a constant matrix becomes a Gather of the matrix's rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from onnxq.ir.graph import Node, Value
from onnxq.ir.model import Model
from onnxq.ir.pass_manager import Change, register_pass
from onnxq.ir.patch import Patch, named_after
from onnxq.ir.tensor import DeferredTensor, Tensor
from onnxq.simplify.opset_builders import add_scalar, add_with_axes

CLIP_OPSET = 12  # Clip on integers
LARGEST: dict[int, int] = {
    TensorProto.UINT8: 255, TensorProto.INT8: 127, TensorProto.UINT16: 65535, TensorProto.INT16: 32767,
    TensorProto.INT32: 2**31 - 1, TensorProto.INT64: 2**63 - 1, TensorProto.BOOL: 1,
}  # fmt: skip
UNSIGNED = (TensorProto.UINT8, TensorProto.UINT16, TensorProto.BOOL)


@dataclass(frozen=True)
class Hot:
    """A one-hot tensor: 1 where the index says so, on its last axis.

    Attributes:
        index: Integers, with a last axis of size 1 that the one-hot tensor has instead of its own, or without it.
        with_axis: Whether they have that axis.
        size: Of the last axis of the one-hot tensor.
        wraps: Whether negative indices down to -size count from the end; else they have no 1.

    """

    index: Value
    with_axis: bool
    size: int
    wraps: bool


@register_pass(order=90, note="rewrote {} one-hot product{s} as Gather")
def one_hot_to_gather(model: Model) -> Iterator[Change]:
    """Describe the lookups: row i of the product is row `index[i]` of the matrix, or zeros where there is none."""
    for graph in model.graph.graphs():
        for node in graph.nodes:
            if node.op_type != "MatMul" or node.domain or None in node.inputs:
                continue
            left, right = node.inputs
            matrix = right.constant if right is not None else None
            hot = _hot(left) if left is not None and left.graph is graph else None
            if hot is None or matrix is None or not _fits(hot, matrix):
                continue
            patch = Patch(graph, node, "a one-hot row picks a row of the matrix")
            bounded = LARGEST[hot.index.dtype or 0] < hot.size and hot.index.dtype in UNSIGNED
            index = _index(patch, hot, model.opset, bounded=bounded)
            assert right is not None
            table = right if bounded else patch.constant(_with_zeros(matrix), f"{right.name}_rows")
            output = node.outputs[0]
            assert output is not None
            patch.replace(output, patch.op("Gather", table, index, hint=f"{output.name}_row", axis=0))
            named_after(patch, node)
            yield Change(patch, opset=0 if bounded else CLIP_OPSET)


def _fits(hot: Hot, matrix: Tensor) -> bool:
    """Whether 0 times the other rows is 0: not where they are infinite."""
    if matrix.dtype != TensorProto.FLOAT or len(matrix.shape) != 2 or matrix.shape[0] != hot.size:
        return False
    return bool(np.isfinite(matrix.numpy()).all())


def _with_zeros(matrix: Tensor) -> Tensor:
    """Put a row of zeros behind the last, which is also where index -1 points."""
    rows, columns = matrix.shape

    def compute() -> np.ndarray:
        return np.concatenate([matrix.numpy(), np.zeros((1, columns), np.float32)])

    return DeferredTensor(TensorProto.FLOAT, (rows + 1, columns), compute)


def _index(patch: Patch, hot: Hot, opset: int, *, bounded: bool) -> Value:
    """Write indices that Gather takes: -1 and `size` for the row of zeros."""
    index = hot.index
    dtype = index.dtype
    if hot.with_axis:
        index = add_with_axes(patch, "Squeeze", index, [-1], opset)
    if dtype not in (TensorProto.INT32, TensorProto.INT64):
        dtype = TensorProto.INT32
        index = patch.op("Cast", index, to=int(dtype))
    if bounded:
        return index
    if hot.wraps and hot.index.dtype not in UNSIGNED:
        last = patch.op("Add", index, add_scalar(patch, hot.size, dtype, "size"))
        negative = patch.op("Less", index, add_scalar(patch, 0, dtype, "zero"))
        index = patch.op("Where", negative, last, index)
    low, high = add_scalar(patch, -1, dtype, "low"), add_scalar(patch, hot.size, dtype, "high")
    return patch.op("Clip", index, low, high)


def _hot(value: Value) -> Hot | None:
    """Recognise what makes a one-hot tensor of float32."""
    node = value.producer
    if node is None or node.domain or value.dtype != TensorProto.FLOAT:
        return None
    if node.op_type == "OneHot":
        return _by_one_hot(node)
    if node.op_type == "Cast":
        return _compared(node.inputs[0])
    if node.op_type == "Where" and _is(node.inputs[1], 1) and _is(node.inputs[2], 0):
        hot = _compared(node.inputs[0])
        rank = max(len(tensor.shape) for tensor in node.constants)
        return hot if hot is not None and rank <= len(hot.index.shape or ()) else None  # else it has more axes
    return None


def _by_one_hot(node: Node) -> Hot | None:
    index, depth, values = node.inputs
    pair = values.constant if values is not None else None
    count = depth.constant if depth is not None else None
    if index is None or index.dtype not in LARGEST or pair is None or count is None or index.shape is None:
        return None
    if node.attribute("axis", -1) not in (-1, len(index.shape)) or pair.numpy().tolist() != [0, 1]:
        return None
    return Hot(index, False, int(count.numpy().reshape(())), wraps=True)


def _compared(mask: Value | None) -> Hot | None:
    """Recognise Equal of a tensor [..., 1] with 0, 1, 2, … on the last axis."""
    node = mask.producer if mask is not None else None
    if node is None or node.op_type != "Equal" or node.domain:
        return None
    for index, classes in (node.inputs, node.inputs[::-1]):
        numbers = classes.constant if classes is not None else None
        if index is None or numbers is None or index.dtype not in LARGEST or not index.shape:
            continue
        size = numbers.shape[-1] if numbers.shape else 0
        counted = numbers.size == size and len(numbers.shape) <= len(index.shape)
        if index.shape[-1] == 1 and size > 1 and counted and np.array_equal(numbers.numpy().ravel(), np.arange(size)):
            return Hot(index, True, size, wraps=False)
    return None


def _is(value: Value | None, number: float) -> bool:
    tensor = value.constant if value is not None else None
    return tensor is not None and tensor.size == 1 and float(tensor.numpy().reshape(())) == number
