"""Find all tensors and constants that must be divided together with a value.

Tests: `tests/rescaling/test_groups.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from onnxq.ir import Node, Value
from onnxq.ir.graph import MICROSOFT
from onnxq.rescaling.groups import ScaleGroup, UnabsorbedScaleError, linear_reader, reader_axis
from onnxq.rescaling.operator_rules import RULES, constant_shape, operands

# Input slots of gamma and beta; the output is a sum of one multiple of each.
NORMS: dict[tuple[str, str], tuple[int, ...]] = {
    ("", "LayerNormalization"): (1, 2),
    ("", "RMSNormalization"): (1,),
    ("", "SimplifiedLayerNormalization"): (1,),
    (MICROSOFT, "SimplifiedLayerNormalization"): (1,),
}
CHANNEL_NORMS = ("BatchNormalization", "InstanceNormalization")


def find_groups(values: Mapping[Value, int]) -> dict[Value, ScaleGroup]:
    """Find, for each value that can be divided for free, everything that is divided with it.

    Args:
        values: Activations of the main graph whose types and shapes are inferred, and their channel axes; negative ones
            count from the last.

    Returns:
        Groups by value, for every value in them, asked for or not. A value that something on the way cannot absorb
        is missing.

    """
    found: dict[Value, ScaleGroup] = {}
    opened: set[Value] = set()
    for asked, asked_axis in values.items():
        for value, axis in _starts(asked, asked_axis):
            group = _group_of(value, axis, opened) if value not in found else None
            if group is not None:
                found.update(dict.fromkeys(group.values, group))
                break
    return found


def _group_of(value: Value, axis: int, opened: set[Value]) -> ScaleGroup | None:
    """Put together what is divided with a value; what turns out to be divided with what cannot is noted as opened."""
    width = value.shape[axis] if value.shape and -len(value.shape) <= axis < len(value.shape) else None
    if not isinstance(width, int) or width < 2 or value in opened:
        return None
    assert value.shape is not None
    group = ScaleGroup(width)
    try:
        group.include(value, axis % len(value.shape))
        settled = _settle(group, opened)
    except UnabsorbedScaleError:
        opened.update(group.axes)  # whatever divides one of these divides all of them, and ends at the same edge
        return None
    return settled if _weights_are_its_own(settled) else None


def _starts(value: Value, axis: int) -> Iterator[tuple[Value, int]]:
    """Return where to begin: the value, or the map that a Flatten or Reshape makes it of."""
    yield value, axis
    maker = value.producer
    if axis == -1 and maker is not None and maker.op_type in ("Flatten", "Reshape") and not maker.domain:
        source = maker.inputs[0]
        if source is not None and source.shape is not None and len(source.shape) > 2:
            yield source, 1


def _weights_are_its_own(group: ScaleGroup) -> bool:
    """Whether all readers of each weight take part; otherwise it would have to be stored twice."""
    taking_part = {(constant.node, constant.slot) for constant in group.constants}
    for constant in group.constants:
        if constant.value.elements.size > group.channels and any(
            tuple(use) not in taking_part for use in constant.value.uses
        ):
            return False
    return True


def _settle(group: ScaleGroup, opened: Collection[Value]) -> ScaleGroup:
    """Look at all neighbours until there are no more. Gives the group to go on with: a choice replaces it."""
    while group.pending:
        value = group.pending.pop()
        if value in opened:
            raise UnabsorbedScaleError
        axis = group.axes[value]
        for use in value.uses:
            _downwards(group, use.node, use.slot, value, axis)
        assert value.producer is not None
        group = _upwards(group, value.producer, value, axis, opened)
    for node in group.products:
        if sum(source in group.axes or source in group.heads for source in node.reads) != 1:
            raise UnabsorbedScaleError
    return group


def _upwards(group: ScaleGroup, node: Node, value: Value, axis: int, opened: Collection[Value]) -> ScaleGroup:
    assert value.shape is not None
    last = len(value.shape) - 1
    if value is not node.outputs[0] or any(node.outputs[1:]):
        raise UnabsorbedScaleError
    if (node.domain, node.op_type) in NORMS:
        if axis != last or node.attribute("axis", -1) % (last + 1) != axis:
            raise UnabsorbedScaleError
        _divide_present(group, node, NORMS[node.domain, node.op_type])
    elif node.op_type in CHANNEL_NORMS and not node.domain:
        if axis != 1:
            raise UnabsorbedScaleError
        _divide_present(group, node, (1, 2))
    elif linear_reader(node, 0) is not None:
        _linear_source(group, node, last, axis)
    elif node.op_type == "Mul" and not node.domain and not any(v is None or v.tensor for v in node.inputs):
        return _choose_factor(group, node, value, axis, opened)
    else:
        _through(group, node, value, axis)
    return group


def _divide_present(group: ScaleGroup, node: Node, slots: tuple[int, ...]) -> None:
    for slot in slots:
        if node.input(slot) is not None:
            group.divide(node, slot, 0)


def _linear_source(group: ScaleGroup, node: Node, last: int, axis: int) -> None:
    """Divide the output channels of a weight, and the bias."""
    if axis != (1 if node.op_type == "Conv" else last):
        raise UnabsorbedScaleError
    if node.op_type == "Conv":
        _divide_present(group, node, (1, 2))
        return
    turned = node.op_type == "Gemm" and node.attribute("transB", 0)
    group.divide(node, 1, 0 if turned else len(constant_shape(node.inputs[1])) - 1)
    bias = node.input(2)
    if bias is not None:
        group.divide(node, 2, len(constant_shape(bias)) - 1)


def _choose_factor(group: ScaleGroup, node: Node, value: Value, axis: int, opened: Collection[Value]) -> ScaleGroup:
    """Divide one factor of a product of activations: the first whose makers and readers take part."""
    factors, _ = operands(node, value, axis)
    if any(operand in group.axes for _, operand, _ in factors):
        group.products.append(node)
        return group
    for _, operand, where in factors:
        attempt = group.copy()
        attempt.products.append(node)
        try:
            attempt.include(operand, where)
            return _settle(attempt, opened)
        except UnabsorbedScaleError:
            continue
    raise UnabsorbedScaleError


def _downwards(group: ScaleGroup, node: Node, slot: int, value: Value, axis: int) -> None:
    if node.op_type in ("Shape", "Size") and not node.domain:
        return
    reader = linear_reader(node, slot)
    if reader is None:
        _through(group, node, value, axis)
        return
    assert value.shape is not None
    if axis != reader_axis(node) % len(value.shape):
        raise UnabsorbedScaleError
    if constant_shape(reader.value)[reader.axis] * reader.groups != group.channels:
        raise UnabsorbedScaleError
    group.readers.append(reader)


def _through(group: ScaleGroup, node: Node, value: Value, axis: int) -> None:
    """Let a node carry the factors on, entered from one of its inputs or from its output."""
    rule = None if node.domain or node.graph.parent is not None else RULES.get(node.op_type)
    if rule is None or any(node.outputs[1:]) or node.outputs[0] is None:
        raise UnabsorbedScaleError
    rule(group, node, value, axis)
