"""Which nodes work in 8 bit together: the cheapest cut between float and integers, borders counted.

A Conv in 8 bit is not always faster than in float, and every change between the two costs a conversion of the tensor.
Choosing sides for all nodes at once is a minimum cut: a node pays its float or its integer time for its side, and a
value whose maker and readers are on different sides pays for one conversion. The cut is found exactly by maximum flow
(Dinic 1970), so the choice is the same on every machine.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from onnxq.ir import Graph, Node, Value
from onnxq.ops.family import Form
from onnxq.ops.integer_domain import CLAMPS, TWO_INPUTS
from onnxq.ops.mean_pools import averaging_window
from onnxq.ops.silu import gated_by, silu_slot
from onnxq.quant.columns import NODES, columns_of
from onnxq.quant.flow import INFINITE, Flow
from onnxq.quant.upsampling import doublings
from onnxq.targets import UNKNOWN_SIDE, Costs
from onnxq.targets.timings import Kernel

FLOAT_BONUS = 1.05  # float is more accurate: 8 bit has to gain at least this factor
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def integer_region(
    graph: Graph, forms: Mapping[Node, Form], merged: Mapping[Node, Node], forced: set[Node], costs: Costs
) -> tuple[set[Node], float]:
    """Choose the nodes that work in 8 bit.

    Args:
        graph: The main graph.
        forms: What each candidate would become under static quantization.
        merged: Relu and Clip nodes that vanish into the quantized output of another node: clamp → that node.
        forced: Candidates that the recipe wants in 8 bit whatever they cost.
        costs: Kernel times.

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
        in_float, in_integers = node_times(node, costs)
        gain = in_float - in_integers * FLOAT_BONUS
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
    node: Node | None, places: Mapping[Node, int], forms: Mapping[Node, Form], merged: Mapping[Node, Node]
) -> int:
    """Give the place of a node that can give its output in 8 bit, or vanishes into one that can; 1 for all others."""
    form = forms.get(merged.get(node, node)) if node is not None else None
    return places[node] if node is not None and form is not None and form.output else 1


