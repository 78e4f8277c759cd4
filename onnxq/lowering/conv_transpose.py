"""A ConvTranspose that enlarges a map by its strides, as a Conv that makes all pixels of a block at once.

onnxruntime has no kernel on codes for a ConvTranspose. One that makes s times as many places from each has s phases.
Output s q + r reads input q + d by weight a wherever s d + a = r + p, p being the padding in front. A Conv with s
filters for each of its own along an axis gives all phases, and DepthToSpace puts them side by side. In float it takes
longer, since windows of different phases are filled up with zeros; in 8 bit, 0.3 to 0.6 of the time. Sources: sub-pixel
convolution, https://arxiv.org/abs/1609.05158; that both compute the same, https://arxiv.org/abs/1609.07009.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from onnxq.ir import ArrayTensor, Graph, Node, Patch
from onnxq.ir.patch import named_after
from onnxq.ir.shape_inference.padding import NOT_SET, auto_pad_of, pads_of
from onnxq.ops.forms.integer_domain import CLAMPS
from onnxq.targets import Costs
from onnxq.targets.assumed_shapes import count

SCATTER = 1.25  # nanoseconds for each product that a ConvTranspose adds to its place, in the time of the table
MODE_OPSET = 11  # of DepthToSpace with channels of one filter side by side
LEAST_GAIN = 0.8  # of the time of the ConvTranspose, without what stands around it


@dataclass(frozen=True)
class AxisConv:
    """The convolution that replaces a ConvTranspose along one axis.

    Attributes:
        stride: How many phases there are.
        before: How many places the window of the Conv reaches to the front.
        behind: How many to the back.
        taps: For each weight its phase and its place in the window.

    """

    stride: int
    before: int
    behind: int
    taps: tuple[tuple[int, int], ...]

    @property
    def width(self) -> int:
        """How wide the window is."""
        return self.before + 1 + self.behind


def subpixels(graph: Graph, costs: Costs) -> Iterator[Node]:
    """List each ConvTranspose of a graph that is faster as a Conv in 8 bit, by kernel times."""
    for node in graph.nodes:
        axes = _axes(node)
        weight = node.inputs[1].constant if axes is not None and node.inputs[1] is not None else None
        if axes is None or weight is None or node.inputs[0] is None:
            continue
        channels, filters, *window = weight.shape
        places = max(count(node.inputs[0], costs.shapes) // channels, 1)
        products = filters * math.prod(window)
        now = costs.matmul(places, channels, products)[0] + SCATTER * products * places
        blocks, taps = filters * math.prod(axis.stride for axis in axes), math.prod(axis.width for axis in axes)
        if costs.conv(channels, blocks, taps, places, 1)[1] <= LEAST_GAIN * now:
            yield node


def as_conv(node: Node) -> Patch:
    """Describe a Conv and a DepthToSpace in the place of a ConvTranspose that `subpixels` lists.

    A Relu or Clip that alone reads it stands between them, where an integer Conv does it on the way.
    """
    axes, weight = _axes(node), node.inputs[1]
    assert axes is not None
    assert weight is not None
    patch = Patch(node.graph, node, "a Conv makes all pixels of a block at once")
    phases = axes[0].stride * axes[1].stride
    array = ArrayTensor(_weights(weight.elements.numpy(), axes))
    inputs = [node.inputs[0], patch.constant(array, f"{weight.name}_phases")]
    bias = node.input(2)
    if bias is not None and bias.constant is not None:
        inputs.append(patch.constant(np.repeat(bias.constant.numpy(), phases), f"{bias.name}_phases"))
    last, made = _clamp(node), node.outputs[0]
    assert made is not None
    pads = [*(axis.before for axis in axes), *(axis.behind for axis in axes)]
    shape = [axis.width for axis in axes]
    hint = f"{made.name}_phases"
    value = patch.node("Conv", inputs, outputs=[hint], kernel_shape=shape, pads=pads)[0]
    named_after(patch, node)
    if last is not None:
        limits = last.inputs[1:]
        made = last.outputs[0]
        assert made is not None
        value = patch.op(last.op_type, value, *limits, hint=f"{made.name}_phases", **last.attributes())
        named_after(patch, last)
    if phases > 1:
        value = patch.op("DepthToSpace", value, hint=made.name, blocksize=axes[0].stride, mode="CRD")
    patch.replace(made, value)
    return patch


def _axes(node: Node) -> tuple[AxisConv, AxisConv] | None:
    """Return what becomes of both axes of a ConvTranspose; None where it is none, or enlarges in another way."""
    weight = node.inputs[1].constant if node.op_type == "ConvTranspose" and node.inputs[1] is not None else None
    if node.domain or weight is None or weight.dtype != TensorProto.FLOAT or len(weight.shape) != 4:
        return None
    bias = node.input(2)
    if node.attribute("group", 1) != 1 or (bias is not None and bias.constant is None) or node.outputs[0] is None:
        return None
    if auto_pad_of(node) != NOT_SET or node.attribute("output_shape") is not None:
        return None
    strides, pads = node.attribute("strides", [1, 1]), pads_of(node, 2)
    more, kernel = node.attribute("output_padding", [0, 0]), weight.shape[2:]
    if set(node.attribute("dilations", [1, 1])) != {1} or len(set(strides)) != 1 or min(pads) < 0:
        return None
    if any(kernel[i] + more[i] - pads[i] - pads[i + 2] != strides[i] for i in (0, 1)):
        return None
    first, second = (_axis(kernel[i], strides[i], pads[i]) for i in (0, 1))
    return first, second


def _axis(kernel: int, stride: int, pad: int) -> AxisConv:
    """Work out which phase reads which place by each weight: place d by weight a in phase r, s d + a = r + p."""
    found = []
    for weight in range(kernel):
        phase = (weight - pad) % stride
        found.append((phase, (phase + pad - weight) // stride))
    before, behind = (max(0, *(sign * place for _, place in found)) for sign in (-1, 1))
    return AxisConv(stride, before, behind, tuple((phase, place + before) for phase, place in found))


def _weights(array: np.ndarray, axes: Sequence[AxisConv]) -> np.ndarray:
    """Lay weights `[channels, filters, height, width]` out by phases: `[filters × phases, channels, height, width]`."""
    channels, filters = array.shape[:2]
    high, wide = axes
    made = np.zeros((filters, high.stride, wide.stride, channels, high.width, wide.width), array.dtype)
    for row, (phase, place) in enumerate(high.taps):
        for column, (other, where) in enumerate(wide.taps):
            made[:, phase, other, :, place, where] = array[:, :, row, column].T
    return made.reshape(-1, channels, high.width, wide.width)


def _clamp(node: Node) -> Node | None:
    made = node.outputs[0]
    use = made.only_use if made is not None else None
    if use is None or use.slot or use.node.op_type not in CLAMPS or use.node.domain or use.node.graph is not node.graph:
        return None
    constant = all(value is None or value.constant is not None for value in use.node.inputs[1:])
    return use.node if constant else None
