"""Channels of integer convolutions, filled up with zeros to the numbers that a runtime has a fast kernel for.

onnxruntime's QLinearConv reads windows in place only if inputs and outputs come in certain multiples. For all others it
copies every window first, which takes up to three times as long. A Conv of 32 to 9 channels, 224 × 224, took 8.2 ms,
one of 32 to 16 channels 2.7 ms. A filter of zeros gives codes without readers, or with weights of zero as readers. So
no other code changes. Source: `MlasConvSymPackWSize` in onnxruntime/core/mlas/lib/convsym.cpp (1.31).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from onnxq.ir import Graph, Model, Patch, Value, commit
from onnxq.ir.pass_manager import register_pass
from onnxq.ir.schemas import PAD_OF_CODES
from onnxq.optimize.channelwise_ops import Carrier, carriers
from onnxq.optimize.fold_columns import folds
from onnxq.optimize.integer_conv import IntegerConv, absorbed, integer_convs, multiple_of
from onnxq.targets.target import Target

# Cutting filters off again and adding channels is a copy for every pixel, about 10 ns. A window of 3 × 3 saves 20 to
# 400. With fewer pixels, one more node takes as long as is saved.
LEAST_PIXELS = 196
MANY_FILTERS = 24  # from here on a Conv of 1 × 1 saves more than that copy takes, too


@register_pass(order=80, timed=True, operators=("Conv",), opset=PAD_OF_CODES, for_target=True)
def pad_channels(model: Model, target: Target) -> int:
    """Fill the channels of integer convolutions up to what the kernels of a target are fast for.

    Args:
        model: A quantized model; it is changed. Its results stay the same to the bit.
        target: Says which numbers of channels those are.

    Returns:
        How many convolutions have changed.

    """
    if target.conv_channels == 1:
        return 0
    return sum(_align(graph, target) for graph in list(model.graph.graphs()))


def _align(graph: Graph, target: Target) -> int:
    convs = integer_convs(graph)
    between = carriers(graph, convs)
    by_read: dict[Value, list[IntegerConv]] = {}
    for conv in convs:
        by_read.setdefault(conv.read, []).append(conv)
    widths = _widths(convs, between, by_read, target)
    dense = [conv for conv in convs if not conv.depthwise and conv.read not in widths and _worth_a_copy(conv)]
    alone = [conv for conv in dense if folds(conv, target) is None]
    added = {conv.read: multiple_of(target.conv_channels, conv.channels) for conv in alone}
    work = _ChannelPadding(widths, added)
    steps = {conv.node: conv for conv in convs if work.touches(conv)}
    carried = {carrier.node: carrier for carrier in between if carrier.made in widths}
    patches = []
    for node in graph.nodes:
        if node in carried:
            patches.append(work.carry(carried[node]))
        if node in steps:
            patches.append(work.patch(steps[node], cut=not absorbed(steps[node].made, by_read, carried)))
    commit(patches)
    return len(steps)


def _widths(
    convs: Sequence[IntegerConv],
    between: Sequence[Carrier],
    by_read: Mapping[Value, list[IntegerConv]],
    target: Target,
) -> dict[Value, int]:
    """Choose how many channels codes have from now on that convolutions make, and what carries these on.

    Input and output of a depthwise Conv have as many channels, and so have those of a carrier: these belong together.
    They can grow if convolutions make all of them and nothing else reads any. Other convolutions can grow too, if
    cutting the added channels off pays. One whose columns are folded is left, for it makes several columns of its few
    filters instead of zeros. 9 × 9 from 8 to 3 channels of 128 × 128 took 0.2 of the time (EPYC Zen 3).
    """
    made = {conv.made: conv for conv in convs}
    everyone = [*made, *(carrier.made for carrier in between)]
    groups: dict[Value, list[Value]] = {value: [value] for value in everyone}
    tied = {value for conv in convs if conv.depthwise for value in (conv.read, conv.made)}
    links = [(conv.read, conv.made) for conv in convs if conv.depthwise and conv.read in groups]
    links += [(source, carrier.made) for carrier in between for source in carrier.sources]
    for one, other in links:
        larger, smaller = groups[one], groups[other]
        if larger is not smaller:
            larger += smaller
            groups.update(dict.fromkeys(smaller, larger))
    nodes = {carrier.node for carrier in between}
    free = {value for value in everyone if absorbed(value, by_read, nodes)}
    free -= {conv.made for conv in convs if conv.depthwise and conv.read not in groups}
    widths = {}
    for value, conv in made.items():
        if not tied.isdisjoint(groups[value]) and free.issuperset(groups[value]):
            if conv.filters % target.depthwise:
                widths.update(dict.fromkeys(groups[value], multiple_of(target.depthwise, conv.filters)))
        elif (
            value not in tied
            and _slow(conv, by_read.get(value, ()), target)
            and (absorbed(value, by_read) or (_worth_a_copy(conv) and folds(conv, target) is None))
        ):
            widths[value] = max(multiple_of(target.conv_filters, conv.filters), target.conv_least)
    return widths


def _slow(conv: IntegerConv, readers: Sequence[IntegerConv], target: Target) -> bool:
    """Whether a dense Conv is faster with more filters, and its readers with more channels are not slower by as much.

    Times of Convs on 36 × 36 pixels with AVX2: 1 × 1 from 64 to 8 channels 17 µs, to 16 channels 19. 3 × 3 behind it
    28 µs from 8 channels, 41 from 16. With VNNI: 16 and 12, 22 and 28. There, 3 × 3 to 8 channels takes 40 µs, to 16
    channels 22 (EPYC Zen 4, onnxruntime 1.32, 24 November 2026).
    """
    if conv.filters >= target.conv_least or conv.filters % target.conv_filters:
        return conv.filters < target.conv_least or conv.filters % target.conv_channels > 0
    return conv.window > 1 or not readers or any(reader.window == 1 for reader in readers)


def _worth_a_copy(conv: IntegerConv) -> bool:
    """Whether a Conv gains more by zeros than it takes to cut off its filters of them, or to add channels of them."""
    return (conv.window > 1 or conv.filters >= MANY_FILTERS) and conv.has_pixels(LEAST_PIXELS)


class _ChannelPadding:
    """The patches of one graph. Wide codes are made once, for all that read them.

    Args:
        widths: New numbers of channels of codes that are made with more than before.
        added: Channels to add to codes that are made as before, for readers that want more.

    """

    def __init__(self, widths: Mapping[Value, int], added: Mapping[Value, int]) -> None:
        self.widths = widths
        self.added = added
        self.wide: dict[Value, Value] = {}  # codes → the same with more channels
        self.pairs: dict[Value, Value] = {}  # the same, dequantized

    def touches(self, conv: IntegerConv) -> bool:
        """Whether a Conv reads or makes codes that get more channels."""
        return self._channels(conv) != conv.channels or conv.made in self.widths

    def _channels(self, conv: IntegerConv) -> int:
        """How many channels a Conv reads from now on; a depthwise one only as many as it makes."""
        added = None if conv.depthwise else self.added.get(conv.read)
        return self.widths.get(conv.read, added or conv.channels)

    def patch(self, conv: IntegerConv, *, cut: bool) -> Patch:
        """Describe what becomes of one Conv; what it reads has been described before.

        Args:
            conv: The Conv.
            cut: Whether it has a reader that cannot do with more channels.

        """
        patch = Patch(conv.node.graph, conv.node, f"fill up the channels of {conv.node.label}")
        inputs = [self._read(conv, patch), *self._constants(conv, patch)]
        if conv.made not in self.widths:
            for slot, value in enumerate(inputs):
                patch.rewire(conv.node, slot, value)
            return patch
        attributes = conv.node.attributes()
        if conv.depthwise:
            attributes["group"] = self.widths[conv.made]
        hint = f"{conv.product.name}_wide"
        product = patch.node("Conv", inputs, outputs=[hint], name=f"{conv.node.display_name}_wide", **attributes)[0]
        hint, scale = f"{conv.made.name}_wide", conv.quantize.inputs[1:]
        self.wide[conv.made] = patch.node("QuantizeLinear", [product, *scale], outputs=[hint])[0]
        if cut:
            bounds = {"start": 0, "end": conv.filters, "axis": 1}
            numbers = [patch.constant(np.array([n]), f"{conv.made.name}_{what}") for what, n in bounds.items()]
            patch.replace(conv.made, patch.op("Slice", self.wide[conv.made], *numbers, hint=f"{conv.made.name}_cut"))
        return patch

    def carry(self, carrier: Carrier) -> Patch:
        """Describe an operator that reads codes with more channels, and so makes such; see `patch`."""
        node = carrier.node
        patch = Patch(node.graph, node, f"fill up the channels of {node.label}")
        inputs: list[Value | None] = []
        for value, codes in zip(node.inputs, carrier.reads, strict=True):
            if codes is None or value is None or value.producer is None:
                inputs.append(value)
                continue
            reads = [self.wide[codes], *value.producer.inputs[1:]]
            inputs.append(patch.op("DequantizeLinear", *reads, hint=f"{value.name}_wide"))
        name, hint = f"{node.display_name}_wide", f"{node.label}_wide"
        result = patch.node(node.op_type, inputs, outputs=[hint], name=name, domain=node.domain, **node.attributes())[0]
        reads = [result, *carrier.quantize.inputs[1:]]
        self.wide[carrier.made] = patch.op("QuantizeLinear", *reads, hint=f"{carrier.made.name}_wide")
        return patch

    def _read(self, conv: IntegerConv, patch: Patch) -> Value:
        codes, more = conv.read, self._channels(conv) - conv.channels
        if not more:
            return conv.activation
        if codes not in self.wide:
            pads = np.array([0] * (conv.codes.ndim + 1) + [more] + [0] * (conv.codes.ndim - 2))
            ends = patch.constant(pads, f"{codes.name}_pads")
            self.wide[codes] = patch.op("Pad", codes, ends, hint=f"{codes.name}_wide")
        if codes not in self.pairs:
            inputs = [self.wide[codes], *conv.pair.inputs[1:]]
            self.pairs[codes] = patch.op("DequantizeLinear", *inputs, hint=f"{conv.activation.name}_wide")
        return self.pairs[codes]

    def _constants(self, conv: IntegerConv, patch: Patch) -> list[Value]:
        """Return weight and bias with filters and channels of zeros behind the others."""
        filters = self.widths.get(conv.made, conv.filters) - conv.filters
        channels = 0 if conv.depthwise else self._channels(conv) - conv.channels
        made = []
        for pair in (conv.weight, conv.bias):
            if pair is None:
                continue
            codes, *scales = (value.constant.numpy() for value in pair.inputs if value and value.constant)
            ends = [(0, filters), (0, channels)][: codes.ndim] + [(0, 0)] * (codes.ndim - 2)
            arrays = [np.pad(codes, ends)]  # scales of zeros say nothing, so they are as the last one
            arrays += [np.pad(each, (0, filters), mode="edge") if each.size > 1 else each for each in scales]
            names = [f"{value.name}_wide" for value in pair.inputs if value]
            constants = [patch.constant(array, name) for array, name in zip(arrays, names, strict=True)]
            hint = f"{pair.outputs[0].name}_wide" if pair.outputs[0] else ""
            made.append(patch.op("DequantizeLinear", *constants, hint=hint, **pair.attributes()))
        return made
