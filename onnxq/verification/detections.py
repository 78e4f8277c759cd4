"""Find selections by scores, such as NonMaxSuppression, and replay them in another model.

The last bits of the scores decide the boxes that are picked, their order and their number. Everything behind is then
compared with something else, however good the model is. So a quantized model is run with the float model's picks in
place of its own. Its outputs are then those of the same boxes. Its own picks depend on the values that are picked from,
which are measured as well as the outputs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx

from onnxq.ir import Model, Node, Value, commit
from onnxq.ir.patch import Patch
from onnxq.ir.topological_order import needed_nodes, reads

SUPPRESSION = "NonMaxSuppression"
# By operator: the inputs that are compared with one another, and the output that tells the places
PICKS: Mapping[str, tuple[Collection[int], int]] = {
    SUPPRESSION: ((0, 1), 0),
    "TopK": ((0,), 1),
    "ArgMax": ((0,), 0),
    "ArgMin": ((0,), 0),
    "NonZero": ((), 0),
}
# Thresholds: what is above them is picked by NonZero or Compress, or is left when the rest becomes zero
THRESHOLDS = frozenset(("Greater", "GreaterOrEqual", "Less", "LessOrEqual"))
GATHERS = frozenset(("Gather", "GatherElements", "GatherND"))
TAKERS = frozenset(("Compress",))
SCATTERS = frozenset(("Scatter", "ScatterElements", "ScatterND", "OneHot"))  # what puts things back in their places
# Operators whose results 8 bit changes; masks and numbers of words come from the inputs unchanged
PRODUCTS = frozenset(
    ("Conv", "ConvTranspose", "MatMul", "Gemm", "LSTM", "GRU", "RNN", "Attention", "Einsum", "DeformConv")
)
SHAPES = frozenset(("Shape", "Size"))


class Selection(NamedTuple):
    """The picks of a model.

    Attributes:
        picked: Values of the main graph that say what is picked, by name, with the operator that does it.
        read: Names of the values that it is picked from, except outputs and inputs of the graph.
        outputs: Names of the outputs that depend on what is picked.

    """

    picked: Mapping[str, str]
    read: Sequence[str]
    outputs: Collection[str]

    def of(self, arrays: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Return what is picked in one sample, out of all that a run gave."""
        return {name: arrays[name] for name in self.picked if isinstance(arrays[name], np.ndarray)}

    def __bool__(self) -> bool:
        """Whether it picks anything."""
        return bool(self.picked)


NOTHING = Selection({}, (), ())


def find_selection(model: Model) -> Selection:
    """Find what a model picks where its outputs cannot be compared otherwise: boxes, or places in a map.

    A NonMaxSuppression always counts. Other picks do if computed values are gathered by them and not put back in their
    places. Experts that are chosen for every word change the values there, not the order of the words.
    """
    nodes = needed_nodes(model.graph, model.graph.outputs)
    computed = _behind(nodes, (node for node in nodes if node.op_type in PRODUCTS or node.bodies))
    pickers = [node for node in nodes if _is_picker(node) and any(_made_by(value, computed) for value in reads(node))]
    if not (any(_suppresses(node) for node in pickers) or any(_takes(node, nodes, computed) for node in pickers)):
        return NOTHING
    picked = {value.name: _operator(node) for node in pickers for value in _picks(node)}
    read = dict.fromkeys(
        value.name
        for node in pickers
        for value in _compared(node)
        if value.producer is not None and not value.is_output
    )
    behind = _behind(nodes, (), {value for node in pickers for value in _picks(node)}, sizes=True)
    outputs = [v.name for v in model.graph.outputs if v.name in picked or _made_by(v, behind)]
    return Selection(picked, tuple(name for name in read if name not in picked), outputs)


