"""Operators that treat all channels of a quantized model alike, so that extra channels pass through.

They stand between convolutions, as those of a SiLU, a HardSwish or squeeze and excitation do. Their results for padded
channels do not matter, since only weights of zero read them.

Tests: `tests/optimize/test_pad_channels.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from onnxq.ir import Graph, Node, Value
from onnxq.ir.graph import MICROSOFT
from onnxq.optimize.integer_conv import IntegerConv
from onnxq.optimize.qdq import unsigned

ALIKE = {
    *(("", name) for name in ("Add", "AveragePool", "GlobalAveragePool", "LeakyRelu", "MaxPool", "Mul", "Sigmoid")),
    (MICROSOFT, "QuickGelu"),
}


@dataclass(frozen=True)
class Carrier:
    """An operator between Q/DQ pairs of uint8.

    Attributes:
        node: The operator.
        reads: The codes at each of its inputs that is an activation, None at those that are one constant number.
        quantize: The QuantizeLinear behind it, its only reader.
        made: The codes behind that.

    """

    node: Node
    reads: tuple[Value | None, ...]
    quantize: Node
    made: Value

    @property
    def sources(self) -> list[Value]:
        """The codes that it reads."""
        return [codes for codes in self.reads if codes is not None]


def carriers(graph: Graph, convs: Iterable[IntegerConv]) -> list[Carrier]:
    """Find those that only read what convolutions make, in graph order, by way of others or not.

    Args:
        graph: A scope of a quantized model.
        convs: Its integer convolutions: what they make has channels as its second axis.

    """
    channels, found = {conv.made: conv.filters for conv in convs}, []
    for node in graph.nodes:
        carrier = _carrier(node)
        counts = {channels.get(codes) for codes in carrier.sources} if carrier is not None else set()
        count = next(iter(counts)) if len(counts) == 1 else None
        if carrier is not None and count is not None:
            channels[carrier.made] = count
            found.append(carrier)
    return found


def _carrier(node: Node) -> Carrier | None:
    made = node.outputs[0]
    use = made.only_use if made is not None else None
    if (node.domain, node.op_type) not in ALIKE or made is None or use is None:
        return None
    quantize = use.node
    codes = quantize.outputs[0]
    if quantize.op_type != "QuantizeLinear" or quantize.domain or codes is None or not unsigned(quantize):
        return None
    if any(other is not None for other in node.outputs[1:]):
        return None
    reads: list[Value | None] = []
    for value in node.inputs:
        pair = value.producer if value is not None else None
        source = pair.inputs[0] if pair is not None else None
        if pair is None or pair.op_type != "DequantizeLinear" or pair.domain or source is None:
            return None
        if source.constant is not None and source.constant.size != 1:
            return None
        reads.append(source if source.constant is None else None)
    return Carrier(node, tuple(reads), quantize, codes)
