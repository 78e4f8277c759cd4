"""Find nodes that compute lengths, which decide the sizes of other tensors.

Speech models predict how long each sound lasts, and everything behind is as long as the sum. A duration that rounds to
another frame in int8 moves all that follows. No output can then be compared with that of the float model. Detections
that are kept or dropped one by one are no such lengths: whole detectors stand before them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence

from onnxq.ir import Graph, Node, Value
from onnxq.planning.cost_model import node_times
from onnxq.targets import Costs

# Inputs that say how large the output is
SIZE_INPUTS: Mapping[str, Collection[int]] = {
    "AffineGrid": (1,),
    "CenterCropPad": (1,),
    "ConstantOfShape": (0,),
    "Expand": (1,),
    "OneHot": (1,),
    "Pad": (1,),
    "Range": (0, 1, 2),
    "Reshape": (1,),
    "Resize": (1, 2, 3),
    "Slice": (1, 2),
    "Split": (1,),
    "Tile": (1,),
    "TopK": (1,),
    "Upsample": (1,),
}
FROM_SHAPES = frozenset(("Shape", "Size"))  # the values that they read do not matter
MOST_TIME = 0.5  # of all nodes: beyond, the model is about its lengths


def deciding_lengths(graphs: Iterable[Graph], costs: Costs) -> set[Node]:
    """Return the nodes whose values decide about sizes; none where most of the time of the model is spent on that."""
    nodes = [node for graph in graphs for node in graph.nodes]
    found = _deciding(nodes)
    if not found:  # most models: no time of a node is asked for
        return found
    times = {node: node_times(node, costs)[0] for node in nodes if node.outputs and node.outputs[0] is not None}
    spent = math.fsum(time for node, time in times.items() if node in found)
    return found if spent <= MOST_TIME * math.fsum(times.values()) else set()


def computing_sizes(graphs: Iterable[Graph]) -> set[Node]:
    """Return the nodes that compute sizes of nothing but sizes: `floor(1.5 * height)`.

    They are exact whatever a recipe asks for, as outputs would have other shapes: rounded to 8 bit, 15 becomes 14.9.
    """
    nodes = [node for graph in graphs for node in graph.nodes]
    known: set[Value] = set()
    for node in nodes:
        given = [value for value in node.reads if value.constant is None]
        if node.op_type in FROM_SHAPES or (given and known.issuperset(given)):
            known.update(node.makes)
    return {node for node in _deciding(nodes) if known.issuperset(node.makes)}


def _deciding(nodes: Sequence[Node]) -> set[Node]:
    left = [v for node in nodes if not node.domain for s in SIZE_INPUTS.get(node.op_type, ()) if (v := node.input(s))]
    found: set[Node] = set()
    while left:
        maker = left.pop().producer
        if maker is None or maker in found or maker.op_type in FROM_SHAPES:
            continue
        found.add(maker)
        left += maker.reads
    return found
