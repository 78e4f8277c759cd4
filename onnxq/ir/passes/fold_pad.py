"""Zeros that a Pad puts around the picture before a Conv become pads of the Conv.

onnxruntime does so for a Conv in float only, and exporters of networks with asymmetric padding write every one like it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from onnxq.ir.graph import Node, Value
from onnxq.ir.model import Model
from onnxq.ir.padding import auto_pad_of, pads_of
from onnxq.ir.passes.registry import describes
from onnxq.ir.patch import Patch


@describes(order=60, says="made {} Pad{s} part of the Conv behind")
def fold_pad(model: Model) -> Iterator[Patch]:
    """Describe the folds: each Conv behind a Pad, which goes with its last reader."""
    for graph in model.graph.graphs():
        for node in graph.nodes:
            if node.op_type == "Conv" and not node.domain and node.inputs[0] is not None:
                patch = _fold(node, node.inputs[0])
                if patch is not None:
                    yield patch


def _fold(conv: Node, padded: Value) -> Patch | None:
    pad, result = padded.producer, conv.outputs[0]
    if pad is None or result is None or pad.op_type != "Pad" or pad.domain or pad.graph is not conv.graph:
        return None
    readers = padded.consumers()
    if padded.is_output or len(readers) != 1 or auto_pad_of(conv).startswith("SAME"):
        return None
    widths = _zeros(pad)
    if widths is None or pad.inputs[0] is None or len(widths) < 6:
        return None
    rank = len(widths) // 2
    if any(widths[axis] or widths[rank + axis] for axis in (0, 1)) or min(widths) < 0:
        return None
    own = pads_of(conv, rank - 2)
    around = [*widths[2:rank], *widths[rank + 2 :]]
    attributes = {name: conv.attribute(name) for name in conv.spans if name not in ("pads", "auto_pad")}
    patch = Patch(conv.graph, conv, "the zeros before it are pads of its own")
    made = patch.node(
        "Conv",
        [pad.inputs[0], *conv.inputs[1:]],
        outputs=[result.name],
        name=conv.name,
        pads=[a + int(b) for a, b in zip(own, around, strict=True)],
        **attributes,
    )
    patch.replace(result, made[0])
    return patch


def _zeros(pad: Node) -> list[int] | None:
    """Give how many zeros a Pad adds before and behind every axis; None where it does something else."""
    if pad.attribute("mode", "constant") != "constant":
        return None
    if pad.attribute("pads") is not None:  # before opset 11
        return [int(n) for n in pad.attribute("pads")] if not pad.attribute("value", 0.0) else None
    constants = [None if value is None or value.constant is None else value.constant.numpy() for value in pad.inputs]
    if len(constants) < 2 or constants[1] is None or (len(pad.inputs) > 3 and pad.inputs[3] is not None):
        return None
    if len(pad.inputs) > 2 and pad.inputs[2] is not None and (constants[2] is None or np.any(constants[2])):
        return None
    return [int(n) for n in constants[1]]
