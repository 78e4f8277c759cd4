"""Find outputs whose last axis counts places, such as anchors of a detector, so that it holds no classes.

An output of three axes may hold scores of classes for each token, `[batch, tokens, classes]`, or figures for each place
of a map, `[batch, figures, places]`. Shapes do not tell them apart, and the operators behind them do: classes are the
channels of a product.

Tests: `tests/verification/test_class_axes.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from onnxq.ir import Node, Value, infer_types
from onnxq.ir.operator_traits import Trait, has
from onnxq.ir.passes import normalise
from onnxq.runtime.session import ModelSource, source_model

RANK = 3  # of outputs that are told apart
DEPTH = 64  # nodes that are looked back through
PASSES = ("lift_constants", "inline_functions")
CONVOLUTIONS = ("Conv", "ConvTranspose")
SAME_AXES = ("Softmax", "LogSoftmax", "Slice", "Split", "Pad", "Identity", "Cast")


def outputs_of_places(source: ModelSource, outputs: Collection[str]) -> set[str]:
    """Return the outputs whose last axis counts places.

    Args:
        source: The float model.
        outputs: Names of those with three axes.

    """
    if not outputs:
        return set()
    model = source_model(source).copy()
    normalise(model, PASSES)
    infer_types(model)
    return {value.name for value in model.graph.outputs if value.name in outputs and _places(value, RANK - 1, DEPTH)}


def _places(value: Value, axis: int, depth: int) -> bool:
    """Whether an axis of a value counts places, as far as the nodes before it tell."""
    node = value.producer
    if node is None or depth == 0:
        return False
    if node.op_type in CONVOLUTIONS:
        return axis > 1
    if node.op_type == "MatMul":
        return value.shape is not None and axis == len(value.shape) - 2
    before = _before(node, value, axis)
    return any(_places(one, place, depth - 1) for one, place in before)


def _before(node: Node, value: Value, axis: int) -> list[tuple[Value, int]]:
    """Return the values that an axis comes from, with its place there."""
    read = node.reads
    trace = TRACES.get(node.op_type)
    if trace is not None:
        return trace(node, value, axis)
    if has(node, Trait.BROADCASTS) and value.shape is not None:
        size = len(value.shape)
        pairs = [(one, axis - size + len(one.shape)) for one in read if one.producer and one.shape is not None]
        return [(one, place) for one, place in pairs if place >= 0 and one.shape and one.shape[place] != 1]
    if has(node, Trait.ELEMENTWISE) or has(node, Trait.POOLS) or node.op_type in (*SAME_AXES, "Resize"):
        return [(read[0], axis)] if read else []
    return []


def _concat(node: Node, value: Value, axis: int) -> list[tuple[Value, int]]:
    return [(one, axis) for one in node.reads]


def _transpose(node: Node, value: Value, axis: int) -> list[tuple[Value, int]]:
    turns, source = node.attribute("perm"), node.inputs[0]
    if turns is None or source is None:
        return []
    return [(source, int(turns[axis]))]


def _reshape(node: Node, value: Value, axis: int) -> list[tuple[Value, int]]:
    """Follow an axis that is kept from behind, or made of all the last ones of a map.

    In `[batch, channels, height, width]` to `[batch, channels, places]`, sizes up to the axis are the same.
    """
    source = node.inputs[0]
    if source is None or source.shape is None or value.shape is None:
        return []
    own, its = value.shape, source.shape
    last = axis == len(own) - 1
    if last and isinstance(own[-1], int) and own[-1] == its[-1]:
        return [(source, len(its) - 1)]
    merged = last and len(its) > len(own) and all(isinstance(size, int) for size in own[1:-1])
    return [(source, len(its) - 1)] if merged and own[1:-1] == its[1 : len(own) - 1] else []


TRACES: dict[str, Callable[[Node, Value, int], list[tuple[Value, int]]]] = {
    "Concat": _concat,
    "Transpose": _transpose,
    "Reshape": _reshape,
    "Flatten": _reshape,
}
