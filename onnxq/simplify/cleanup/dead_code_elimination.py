"""Operators whose results nobody reads go: exporters leave some, and they would be planned like the others."""

from __future__ import annotations

from collections.abc import Iterator

from onnxq.ir.graph import Graph, Node
from onnxq.ir.model import Model
from onnxq.ir.pass_manager import register_pass
from onnxq.ir.patch import Patch


@register_pass(order=20, note="removed {} dead operator{s}")
def unread(model: Model) -> Iterator[Patch]:
    """Describe one change for each such operator; what custom ones and bodies do besides is not known."""
    for graph in model.graph.graphs():
        for node in _unread(graph):
            patch = Patch(graph, node, "its results are not read")
            patch.remove(node)
            yield patch


def _unread(graph: Graph) -> dict[Node, None]:
    """Return the nodes that neither an output nor a node that stays depends on, the last first."""
    found: dict[Node, None] = {}
    for node in reversed(graph.nodes):
        made = [value for value in node.outputs if value is not None]
        needed = any(value.is_output or any(use.node not in found for use in value.uses) for value in made)
        if not needed and not node.domain and not node.is_body_holder:
            found[node] = None
    return found