@dataclass(frozen=True)
class _Border:
    """A value that somebody makes or reads in 8 bit, and what it takes where not all of them do; places in the flow.

    Attributes:
        maker: Who makes it; 1 where that is in float for certain.
        readers: Who reads it; 1 for those that do so in float for certain.
        convs: Those of them that are a Conv, who share what they read in float: see `sharing.py`.
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
        """Give what it takes if those chosen work in 8 bit."""
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
    forms: Mapping[Node, Form],
    merged: Mapping[Node, Node],
    costs: Costs,
) -> _Border | None:
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
    return _Border(maker, readers, convs, out, reading, together, into, pooled)


def _is_conv(node: Node) -> bool:
    """Whether a node is a Conv, whose float kernel has channels in blocks: one more change of layout at a border."""
    return node.op_type == "Conv" and not node.domain


def _reader(node: Node, slot: int, places: Mapping[Node, int], forms: Mapping[Node, Form]) -> int:
    form, product = forms.get(node), gated_by(node)
    if form is None and product is not None and product in forms:  # the two operators of a SiLU are one
        return places[product]
    return places[node] if form is not None and slot in form.activations else 1


def count(value: Value, shapes: Mapping[str, tuple[int, ...]] | None = None) -> int:
    """Number of elements, open dimensions guessed: one sample, a spatial side of 56; or as `shapes` has them."""
    shape = _shape(value, shapes or {})
    return 1 if shape is None else max(math.prod(shape), 1)


def _shape(value: Value, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...] | None:
    if value.name in shapes:
        return shapes[value.name]
    if value.shape is None:
        return None
    return tuple(
        size if isinstance(size, int) else (1 if axis == 0 else UNKNOWN_SIDE) for axis, size in enumerate(value.shape)
    )


def kernel_of(node: Node, shapes: Mapping[str, tuple[int, ...]]) -> Kernel | None:
    """Name the kernel that computes a Conv, MatMul or Gemm with a constant weight on the right; None for others."""
    if node.op_type not in ("Conv", "MatMul", "Gemm") or node.domain or len(node.inputs) < 2 or not node.outputs:
        return None
    first, weight, output = node.inputs[0], node.inputs[1], node.outputs[0]
    if first is None or weight is None or weight.tensor is None or output is None:
        return None
    read, made = _shape(first, shapes), _shape(output, shapes)
    if read is None or made is None or (node.op_type != "Conv" and len(weight.tensor.shape) != 2):
        return None
    attributes = {name: node.attribute(name) for name in sorted(node.spans)}
    plain = {name: value.decode() if isinstance(value, bytes) else value for name, value in attributes.items()}
    text = json.dumps({k: list(v) if isinstance(v, tuple) else v for k, v in plain.items()}, sort_keys=True)
    return Kernel(node.op_type, read, weight.tensor.shape, made, text)


def interpolated(kernel: Kernel, costs: Costs) -> tuple[float, float]:
    """Give the times of a kernel in float and in 8 bit by the table, in nanoseconds."""
    elements = max(math.prod(kernel.input), 1)
    if kernel.operator != "Conv":
        columns = max(kernel.output[-1] if kernel.output else 1, 1)
        inner = max(math.prod(kernel.weight) // columns, 1)
        return costs.matmul(max(elements // inner, 1), inner, columns)
    filters, per_group, *window = kernel.weight
    group = int(json.loads(kernel.attributes).get("group", 1))
    pixels = max(math.prod(kernel.output) // max(filters, 1), 1)
    return costs.conv(per_group * group, filters, math.prod(window), pixels, group)


def node_times(node: Node, costs: Costs) -> tuple[float, float]:
    """Give the time of a node in float and in 8 bit in nanoseconds, conversions around it left out.

    What onnxruntime computes with a Conv counts as a part of it: a Clip behind it, which codes do for nothing.
    """
    if _conv_of(node) is not None:
        return 0.0, 0.0
    in_float, in_integers = _kernel_times(node, costs)
    made = node.outputs[0]
    clamps = [use.node.op_type for use in made.uses if _conv_of(use.node) is node] if made is not None else []
    if made is not None and clamps:  # one, as nobody else reads what it clamps
        in_float += costs.clamp(clamps[0], count(made, costs.shapes))
    return in_float, in_integers


def _conv_of(clamp: Node) -> Node | None:
    """Give the Conv that nothing but this Relu or Clip reads; None for other nodes."""
    made = clamp.inputs[0] if clamp.op_type in CLAMPS and not clamp.domain and clamp.inputs else None
    conv = made.producer if made is not None and len(made.uses) == 1 and not made.is_output else None
    return conv if conv is not None and conv.op_type == "Conv" and not conv.domain else None


def _kernel_times(node: Node, costs: Costs) -> tuple[float, float]:
    output, weight = node.outputs[0], node.inputs[1] if len(node.inputs) > 1 else None
    if node.op_type in GATES and weight is not None and weight.tensor is not None and len(weight.tensor.shape) == 3:
        return _recurrent_times(node, weight.tensor.shape, costs)
    assert output is not None
    first = node.inputs[0] if node.inputs else None  # RandomNormal and its like read nothing
    elements = count(first, costs.shapes) if first is not None else 1
    measured = costs.measured(kernel_of(node, costs.shapes)) if costs.timings is not None else None
    if measured is not None:
        return measured
    if node.op_type in ("MatMul", "Gemm") and weight is not None and weight.tensor is not None:
        columns = max(int(output.shape[-1]) if output.shape and isinstance(output.shape[-1], int) else 1, 1)
        inner = max(weight.tensor.size // columns, 1)
        return costs.matmul(max(elements // inner, 1), inner, columns)
    if gated_by(node) is not None:  # the Mul behind it computes both at once
        return 0.0, 0.0
    if node.op_type == "Resize":
        kind = "Resize" if doublings(node) else "Resize_other"
        return costs.elementwise(kind, count(output, costs.shapes))
    if (averaged := averaging_window(node)) is not None:
        channels, taps = averaged[0], math.prod(averaged[1])
        as_conv = costs.conv(channels, channels, taps, max(count(output, costs.shapes) // channels, 1), channels)[1]
        return costs.elementwise(node.op_type, elements)[0], as_conv
    if node.op_type != "Conv" or weight is None or weight.tensor is None:
        made = count(output, costs.shapes) if node.op_type in TWO_INPUTS else 1  # a gate may come first, and is small
        return costs.elementwise("SiLU" if silu_slot(node) is not None else node.op_type, max(elements, made))
    filters, per_group, *window = weight.tensor.shape
    group = int(node.attribute("group", 1))
    pixels = max(count(output, costs.shapes) // max(filters, 1), 1)
    in_float, in_integers = costs.conv(per_group * group, filters, math.prod(window), pixels, group)
    blocks = columns_of(node, weight.tensor.shape, costs)
    if blocks is not None:
        in_integers = in_integers * blocks.share + NODES * costs.borders["node"]
    return in_float, in_integers


def _recurrent_times(node: Node, weight: tuple[int, ...], costs: Costs) -> tuple[float, float]:
    """Give both times of a layer whose weight is `[directions, gates * hidden, inputs]`."""
    directions, rows, inputs = weight
    gates, first = GATES[node.op_type], node.inputs[0]
    shape = costs.shapes.get(first.name, first.shape) if first is not None else None
    axes = (1, 0) if node.attribute("layout", 0) else (0, 1)
    steps, batch = ((shape[axis] if shape and len(shape) == 3 else None) for axis in axes)
    return costs.recurrent(
        steps if isinstance(steps, int) else UNKNOWN_SIDE,
        batch if isinstance(batch, int) else 1,
        inputs,
        max(rows // gates, 1),
        gates * directions,
    )
