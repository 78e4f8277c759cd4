"""What products of two activations take: those of a map and its Sigmoid."""

from __future__ import annotations

from collections.abc import Sequence

from onnxq.ir import Node
from onnxq.ops.silu import gated_by, silu_slot
from onnxq.targets import Costs


def gate_times(node: Node, sizes: Sequence[int], costs: Costs) -> tuple[float, float] | None:
    """Give the times of such a product in float and in 8 bit in nanoseconds, of its Sigmoid none; None for other nodes.

    Args:
        node: Any node.
        sizes: How many elements each of its inputs has.
        costs: Kernel times.

    """
    if gated_by(node) is not None:
        return 0.0, 0.0
    if silu_slot(node) is not None:
        return costs.elementwise("SiLU", max(sizes))
    return None
