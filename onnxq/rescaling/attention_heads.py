"""Pass the factors of a group through attention, whose channels are split into heads and mixed over tokens.

Values of attention hold their channels on several axes, `[batch, heads, tokens, size of a head]`. The product with the
attention weights mixes tokens and leaves channels in place. So factors of what is read behind the heads can be divided
out in the projection of the values. Source: https://arxiv.org/abs/2211.10438, section 4, extended from normalisations
to linear pairs.
"""

from __future__ import annotations

from collections.abc import Iterator

from onnxq.ir import Node, Value
from onnxq.rescaling.groups import ScaleGroup, UnabsorbedScaleError

Axes = tuple[int, ...]


def through_heads(group: ScaleGroup, node: Node, value: Value, axis: int) -> None:
    """Follow the channels of a value through a node that takes them apart or mixes tokens, as far as they are apart.

    Args:
        group: Gets every value on the way; ordinary rules go on where channels are on one axis again.
        node: Reshape or MatMul, entered from one of its inputs or from its output.
        value: The input or output that it is entered from.
        axis: Its channel axis.

    Raises:
        UnabsorbedScaleError: Something on the way is none of Reshape, Transpose and MatMul, or mixes channels.

    """
    pending = list(_neighbours(group, node, value, (axis,)))
    while pending:
        reached, axes = pending.pop()
        if len(axes) == 1:
            group.include(reached, axes[0])
        elif reached not in group.heads:
            group.include_apart(reached, axes)
            assert reached.producer is not None
            for place in (*reached.consumers(), reached.producer):
                pending += _neighbours(group, place, reached, axes)
        elif group.heads[reached] != axes:
            raise UnabsorbedScaleError


def _neighbours(group: ScaleGroup, node: Node, value: Value, axes: Axes) -> Iterator[tuple[Value, Axes]]:
    """Return the values on the other side of a node, and the axes that hold the channels there."""
    result = node.outputs[0]
    if node.domain or result is None or result.shape is None or value.shape is None:
        raise UnabsorbedScaleError
    if node.op_type == "MatMul":
        yield _mixed(group, node, result, value, axes)
        return
    other = result if value is node.inputs[0] else node.inputs[0]
    if other is None or other.shape is None or value not in (result, node.inputs[0]):
        raise UnabsorbedScaleError
    if node.op_type == "Transpose":
        order = list(node.attribute("perm") or range(len(value.shape))[::-1])
        yield other, tuple(order.index(axis) if other is result else order[axis] for axis in axes)
    elif node.op_type == "Reshape" and axes == _trailing(value, group.channels):
        yield other, _trailing(other, group.channels)
    else:
        raise UnabsorbedScaleError


def _mixed(group: ScaleGroup, node: Node, result: Value, value: Value, axes: Axes) -> tuple[Value, Axes]:
    """Pass between the second factor of a product and what it gives: rows are mixed, columns and matrices are not."""
    second = node.inputs[1]
    if second is None or second.shape is None or second is node.inputs[0] or value not in (second, result):
        raise UnabsorbedScaleError
    other = result if value is second else second
    if value.shape is None or other.shape is None or min(len(value.shape), len(other.shape)) < 2:
        raise UnabsorbedScaleError
    moved = tuple(axis - len(value.shape) + len(other.shape) for axis in axes)
    if min(moved) < 0 or len(value.shape) - 2 in axes:
        raise UnabsorbedScaleError
    if node not in group.products:
        group.products.append(node)
    return other, moved


def _trailing(value: Value, channels: int) -> Axes:
    """Return the last axes that together hold the channels, one after another; those of size 1 are left out."""
    assert value.shape is not None
    held, axes = 1, []
    for axis, size in reversed(list(enumerate(value.shape))):
        if held == channels:
            break
        if not isinstance(size, int):
            raise UnabsorbedScaleError
        held *= size
        if size != 1:
            axes.append(axis)
    if held != channels:
        raise UnabsorbedScaleError
    return tuple(axes[::-1])
