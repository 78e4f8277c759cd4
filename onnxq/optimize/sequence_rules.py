"""Rules for operators that commute with a swap of the first two axes of their inputs.

Tests: `tests/optimize/test_sequence_first.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from onnxq.ir import Node, Value
from onnxq.ir.operator_traits import Trait, operators_with
from onnxq.ir.shape_inference.symbolic import Shapes

FEWEST_AXES = 3  # batch, sequence and what belongs to a place in it
SOFTMAX_OPSET = 13  # before, everything behind the axis was normalised together
REDUCTIONS = operators_with(Trait.REDUCES)


@dataclass(frozen=True)
class Swappable:
    """The changes to a node whose outputs have their first two axes swapped.

    Attributes:
        slots: Inputs that are swapped, too.
        constants: Constants in place of others, by slot.

    """

    slots: tuple[int, ...]
    constants: Mapping[int, np.ndarray] = field(default_factory=dict)


def swappable(node: Node, shapes: Shapes) -> Swappable | None:
    """Tell what swapping the first two axes of a node's outputs takes; None where it is another function then.

    Outputs of less than three axes, such as scales, stay as they are.
    """
    rule = RULES.get(node.op_type)
    if rule is None or node.domain or node.bodies:
        return None
    ranks = [_rank(value, shapes) for value in node.makes]
    if not ranks or ranks[0] < FEWEST_AXES:
        return None
    return rule(node, shapes)


def _rank(value: Value | None, shapes: Shapes) -> int:
    """Return the number of axes; -1 where it is unknown."""
    shape = shapes.of(value)
    return -1 if shape is None else len(shape)


def _first(node: Node, shapes: Shapes) -> Swappable | None:
    """Let the first input be swapped, if it has as many axes as have to be told apart."""
    value = node.inputs[0]
    usable = value is not None and value.constant is None and _rank(value, shapes) >= FEWEST_AXES
    return Swappable((0,)) if usable else None


def _elementwise(node: Node, shapes: Shapes) -> Swappable | None:
    """Every input is swapped unless it is the same for all samples and places."""
    rank = _rank(node.outputs[0], shapes)
    slots: list[int] = []
    constants: dict[int, np.ndarray] = {}
    for slot, value in enumerate(node.inputs):
        if value is None:
            continue
        shape = shapes.of(value)
        if shape is None:
            return None
        aligned = (*[1] * (rank - len(shape)), *(size.known for size in shape))
        if aligned[:2] == (1, 1):
            continue
        if value.constant is not None:
            array = value.constant.numpy()
            expanded = np.expand_dims(array, tuple(range(rank - array.ndim)))
            constants[slot] = np.ascontiguousarray(np.swapaxes(expanded, 0, 1))
        elif len(shape) == rank:
            slots.append(slot)
        else:
            return None
    return Swappable(tuple(slots), constants) if slots else None


def _by_one_scale(node: Node, shapes: Shapes) -> Swappable | None:
    """Codes of a tensor with one scale."""
    for value in node.inputs[1:]:
        shape = shapes.of(value) if value is not None else ()
        if shape is None or any(size.known != 1 for size in shape):
            return None
    return _first(node, shapes)


def _normalised(node: Node, shapes: Shapes) -> Swappable | None:
    """Along the axes behind the first two, with parameters for these alone."""
    rank = _rank(node.inputs[0], shapes)
    parameters = [_rank(value, shapes) for value in node.inputs[1:] if value is not None]
    if node.attribute("axis", -1) % max(rank, 1) < 2 or not all(0 <= each <= rank - 2 for each in parameters):
        return None
    return _first(node, shapes) if len(node.outputs) == 1 else None


def _softmax(node: Node, shapes: Shapes) -> Swappable | None:
    rank, newer = _rank(node.inputs[0], shapes), shapes.opset >= SOFTMAX_OPSET
    axis = node.attribute("axis", -1 if newer else 1) % max(rank, 1)
    return _first(node, shapes) if axis == rank - 1 or (newer and axis >= 2) else None


def _along(node: Node, shapes: Shapes) -> Swappable | None:
    """Accept an axis behind the first two, if all other inputs are constants."""
    axis = node.attribute("axis", 0) % max(_rank(node.inputs[0], shapes), 1)
    fixed = all(value is None or value.constant is not None for value in node.inputs[1:])
    return _first(node, shapes) if axis >= 2 and fixed else None


def _concat(node: Node, shapes: Shapes) -> Swappable | None:
    rank = _rank(node.outputs[0], shapes)
    if node.attribute("axis", 0) % rank < 2 or any(
        value is None or value.constant is not None for value in node.inputs
    ):
        return None
    return Swappable(tuple(range(len(node.inputs))))


def _over(slot: int) -> Callable[[Node, Shapes], Swappable | None]:
    def rule(node: Node, shapes: Shapes) -> Swappable | None:
        """Over stated axes, all behind the first two."""
        rank = max(_rank(value, shapes) for value in (node.inputs[0], node.outputs[0]))
        axes = shapes.axes(node, slot)
        if node.op_type in REDUCTIONS and not node.attribute("keepdims", 1):
            return None
        return _first(node, shapes) if axes and all(axis % rank >= 2 for axis in axes) else None

    return rule


def _product(node: Node, shapes: Shapes) -> Swappable | None:
    """Rows times a matrix that is the same for all."""
    others = [_rank(value, shapes) for value in node.inputs[2:] if value is not None]
    if _rank(node.inputs[1], shapes) != 2 or not all(0 <= rank <= 1 for rank in others):
        return None
    if len(node.inputs) > 2 and (zero := shapes.of(node.inputs[2])) and any(size.known != 1 for size in zero):
        return None  # a zero point for every row
    return _first(node, shapes)


def _reshape(node: Node, shapes: Shapes) -> Swappable | None:
    """Accept a Reshape that keeps the first two axes and whose other sizes are known."""
    before, after = shapes.of(node.inputs[0]), shapes.of(node.outputs[0])
    if before is None or after is None or before[:2] != after[:2] or node.attribute("allowzero", 0):
        return None
    sides = [size.known for size in after[2:]]
    if None in sides or 0 in sides:
        return None
    kept = _first(node, shapes)
    return Swappable((0,), {1: np.array([0, 0, *sides], np.int64)}) if kept else None


def _transpose(node: Node, shapes: Shapes) -> Swappable | None:
    """Accept a Transpose that keeps the first two axes; `sequence_first` is about others."""
    return _first(node, shapes) if list(node.attribute("perm") or ())[:2] == [0, 1] else None


SwapRule = Callable[[Node, Shapes], Swappable | None]
ELEMENTWISE = operators_with(Trait.ELEMENTWISE) - {"PRelu"} | {"Cast"}  # a slope is broadcast one way only
RULES: dict[str, SwapRule] = {
    **dict.fromkeys(ELEMENTWISE, _elementwise),
    **dict.fromkeys(("DequantizeLinear", "QuantizeLinear"), _by_one_scale),
    **dict.fromkeys(("LayerNormalization", "RMSNormalization"), _normalised),
    **dict.fromkeys(("LogSoftmax", "Softmax"), _softmax),
    **dict.fromkeys(("Gather", "Split"), _along),
    **dict.fromkeys(("Squeeze", "Unsqueeze", *REDUCTIONS), _over(1)),
    **dict.fromkeys(("MatMul", "MatMulInteger"), _product),
    "Concat": _concat,
    "DynamicQuantizeLinear": _first,  # codes of the whole tensor, and their scale
    "Reshape": _reshape,
    "Slice": _over(3),
    "Transpose": _transpose,
}