def replay_selections(
    model: Model, picked: Mapping[str, np.ndarray], shown: Iterable[str]
) -> tuple[Model, dict[str, str]]:
    """Return a copy of a model that takes its picks as inputs.

    Args:
        model: The model.
        picked: What is picked in one sample, by the names of `Selection`; unknown ones are left out.
        shown: Values of the main graph to list as outputs, behind those that it has.

    Returns:
        The copy, and the names of its new inputs by the names of what is picked.

    """
    model = model.copy()
    graph = model.graph
    patch = Patch(graph, reason="pick what another model picks")
    for name in shown:
        if not graph.values[name].is_output:
            patch.show(graph.values[name])
    fed = {}
    for name, array in picked.items():
        value = graph.values.get(name)
        if value is None or value.producer is None:
            continue
        kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
        given = patch.input(kind, (None,) * array.ndim, f"{name}_picked")
        fed[name] = given.name
        for use in value.uses:
            patch.rewire(use.node, use.slot, given)
    commit([patch])
    return model, fed


def agreement(operator: str, expected: np.ndarray, got: np.ndarray) -> tuple[int, int]:
    """Count what both picked, in whatever order, and the most that either picked: rows of NonMaxSuppression, places."""
    if operator == "NonZero":
        expected, got = expected.T, got.T
    if expected.ndim == 2 and operator in (SUPPRESSION, "NonZero"):
        first, second = ({tuple(row) for row in array.tolist()} for array in (expected, got))
        return len(first & second), max(len(first), len(second))
    if operator == "TopK" and expected.shape == got.shape and expected.ndim:
        rows = zip(expected.reshape(-1, expected.shape[-1]), got.reshape(-1, got.shape[-1]), strict=True)
        return sum(np.intersect1d(*pair).size for pair in rows), expected.size
    if expected.shape != got.shape:
        return 0, max(expected.size, got.size)
    return int((expected == got).sum()), expected.size


def _is_picker(node: Node) -> bool:
    return not node.domain and (node.op_type in PICKS or node.op_type in THRESHOLDS or _suppresses(node))


def _suppresses(node: Node) -> bool:
    """Whether a node is a NonMaxSuppression, or holds one: exporters put it into a body where there may be no box."""
    if not node.bodies:
        return node.op_type == SUPPRESSION and not node.domain
    return any(
        inner.op_type == SUPPRESSION for bodies in node.bodies.values() for body in bodies for inner in body.walk()
    )


def _operator(node: Node) -> str:
    return SUPPRESSION if _suppresses(node) else node.op_type


def _picks(node: Node) -> list[Value]:
    """Return the outputs that say what is picked; a node with bodies may have picked whatever it gives."""
    if node.bodies:
        return node.makes
    place = PICKS[node.op_type][1] if node.op_type in PICKS else 0
    return [value for value in node.outputs[place : place + 1] if value is not None]


def _compared(node: Node) -> list[Value]:
    """Return the values of a node's own graph that it picks from."""
    if node.bodies:
        return [value for value in reads(node) if value.graph is node.graph]
    slots = PICKS[node.op_type][0] if node.op_type in PICKS else (0, 1)
    return [value for slot in slots if (value := node.input(slot)) is not None]


def _takes(picker: Node, nodes: Sequence[Node], computed: set[Node]) -> bool:
    """Whether computed values are gathered by what a node picks, and not put back in their places."""
    takers = TAKERS if picker.op_type in THRESHOLDS else GATHERS | TAKERS
    picks = set(_picks(picker))
    behind = _behind(nodes, (), picks)
    if any(node.op_type in SCATTERS for node in behind):
        return False
    for node in behind:
        if node.op_type in takers and not node.domain and len(node.inputs) > 1:
            data, places = node.inputs[:2]
            by_pick = places is not None and (places in picks or _made_by(places, behind))
            if by_pick and data is not None and _made_by(data, computed):
                return True
    return False


def _made_by(value: Value, nodes: set[Node]) -> bool:
    return value.producer is not None and value.producer in nodes


def _behind(
    nodes: Sequence[Node], starts: Iterable[Node], values: Collection[Value] = (), *, sizes: bool = False
) -> set[Node]:
    """Return the nodes that need some nodes or values, those included; also what needs only `sizes` if asked for."""
    found = set(starts)
    for node in nodes:
        if (sizes or node.op_type not in SHAPES) and any(v in values or _made_by(v, found) for v in reads(node)):
            found.add(node)
    return found
