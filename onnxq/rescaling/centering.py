"""Shift channels so that all of them lie around zero where that is free: between a Conv and the Conv that read it.

A tensor has one zero point. If some channels reach from -1 to 5 and others from -5 to 1, its codes are spread over 10.
No channel needs more than 6. A Conv without a clamp behind it can add any number to a channel in its bias. A
Conv without padding that reads it subtracts the number in its own bias; a residual Add adds such numbers. With padding,
the padded value would have to be that number instead of zero. Source: channel-wise shifting,
https://arxiv.org/abs/2304.09145, section 4.1.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from onnxq.calibration.channel_stats import ChannelStats
from onnxq.calibration.im2col import unfolding_of
from onnxq.calibration.stats import Stats
from onnxq.ir import Graph, Node, Value
from onnxq.ir.shape_inference.padding import auto_pad_of, pads_of
from onnxq.planning.planner import node_key
from onnxq.rescaling.cross_layer import rescaled_stats


def centerable_tensors(graph: Graph) -> list[Value]:
    """List the outputs of Conv and of Add whose channels can be shifted for free, in the order of the nodes."""
    found = {node.outputs[0] for node in graph.nodes if _adds_a_constant(node)}
    while True:
        kept = {value for value in found if value is not None and _taken_off(value, found)}
        if len(kept) == len(found):
            return [v for node in graph.nodes for v in node.outputs[:1] if v is not None and v in kept]
        found = set(kept)


@dataclass(frozen=True)
class Centering:
    """The numbers that are added to channels, float64.

    Attributes:
        biases: To the bias of each Conv, by its first output.
        values: To each value. They differ from those if a Conv subtracts the shift of its input.

    """

    biases: dict[str, np.ndarray]
    values: dict[Value, np.ndarray]

    def update(self, stats: Stats) -> None:
        """Bring statistics by channel up to date; nothing else is known any more of what was shifted."""
        for value, shift in self.values.items():
            known = stats.tensors.pop(value.name, None)
            if known is not None and ChannelStats in known and known[ChannelStats].channels == len(shift):
                stats.tensors[value.name] = rescaled_stats(known, np.ones(len(shift)), shift=shift)


def centre(values: Collection[Value], stats: Stats) -> Centering:
    """Find what to add to biases so that channels lie around zero.

    Args:
        values: As `centerable_tensors` gives them.
        stats: Of them, by channel.

    """
    centres = {value: middle for value in values if (middle := _middle(stats, value)) is not None}
    biases: dict[str, np.ndarray] = {}
    given: dict[Value, np.ndarray] = {}
    for value in values:
        node = value.producer
        assert node is not None
        if node.op_type == "Add":
            terms = [given[term] for term in node.reads if term in given]
            if terms:
                given[value] = np.sum(terms, axis=0)
        elif value in centres:
            given[value] = biases[node_key(node)] = np.mean([-centres[value], *_of_sums(value, centres, given)], axis=0)
    for value, shift in given.items():
        for use in value.uses:
            if use.node.op_type == "Conv":
                key = node_key(use.node)
                biases[key] = biases.get(key, 0.0) - _passed_on(use.node, shift)
    return Centering(biases, given)


def _of_sums(
    value: Value, centres: Mapping[Value, np.ndarray], given: Mapping[Value, np.ndarray]
) -> Iterator[np.ndarray]:
    """Return what would bring the sums to zero that a value is the last term of."""
    for use in value.uses:
        total = use.node.outputs[0]
        if use.node.op_type == "Add" and total is not None and total in centres:
            other = use.node.inputs[1 - use.slot]
            if other is not None and (other not in centres or other in given):
                yield -centres[total] - (given[other] if other in given else np.zeros(1))


def _adds_a_constant(node: Node) -> bool:
    """Whether a node can shift what it gives: a Conv by its bias, an Add by what its terms are shifted."""
    output = node.outputs[0] if node.outputs else None
    if node.domain or output is None or output.shape is None or output.is_output:
        return False
    if node.op_type == "Add":
        return all(v is not None and v.tensor is None and v.shape == output.shape for v in node.inputs)
    return _free_bias(node)


def _free_bias(node: Node) -> bool:
    bias = node.input(2)
    return node.op_type == "Conv" and unfolding_of(node) is not None and (bias is None or bias.constant is not None)


def _taken_off(value: Value, found: Collection[Value | None]) -> bool:
    """Whether all readers of a value can undo its shift, or pass it on to readers that can."""
    for use in value.uses:
        if use.node.graph is not value.graph:
            return False
        if use.node.op_type == "Add" and not use.node.domain:
            if use.node.outputs[0] not in found:
                return False
        elif use.slot or use.node.domain or not _free_bias(use.node) or _is_padded(use.node):
            return False
    return bool(value.uses)


def _is_padded(node: Node) -> bool:
    return auto_pad_of(node).startswith("SAME") or any(pads_of(node, 0))


def _middle(stats: Stats, value: Value) -> np.ndarray | None:
    """Return the middle between the least and the greatest value of each channel."""
    known = stats.tensors.get(value.name)
    if known is None or ChannelStats not in known or not known[ChannelStats].channels:
        return None
    channels = known[ChannelStats]
    middle = (channels.high[0].astype(np.float64) + channels.low[0]) / 2
    return middle if np.isfinite(middle).all() else None


def _passed_on(node: Node, shift: np.ndarray) -> np.ndarray:
    """Return what a shift of its input adds to the output channels of a Conv without padding."""
    weight = node.constant(1)
    assert weight is not None
    array = weight.numpy().astype(np.float64)
    groups = int(node.attribute("group", 1))
    sums = array.reshape(groups, len(array) // groups, array.shape[1], -1).sum(axis=-1)
    return np.asarray(np.matmul(sums, shift.reshape(groups, -1, 1)).reshape(-1))
