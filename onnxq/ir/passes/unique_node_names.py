"""Nodes of one graph that share a name are told apart: onnxruntime refuses a model with two of one name.

Tests: `tests/explanation/test_why_not.py`.
"""

from __future__ import annotations

from onnxq.ir.model import Model
from onnxq.ir.pass_manager import register_pass


@register_pass(order=30, note="renamed {} node{s} with a duplicate name")
def name_nodes(model: Model) -> int:
    """Rename all nodes of a name but the first, and count them; nodes without a name keep none."""
    renamed = 0
    for graph in model.graph.graphs():
        seen: set[str] = set()
        for node in graph.nodes:
            if node.name in seen:
                node.name = graph.names.fresh(node.name)
                node.changed = True
                graph.mark_dirty()
                renamed += 1
            if node.name:
                seen.add(node.name)
    return renamed
