"""SiLU of what has been codes, as one operator.

When it loads a model, onnxruntime gives each reader of what a DequantizeLinear makes one of its own (1.32,
`ensure_unique_dq_for_node_unit.cc`). Then Sigmoid and Mul no longer read the same value, and it does not make the
QuickGelu of them that it makes of other floats: two conversions, a Sigmoid and a Mul took three times as long.

Tests: `tests/optimize/test_pad_channels.py`.
"""

from __future__ import annotations

from onnxq.ir import Graph, Model, Patch, commit
from onnxq.ops.forms.silu import MICROSOFT, silu_slot
from onnxq.optimize.qdq import made_by


def write_silu(model: Model) -> int:
    """Write every SiLU of what a DequantizeLinear makes as QuickGelu, as onnxruntime does by itself of other values.

    Args:
        model: A quantized model; it is changed. What it computes stays the same, but for the last bits of floats.

    Returns:
        How many there are.

    """
    patches = [patch for graph in list(model.graph.graphs()) for patch in _patches(graph)]
    commit(patches)
    if patches:
        model.opsets.setdefault(MICROSOFT, 1)
    return len(patches)


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
