"""Operators that give what they read go."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from onnxq.ir.graph import Node, Value
from onnxq.ir.model import Model
from onnxq.ir.operator_traits import Trait, operators_with
from onnxq.ir.pass_manager import register_pass
from onnxq.ir.patch import Patch
from onnxq.ir.schemas import BROADCASTING
from onnxq.ir.shape_inference.rules import slices
from onnxq.ir.shape_inference.symbolic import Shapes, shapes_of

MOVES_NOTHING = operators_with(Trait.IN_ORDER) | {"Expand"}  # which does so if it repeats nothing
MOST = 1 << 16  # elements of a constant that are looked at


@register_pass(order=30, opset=BROADCASTING, note="removed {} no-op{s}")
def eliminate_no_ops(model: Model) -> Iterator[Patch]:
    """Describe what can go: each such node's readers read its input.

    Shapes count as equal where they are the same numbers, and the same sizes followed from `Shape` (see `Shapes`).
    """
    graph = model.graph
    shapes = shapes_of(model)
    gone: dict[Value, Value] = {}
    for node in graph.nodes:
        if node.domain or len(node.makes) != 1 or node.outputs[0] is None:
            continue
        output = node.outputs[0]
        source = _source(node, shapes)
        while source is not None and source in gone:
            source = gone[source]
        if source is not None and source is not output and _replaceable(output, source, gone):
            gone[output] = source
            patch = Patch(graph, node, "it gives what it reads")
            patch.replace(output, source)
            yield patch


def _replaceable(old: Value, new: Value, gone: dict[Value, Value]) -> bool:
    """Whether readers of one value can read another: an output of the graph needs a node to make it."""
    if not old.is_output:
        return True
    return new.producer is not None and not new.is_output and old.graph is new.graph and new not in gone.values()


def _source(node: Node, shapes: Shapes) -> Value | None:
    """Return the value that a node's output equals, or None."""
    if node.op_type == "Transpose":
        return _transposed_back(node)
    if node.op_type in MOVES_NOTHING:
        return _as_before(node, shapes)
    rule = RULES.get(node.op_type)
    if rule is None:
        return None
    source = rule(node, shapes)
    output = node.outputs[0]
    same = source is not None and source.constant is None and source.dtype is not None
    if not same or source is None or output is None or output.dtype != source.dtype:
        return None
    shape = shapes.of(source)
    return source if shape is not None and shape == shapes.of(output) else None


def _as_before(node: Node, shapes: Shapes) -> Value | None:
    """Follow nodes that only change the shape back to a value that has the same one."""
    output, found = node.outputs[0], None
    shape = shapes.of(output)
    at: Node | None = node
    while at is not None and at.op_type in MOVES_NOTHING and not at.domain and at.graph is node.graph:
        source = at.inputs[0]
        known = shapes.of(source)
        if source is None or source.graph is not node.graph or known is None or shape is None:
            break
        if at.op_type == "Expand" and known != shapes.of(at.outputs[0]):
            break
        if known == shape and source.constant is None:
            found = source
        at = source.producer
    return found


def _transposed_back(node: Node) -> Value | None:
    """Return what a Transpose by no permutation reads, or what one before it that it undoes reads."""
    perm = node.attribute("perm")
    source = node.inputs[0]
    if perm is None or source is None or source.constant is not None:
        return None
    if list(perm) == list(range(len(perm))):
        return source
    before = source.producer
    if before is None or before.op_type != "Transpose" or before.domain or before.graph is not node.graph:
        return None
    first = before.attribute("perm")
    undone = first is not None and [first[axis] for axis in perm] == list(range(len(perm)))
    return before.inputs[0] if undone else None


def _slice(node: Node, shapes: Shapes) -> Value | None:
    shape = shapes.of(node.inputs[0])
    found = None if shape is None else slices(shapes, node, len(shape))
    return node.inputs[0] if found is not None and all(step == 1 for *_, step in found) else None


def _cast(node: Node, shapes: Shapes) -> Value | None:
    value = node.inputs[0]
    return value if value is not None and value.dtype == node.attribute("to") else None


def _pad(node: Node, shapes: Shapes) -> Value | None:
    pads = shapes.numbers(node.inputs[1]) if len(node.inputs) > 1 else node.attribute("pads")
    return node.inputs[0] if pads is not None and not any(pads) else None


def _concat(node: Node, shapes: Shapes) -> Value | None:
    return node.inputs[0] if len(node.inputs) == 1 else None


def _clip(node: Node, shapes: Shapes) -> Value | None:
    if "min" in node.spans or "max" in node.spans:
        return None
    bounds = [*node.inputs[1:], None, None]
    low, high = (
        bound is None or _is_all(bound, limit) for bound, limit in zip(bounds, (-np.inf, np.inf), strict=False)
    )
    return node.inputs[0] if low and high else None


def _with(number: float, *, either: bool = False) -> Callable[[Node, Shapes], Value | None]:
    """Make a rule: the second input, or either, is a constant that is `number` everywhere."""

    def rule(node: Node, shapes: Shapes) -> Value | None:
        if len(node.inputs) != 2:
            return None
        first, second = node.inputs
        if second is not None and _is_all(second, number):
            return first
        return second if either and first is not None and _is_all(first, number) else None

    return rule


def _is_all(value: Value | None, number: float) -> bool:
    """Whether a value is one number everywhere: a constant, or what is spread or chosen of such constants.

    PyTorch's exporter writes the mask of a model that has none so, as `True` expanded to the size of the scores.
    """
    tensor, node = (value.constant, value.producer) if value is not None else (None, None)
    if node is not None and not node.domain and node.op_type in MOVES_NOTHING:
        return _is_all(node.inputs[0], number)
    if node is not None and not node.domain and node.op_type == "Where":
        return any(
            _is_all(node.inputs[0], taken) and _is_all(node.inputs[2 - taken], number) for taken in (True, False)
        )
    if tensor is None or tensor.size > MOST or not tensor.size:
        return False
    array = tensor.numpy()
    return array.dtype.kind in "biuf" and bool((array == number).all())


RULES: dict[str, Callable[[Node, Shapes], Value | None]] = {
    "Add": _with(0, either=True),
    "Cast": _cast,
    "Clip": _clip,
    "Concat": _concat,
    "Div": _with(1),
    "Max": _with(-np.inf, either=True),
    "Min": _with(np.inf, either=True),
    "Mul": _with(1, either=True),
    "Pad": _pad,
    "Pow": _with(1),
    "Slice": _slice,
    "Sub": _with(0),
}
