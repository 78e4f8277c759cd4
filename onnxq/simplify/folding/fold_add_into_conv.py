"""A constant that is added to every channel behind a convolution becomes part of its bias."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from onnx import TensorProto

from onnxq.ir.graph import Node, Value
from onnxq.ir.model import Model
from onnxq.ir.pass_manager import register_pass
from onnxq.ir.patch import Patch
from onnxq.ir.schemas import BROADCASTING
from onnxq.ir.tensor import ArrayTensor
from onnxq.simplify.regions.axis_tracking import constant_axes


@register_pass(order=200, opset=BROADCASTING, note="folded {} constant{s} into the bias of a convolution")
def fold_add_into_conv(model: Model) -> Iterator[Patch]:
    """Describe the new biases; a Squeeze or Unsqueeze of axes behind the channels may stand between."""
    for graph in model.graph.graphs():
        for node in graph.nodes:
            if node.op_type not in ("Conv", "ConvTranspose") or node.domain:
                continue
            path = channel_path(node, ("Add", "Sub"))
            add = path[-1].consumers()[0] if path else None
            bias = bias_of(node)
            if add is None or bias is None or (change := _added(add, path[-1], len(bias))) is None:
                continue
            patch = Patch(graph, node, "the constant is the same all over a channel")
            new = patch.constant(ArrayTensor((bias + change).astype(np.float32)), f"{path[0].name}_bias")
            patch.rewire(node, 2, new)
            output = add.outputs[0]
            assert output is not None
            patch.replace(output, path[-1])
            for value in path[:-1] if output.is_output else path:
                patch.rename(value, f"{value.name}_with_bias")  # it is another tensor than before
            yield patch


def channel_path(conv: Node, until: tuple[str, ...]) -> list[Value]:
    """Return what stands between a convolution and an operator that alone reads it; nothing where there is none."""
    value, path = conv.outputs[0], list[Value]()
    while value is not None and len(value.uses) == 1 and not value.is_output and value.shape is not None:
        path.append(value)
        reader = value.consumers()[0]
        if reader.domain or reader.graph is not conv.graph:
            return []
        if reader.op_type in until:
            return path
        axes = constant_axes(reader) if reader.op_type in ("Squeeze", "Unsqueeze") else None
        if not axes or min(axes) < 2:  # channels are axis 1, and stay that
            return []
        value = reader.outputs[0]
    return []


def bias_of(conv: Node) -> np.ndarray | None:
    """Return the bias in float64, one element for each channel, zeros where there is none."""
    weight = conv.constant(1)
    if weight is None or weight.dtype != TensorProto.FLOAT or len(weight.shape) < 3:
        return None
    transposed = conv.op_type == "ConvTranspose"
    channels = weight.shape[1] * conv.attribute("group", 1) if transposed else weight.shape[0]
    given = conv.input(2)
    if given is None:
        return np.zeros(channels)
    stored = given.constant
    return stored.numpy().astype(np.float64) if stored is not None and stored.shape == (channels,) else None


def _added(node: Node, value: Value, channels: int) -> np.ndarray | None:
    """Return what a node adds to every channel of a value, in float64; None where it does something else."""
    other = node.inputs[1] if node.inputs[0] is value else node.inputs[0]
    if node.op_type == "Sub" and node.inputs[0] is not value:
        return None
    array = by_channel(other, len(value.shape or ()), channels)
    return -array if array is not None and node.op_type == "Sub" else array


def by_channel(other: Value | None, rank: int, channels: int, axis: int = 1) -> np.ndarray | None:
    """Return a constant that is the same all over each channel, in float64; None where it is something else."""
    stored = other.constant if other is not None else None
    if stored is None or stored.dtype != TensorProto.FLOAT or len(stored.shape) > rank:
        return None
    shape = (*[1] * (rank - len(stored.shape)), *stored.shape)
    axis %= rank
    if any(size != 1 for at, size in enumerate(shape) if at != axis) or shape[axis] not in (1, channels):
        return None
    return np.broadcast_to(stored.numpy().astype(np.float64).reshape(-1), (channels,))
