"""Copies of what bodies read behind a conversion to float, without which onnxruntime ends the process.

It moves a DequantizeLinear through nodes that only move values, and gives each reader of the last one a pair of its own
(1.31, `qdq_propagation.cc`). If the body of an If, Loop or Scan reads that value, it writes beyond the inputs of
the If. A build with assertions aborts while it loads the model, one without overwrites memory. It moves nothing across
a Max. A Max of a single input only copies.
"""

from __future__ import annotations

from collections.abc import Iterator

from onnxq.ir import Graph, Model, Node, Patch
from onnxq.ir.pass_manager import register_pass

PROPAGATED = ("MaxPool", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze")
LEFT_OUT = ("Dropout", "Identity")  # before pairs are moved


@register_pass(order=160)
def copy_for_bodies(model: Model) -> Iterator[Patch]:
    """Let bodies read a copy where onnxruntime would move a DequantizeLinear up to them.

    Args:
        model: A quantized model. Its results stay the same.

    """
    for graph in model.graph.graphs():
        for node in graph.nodes:
            yield from _patches(graph, node)


def _patches(graph: Graph, node: Node) -> list[Patch]:
    value = node.outputs[0] if node.outputs else None
    inner = [use for use in value.uses if use.node.graph is not graph] if value is not None else []
    if value is None or not inner or not _dequantized(node):
        return []
    patch = Patch(graph, node, f"copy {value.name} for bodies")
    copy = patch.op("Max", value, hint=f"{value.name}_copy")
    for use in inner:
        patch.rewire(use.node, use.slot, copy)
    return [patch]


def _dequantized(node: Node) -> bool:
    """Whether a node only moves what a DequantizeLinear gives."""
    moved, read = False, node
    while read.op_type in (*PROPAGATED, *LEFT_OUT) and not read.domain:
        moved = moved or read.op_type in PROPAGATED
        source = read.inputs[0]
        if source is None or source.producer is None:
            return False
        read = source.producer
    return moved and read.op_type == "DequantizeLinear"
