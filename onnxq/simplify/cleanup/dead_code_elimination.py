"""Dead-code elimination: exporters leave operators without readers, which would be planned like the others."""

from __future__ import annotations

from collections.abc import Iterator

from onnxq.ir.graph import Graph, Node
from onnxq.ir.model import Model
from onnxq.ir.pass_manager import register_pass
from onnxq.ir.patch import Patch


@register_pass(order=20, note="removed {} dead operator{s}")
def dead_code_elimination(model: Model) -> Iterator[Patch]:
    """Describe one change for each such operator; custom ones and bodies may have effects, so they stay."""
    for graph in model.graph.graphs():
        for node in _unread(graph):
            patch = Patch(graph, node, "its results are not read")
            patch.remove(node)
            yield patch


def _unread(graph: Graph) -> dict[Node, None]:
    """Return the nodes that neither an output nor a node that stays depends on, the last first."""
    found: dict[Node, None] = {}
    for node in reversed(graph.nodes):
        made = node.makes
        needed = any(value.is_output or any(use.node not in found for use in value.uses) for value in made)
        if not needed and not node.domain and not node.is_body_holder:
            found[node] = None
    return found
