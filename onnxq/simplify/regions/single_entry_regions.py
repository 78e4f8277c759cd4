"""Parts of a graph that start at one value and end at one, and what they compute.

Tests: `tests/simplify/test_fuse_activations.py`.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from onnxq.evaluator.schedule import bound_kernel
from onnxq.ir.graph import Graph, Node, Value

MOST_NODES = 24  # of a part: a decomposed function has ten or so


@dataclass(frozen=True)
class Subgraph:
    """Nodes that compute one value from another and constants, and whose other results have no other readers.

    Attributes:
        entry: What they start from; others may read it too.
        value: What they compute.
        nodes: In graph order.

    """

    entry: Value
    value: Value
    nodes: tuple[Node, ...]


def node_positions(graph: Graph) -> dict[Node, int]:
    """Return every node's place in its graph."""
    return {node: index for index, node in enumerate(graph.nodes)}


def subgraphs_from(entry: Value, place: Mapping[Node, int], admits: Callable[[Node], bool]) -> Iterator[Subgraph]:
    """Find the parts that start at a value, the smallest first.

    Args:
        entry: The value.
        place: `node_positions` of its graph.
        admits: Whether a node may belong to a part.

    """
    waiting = [place[node] for node in entry.consumers() if node in place]
    heapq.heapify(waiting)
    by_place = {place[node]: node for node in entry.consumers() if node in place}
    unread: dict[Value, int] = {}  # results with readers that are not in yet; the entry may have other readers
    inside, nodes = {entry}, list[Node]()
    while waiting and len(nodes) < MOST_NODES:
        node = by_place[heapq.heappop(waiting)]
        reads = node.reads
        output = node.outputs[0] if len(node.outputs) == 1 else None
        known = all(value in inside or value.constant is not None for value in reads)
        if output is None or not known or node.graph is not entry.graph or not admits(node):
            continue
        nodes.append(node)
        inside.add(output)
        for value in reads:
            if value in unread:
                unread[value] -= 1
                if not unread[value]:
                    del unread[value]
        unread[output] = len(output.uses) + output.is_output
        if unread.keys() <= {output}:
            yield Subgraph(entry, output, tuple(nodes))
        for reader in output.consumers():
            if reader in place and place[reader] not in by_place:
                by_place[place[reader]] = reader
                heapq.heappush(waiting, place[reader])


def compute(nodes: Sequence[Node], known: dict[Value, Any], opset: int) -> dict[Value, Any]:
    """Run nodes in float64 on what is known, constants of one element as scalars, and give that with their results.

    Raises:
        KeyError: A node has no kernel here.

    """
    found = dict(known)
    with np.errstate(all="ignore"):
        for node in nodes:
            call = bound_kernel(node, opset)
            if call is None:
                raise KeyError(node.op_type)
            inputs = [
                None if value is None else found[value] if value in found else _wide(value) for value in node.inputs
            ]
            output = node.outputs[0]
            assert output is not None
            made = call(*inputs)
            found[output] = made[0] if isinstance(made, tuple) else made  # Dropout has a mask
    return found


def _wide(value: Value) -> np.ndarray:
    array = value.elements.numpy()
    array = array.reshape(()) if array.size == 1 else array
    return array.astype(np.float64) if array.dtype.kind == "f" else array
