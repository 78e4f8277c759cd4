"""Rules for small integer vectors of sizes, element by element: https://onnx.ai/onnx/operators.

Tests: `tests/ir/test_symbolic.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from onnxq.ir.graph import Node
from onnxq.ir.shape_inference.dims import Shape, Size, product
from onnxq.ir.shape_inference.known import KnownShapes
from onnxq.ir.shape_inference.rules import shape_range, slices

Content = Callable[[KnownShapes, Node], Shape | None]
MOST_CONTENT = 16  # elements of an integer vector that is followed: ranks are smaller
ANY_RANK = frozenset(("Cast", "Identity", "Reshape", "Shape", "Size", "Squeeze", "Unsqueeze"))  # the order stays
ZERO = Size(0)


def content_of(shapes: KnownShapes, node: Node) -> Shape | None:
    """Return the elements of a node's first output, as far as they are numbers and products of sizes."""
    rule = CONTENTS.get(node.op_type)
    if rule is None or node.domain:
        return None
    if node.op_type not in ANY_RANK:
        given = [shapes.of(value) for value in node.reads]
        if any(shape is None or len(shape) > 1 for shape in given):
            return None
    found = rule(shapes, node)
    if found is None or len(found) > MOST_CONTENT or any(size.symbols and size.number <= 0 for size in found):
        return None
    return found


def _shape_content(shapes: KnownShapes, node: Node) -> Shape | None:
    shape = shapes.of(node.inputs[0])
    return None if shape is None else shape[slice(*shape_range(node))]


def _cast_content(shapes: KnownShapes, node: Node) -> Shape | None:
    return shapes.content(node.inputs[0]) if node.attribute("to") in (6, 7) else None


def _same_content(shapes: KnownShapes, node: Node) -> Shape | None:
    return shapes.content(node.inputs[0])


def _gather_content(shapes: KnownShapes, node: Node) -> Shape | None:
    data, ids = shapes.content(node.inputs[0]), shapes.numbers(node.inputs[1])
    if data is None or ids is None or node.attribute("axis", 0) or not all(-len(data) <= at < len(data) for at in ids):
        return None
    return tuple(data[at] for at in ids)


def _slice_content(shapes: KnownShapes, node: Node) -> Shape | None:
    data, found = shapes.content(node.inputs[0]), slices(shapes, node, 1)
    if data is None or found is None or len(found) != 1:
        return None
    _, start, end, step = found[0]
    return data[slice(start, end, step)] if step > 0 else None


def _concat_content(shapes: KnownShapes, node: Node) -> Shape | None:
    parts = [shapes.content(value) for value in node.inputs]
    return None if any(part is None for part in parts) else tuple(size for part in parts for size in part or ())


def _size_content(shapes: KnownShapes, node: Node) -> Shape | None:
    shape = shapes.of(node.inputs[0])
    return None if shape is None else (product(shape),)


def _filled_content(shapes: KnownShapes, node: Node) -> Shape | None:
    count, value = shapes.numbers(node.inputs[0]), node.attribute("value")
    if count is None or len(count) > 1 or value is None or value.dtype.kind != "i":
        return None
    return (Size(int(value.reshape(-1)[0])),) * math.prod(count) if math.prod(count) <= MOST_CONTENT else None


def _product_content(shapes: KnownShapes, node: Node) -> Shape | None:
    data = shapes.content(node.inputs[0])
    return None if data is None or node.attribute("noop_with_empty_axes", 0) else (product(data),)


def _elementwise(rule: Callable[..., Size | None]) -> Content:
    """Make a rule of one for single elements, which gives None where it cannot tell."""

    def content(shapes: KnownShapes, node: Node) -> Shape | None:
        given = [shapes.content(value) for value in node.inputs]
        counts = {len(data or ()) for data in given}
        count = max(counts)
        if any(data is None for data in given) or not counts <= {1, count}:
            return None
        columns = [(data or ()) * (count if len(data or ()) == 1 else 1) for data in given]
        found = [rule(*elements) for elements in zip(*columns, strict=True)]
        sizes = tuple(size for size in found if size is not None)
        return sizes if len(sizes) == len(found) else None

    return content


def _plus(sign: int) -> Callable[[Size, Size], Size | None]:
    def rule(left: Size, right: Size) -> Size | None:
        if right == ZERO:
            return left
        if left.symbols != right.symbols:
            return right if left == ZERO and sign > 0 else None
        number = left.number + sign * right.number
        return Size(number, left.symbols) if number else ZERO

    return rule


def _quotient(left: Size, right: Size) -> Size | None:
    if left.number < 0 or right.number <= 0:
        return None
    if left.known is not None and right.known is not None:  # halves of an odd size: what is left over goes
        return Size(left.number // right.number)
    return left.divided(right)


def _equal(left: Size, right: Size) -> Size | None:
    if left == right or (left.known is not None and right.known is not None):
        return Size(int(left == right))
    return ZERO if any(size.known is not None and size.number < 0 for size in (left, right)) else None


def _chosen(condition: Size, left: Size, right: Size) -> Size | None:
    return None if condition.known is None else left if condition.number else right


def _one_of(choose: Callable[[list[int]], int]) -> Callable[..., Size | None]:
    """Make a rule for the largest or smallest, which tells where all are the same or numbers."""

    def rule(*sizes: Size) -> Size | None:
        if len(set(sizes)) == 1:
            return sizes[0]
        return Size(choose([size.number for size in sizes])) if all(size.known is not None for size in sizes) else None

    return rule


CONTENTS: dict[str, Content] = {
    "Add": _elementwise(_plus(1)),
    "Cast": _cast_content,
    "Concat": _concat_content,
    "ConstantOfShape": _filled_content,
    "Div": _elementwise(_quotient),
    "Equal": _elementwise(_equal),
    "Gather": _gather_content,
    "Identity": _same_content,
    "Max": _elementwise(_one_of(max)),
    "Min": _elementwise(_one_of(min)),
    "Mul": _elementwise(Size.__mul__),
    "ReduceProd": _product_content,
    "Reshape": _same_content,
    "Shape": _shape_content,
    "Size": _size_content,
    "Slice": _slice_content,
    "Squeeze": _same_content,
    "Sub": _elementwise(_plus(-1)),
    "Unsqueeze": _same_content,
    "Where": _elementwise(_chosen),
}
