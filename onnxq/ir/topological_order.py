"""Topological order of the nodes of one scope, bodies and what they capture included.

Tests: `tests/ir/test_topological_order.py`, `tests/ir/test_roundtrip.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from onnxq.ir.graph import Graph, Node, Value


class CycleError(ValueError):
    """Nodes that need each other's results; `node` is one of them."""

    def __init__(self, node: Node) -> None:
        super().__init__(f"node {node.label} needs its own result")
        self.node = node


def reads(node: Node) -> Iterator[Value]:
    """Yield every value that a node needs: its inputs, and what its bodies capture from the scopes around them."""
    for value in node.inputs:
        if value is not None:
            yield value
    for bodies in node.bodies.values():
        for body in bodies:
            for value in (*body.outputs, *(value for inner in body.nodes for value in reads(inner))):
                if value.graph is not body:
                    yield value


def needed_nodes(graph: Graph, wanted: Iterable[Value]) -> list[Node]:
    """Return the nodes of a graph that some of its values need, in its order, which has to be topological."""
    needed, found = set(wanted), []
    for node in reversed(graph.nodes):
        if any(value in needed for value in node.makes):
            found.append(node)
            needed.update(reads(node))
    return found[::-1]


def in_order(graph: Graph, nodes: Sequence[Node]) -> list[Node]:
    """Sort nodes so that each stands behind those it reads from, moving as few as possible.

    Nodes keep their order except that a node which is needed earlier moves up to right before its first reader. The
    cost is linear in the nodes and wires.

    Raises:
        CycleError: Nodes need each other's results.

    """
    if _is_sorted(graph, nodes):
        return list(nodes)
    order: list[Node] = []
    state: dict[Node, bool] = {}  # False while its producers are being placed, True when it stands
    for first in nodes:
        stack = [(first, _producers(graph, first))] if first not in state else []
        while stack:
            node, producers = stack[-1]
            state.setdefault(node, False)
            for producer in producers:
                if producer not in state:
                    stack.append((producer, _producers(graph, producer)))
                    break
                if not state[producer]:
                    raise CycleError(producer)
            else:
                state[node] = True
                order.append(node)
                stack.pop()
    return order


def _producers(graph: Graph, node: Node) -> Iterator[Node]:
    return (v.producer for v in reads(node) if v.producer is not None and v.graph is graph)


def _is_sorted(graph: Graph, nodes: Sequence[Node]) -> bool:
    seen: set[Node] = set()
    for node in nodes:
        if any(producer not in seen for producer in _producers(graph, node)):
            return False
        seen.add(node)
    return True
