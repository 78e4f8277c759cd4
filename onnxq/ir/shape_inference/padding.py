"""The pads of a window: `pads`, or nothing of them where `auto_pad` says how the runtime works it out.

The operators say that both are not stated together. onnxruntime loads pools that do, and takes `auto_pad`; of a Conv it
loads none (1.31.1). An `auto_pad` without a word is the same as none.
"""

from __future__ import annotations

from onnxq.ir.graph import Node

NOT_SET = "NOTSET"


def auto_pad_of(node: Node) -> str:
    """Return how a Conv or pool pads: NOTSET, where `pads` count, VALID, SAME_UPPER or SAME_LOWER."""
    return str(node.attribute("auto_pad", NOT_SET)) or NOT_SET


def pads_of(node: Node, axes: int) -> list[int]:
    """Return the pads of a Conv or pool that count, those in front of all axes and then those behind."""
    stated = node.attribute("pads") if auto_pad_of(node) == NOT_SET else None
    return [int(size) for size in stated or [0] * 2 * axes]
