"""Shape rules of operators: https://onnx.ai/onnx/operators.

Tests: `tests/ir/test_symbolic.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from onnxq.ir.graph import Node, Value
from onnxq.ir.operator_traits import Trait, operators_with
from onnxq.ir.shape_inference.dims import (
    ONE,
    Shape,
    Size,
    broadcast,
    fresh,
    limit_axis,
    padded_shape,
    product,
    takes_all,
)
from onnxq.ir.shape_inference.known import KnownShapes
from onnxq.ir.shape_inference.slice_bounds import slice_bounds

InputShapes = Sequence[Shape | None]
ShapeRule = Callable[[KnownShapes, Node, Value, InputShapes], Shape | None]
LAST = (1 << 63) - 1


def _same(shapes: KnownShapes, node: Node, output: Value, given: InputShapes) -> Shape | None:
    return given[0]


def _broadcast(shapes: KnownShapes, node: Node, output: Value, given: InputShapes) -> Shape | None:
    known = [shape for shape in given if shape is not None]
    return broadcast(known, output) if len(known) == len(given) else None


def _transpose(shapes: KnownShapes, node: Node, output: Value, given: InputShapes) -> Shape | None:
    shape = given[0] or ()
    return tuple(shape[axis] for axis in node.attribute("perm", range(len(shape))[::-1]))


def _reshape(shapes: KnownShapes, node: Node, output: Value, given: InputShapes) -> Shape | None:
    shape, target = given[0] or (), shapes.content(node.inputs[1])
    if target is None:
        return None
    if not node.attribute("allowzero", 0):
        target = tuple(_asked(shape, target, axis) or fresh(output, axis) for axis in range(len(target)))
    open_axes = [axis for axis, size in enumerate(target) if size.known is not None and size.number < 0]
    for axis in open_axes[:1]:
        rest = product(target[:axis] + target[axis + 1 :])
        target = (*target[:axis], product(shape).divided(rest) or fresh(output, axis), *target[axis + 1 :])
    return target


def _asked(shape: Shape, target: Shape, axis: int) -> Size | None:
    """Return the size that a Reshape makes of one element of its target; None where that may be another when it is 0.

    A 0 means the size that the input has there. A computed size is certain if the input's is then 0 too, if there is
    none, or if all other sizes are numbers. The number of elements stays. If the input has a number there, another size
    would have to be 0 as well. Empty batches of empty sequences are not considered.
    """
    size = target[axis]
    if size.known is not None:
        return shape[axis] if size.number == 0 else size
    if size.number < 0:
        return None
    rest = product(target[:axis] + target[axis + 1 :])
    decided = rest.known is not None and all(other.number > 0 for other in target) and product(shape) == product(target)
    never = {symbol for other in target[len(shape) :] for symbol in other.symbols}  # 0 would be an error
    copied = set(shape[axis].symbols) if axis < len(shape) and shape[axis].known != 0 else set()
    alone = all(other.number > 0 for other in target) and not set(size.symbols) & set(rest.symbols)
    missing = axis < len(shape) and (shape[axis].known or 0) > 0 and set(size.symbols) <= set(product(shape).symbols)
    return size if decided or (alone and missing) or set(size.symbols) <= never or set(size.symbols) <= copied else None


def _split(shapes: KnownShapes, node: Node, output: Value, given: InputShapes) -> Shape | None:
    shape, place = given[0] or (), node.outputs.index(output)
    axis = node.attribute("axis", 0) % len(shape)
    stated = node.input(1) is not None
    parts = shapes.numbers(node.inputs[1]) if stated else node.attribute("split")
    known, count = shape[axis].known, len(node.outputs)
    if parts is None and not stated and known is not None and known % count == 0:
        parts = [known // count] * count
    size = fresh(output, axis) if parts is None else Size(int(parts[place]))
    return (*shape[:axis], size, *shape[axis + 1 :])


def _squeeze(shapes: KnownShapes, node: Node, output: Value, given: InputShapes) -> Shape | None:
    shape, axes = given[0] or (), shapes.axes(node)
    if axes is None:
        stated = len(node.inputs) > 1 or any(size.known is None for size in shape)
        return None if stated else tuple(size for size in shape if size != ONE)
    gone = {axis % len(shape) for axis in axes}
    return tuple(size for axis, size in enumerate(shape) if axis not in gone)


def _unsqueeze(shapes: KnownShapes, node: Node, output: Value, given: InputShapes) -> Shape | None:
    axes = shapes.axes(node)
    if axes is None:
        return None
    left = list(given[0] or ())
    rank = len(left) + len(axes)
    new = {axis % rank for axis in axes}
    return tuple(ONE if axis in new else left.pop(0) for axis in range(rank))


def _flatten(shapes: KnownShapes, node: Node, output: Value, given: InputShapes) -> Shape | None:
    shape, axis = given[0] or (), node.attribute("axis", 1)
    axis = axis + len(shape) if axis < 0 else axis
    return product(shape[:axis]), product(shape[axis:])


def _expand(shapes: KnownShapes, node: Node, output: Value, given: InputShapes) -> Shape | None:
    target = shapes.content(node.inputs[1])
    return None if target is None else broadcast([given[0] or (), target], output)


def _concat(shapes: KnownShapes, node: Node, output: Value, given: InputShapes) -> Shape | None:
    first = list(given[0] or ())
    axis = node.attribute("axis", 1) % len(first)
    known = [shape[axis].number for shape in given if shape is not None and shape[axis].known is not None]
    if len(given) > 1:
        first[axis] = Size(sum(known)) if len(known) == len(given) else fresh(output, axis)
    return tuple(first)


def _gather(shapes: KnownShapes, node: Node, output: Value, given: InputShapes) -> Shape | None:
    data, ids = given[0] or (), given[1]
    axis = node.attribute("axis", 0) % len(data)
    return None if ids is None else (*data[:axis], *ids, *data[axis + 1 :])


def slices(shapes: KnownShapes, node: Node, rank: int) -> list[tuple[int, int, int, int]] | None:
    """Return axis, start, end and step of a Slice where they are constants."""
    if len(node.inputs) == 1:
        starts, ends = node.attribute("starts"), node.attribute("ends")
        axes, steps = node.attribute("axes", list(range(len(starts or ())))), None
    else:
        starts, ends = shapes.numbers(node.inputs[1]), shapes.numbers(node.inputs[2])
        axes, steps = [
            shapes.numbers(node.inputs[slot]) if len(node.inputs) > slot and node.inputs[slot] else fallback
            for slot, fallback in ((3, list(range(len(starts or ())))), (4, None))
        ]
        if steps is None and node.input(4) is not None:
            return None
    if starts is None or ends is None or axes is None:
        return None
    steps = [1] * len(starts) if steps is None else steps
    return [(axis % rank, *rest) for axis, *rest in zip(axes, starts, ends, steps, strict=True)]


def _slice(shapes: KnownShapes, node: Node, output: Value, given: InputShapes) -> Shape | None:
    sizes = list(given[0] or ())
    found = slices(shapes, node, len(sizes))
    if found is None:
        return _cut(shapes, node, output, sizes)
    for axis, start, end, step in found:
        size = sizes[axis]
        others = tuple(sizes[:axis] + sizes[axis + 1 :])
        if step == 1 and takes_all(start, end, size, others):
            continue
        known = size.known
        sizes[axis] = (
            fresh(output, axis) if known is None else Size(len(range(known)[slice_bounds(start, end, step, known)]))
        )
    return tuple(sizes)


def _cut(shapes: KnownShapes, node: Node, output: Value, sizes: list[Size]) -> Shape | None:
    """Return the shape behind a Slice whose bounds are computed."""
    starts, ends = shapes.content(node.inputs[1]), shapes.content(node.inputs[2])
    given = [*node.inputs[3:], None, None]
    count = next((len(shape_range) for shape_range in (starts, ends) if shape_range is not None), 0)
    axes, steps = (
        fallback if value is None else shapes.numbers(value)
        for value, fallback in zip(given[:2], (list(range(count)), [1] * count), strict=True)
    )
    if axes is None or (not count and given[0] is None):
        return None
    for place, axis in enumerate(axes):
        size, end = sizes[axis], ends[place] if ends is not None else None
        first = starts is not None and starts[place] == Size(0) and steps is not None and steps[place] == 1
        if not first or end is None or end.number < 0 or end != size:
            new = fresh(output, axis % len(sizes))
            counted = first and end is not None and end.number > 0 and end.symbols and size.known is not None
            sizes[axis] = limit_axis(end, size.known, new) if counted and end is not None and size.known else new
    return tuple(sizes)


def _shape(shapes: KnownShapes, node: Node, output: Value, given: InputShapes) -> Shape | None:
    return (Size(len((given[0] or ())[slice(*shape_range(node))])),)


def shape_range(node: Node) -> tuple[int, int]:
    """Return the first axis that a Shape reads, and the one that it no longer does."""
    return int(node.attribute("start", 0)), int(node.attribute("end", LAST))


def _matmul(shapes: KnownShapes, node: Node, output: Value, given: InputShapes) -> Shape | None:
    left, right = given[0] or (), given[1] or ()
    if len(left) < 2 or len(right) < 2:
        return None
    return (*broadcast([left[:-2], right[:-2]], output), left[-2], right[-1])


def _gemm(shapes: KnownShapes, node: Node, output: Value, given: InputShapes) -> Shape | None:
    left, right = given[0] or (), given[1] or ()
    return left[1 if node.attribute("transA", 0) else 0], right[0 if node.attribute("transB", 0) else 1]


def _size(shapes: KnownShapes, node: Node, output: Value, given: InputShapes) -> Shape | None:
    return ()


def _filled(shapes: KnownShapes, node: Node, output: Value, given: InputShapes) -> Shape | None:
    return shapes.content(node.inputs[0])


def _range(shapes: KnownShapes, node: Node, output: Value, given: InputShapes) -> Shape | None:
    start, end, step = (shapes.content(value) for value in node.inputs)
    counted = start == (Size(0),) and step == (ONE,) and end is not None and end[0].number >= 0
    return end if counted else None


def _as_indices(shapes: KnownShapes, node: Node, output: Value, given: InputShapes) -> Shape | None:
    return given[1]


def _reduce(shapes: KnownShapes, node: Node, output: Value, given: InputShapes) -> Shape | None:
    shape, axes = given[0] or (), shapes.axes(node)
    if axes is None:
        if node.input(1) is not None:
            return None
        axes = [] if node.attribute("noop_with_empty_axes", 0) else list(range(len(shape)))
    elif not axes and not node.attribute("noop_with_empty_axes", 0):
        axes = list(range(len(shape)))
    return _reduced(node, shape, axes)


def _arg(shapes: KnownShapes, node: Node, output: Value, given: InputShapes) -> Shape | None:
    return _reduced(node, given[0] or (), [node.attribute("axis", 0)])


def _reduced(node: Node, shape: Shape, axes: Sequence[int]) -> Shape:
    gone = {axis % len(shape) for axis in axes} if shape else set()  # PyTorch reduces scalars along axis -1
    keep = node.attribute("keepdims", 1)
    return tuple(ONE if axis in gone else size for axis, size in enumerate(shape) if keep or axis not in gone)


def _conv(shapes: KnownShapes, node: Node, output: Value, given: InputShapes) -> Shape | None:
    shape, weight = given[0] or (), given[1] or ()
    return (shape[0], weight[0], *(fresh(output, axis) for axis in range(2, len(shape))))


def _pool(shapes: KnownShapes, node: Node, output: Value, given: InputShapes) -> Shape | None:
    shape = given[0] or ()
    whole = node.op_type.startswith("Global")
    return (*shape[:2], *(ONE if whole else fresh(output, axis) for axis in range(2, len(shape))))


def _pad(shapes: KnownShapes, node: Node, output: Value, given: InputShapes) -> Shape | None:
    shape, pads = given[0] or (), shapes.numbers(node.inputs[1]) if len(node.inputs) > 1 else node.attribute("pads")
    return padded_shape(shape, None if any(node.inputs[3:]) else pads, output)  # axes may stand there


BROADCASTING = operators_with(Trait.BROADCASTS)
SAME_SHAPE = (operators_with(Trait.ELEMENTWISE) - BROADCASTING) | {
    "BatchNormalization", "Cast", "CumSum", "DequantizeLinear", "InstanceNormalization", "LayerNormalization",
    "LogSoftmax", "LpNormalization", "QuantizeLinear", "ScatterElements", "ScatterND", "Softmax", "Trilu",
}  # fmt: skip
RULES: dict[str, ShapeRule] = {
    **dict.fromkeys(SAME_SHAPE, _same),
    **dict.fromkeys(BROADCASTING, _broadcast),
    **dict.fromkeys(operators_with(Trait.REDUCES), _reduce),
    "ArgMax": _arg,
    "ArgMin": _arg,
    "AveragePool": _pool,
    "Concat": _concat,
    "ConstantOfShape": _filled,
    "Conv": _conv,
    "Expand": _expand,
    "Flatten": _flatten,
    "Gather": _gather,
    "GatherElements": _as_indices,
    "Gemm": _gemm,
    "GlobalAveragePool": _pool,
    "GlobalMaxPool": _pool,
    "MatMul": _matmul,
    "MaxPool": _pool,
    "Pad": _pad,
    "Range": _range,
    "Reshape": _reshape,
    "Shape": _shape,
    "Size": _size,
    "Slice": _slice,
    "Split": _split,
    "Squeeze": _squeeze,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
