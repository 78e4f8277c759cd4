"""Tensors of bodies get names that no other scope uses, so that a name alone says which tensor is meant.

Tests: `tests/ir/test_bodies.py`.
"""

from __future__ import annotations

from onnxq.ir.graph import rename_values
from onnxq.ir.model import Model
from onnxq.ir.pass_manager import register_pass


@register_pass(order=40, note="renamed {} tensor{s} with a duplicate name in bodies")
def name_values(model: Model) -> int:
    """Rename what the bodies of `If`, `Loop` and `Scan` define under a name that another scope defines as well."""
    seen: set[str] = set()
    renamed = 0
    for graph in model.graph.graphs():
        sparse = {v.name for v in graph.values.values() if not (v.producer or v.tensor or v.is_input)}
        names = {
            value: graph.names.fresh(value.name)
            for value in graph.values.values()
            if value.name in seen and value.name not in sparse
        }
        if names:
            rename_values(graph, names)
            renamed += len(names)
        seen.update(graph.values)
    return renamed
