"""Rules by which operators pass the factors of a group, from an input or from their output.

Tests: `tests/rescaling/test_groups.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from onnxq.ir import Node, Value
from onnxq.ir.operator_traits import Trait, operators_with
from onnxq.ops.forms.family import NodeView
from onnxq.ops.forms.integer_domain import clamp_bounds
from onnxq.ops.forms.scheme import Scheme
from onnxq.rescaling.attention_heads import through_heads
from onnxq.rescaling.groups import ScaleGroup, UnabsorbedScaleError, linear_reader

UNBOUNDED = 1e38  # exporters write the largest float32 for no bound


def constant_shape(value: Value | None) -> tuple[int, ...]:
    """Shape of an input that has to be a constant."""
    if value is None or value.constant is None:
        raise UnabsorbedScaleError
    return value.constant.shape


def _same_place(group: ScaleGroup, node: Node, value: Value, axis: int) -> None:
    if value is not node.inputs[0] and value is not node.outputs[0]:
        raise UnabsorbedScaleError  # a slope or a bound
    group.include(node.inputs[0], axis)
    group.include(node.outputs[0], axis)


def _pool(group: ScaleGroup, node: Node, value: Value, axis: int) -> None:
    if axis != 1:
        raise UnabsorbedScaleError
    _same_place(group, node, value, axis)


def _clip(group: ScaleGroup, node: Node, value: Value, axis: int) -> None:
    """A clamp at zero commutes with a factor; an upper bound does for channels that stay below it: see `bounded.py`."""
    bounds = clamp_bounds(NodeView(node, Scheme(), 1))
    if bounds is None or (bounds[0] and bounds[0] > -UNBOUNDED):
        raise UnabsorbedScaleError
    _same_place(group, node, value, axis)
    if bounds[1] < UNBOUNDED and node.outputs[0] is not None:
        group.limits[node.outputs[0]] = bounds[1]


def _reduce_mean(group: ScaleGroup, node: Node, value: Value, axis: int) -> None:
    """A mean over axes behind the channel axis."""
    axes = node.attribute("axes")
    if node.input(1) is not None:
        constant = node.constant(1)
        axes = None if constant is None else constant.numpy().reshape(-1).tolist()
    source = node.inputs[0]
    if not axes or source is None or source.shape is None:
        raise UnabsorbedScaleError
    rank = len(source.shape)
    if any(reduced % rank <= axis for reduced in axes):
        raise UnabsorbedScaleError
    _same_place(group, node, value, axis)


def _flatten(group: ScaleGroup, node: Node, value: Value, axis: int) -> None:
    """A map that is flattened for a Gemm or MatMul: its weight has a row for each position of each channel."""
    source, result = node.inputs[0], node.outputs[0]
    if axis != 1 or value is not source or result is None or result.is_output or value.shape is None:
        raise UnabsorbedScaleError
    sizes = [size for size in value.shape[1:] if isinstance(size, int)]
    if node.attribute("axis", 1) != 1 or len(sizes) < len(value.shape) - 1 or result in group.flattened:
        raise UnabsorbedScaleError
    positions = math.prod(sizes[1:])
    for use in result.uses:
        reader = linear_reader(use.node, use.slot)
        # As many rows as the map has elements behind the batch: so the last axis is all of them, in their order
        if reader is None or constant_shape(reader.value)[reader.axis] != group.channels * positions:
            raise UnabsorbedScaleError
        if use.node.op_type == "Conv":
            raise UnabsorbedScaleError
        group.readers.append(replace(reader, positions=positions))
    group.flattened[result] = positions


def _reshape(group: ScaleGroup, node: Node, value: Value, axis: int) -> None:
    """Channels that are taken apart into heads or put together, or else a map that is flattened."""
    assert value.shape is not None
    rule = through_heads if axis == len(value.shape) - 1 else _flatten
    rule(group, node, value, axis)


def _transpose(group: ScaleGroup, node: Node, value: Value, axis: int) -> None:
    assert value.shape is not None
    order = node.attribute("perm") or list(range(len(value.shape)))[::-1]
    inside = axis if value is node.inputs[0] else order[axis]
    group.include(node.inputs[0], inside)
    group.include(node.outputs[0], order.index(inside))


def operands(node: Node, value: Value, axis: int) -> tuple[list[tuple[int, Value, int]], int]:
    """Return slot, value and channel axis of both inputs of a broadcasting operator (negative: none) and the output."""
    result = node.outputs[0]
    if result is None or result.shape is None or value.shape is None or len(node.inputs) != 2:
        raise UnabsorbedScaleError
    rank = len(result.shape)
    at = axis + rank - len(value.shape)
    found = []
    for slot, operand in enumerate(node.inputs):
        if operand is None:
            raise UnabsorbedScaleError
        shape = operand.shape if operand.tensor is None else operand.tensor.shape
        if shape is None:
            raise UnabsorbedScaleError
        found.append((slot, operand, at - rank + len(shape)))
    return found, at


def _add(group: ScaleGroup, node: Node, value: Value, axis: int) -> None:
    """All terms of a sum or difference are divided."""
    terms, at = operands(node, value, axis)
    for slot, operand, where in terms:
        if operand.tensor is None:
            group.include(operand, where)
        else:
            group.divide(node, slot, where)
    group.include(node.outputs[0], at)


def _multiply(group: ScaleGroup, node: Node, value: Value, axis: int) -> None:
    """A constant with an element for each channel absorbs; with a number or an activation the factor passes on."""
    terms, at = operands(node, value, axis)
    from_output = value is node.outputs[0]
    for slot, operand, where in terms:
        if operand.tensor is None or operand is value:
            continue
        if node.op_type == "Div" and slot == 0:
            raise UnabsorbedScaleError  # a constant divided by the value
        if where >= 0 and operand.tensor.shape[where] != 1:
            group.divide(node, slot, where, "divide" if from_output == (node.op_type == "Mul") else "multiply")
            return
    if node.op_type == "Div" and node.inputs[1] is value:
        raise UnabsorbedScaleError
    group.products.append(node)
    carrier = next((o, w) for s, o, w in terms if o is value or (from_output and o.tensor is None))
    group.include(*carrier)
    group.include(node.outputs[0], at)


RULES: dict[str, Callable[[ScaleGroup, Node, Value, int], None]] = {
    **dict.fromkeys(operators_with(Trait.ELEMENTWISE | Trait.SCALES), _same_place),
    **dict.fromkeys(operators_with(Trait.POOLS | Trait.SCALES), _pool),
    **dict.fromkeys(("Add", "Sub"), _add),
    **dict.fromkeys(("Mul", "Div"), _multiply),
    "Clip": _clip,
    "ReduceMean": _reduce_mean,
    "Flatten": _flatten,
    "Reshape": _reshape,
    "MatMul": through_heads,
    "Transpose": _transpose,
}
