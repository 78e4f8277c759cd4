"""How operators make shapes of shapes, and small integer vectors of shapes: https://onnx.ai/onnx/operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from onnxq.ir.graph import Node, Value
from onnxq.ir.sizes import ONE, Shape, Size, broadcast, fresh, product, takes_all

if TYPE_CHECKING:
    from onnxq.ir.shapes import Shapes

Given = Sequence[Shape | None]
Rule = Callable[["Shapes", Node, Value, Given], Shape | None]
Content = Callable[["Shapes", Node], Shape | None]
LAST = (1 << 63) - 1


def _same(shapes: Shapes, node: Node, output: Value, given: Given) -> Shape | None:
    return given[0]


def _broadcast(shapes: Shapes, node: Node, output: Value, given: Given) -> Shape | None:
    known = [shape for shape in given if shape is not None]
    return broadcast(known, output) if len(known) == len(given) else None


def _transpose(shapes: Shapes, node: Node, output: Value, given: Given) -> Shape | None:
    shape = given[0] or ()
    return tuple(shape[axis] for axis in node.attribute("perm", range(len(shape))[::-1]))


def _reshape(shapes: Shapes, node: Node, output: Value, given: Given) -> Shape | None:
    shape, target = given[0] or (), shapes.content(node.inputs[1])
    if target is None:
        return None
    if not node.attribute("allowzero", 0):
        target = tuple(shape[axis] if size.known == 0 else size for axis, size in enumerate(target))
    open_axes = [axis for axis, size in enumerate(target) if size.known is not None and size.number < 0]
    for axis in open_axes[:1]:
        rest = product(target[:axis] + target[axis + 1 :])
        target = (*target[:axis], product(shape).divided(rest) or fresh(output, axis), *target[axis + 1 :])
    return target


def _split(shapes: Shapes, node: Node, output: Value, given: Given) -> Shape | None:
    shape, place = given[0] or (), node.outputs.index(output)
    axis = node.attribute("axis", 0) % len(shape)
    stated = len(node.inputs) > 1 and node.inputs[1] is not None
    parts = shapes.numbers(node.inputs[1]) if stated else node.attribute("split")
    known, count = shape[axis].known, len(node.outputs)
    if parts is None and not stated and known is not None and known % count == 0:
        parts = [known // count] * count
    size = fresh(output, axis) if parts is None else Size(int(parts[place]))
    return (*shape[:axis], size, *shape[axis + 1 :])


def _squeeze(shapes: Shapes, node: Node, output: Value, given: Given) -> Shape | None:
    shape, axes = given[0] or (), shapes.axes(node)
    if axes is None:
        stated = len(node.inputs) > 1 or any(size.known is None for size in shape)
        return None if stated else tuple(size for size in shape if size != ONE)
    gone = {axis % len(shape) for axis in axes}
    return tuple(size for axis, size in enumerate(shape) if axis not in gone)


def _unsqueeze(shapes: Shapes, node: Node, output: Value, given: Given) -> Shape | None:
    axes = shapes.axes(node)
    if axes is None:
        return None
    left = list(given[0] or ())
    rank = len(left) + len(axes)
    new = {axis % rank for axis in axes}
    return tuple(ONE if axis in new else left.pop(0) for axis in range(rank))


def _flatten(shapes: Shapes, node: Node, output: Value, given: Given) -> Shape | None:
    shape, axis = given[0] or (), node.attribute("axis", 1)
    axis = axis + len(shape) if axis < 0 else axis
    return product(shape[:axis]), product(shape[axis:])


def _expand(shapes: Shapes, node: Node, output: Value, given: Given) -> Shape | None:
    target = shapes.content(node.inputs[1])
    return None if target is None else broadcast([given[0] or (), target], output)


def _concat(shapes: Shapes, node: Node, output: Value, given: Given) -> Shape | None:
    first = list(given[0] or ())
    axis = node.attribute("axis", 1) % len(first)
    parts = [None if shape is None else shape[axis].known for shape in given]
    known = [part for part in parts if part is not None]
    first[axis] = Size(sum(known)) if len(known) == len(parts) else fresh(output, axis)
    return tuple(first)


def _gather(shapes: Shapes, node: Node, output: Value, given: Given) -> Shape | None:
    data, ids = given[0] or (), given[1]
    axis = node.attribute("axis", 0) % len(data)
    return None if ids is None else (*data[:axis], *ids, *data[axis + 1 :])


def slices(shapes: Shapes, node: Node, rank: int) -> list[tuple[int, int, int, int]] | None:
    """Give axis, start, end and step of a Slice where they are constants."""
    if len(node.inputs) == 1:
        starts, ends = node.attribute("starts"), node.attribute("ends")
        axes, steps = node.attribute("axes", list(range(len(starts or ())))), None
    else:
        starts, ends = shapes.numbers(node.inputs[1]), shapes.numbers(node.inputs[2])
        axes, steps = [
            shapes.numbers(node.inputs[slot]) if len(node.inputs) > slot and node.inputs[slot] else fallback
            for slot, fallback in ((3, list(range(len(starts or ())))), (4, None))
        ]
        if steps is None and len(node.inputs) > 4 and node.inputs[4] is not None:
            return None
    if starts is None or ends is None or axes is None:
        return None
    steps = [1] * len(starts) if steps is None else steps
    return [(axis % rank, *rest) for axis, *rest in zip(axes, starts, ends, steps, strict=True)]


def _slice(shapes: Shapes, node: Node, output: Value, given: Given) -> Shape | None:
    sizes = list(given[0] or ())
    found = slices(shapes, node, len(sizes))
    for axis, start, end, step in found or ():
        size = sizes[axis]
        others = tuple(sizes[:axis] + sizes[axis + 1 :])
        if step == 1 and takes_all(start, end, size, others):
            continue
        known = size.known
        sizes[axis] = (
            fresh(output, axis) if known is None else Size(len(range(*slice(start, end, step).indices(known))))
        )
    return None if found is None else tuple(sizes)


def _shape(shapes: Shapes, node: Node, output: Value, given: Given) -> Shape | None:
    return (Size(len((given[0] or ())[slice(*_bounds(node))])),)


def _bounds(node: Node) -> tuple[int, int]:
    return int(node.attribute("start", 0)), int(node.attribute("end", LAST))


def _matmul(shapes: Shapes, node: Node, output: Value, given: Given) -> Shape | None:
    left, right = given[0] or (), given[1] or ()
    if len(left) < 2 or len(right) < 2:
        return None
    return (*broadcast([left[:-2], right[:-2]], output), left[-2], right[-1])


def _gemm(shapes: Shapes, node: Node, output: Value, given: Given) -> Shape | None:
    left, right = given[0] or (), given[1] or ()
    return left[1 if node.attribute("transA", 0) else 0], right[0 if node.attribute("transB", 0) else 1]


def _reduce(shapes: Shapes, node: Node, output: Value, given: Given) -> Shape | None:
    shape, axes = given[0] or (), shapes.axes(node)
    if axes is None:
        if len(node.inputs) > 1 and node.inputs[1] is not None:
            return None
        axes = [] if node.attribute("noop_with_empty_axes", 0) else list(range(len(shape)))
    elif not axes and not node.attribute("noop_with_empty_axes", 0):
        axes = list(range(len(shape)))
    return _reduced(node, shape, axes)


def _arg(shapes: Shapes, node: Node, output: Value, given: Given) -> Shape | None:
    return _reduced(node, given[0] or (), [node.attribute("axis", 0)])


def _reduced(node: Node, shape: Shape, axes: Sequence[int]) -> Shape:
    gone, keep = {axis % len(shape) for axis in axes}, node.attribute("keepdims", 1)
    return tuple(ONE if axis in gone else size for axis, size in enumerate(shape) if keep or axis not in gone)


def _conv(shapes: Shapes, node: Node, output: Value, given: Given) -> Shape | None:
    shape, weight = given[0] or (), given[1] or ()
    return (shape[0], weight[0], *(fresh(output, axis) for axis in range(2, len(shape))))


def _pool(shapes: Shapes, node: Node, output: Value, given: Given) -> Shape | None:
    shape = given[0] or ()
    whole = node.op_type.startswith("Global")
    return (*shape[:2], *(ONE if whole else fresh(output, axis) for axis in range(2, len(shape))))


def _shape_content(shapes: Shapes, node: Node) -> Shape | None:
    shape = shapes.of(node.inputs[0])
    return None if shape is None else shape[slice(*_bounds(node))]


def _cast_content(shapes: Shapes, node: Node) -> Shape | None:
    return shapes.content(node.inputs[0]) if node.attribute("to") in (6, 7) else None


def _same_content(shapes: Shapes, node: Node) -> Shape | None:
    return shapes.content(node.inputs[0])


def _gather_content(shapes: Shapes, node: Node) -> Shape | None:
    data, ids = shapes.content(node.inputs[0]), shapes.numbers(node.inputs[1])
    if data is None or ids is None or node.attribute("axis", 0) or not all(-len(data) <= at < len(data) for at in ids):
        return None
    return tuple(data[at] for at in ids)


def _slice_content(shapes: Shapes, node: Node) -> Shape | None:
    data, found = shapes.content(node.inputs[0]), slices(shapes, node, 1)
    if data is None or found is None or len(found) != 1:
        return None
    _, start, end, step = found[0]
    return data[slice(start, end, step)] if step > 0 else None


def _concat_content(shapes: Shapes, node: Node) -> Shape | None:
    parts = [shapes.content(value) for value in node.inputs]
    return None if any(part is None for part in parts) else tuple(size for part in parts for size in part or ())


def _arithmetic(shapes: Shapes, node: Node) -> Shape | None:
    left, right = (shapes.content(value) for value in node.inputs)
    if left is None or right is None or len({len(left), len(right)} - {1}) > 1:
        return None
    count = max(len(left), len(right))
    pairs = zip(left * (count // len(left) or 1), right * (count // len(right) or 1), strict=True)
    if node.op_type == "Mul":
        return tuple(a * b for a, b in pairs)
    divided = [a.divided(b) if a.number >= 0 and b.number > 0 else None for a, b in pairs]
    found = tuple(size for size in divided if size is not None)
    return found if len(found) == count else None


UNARY = (
    "Abs", "BatchNormalization", "Cast", "Ceil", "Celu", "Clip", "Cos", "CumSum", "DequantizeLinear", "Dropout", "Elu",
    "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "Identity", "InstanceNormalization", "IsInf", "IsNaN",
    "LayerNormalization", "LeakyRelu", "Log", "LogSoftmax", "LpNormalization", "Mish", "Neg", "Not", "PRelu",
    "QuantizeLinear", "Reciprocal", "Relu", "Round", "Selu", "Sigmoid", "Sign", "Sin", "Softmax", "Softplus",
    "Softsign", "Sqrt", "Tanh", "ThresholdedRelu", "Trilu",
)  # fmt: skip
BINARY = (
    "Add", "And", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Mean", "Min", "Mod",
    "Mul", "Or", "Pow", "Sub", "Sum", "Where", "Xor",
)  # fmt: skip
REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
RULES: dict[str, Rule] = {
    **dict.fromkeys(UNARY, _same),
    **dict.fromkeys(BINARY, _broadcast),
    **{f"Reduce{name}": _reduce for name in REDUCTIONS},
    "ArgMax": _arg,
    "ArgMin": _arg,
    "AveragePool": _pool,
    "Concat": _concat,
    "Conv": _conv,
    "Expand": _expand,
    "Flatten": _flatten,
    "Gather": _gather,
    "Gemm": _gemm,
    "GlobalAveragePool": _pool,
    "GlobalMaxPool": _pool,
    "MatMul": _matmul,
    "MaxPool": _pool,
    "Reshape": _reshape,
    "Shape": _shape,
    "Slice": _slice,
    "Split": _split,
    "Squeeze": _squeeze,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
CONTENTS: dict[str, Content] = {
    "Cast": _cast_content,
    "Concat": _concat_content,
    "Div": _arithmetic,
    "Gather": _gather_content,
    "Identity": _same_content,
    "Mul": _arithmetic,
    "Shape": _shape_content,
    "Slice": _slice_content,
    "Squeeze": _same_content,
    "Unsqueeze": _same_content,
}
