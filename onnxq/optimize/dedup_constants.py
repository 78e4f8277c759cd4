"""Constants that a model holds more than once, stored once.

Exporters write one for every reader: the prior boxes of a detector, tables of positions in every layer. Two bodies that
read one weight have its codes each. Constants are told apart by a digest: copies of all weights of one shape would take
the memory of a model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterator, Sequence

import numpy as np

from onnxq.ir import Graph, Model, Patch, Tensor, Value, commit

LEAST = 4096  # bytes of a constant that is worth it


def merge_equal(model: Model) -> int:
    """Let all readers of equal constants read one of them: in the innermost graph that all of them are in.

    Args:
        model: A model; it is changed. Its results stay the same.

    Returns:
        How many constants are gone.

    """
    alike: dict[Hashable, list[Value]] = {}
    for value in (value for graph in model.graph.graphs() for value in graph.values.values()):
        tensor = value.constant
        if tensor is not None and tensor.nbytes >= LEAST and value.uses and not value.is_input and not value.is_output:
            alike.setdefault((tensor.dtype, tensor.shape), []).append(value)
    patches, gone = [], 0
    for group in (values for values in alike.values() if len(values) > 1):
        equal: dict[bytes, list[Value]] = {}
        for value in group:
            equal.setdefault(_digest(value.elements), []).append(value)
        for values in (values for values in equal.values() if len(values) > 1):
            patches.append(_share(values))
            gone += len(values) - 1
    commit(patches)
    return gone


def _share(values: Sequence[Value]) -> Patch:
    """Describe that all readers of several equal constants read one."""
    scope = values[0].graph
    while not all(scope in _around(value.graph) for value in values):
        assert scope.parent is not None
        scope = scope.parent
    kept = next((value for value in values if value.graph is scope), None)
    patch = Patch(scope, None, f"store what equals {values[0].name} once")
    if kept is None:
        kept = patch.constant(values[0].elements, values[0].name)
    for value in values:
        for use in list(value.uses) if value is not kept else ():
            patch.rewire(use.node, use.slot, kept)
    return patch


def _around(graph: Graph) -> Iterator[Graph]:
    """List a graph and those around it, the innermost first."""
    around: Graph | None = graph
    while around is not None:
        yield around
        around = around.parent


def _digest(tensor: Tensor) -> bytes:
    array = np.ascontiguousarray(tensor.numpy())
    held = array.tobytes() if array.dtype.hasobject or not array.size else array.reshape(-1).view(np.uint8).data
    found = hashlib.sha256(held).digest()
    tensor.release()
    return found
