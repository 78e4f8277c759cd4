"""Sizes of open dimensions that the weights of a model leave no choice about.

Tests: `tests/data/test_synthetic.py`.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence

import onnx

from onnxq.ir.graph import Node, Value
from onnxq.ir.model import Model
from onnxq.ir.shape_inference.contrib_ops import with_stand_ins

__all__ = ["sizes_by_weights"]

RECURRENT = ("GRU", "LSTM", "RNN")
ELEMENTWISE = ("Add", "Div", "Mul", "Sub")
MOST_SIZE = 4096  # of an axis in front of a layer that flattens
FIRST_SIZE = 64  # of first axes while sizes are inferred: frames may be the first, and windows need some


def sizes_by_weights(model: Model) -> dict[str, int]:
    """Return the sizes of named dimensions that constants of the main graph leave no choice about.

    A layer that reads a whole flattened tensor tells its open axes, too, if they are equally long.

    Args:
        model: The model, types inferred.

    """
    found: dict[str, int] = {}
    for node in model.graph.nodes:
        for dimension, size in _told(node):
            if isinstance(dimension, str):
                found.setdefault(dimension, size)
    shapes = [value.shape for value in model.graph.inputs if value.tensor is None and value.shape]
    open_axes = {dim for shape in shapes for dim in shape[1:] if isinstance(dim, str)}
    names = sorted(open_axes - {shape[0] for shape in shapes} - set(found))
    flattened = next(_flattened(model), None) if names else None
    side = None if flattened is None else _flattened_size(model, *flattened, found, names)
    return found if side is None else {**found, **dict.fromkeys(names, side)}


def _told(node: Node) -> Iterator[tuple[object, int]]:
    """Pair dimensions of what a node reads with the sizes that its constants want."""
    read, weight = node.input(0), node.input(1)
    if node.op_type in ELEMENTWISE and read is not None and weight is not None:
        read, weight = (weight, read) if read.constant is not None else (read, weight)
    if node.domain or read is None or weight is None or weight.constant is None or not read.shape:
        return
    shape, sizes = read.shape, [size for size in weight.shape or () if isinstance(size, int)]
    if node.op_type in ("MatMul", "Gemm"):
        rows = _rows(node)
        if rows is not None:
            yield shape[-1], rows
    elif node.op_type in RECURRENT and len(shape) == len(sizes) == 3:
        yield shape[-1], sizes[-1]
    elif node.op_type == "Conv" and len(shape) == len(sizes) > 2:
        yield shape[1], sizes[1] * int(node.attribute("group", 1))
    elif node.op_type in ELEMENTWISE:
        yield from ((dim, size) for dim, size in zip(shape[::-1], sizes[::-1], strict=False) if size > 1)


def _rows(node: Node) -> int | None:
    """Return the length of what a MatMul or Gemm multiplies with each column of a constant."""
    weight = node.input(1)
    sizes = [] if weight is None or weight.constant is None else [s for s in weight.shape or () if isinstance(s, int)]
    if node.op_type == "MatMul" and len(sizes) > 1:
        return sizes[-2]
    if node.op_type == "Gemm" and not node.attribute("transA", 0):
        return sizes[1 if node.attribute("transB", 0) else 0]
    return None


def _flattened(model: Model) -> Iterator[tuple[Value, int]]:
    """List what is flattened for a layer although its sizes are open, and how many elements of a row it reads."""
    for node in model.graph.nodes:
        read, rows = node.input(0), None if node.domain else _rows(node)
        source = None if read is None or rows is None else read.producer
        if source is None or rows is None or source.op_type not in ("Flatten", "Reshape"):
            continue
        whole = source.input(0)
        if whole is not None and whole.shape and not all(isinstance(size, int) for size in whole.shape[1:]):
            yield whole, rows


def _flattened_size(
    model: Model, whole: Value, rows: int, known: Mapping[str, int], names: Sequence[str]
) -> int | None:
    """Return the size of open axes with which a tensor has as many elements in a row as a layer reads.

    Among several sizes, the one that most powers of two divide is returned.
    """
    proto = with_stand_ins(onnx.ModelProto.FromString(model.skeleton()))
    place = next((i for i, node in enumerate(proto.graph.node) if whole.name in node.output), None)
    if place is None:
        return None
    del proto.graph.node[place + 1 :]
    del proto.graph.output[:]

    def elements(size: int) -> int:
        return _elements(proto, whole.name, {**known, **dict.fromkeys(names, size)})

    sizes = range(1, MOST_SIZE + 1)
    fitting = sizes[bisect_left(sizes, rows, key=elements) : bisect_right(sizes, rows, key=elements)]
    return max(fitting, key=lambda size: size & -size, default=None)


def _elements(proto: onnx.ModelProto, name: str, sizes: Mapping[str, int]) -> int:
    """Return how many elements a row of a tensor has, 0 if some sizes are too small to tell."""
    filled = onnx.ModelProto()
    filled.CopyFrom(proto)
    for info in filled.graph.input:
        for axis, dim in enumerate(info.type.tensor_type.shape.dim):
            if dim.dim_value <= 0:  # exporters write 0 or -1 for a size that they do not know
                dim.dim_value = sizes.get(dim.dim_param, FIRST_SIZE if axis == 0 else 0)
    try:
        inferred = onnx.shape_inference.infer_shapes(filled, data_prop=True)
    except Exception:  # the binding raises bare RuntimeError subclasses and ValueError alike
        return 0
    found = next((info for info in inferred.graph.value_info if info.name == name), None)
    shape = [] if found is None else [int(dim.dim_value) for dim in found.type.tensor_type.shape.dim]
    return math.prod(shape[1:]) if shape and all(size > 0 for size in shape) else 0
