"""Partition nodes into float and 8 bit by the minimum cut over kernel and conversion times.

A Conv in 8 bit is not always faster than in float, and every change between the two costs a conversion of the tensor.
Choosing sides for all nodes at once is a minimum cut. A node pays its float or its integer time. A value whose maker
and readers are on different sides pays for one conversion. The cut is found exactly by maximum flow (Dinic 1970), so
the choice is the same on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from onnxq.ir import Graph, Node, Value
from onnxq.ir.min_cut import INFINITE, Flow
from onnxq.ops.forms.family import QuantizedForm
from onnxq.ops.forms.silu import gated_by
from onnxq.planning.decision import node_key
from onnxq.targets import Costs
from onnxq.targets.assumed_shapes import count

FLOAT_BONUS = 1.05  # float is more accurate: 8 bit has to gain at least this factor


def partition_graph(
    graph: Graph,
    forms: Mapping[Node, QuantizedForm],
    merged: Mapping[Node, Node],
    forced: set[Node],
    costs: Costs,
    times: Callable[[Node], tuple[float, float]],
) -> tuple[set[Node], float]:
    """Choose the nodes that work in 8 bit.

    Args:
        graph: The main graph.
        forms: What each candidate would become under static quantization.
        merged: Relu and Clip nodes that vanish into the quantized output of another node: clamp → that node.
        forced: Candidates that the recipe wants in 8 bit whatever they cost.
        costs: Kernel times.
        times: Gives those of a node in float and in 8 bit; see `node_times`.

    Returns:
        The candidates to quantize, and what the conversions around them take in nanoseconds. A passive one is among
        them only if the makers of all its inputs are; an Add also where the conversion of an input costs less than it
        saves, as behind a float Conv that others read in 8 bit.

    """
    flow = Flow()
    places = {node: flow.node() for node in graph.nodes if node in forms}
    places |= {clamp: places[maker] for clamp, maker in merged.items()}
    for node, form in forms.items():
        place = places[node]
        if node in forced:
            flow.edge(0, place, INFINITE)
            continue
        in_float, in_integers = times(node)
        gain = in_float - in_integers * FLOAT_BONUS
        if costs.prices:
            gain -= costs.prices.get(node_key(node), 0.0)
        flow.edge(0, place, gain)
        flow.edge(place, 1, -gain)
        if form.passive and node.op_type != "Add":  # where a Conv reads what it adds, that has been paid for
            for slot in form.activations:
                value = node.inputs[slot]
                maker = value.producer if value is not None else None
                flow.edge(place, _maker(maker, places, forms, merged), INFINITE)
    borders = [_border(value, places, forms, merged, costs) for value in graph.values.values()]
    found = [border for border in borders if border is not None]
    for border in found:
        border.enter(flow)
    chosen = flow.source_side()
    return {node for node in forms if places[node] in chosen}, math.fsum(border.time(chosen) for border in found)


def _maker(
    node: Node | None, places: Mapping[Node, int], forms: Mapping[Node, QuantizedForm], merged: Mapping[Node, Node]
) -> int:
    """Return the place of a node that can give its output in 8 bit, or vanishes into one that can; 1 for all others."""
    form = forms.get(merged.get(node, node)) if node is not None else None
    return places[node] if node is not None and form is not None and form.output else 1


@dataclass(frozen=True)
class _Boundary:
    """A value at the border of int8, and its conversion time; places in the flow.

    Attributes:
        maker: Who makes it; 1 where that is in float for certain.
        readers: Who reads it; 1 for those that do so in float for certain.
        convs: Those of them that are a Conv, who share what they read in float: see `optimize/share_dequantize.py`.
        out: What it takes once if it is made in 8 bit and anybody reads it in float.
        reading: What it takes for each of these but a Conv.
        blocks: What it takes for all that are a Conv together.
        into: What it takes to read it in 8 bit if it is made in float.
        pooled: Who makes what a MaxPool makes it of, and what `into` takes more if that is in float.

    """

    maker: int
    readers: frozenset[int]
    convs: frozenset[int]
    out: float
    reading: float
    blocks: float
    into: float
    pooled: tuple[int, float] | None = None

    def enter(self, flow: Flow) -> None:
        """Let a cut through this border cost what it takes."""
        if self.maker != 1:
            out, blocks = flow.node(), flow.node()
            flow.edge(self.maker, out, self.out)
            flow.edge(self.maker, blocks, self.blocks)
            for reader in sorted(self.readers):
                flow.edge(out, reader, INFINITE)
                if reader in self.convs:
                    flow.edge(blocks, reader, INFINITE)
                else:
                    flow.edge(self.maker, reader, self.reading)
        into = flow.node()
        for reader in sorted(self.readers - {1}):
            flow.edge(reader, into, INFINITE)
        flow.edge(into, self.maker, self.into)
        if self.pooled is not None:
            flow.edge(into, *self.pooled)

    def time(self, chosen: Collection[int]) -> float:
        """Return what it takes if those chosen work in 8 bit."""
        if self.maker in chosen:
            floats = [reader for reader in self.readers if reader not in chosen]
            blocks = self.blocks if any(reader in self.convs for reader in floats) else 0.0
            others = sum(reader not in self.convs for reader in floats)
            return self.out + blocks + others * self.reading if floats else 0.0
        if not any(reader in chosen for reader in self.readers):
            return 0.0
        more = self.pooled[1] if self.pooled is not None and self.pooled[0] not in chosen else 0.0
        return self.into + more


def _border(
    value: Value,
    places: Mapping[Node, int],
    forms: Mapping[Node, QuantizedForm],
    merged: Mapping[Node, Node],
    costs: Costs,
) -> _Boundary | None:
    """Say what it takes where a value's maker and some of its readers are on different sides; None where it cannot."""
    if value.tensor is not None or not (value.uses or value.is_output):
        return None
    if any(use.node in merged for use in value.uses):  # between a Conv and its clamp nothing is converted
        return None
    producer = value.producer
    maker = _maker(producer, places, forms, merged)
    elements = count(value, costs.shapes)
    reading, blocks = costs.reading(elements), costs.reorder(elements)
    places_of = {use: _reader(use.node, use.slot, places, forms) for use in value.uses}
    readers = frozenset(places_of.values()) | ({1} if value.is_output else set())
    if readers == {maker}:
        return None
    convs = frozenset(place for use, place in places_of.items() if _is_conv(use.node))
    together = reading + blocks + (costs.elementwise("Max", elements)[0] if len(convs) > 1 else 0.0)
    into = costs.border(elements, into_integers=True)
    into += blocks if producer is not None and _is_conv(merged.get(producer, producer)) else 0.0
    pooled = None
    if producer is not None and producer.op_type == "MaxPool" and not producer.domain:  # see `pool_to_keep_float`
        read = producer.inputs[0].producer if producer.inputs[0] is not None else None
        pooled = _maker(read, places, forms, merged), costs.elementwise("Max", elements)[0] + costs.borders["node"]
    out = costs.border(elements, into_integers=False) - reading
    return _Boundary(maker, readers, convs, out, reading, together, into, pooled)


def _is_conv(node: Node) -> bool:
    """Whether a node is a Conv, whose float kernel has channels in blocks: one more change of layout at a border."""
    return node.op_type == "Conv" and not node.domain


def _reader(node: Node, slot: int, places: Mapping[Node, int], forms: Mapping[Node, QuantizedForm]) -> int:
    form, product = forms.get(node), gated_by(node)
    if form is None and product is not None and product in forms:  # the two operators of a SiLU are one
        return places[product]
    return places[node] if form is not None and slot in form.activations else 1
