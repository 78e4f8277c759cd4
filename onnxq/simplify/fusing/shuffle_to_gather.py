"""Operators that move whole channels, such as a shuffle of ShuffleNet, are a Gather along the channels.

A shuffle is Reshape, Transpose and Reshape, often with a Gather or Split of either half behind. onnxruntime moves codes
of 8 bit through it, and the layout of its integer convolutions with them. The Transpose that is left moves bytes one by
one. A ShuffleNet in 8 bit took 1.3 times as long as in float, and 0.85 with Gather (Sapphire Rapids, onnxruntime 1.32).
In float both take as long.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import numpy as np

from onnxq.ir.graph import Graph, Node, Value
from onnxq.ir.model import Model
from onnxq.ir.pass_manager import register_pass
from onnxq.ir.patch import Patch, named_after
from onnxq.ir.shape_inference.symbolic import shapes_of
from onnxq.ops.kernels.arrays import Array
from onnxq.simplify.regions.trial_moves import PARTS, VIEWS, found_by_trial

LEAST_RANK, CHANNELS = 3, 1
LONGEST = 6  # operators in a row


class Moved(NamedTuple):
    """A value whose channels are channels of another, in which order."""

    value: Value
    channels: tuple[int, ...]


@register_pass(order=275, note="rewrote {} shuffle{s} of channels as Gather")
def shuffle_to_gather(model: Model) -> Iterator[Patch]:
    """Describe one change for each value that operators make which come to a Gather of channels."""
    shapes = shapes_of(model)
    for graph in model.graph.graphs():
        for node in graph.nodes:
            source = node.inputs[0] if node.operator == "Reshape" else None
            if source is not None and source.constant is None:
                for found in found_by_trial(source, shapes, partial(_moved_from, node)) or ():
                    yield _written(graph, source, found)


def _moved_from(node: Node, given: Array) -> list[Moved] | None:
    """Return what comes of a value by a node that reads it and those behind; None where that is nothing."""
    return _ends(node, given, given, LONGEST) or None if given.ndim >= LEAST_RANK else None


def _ends(node: Node, array: Array, given: Array, left: int, *, turned: bool = False) -> list[Moved] | None:
    """Return what a node and those behind it make of a value; None where anything is no Gather of its channels.

    Args:
        node: One that only moves elements.
        array: The numbers that it reads.
        given: Those of the value that the first node reads.
        left: How many more nodes may follow.
        turned: Whether a Transpose was among those before.

    """
    made = _moved(node, array) if left else None
    if made is None:
        return None
    turned, found = turned or node.op_type == "Transpose", list[Moved]()
    for value, numbers in zip(node.outputs, made, strict=True):
        if value is None:
            continue
        channels = _channels(numbers, given) if turned else None
        if channels is not None:
            found.append(Moved(value, channels))
            continue
        if value.is_output or not value.uses:
            return None
        for use in value.uses:
            whole = use.slot == 0 and use.node.graph is node.graph
            behind = _ends(use.node, numbers, given, left - 1, turned=turned) if whole else None
            if behind is None:
                return None
            found += behind
    return found


def _moved(node: Node, array: Array) -> list[Array] | None:
    """Return what a node makes of numbers, for each of its outputs; None where it does not only move them."""
    if node.operator in VIEWS:
        made = VIEWS[node.op_type](array, node)
        return None if made is None else [made]
    return PARTS[node.op_type](array, node) if node.operator in PARTS else None


def _channels(array: Array, given: Array) -> tuple[int, ...] | None:
    """Return which channels an array has of another, if it has nothing but whole ones, and not all in their order."""
    fits = array.ndim == given.ndim and array.shape[:1] + array.shape[2:] == given.shape[:1] + given.shape[2:]
    if not fits or not array.size:
        return None
    numbers = array[0].reshape(array.shape[CHANNELS], -1)[:, 0]
    channels = numbers // (given[0, 0].size)
    inside = channels.max() < given.shape[CHANNELS] and not np.array_equal(channels, np.arange(given.shape[CHANNELS]))
    return tuple(channels.tolist()) if inside and np.array_equal(given.take(channels, CHANNELS), array) else None


def _written(graph: Graph, source: Value, found: Moved) -> Patch:
    """Describe the Gather."""
    maker = found.value.producer
    assert maker is not None
    patch = Patch(graph, maker, "it moves whole channels")
    channels = patch.constant(np.array(found.channels, np.int64), f"{found.value.name}_channels")
    result = patch.op("Gather", source, channels, hint=found.value.name, axis=CHANNELS)
    if len(maker.outputs) == 1:
        named_after(patch, maker)
    patch.replace(found.value, result)
    return patch
