"""SiLU of what has been codes, as one operator.

When it loads a model, onnxruntime gives each reader of what a DequantizeLinear makes one of its own (1.32,
`ensure_unique_dq_for_node_unit.cc`). Then Sigmoid and Mul no longer read the same value, and it does not make the
QuickGelu of them that it makes of other floats: two conversions, a Sigmoid and a Mul took three times as long.

Tests: `tests/optimize/test_pad_channels.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

from onnxq.ir import Graph, Model, Patch
from onnxq.ir.pass_manager import register_pass
from onnxq.ops.forms.silu import MICROSOFT, silu_slot
from onnxq.optimize.qdq import made_by


@register_pass(order=50, timed=True, domain=MICROSOFT)
def write_silu(model: Model) -> Iterator[Patch]:
    """Write every SiLU of what a DequantizeLinear makes as QuickGelu, as onnxruntime does by itself of other values.

    Args:
        model: A quantized model. What it computes stays the same, but for the last bits of floats.

    """
    for graph in model.graph.graphs():
        yield from _patches(graph)


def _patches(graph: Graph) -> list[Patch]:
    patches = []
    for node in graph.nodes:
        slot, made = silu_slot(node), node.outputs[0]
        read = node.inputs[slot] if slot is not None else None
        if made is None or made_by(read, "DequantizeLinear") is None:
            continue
        patch = Patch(graph, node, f"write SiLU {node.label} as one operator")
        (whole,) = patch.node("QuickGelu", [read], outputs=[made.name], name=node.name, domain=MICROSOFT, alpha=1.0)
        patch.replace(made, whole)
        patches.append(patch)
    return patches
