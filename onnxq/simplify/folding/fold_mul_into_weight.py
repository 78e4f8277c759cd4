"""A constant that every channel behind a layer is multiplied by becomes part of its weight.

TensorFlow writes the BatchNormalization of anything but pictures as a Mul and an Add. They stand behind a Dense, and
behind a Conv1D: a Conv with an axis of size 1 that a Squeeze removes. In 8 bit, that is two passes over floats.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from onnx import TensorProto

from onnxq.ir.graph import Node, Value
from onnxq.ir.model import Model
from onnxq.ir.pass_manager import register_pass
from onnxq.ir.passes.fold_batchnorm import SCALES
from onnxq.ir.patch import Patch
from onnxq.ir.schemas import BROADCASTING
from onnxq.ir.tensor import ArrayTensor
from onnxq.simplify.folding.fold_add_into_conv import bias_of, by_channel, channel_path


class ScaledLayer(NamedTuple):
    """A layer and the operators behind it, up to a multiplication.

    Attributes:
        path: The values from its output to what is multiplied.
        axis: Of the channels in them.
        bias: The node that adds the bias, and at which input; None where there is none.

    """

    path: list[Value]
    axis: int
    bias: tuple[Node, int] | None


@register_pass(order=220, opset=BROADCASTING, note="folded {} constant factor{s} into the weight of the layer before")
def fold_mul_into_weight(model: Model) -> Iterator[Patch]:
    """Describe one change for each Mul or Div by a constant that is the only reader of a layer."""
    for graph in model.graph.graphs():
        for node in graph.nodes:
            layer = _layer(node)
            patch = _multiplied(node, layer) if layer is not None else None
            if patch is not None:
                yield patch


def _layer(node: Node) -> ScaledLayer | None:
    """Return a convolution or product and its path; None where no multiplication follows."""
    if node.domain:
        return None
    if node.op_type in ("Conv", "ConvTranspose"):
        path = channel_path(node, ("Mul", "Div"))
        biased = node.input(2) is not None
        if not path or (biased and bias_of(node) is None):
            return None
        return ScaledLayer(path, 1, (node, 2) if biased else None)
    if node.op_type != "MatMul":
        return None
    path, bias, value = list[Value](), None, node.outputs[0]
    while value is not None and len(value.uses) == 1 and not value.is_output and value.shape:
        path.append(value)
        reader = value.consumers()[0]
        if reader.domain or reader.graph is not node.graph:
            return None
        if reader.op_type in ("Mul", "Div"):
            return ScaledLayer(path, -1, bias)
        if reader.op_type != "Add" or bias is not None:
            return None
        at = 1 if reader.inputs[0] is value else 0
        bias, value = (reader, at), reader.outputs[0]
    return None


def _multiplied(node: Node, layer: ScaledLayer) -> Patch | None:
    """Describe the change; None where the factor is not the same all over a channel, or weights are shared."""
    product, value = layer.path[-1].consumers()[0], layer.path[-1]
    weight, rank = node.inputs[1], len(value.shape or ())
    stored = weight.constant if weight is not None else None
    if weight is None or stored is None or stored.dtype != TensorProto.FLOAT or len(weight.uses) != 1:
        return None
    if node.op_type == "MatMul" and len(stored.shape) != 2:
        return None
    transposed = node.op_type == "ConvTranspose"
    channels = stored.shape[1] * (node.attribute("group", 1) if transposed else 1)
    factor = _factor(product, value, rank, stored.shape[0] if node.op_type == "Conv" else channels, layer.axis)
    if factor is None:
        return None
    scaled = SCALES.get(node.op_type, SCALES["Gemm"])(stored.numpy().astype(np.float64), factor, node)
    patch = Patch(node.graph, node, "the factor is the same all over a channel")
    made = [(node, 1, scaled, f"{weight.name}_scaled")]
    if layer.bias is not None:
        bias = _scaled_bias(node, layer.bias, factor, rank)
        if bias is None:
            return None
        made.append(bias)
    for reader, at, array, name in made:
        small = None if array is None else array.astype(np.float32)
        if small is None or not np.isfinite(small).all():
            return None
        patch.rewire(reader, at, patch.constant(ArrayTensor(small), name))
    output = product.outputs[0]
    assert output is not None
    patch.replace(output, value)
    for inner in layer.path[:-1] if output.is_output else layer.path:
        patch.rename(inner, f"{inner.name}_scaled")  # it is another tensor than before
    return patch


def _scaled_bias(
    node: Node, slot: tuple[Node, int], factor: np.ndarray, rank: int
) -> tuple[Node, int, np.ndarray, str] | None:
    """Return the reader and slot of a layer's bias, and the bias multiplied; None where others read it, too."""
    adds, at = slot
    added = adds.inputs[at]
    if added is None or len(added.uses) != 1:
        return None
    array = by_channel(added, 1 if adds is node else rank, len(factor), 0 if adds is node else -1)
    return None if array is None else (adds, at, array * factor, f"{added.name}_scaled")


def _factor(node: Node, value: Value, rank: int, channels: int, axis: int) -> np.ndarray | None:
    """Return what a node multiplies every channel by, in float64; None where it does something else."""
    other = node.inputs[1] if node.inputs[0] is value else node.inputs[0]
    if node.op_type == "Div" and node.inputs[0] is not value:
        return None
    array = by_channel(other, rank, channels, axis)
    if array is None or node.op_type == "Mul":
        return array
    return 1 / array if array.all() else None
