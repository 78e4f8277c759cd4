"""Recognise convolutions that onnxruntime computes on codes, with their inputs, outputs and constants.

Tests: `tests/optimize/test_fold_taps.py`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from onnxq.ir import Graph, Node, Value
from onnxq.optimize.qdq import made_by, unsigned


@dataclass(frozen=True)
class IntegerConv:
    """A Conv between Q/DQ pairs of uint8, with symmetric weights of int8: dense, or depthwise.

    Attributes:
        node: The Conv.
        activation: What it reads.
        product: What it makes, before that is quantized.
        pair: The DequantizeLinear that makes `activation`.
        weight: The DequantizeLinear of its weight.
        bias: The DequantizeLinear of its bias, if it has one.
        quantize: The QuantizeLinear behind it, which alone reads `product`.
        read: The codes in front of `pair`.
        made: The codes behind `quantize`.
        codes: The codes of its weight, `[filters, channels / group, …]`.

    """

    node: Node
    activation: Value
    product: Value
    pair: Node
    weight: Node
    bias: Node | None
    quantize: Node
    read: Value
    made: Value
    codes: np.ndarray

    @property
    def filters(self) -> int:
        """How many channels it makes."""
        return int(self.codes.shape[0])

    @property
    def channels(self) -> int:
        """How many channels it reads."""
        return self.filters if self.depthwise else int(self.codes.shape[1])

    @property
    def depthwise(self) -> bool:
        """Whether every channel is convolved on its own."""
        return int(self.node.attribute("group", 1)) > 1

    @property
    def window(self) -> int:
        """Elements of the kernel's window."""
        return math.prod(self.codes.shape[2:])

    @property
    def pixels(self) -> int | None:
        """Positions of the output of one sample; None where the model leaves them open."""
        shape = self.product.shape
        sizes = [size for size in shape[2:] if isinstance(size, int)] if shape is not None else []
        return math.prod(sizes) if shape is not None and len(sizes) == len(shape) - 2 else None

    def has_pixels(self, least: int) -> bool:
        """Whether there are so many pixels, for all that is known."""
        return self.pixels is None or self.pixels >= least


def integer_convs(graph: Graph) -> list[IntegerConv]:
    """Find all convolutions of one scope that are computed on codes, in graph order."""
    return [conv for node in graph.nodes if (conv := integer_conv(node)) is not None]


def integer_conv(node: Node) -> IntegerConv | None:
    """Recognise a Conv that is computed on codes; None for all other nodes.

    Groups of more than one channel have no fast kernel whatever their size, so they are left out, too.
    """
    if node.op_type != "Conv" or node.domain or node.outputs[0] is None:
        return None
    inputs = [*node.inputs, None][:3]
    pair, weight, bias = (made_by(value, "DequantizeLinear") for value in inputs)
    use = node.outputs[0].only_use
    if pair is None or weight is None or (bias is None) != (inputs[2] is None):
        return None
    if use is None or use.node.graph is not node.graph:  # a body may quantize it
        return None
    quantize = use.node
    if quantize.op_type != "QuantizeLinear" or quantize.domain or inputs[0] is None:
        return None
    read, made, codes = pair.inputs[0], quantize.outputs[0], _constant(weight, 0)
    zeros = _constant(weight, 2)
    if codes is None or codes.dtype != np.int8 or (zeros is not None and bool(zeros.any())):
        return None
    if not (unsigned(pair) and unsigned(quantize)) or read is None or made is None:
        return None
    stated = (*weight.inputs[1:], *(bias.inputs if bias is not None else ()))
    if any(value is None or value.constant is None for value in stated) or not _by_filter(weight):
        return None
    group = int(node.attribute("group", 1))
    if group > 1 and codes.shape[:2] != (group, 1):
        return None
    return IntegerConv(node, inputs[0], node.outputs[0], pair, weight, bias, quantize, read, made, codes)


def multiple_of(number: int, count: int) -> int:
    """Return the least multiple of a number that is no less than a count."""
    return -(-count // number) * number


def _by_filter(weight: Node) -> bool:
    """Whether a weight has one scale, or one for each filter: others have one for each channel, or each block."""
    scale = weight.constant(1)
    return scale is not None and (scale.size == 1 or (len(scale.shape) == 1 and weight.attribute("axis", 1) == 0))


def _constant(node: Node, slot: int) -> np.ndarray | None:
    tensor = node.constant(slot)
    return tensor.numpy() if tensor is not None else None


def absorbed(codes: Value, by_read: Mapping[Value, list[IntegerConv]], others: Collection[Node] = ()) -> bool:
    """Whether nothing but integer convolutions reads codes, whose weights can be zero for channels that are added.

    Args:
        codes: What a QuantizeLinear makes.
        by_read: Integer convolutions by the codes that they read.
        others: What else may read them, at any input.

    """
    convs = {conv.node for conv in by_read.get(codes, ())}
    pairs = [use.node for use in codes.uses]
    return (
        bool(pairs)
        and not codes.is_output
        and all(
            pair.op_type == "DequantizeLinear"
            and (value := pair.outputs[0]) is not None
            and not value.is_output
            and all((use.node in convs and use.slot == 0) or use.node in others for use in value.uses)
            for pair in pairs
        )
    )
