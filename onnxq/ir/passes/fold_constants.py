"""Cheap operators between a constant and its reader are computed once, so that the reader sees a constant.

Tests: `tests/ir/test_fold.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from onnxq.ir.graph import Node, Value
from onnxq.ir.model import Model
from onnxq.ir.pass_manager import register_pass
from onnxq.ir.patch import Patch
from onnxq.ir.shape_inference.slice_bounds import slice_bounds
from onnxq.ir.tensor import ArrayTensor, DeferredTensor, Tensor

FLOATS = frozenset((TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16))
INDICES = frozenset((TensorProto.INT32, TensorProto.INT64))
BYTES = 8  # of the largest element
KEEP_BELOW = 1 << 20  # bytes of a result that is kept; a larger one is computed again when it is needed
GROWTH = 2  # how many times the bytes of its inputs a result may take: float16 weights become float32, int8 ones stay
FREE = 1024  # bytes that every result may take
FREE_VECTOR = 1 << 16  # bytes of one that has a single axis: a bias of zeros for every channel

# (inputs, node, opset) → output; KeyError, ValueError or IndexError where the node is not of the simple kind
FoldRule = Callable[[Sequence[np.ndarray], Node, int], np.ndarray]


@register_pass(order=130, note="folded {} operator{s} on constants")
def fold_constants(model: Model) -> Iterator[Patch]:
    """Describe the folds, chains of operators included. Results never take much more bytes than what they come from."""
    known: dict[Value, Tensor] = {}
    aliases: dict[Value, Value] = {}
    for graph in model.graph.graphs():
        for node in graph.nodes:
            if node.op_type == "Split" and not node.domain:
                parts = _split(node, known)
                if parts:
                    known.update(parts)
                    patch = Patch(graph, node, "its inputs are constants")
                    for part, tensor in parts.items():
                        patch.freeze(part, tensor)
                    yield patch
                continue
            result = _fold(node, known, model.opset)
            output, source = (node.outputs[0], node.inputs[0]) if node.outputs and node.inputs else (None, None)
            if result is None or output is None:
                continue
            known[output] = result
            patch = Patch(graph, node, "its inputs are constants")
            if node.op_type == "Identity" and source is not None and not output.is_output:
                aliases[output] = aliases.get(source, source)
                patch.replace(output, aliases[output])  # another name for a weight that others read as well
            else:
                patch.freeze(output, result)
            yield patch


def _fold(node: Node, known: dict[Value, Tensor], opset: int) -> Tensor | None:
    if (
        node.domain
        or (node.op_type not in COMPUTE and node.op_type != "Identity")
        or not node.inputs
        or len(node.outputs) != 1
    ):
        return None
    inputs: list[Tensor] = []
    for value in node.inputs:
        tensor = None if value is None else known.get(value, value.constant)
        if tensor is None or tensor.dtype == TensorProto.STRING:
            return None
        inputs.append(tensor)
    if node.op_type == "Identity":
        return inputs[0]

    compute = COMPUTE[node.op_type]

    def result() -> np.ndarray:
        with np.errstate(all="ignore"):  # what a runtime makes of a division by zero, infinity, is right here too
            return np.asarray(compute([tensor.numpy() for tensor in inputs], node, opset))

    try:
        return _kept(result, inputs) if _allowed(node, inputs) else None
    except (KeyError, ValueError, IndexError, TypeError):
        return None  # such a node is for the runtime to judge


def _kept(compute: Callable[[], np.ndarray], sources: Sequence[Tensor]) -> Tensor:
    """Return a result that is computed again whenever it is needed where it is large."""
    array = compute()
    if array.nbytes <= KEEP_BELOW:
        return ArrayTensor(array)
    kept = DeferredTensor(onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape, compute, sources)
    kept.release()
    return kept


def _split(node: Node, known: dict[Value, Tensor]) -> dict[Value, Tensor]:
    """Return the parts that a Split cuts a constant into; none where it is not one, or sizes are not known."""
    tensors = [None if value is None else known.get(value, value.constant) for value in node.inputs]
    data, sizes = tensors[0], node.attribute("split")
    if data is None or None in tensors or data.dtype == TensorProto.STRING:
        return {}
    axis, count = int(node.attribute("axis", 0)), len(node.outputs)
    if not -len(data.shape) <= axis < len(data.shape):
        return {}
    length = data.shape[axis]
    if len(tensors) > 1 and tensors[1] is not None:
        sizes = tensors[1].numpy().tolist()
    elif sizes is None:
        chunk = -(-length // count)  # the last part is smaller where they cannot all be the same
        sizes = [min(chunk, length - chunk * at) for at in range(count)]
    if len(sizes) != count or sum(sizes) != length or min(sizes) < 0:
        return {}
    ends = np.cumsum(sizes).tolist()
    cuts = [
        (slice(None),) * (axis % len(data.shape)) + (slice(end - n, end),) for n, end in zip(sizes, ends, strict=True)
    ]
    return {
        value: _kept(lambda cut=cut: data.numpy()[cut], [data])  # type: ignore[misc]
        for value, cut in zip(node.outputs, cuts, strict=True)
        if value is not None
    }


def _allowed(node: Node, inputs: list[Tensor]) -> bool:
    """Whether the result is known to be exact and not much larger than what it comes from."""
    first = inputs[0]
    if node.op_type in ARITHMETIC:
        size = int(np.prod(np.broadcast_shapes(*(tensor.shape for tensor in inputs)), dtype=object))
        same = all(tensor.dtype == first.dtype for tensor in inputs)
        return same and first.dtype in FLOATS and _fits(size * first.nbytes // max(first.size, 1), inputs)
    if node.op_type in SUMS:
        return first.dtype in FLOATS
    if node.op_type == "Cast":
        target = node.attribute("to", 0)
        if {first.dtype, target} <= INDICES:
            return True
        if first.dtype not in FLOATS or target not in FLOATS:
            return False
        return _fits(ArrayTensor(np.zeros(1), target).nbytes * first.size, inputs)
    if node.op_type == "ConstantOfShape":
        return first.size < FREE and math.prod(int(size) for size in first.numpy()) * BYTES <= FREE
    if node.op_type == "Expand":
        sizes = inputs[1].numpy().tolist() if inputs[1].size < FREE else []
        vector = len(first.shape) < 2 and len(sizes) == 1
        result = (
            math.prod(np.broadcast_shapes(first.shape, sizes)) * BYTES if min(sizes, default=0) > 0 else FREE_VECTOR
        )
        return (vector and result <= FREE_VECTOR) or _fits(result, inputs)
    if node.op_type == "Gather":
        return _fits(inputs[1].size * first.nbytes // max(first.shape[node.attribute("axis", 0)], 1), inputs)
    return True


def _fits(nbytes: int, inputs: list[Tensor]) -> bool:
    return nbytes <= max(FREE, GROWTH * sum(tensor.nbytes for tensor in inputs))


def _transpose(inputs: Sequence[np.ndarray], node: Node, opset: int) -> np.ndarray:
    return np.transpose(inputs[0], node.attribute("perm"))


def _reshape(inputs: Sequence[np.ndarray], node: Node, opset: int) -> np.ndarray:
    data, target = inputs
    shape = [int(d) for d in target]
    if not node.attribute("allowzero", 0):
        shape = [data.shape[axis] if size == 0 else size for axis, size in enumerate(shape)]
    return data.reshape(shape)


def _flatten(inputs: Sequence[np.ndarray], node: Node, opset: int) -> np.ndarray:
    data, axis = inputs[0], int(node.attribute("axis", 1))
    axis = axis + data.ndim if axis < 0 else axis
    rows = int(np.prod(data.shape[:axis], dtype=np.int64))
    return data.reshape(rows, int(np.prod(data.shape[axis:], dtype=np.int64)))


def _axes(inputs: Sequence[np.ndarray], node: Node) -> tuple[int, ...] | None:
    """Axes as an input, since opset 13, or as an attribute."""
    axes = inputs[1].tolist() if len(inputs) > 1 else node.attribute("axes")
    return None if axes is None else tuple(int(axis) for axis in axes)


def _squeeze(inputs: Sequence[np.ndarray], node: Node, opset: int) -> np.ndarray:
    return np.squeeze(inputs[0], _axes(inputs, node))


def _unsqueeze(inputs: Sequence[np.ndarray], node: Node, opset: int) -> np.ndarray:
    axes = _axes(inputs, node)
    if axes is None:
        raise ValueError("Unsqueeze without axes")
    return np.expand_dims(inputs[0], axes)


def _concat(inputs: Sequence[np.ndarray], node: Node, opset: int) -> np.ndarray:
    return np.concatenate(inputs, axis=int(node.attribute("axis", 1)))


def _gather(inputs: Sequence[np.ndarray], node: Node, opset: int) -> np.ndarray:
    data, indices = inputs
    return np.take(data, indices, axis=int(node.attribute("axis", 0)))


def _slice(inputs: Sequence[np.ndarray], node: Node, opset: int) -> np.ndarray:
    """Cut out a part; starts, ends, axes and steps are inputs since opset 10, attributes before."""
    data = inputs[0]
    given: list[Sequence[int] | None] = [array.tolist() for array in inputs[1:]]
    given = given or [node.attribute(name) for name in ("starts", "ends", "axes")]
    starts, ends, axes, steps = (given + [None] * 4)[:4]
    if starts is None or ends is None:
        raise ValueError("Slice without starts or ends")
    axes = range(len(starts)) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    parts = [slice(None)] * data.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        parts[axis] = slice_bounds(start, end, step, data.shape[axis])
    return data[tuple(parts)]


def _expand(inputs: Sequence[np.ndarray], node: Node, opset: int) -> np.ndarray:
    return np.array(np.broadcast_to(inputs[0], np.broadcast_shapes(inputs[0].shape, inputs[1].tolist())))


def _shape(inputs: Sequence[np.ndarray], node: Node, opset: int) -> np.ndarray:
    return np.array(inputs[0].shape[node.attribute("start", 0) : node.attribute("end")], np.int64)


def _constant_of_shape(inputs: Sequence[np.ndarray], node: Node, opset: int) -> np.ndarray:
    value = node.attribute("value")
    element = np.zeros(1, np.float32) if value is None else np.asarray(value)
    return np.full([int(size) for size in inputs[0]], element.reshape(-1)[0], element.dtype)


def _cast(inputs: Sequence[np.ndarray], node: Node, opset: int) -> np.ndarray:
    return inputs[0].astype(onnx.helper.tensor_dtype_to_np_dtype(node.attribute("to")))


def _summed(function: Callable[[np.ndarray], np.ndarray], then: Callable[[Any], Any] = np.asarray) -> FoldRule:
    """Add up a function of the elements in float64, as a weight's norm is computed in the graph."""

    def compute(inputs: Sequence[np.ndarray], node: Node, opset: int) -> np.ndarray:
        axes = _axes(inputs, node) or None
        if axes is None and node.attribute("noop_with_empty_axes", 0):
            raise ValueError("nothing to add up")
        total = function(inputs[0].astype(np.float64)).sum(axis=axes, keepdims=bool(node.attribute("keepdims", 1)))
        return np.asarray(then(total), inputs[0].dtype)

    return compute


