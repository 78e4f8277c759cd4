"""Merge parallel convolutions of one value whose results are added, and a BatchNormalization parallel to them.

Networks that are trained with branches, as RepVGG, MobileOne and FastViT are, have a form with one convolution in place
of each such sum. Exporters write the form that the model is in, often the one for training. Sources: RepVGG,
https://arxiv.org/abs/2101.03697; MobileOne, https://arxiv.org/abs/2206.04040.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from onnxq.ir.graph import Node, Value
from onnxq.ir.model import Model
from onnxq.ir.pass_manager import register_pass
from onnxq.ir.passes.fold_batchnorm import scale_and_shift
from onnxq.ir.patch import Patch, named_after
from onnxq.ir.schemas import BROADCASTING
from onnxq.ir.shape_inference.padding import NOT_SET, auto_pad_of, pads_of
from onnxq.ir.tensor import ArrayTensor
from onnxq.simplify.folding.fold_add_into_conv import bias_of


@dataclass(frozen=True)
class Branch:
    """A convolution as what has to be the same in both, and what is added up; arrays are float64.

    Attributes:
        strides: Of the window.
        group: Number of groups.
        pads: In front of all axes, then behind.
        weight: One filter an output channel.
        bias: One number an output channel.

    """

    strides: tuple[int, ...]
    group: int
    pads: tuple[int, ...]
    weight: np.ndarray
    bias: np.ndarray

    @property
    def window(self) -> tuple[int, ...]:
        """Sizes of the kernel."""
        return self.weight.shape[2:]


@register_pass(order=180, opset=BROADCASTING, note="merged {} pair{s} of parallel branches into one convolution")
def merge_parallel_convs(model: Model) -> Iterator[Patch]:
    """Describe one change for each sum or difference of two branches that nothing else reads."""
    for graph in model.graph.graphs():
        taken: set[Node] = set()
        for node in graph.nodes:
            pair = _pair(node)
            if pair is None or not taken.isdisjoint(pair):
                continue
            joined = _joined(node, *pair)
            source, output = pair[0].inputs[0], node.outputs[0]
            if joined is None or source is None or output is None:
                continue
            taken.update(pair)
            patch = Patch(graph, node, "both sides are convolutions of the same value")
            yield _written(patch, joined, source, output, pair)


def _pair(node: Node) -> tuple[Node, Node] | None:
    """Return the makers of what is added or subtracted, if both read the same value and have no other reader."""
    if node.op_type not in ("Add", "Sub") or node.domain or len(node.inputs) != 2:
        return None
    makers = [_maker(value, node) for value in node.inputs]
    left, right = makers
    if left is None or right is None or left is right or left.inputs[0] is not right.inputs[0]:
        return None
    return left, right


def _maker(value: Value | None, reader: Node) -> Node | None:
    made = None if value is None else value.sole_maker(reader)
    return made if made is not None and made.op_type in ("Conv", "BatchNormalization") else None


def _joined(node: Node, left: Node, right: Node) -> Branch | None:
    """Return the one convolution; None where the two differ in more than their windows."""
    convs = [_branch(maker) if maker.op_type == "Conv" else None for maker in (left, right)]
    given = [_normalised(maker, other) if one is None else one for maker, one, other in _sides(left, right, convs)]
    one, other = given
    if one is None or other is None or one.weight.shape[:2] != other.weight.shape[:2]:
        return None
    if (one.strides, one.group, len(one.window)) != (other.strides, other.group, len(other.window)):
        return None
    if node.op_type == "Sub":
        other = Branch(other.strides, other.group, other.pads, -other.weight, -other.bias)
    large, small = (one, other) if np.prod(one.window) >= np.prod(other.window) else (other, one)
    axes = len(large.window)
    places = [large.pads[axis] - small.pads[axis] for axis in range(axes)]
    ends = [place + size for place, size in zip(places, small.window, strict=True)]
    behind = [large.window[at] - ends[at] == large.pads[at + axes] - small.pads[at + axes] for at in range(axes)]
    if min(places) < 0 or not all(behind) or any(end > size for end, size in zip(ends, large.window, strict=True)):
        return None
    weight = large.weight.copy()
    inside: tuple[Any, ...] = (slice(None), slice(None), *map(slice, places, ends))
    weight[inside] += small.weight
    return Branch(large.strides, large.group, large.pads, weight, large.bias + small.bias)


def _sides(left: Node, right: Node, convs: list[Branch | None]) -> Iterator[tuple[Node, Branch | None, Branch | None]]:
    yield left, convs[0], convs[1]
    yield right, convs[1], convs[0]


def _branch(conv: Node) -> Branch | None:
    """Read a convolution; None where its weights are no constants of its own, or it pads or dilates in another way."""
    weight, bias = conv.inputs[1], bias_of(conv)
    stored = weight.constant if weight is not None else None
    if weight is None or stored is None or bias is None or len(weight.uses) != 1 or auto_pad_of(conv) != NOT_SET:
        return None
    axes = len(stored.shape) - 2
    if any(size != 1 for size in conv.attribute("dilations") or ()):
        return None
    strides, group = tuple(conv.attribute("strides") or [1] * axes), int(conv.attribute("group", 1))
    return Branch(strides, group, tuple(pads_of(conv, axes)), stored.numpy().astype(np.float64), bias)


def _normalised(norm: Node, beside: Branch | None) -> Branch | None:
    """Write a BatchNormalization as a convolution of single places, with the groups of the parallel one."""
    found = scale_and_shift(norm) if norm.op_type == "BatchNormalization" and not any(norm.outputs[1:]) else None
    if found is None or beside is None:
        return None
    scale, shift = found
    channels, per_group = beside.weight.shape[:2]
    if len(scale) != channels or per_group * beside.group != channels or set(beside.strides) != {1}:
        return None
    axes = len(beside.window)
    weight = np.zeros((channels, per_group, *[1] * axes))
    weight[np.arange(channels), np.arange(channels) % per_group] = scale.reshape(-1, *[1] * axes)
    return Branch(beside.strides, beside.group, (0,) * 2 * axes, weight, shift)


def _written(patch: Patch, joined: Branch, source: Value, output: Value, pair: tuple[Node, Node]) -> Patch:
    name = next(maker.inputs[1].name for maker in pair if maker.op_type == "Conv" and maker.inputs[1] is not None)
    weight, bias = (
        patch.constant(ArrayTensor(array.astype(np.float32)), f"{name}_{part}")
        for array, part in ((joined.weight, "joined"), (joined.bias, "joined_bias"))
    )
    made = patch.op(
        "Conv", source, weight, bias, hint=output.name, strides=list(joined.strides), group=joined.group,
        pads=list(joined.pads), kernel_shape=list(joined.window),
    )  # fmt: skip
    named_after(patch, next(maker for maker in pair if maker.op_type == "Conv"))
    patch.replace(output, made)
    return patch
