"""What products of two activations take: of a map and its Sigmoid, and of a map and a gate for each channel."""

from __future__ import annotations

from collections.abc import Sequence

from onnxq.ir import Node, Value
from onnxq.ops.integer_domain import CLAMPS
from onnxq.ops.silu import gated_by, silu_slot
from onnxq.targets import Costs

# What onnxruntime computes in the blocks of channels that float convolutions have
IN_BLOCKS = (*CLAMPS, "Add", "HardSigmoid", "HardSwish", "LeakyRelu", "Mul", "Sigmoid", "Tanh")


def gate_times(node: Node, sizes: Sequence[int], costs: Costs) -> tuple[float, float] | None:
    """Give the times of such a product in float and in 8 bit in nanoseconds, of its Sigmoid none; None for other nodes.

    Squeezing and exciting ends in a product of a map and a gate for each channel. In float, onnxruntime undoes the
    blocks of channels in front of it and makes them anew behind it, which takes more than the product itself.

    Args:
        node: Any node.
        sizes: How many elements each of its inputs has.
        costs: Kernel times.

    """
    if gated_by(node) is not None:
        return 0.0, 0.0
    if silu_slot(node) is not None:
        return costs.elementwise("SiLU", max(sizes))
    if node.op_type != "Mul" or node.domain or len(sizes) != 2 or sizes[0] == sizes[1]:
        return None
    in_float, in_integers = costs.elementwise("Mul", max(sizes))
    made, scaled = node.outputs[0], node.inputs[sizes.index(max(sizes))]
    behind = made is not None and any(_is_conv(use.node) for use in made.uses)
    changes = sum((behind, _comes_in_blocks(scaled)))
    return in_float + changes * costs.reorder(max(sizes)), in_integers


def _comes_in_blocks(value: Value | None) -> bool:
    """Whether a Conv makes a value, by way of what keeps its layout."""
    while value is not None and value.producer is not None:
        maker = value.producer
        if _is_conv(maker) or maker.domain or maker.op_type not in IN_BLOCKS:
            return _is_conv(maker)
        value = maker.inputs[0]
    return False


def _is_conv(node: Node) -> bool:
    return node.op_type == "Conv" and not node.domain