def _elementwise(function: Callable[..., Any]) -> FoldRule:
    def compute(inputs: Sequence[np.ndarray], node: Node, opset: int) -> np.ndarray:
        if opset < BROADCASTING_OPSET:
            raise ValueError("broadcasting by attribute")
        return np.asarray(function(*inputs), inputs[0].dtype)

    return compute


BROADCASTING_OPSET = 7  # before, broadcasting is asked for by attribute; source: onnx operator specification, Add-6
ARITHMETIC = frozenset(("Add", "Sub", "Mul", "Div", "Sqrt", "Neg", "Abs", "Pow"))
SUMS = frozenset(("ReduceSum", "ReduceSumSquare", "ReduceL2"))
COMPUTE: dict[str, FoldRule] = {
    "Transpose": _transpose,
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Cast": _cast,
    "Concat": _concat,
    "ConstantOfShape": _constant_of_shape,
    "Expand": _expand,
    "Shape": _shape,
    "Gather": _gather,
    "Slice": _slice,
    "Add": _elementwise(np.add),
    "Sub": _elementwise(np.subtract),
    "Mul": _elementwise(np.multiply),
    "Div": _elementwise(np.divide),
    "Sqrt": _elementwise(np.sqrt),
    "Neg": _elementwise(np.negative),
    "Abs": _elementwise(np.abs),
    "Pow": _elementwise(lambda x, y: np.power(x, y, dtype=np.float64) if x.dtype == np.float32 else np.power(x, y)),
    "ReduceSum": _summed(np.asarray),
    "ReduceSumSquare": _summed(np.square),
    "ReduceL2": _summed(np.square, np.sqrt),
}
