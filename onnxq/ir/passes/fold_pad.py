"""Zeros that a Pad puts around the picture before a Conv become pads of the Conv.

onnxruntime does so for a Conv in float only, and exporters of networks with asymmetric padding write every one like it.

Tests: `tests/ir/test_fold.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from onnxq.ir.graph import Node
from onnxq.ir.model import Model
from onnxq.ir.pass_manager import register_pass
from onnxq.ir.patch import Patch
from onnxq.ir.shape_inference.padding import auto_pad_of, pads_of

Width = tuple[int, int]  # zeros before and behind an axis


@register_pass(order=150, note="folded {} Pad{s} into the Conv after")
def fold_pad(model: Model) -> Iterator[Patch]:
    """Describe the folds: each Conv behind a Pad, which goes with its last reader."""
    for graph in model.graph.graphs():
        for node in graph.nodes:
            if node.op_type == "Conv" and not node.domain:
                patch = _fold(node)
                if patch is not None:
                    yield patch


def _fold(conv: Node) -> Patch | None:
    result, chain = conv.outputs[0], _chain(conv)
    if result is None or not chain or auto_pad_of(conv).startswith("SAME"):
        return None
    pad, *between = chain
    widths = _zeros(pad)
    for node in between:
        widths = _moved(widths, node) if widths is not None else None
    if widths is None or len(widths) < 3 or any(widths[0] + widths[1]) or min(map(min, widths)) < 0:
        return None
    own = pads_of(conv, len(widths) - 2)
    around = [before for before, _ in widths[2:]] + [behind for _, behind in widths[2:]]
    attributes = {name: conv.attribute(name) for name in conv.spans if name not in ("pads", "auto_pad")}
    patch = Patch(conv.graph, conv, "the zeros before it are pads of its own")
    if between:
        patch.rewire(between[0], 0, pad.inputs[0])
        for value in (value for node in between for value in node.makes):
            patch.rename(value, f"{value.name}_bare")  # it is another tensor than before
    made = patch.node(
        "Conv",
        [conv.inputs[0] if between else pad.inputs[0], *conv.inputs[1:]],
        outputs=[result.name],
        name=conv.name,
        pads=[a + int(b) for a, b in zip(own, around, strict=True)],
        **attributes,
    )
    patch.replace(result, made[0])
    return patch


def _chain(conv: Node) -> list[Node]:
    """Return the Pad in front of a Conv and what moves its axes after that, each read by the next alone; none without.

    TensorFlow's convolutions along one axis are Conv in two dimensions behind Unsqueeze and Transpose.
    """
    chain, value = list[Node](), conv.inputs[0]
    while value is not None and value.producer is not None and not value.is_output and len(value.uses) == 1:
        node = value.producer
        if node.domain or node.graph is not conv.graph or node.input(0) is None:
            return []
        chain.insert(0, node)
        if node.op_type == "Pad":
            return chain
        if node.op_type not in ("Transpose", "Unsqueeze"):
            return []
        value = node.inputs[0]
    return []


def _moved(widths: list[Width], node: Node) -> list[Width] | None:
    """Return the widths along the axes that a Transpose or Unsqueeze makes of those before; None where that is open."""
    if node.op_type == "Transpose":
        order = node.attribute("perm", list(range(len(widths)))[::-1])
        return [widths[axis] for axis in order]
    given = node.constant(1)
    axes = node.attribute("axes") if len(node.inputs) == 1 else None if given is None else given.numpy().tolist()
    if axes is None:
        return None
    rank, left = len(widths) + len(axes), iter(widths)
    new = {axis % rank for axis in axes}
    return [(0, 0) if axis in new else next(left) for axis in range(rank)]


def _zeros(pad: Node) -> list[Width] | None:
    """Return how many zeros a Pad adds before and behind every axis; None where it does something else."""
    widths = _widths(pad)
    rank = len(widths or ()) // 2
    return None if widths is None else list(zip(widths[:rank], widths[rank:], strict=True))


def _widths(pad: Node) -> list[int] | None:
    if pad.attribute("mode", "constant") != "constant":
        return None
    if pad.attribute("pads") is not None:  # before opset 11
        return [int(n) for n in pad.attribute("pads")] if not pad.attribute("value", 0.0) else None
    constants = [None if value is None or value.constant is None else value.constant.numpy() for value in pad.inputs]
    if len(constants) < 2 or constants[1] is None or (pad.input(3) is not None):
        return None
    if pad.input(2) is not None and (constants[2] is None or np.any(constants[2])):
        return None
    return [int(n) for n in constants[1]]
