"""Wide windows over few channels: shifted copies of what an integer Conv reads, as further channels.

onnxruntime's QLinearConv takes the places of a window one by one, and a multiple of four channels of each. With a
single channel it multiplies three times as many zeros. The same window over shifted copies is as high, one wide, and
full. A Conv of 5 × 5 from 1 to 64 channels, 224 × 224, took 5.0 ms, and 2.6 ms so.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from onnxq.ir import Model, Patch, Value
from onnxq.ir.pass_manager import register_pass
from onnxq.ir.schemas import PAD_OF_CODES
from onnxq.ir.shape_inference.padding import NOT_SET, auto_pad_of, pads_of
from onnxq.optimize.fold_columns import folds
from onnxq.optimize.integer_conv import IntegerConv, integer_convs, multiple_of
from onnxq.targets.target import Target

LEAST_PIXELS = 10_000  # for fewer, the copies take as long as they save: 32 × 32 and 28 × 28 lost a tenth
LEAST_SAVING = 2.0  # of what is multiplied: 7 × 7 over three channels gains a sixth of its time by 1.2


@register_pass(order=70, timed=True, operators=("Conv",), opset=PAD_OF_CODES, types=True, for_target=True)
def fold_taps(model: Model, target: Target) -> Iterator[Patch]:
    """Turn the places along the last axis of windows into channels where that saves half of the products.

    Args:
        model: A quantized model. Its results stay the same to the bit.
        target: Says how many channels a kernel takes at once.

    """
    for graph in model.graph.graphs():
        yield from (_patch(conv, target) for conv in integer_convs(graph) if _pays(conv, target))


def _pays(conv: IntegerConv, target: Target) -> bool:
    if folds(conv, target) is not None:
        return False
    shape = conv.codes.shape
    if len(shape) != 4 or shape[3] == 1 or conv.depthwise or auto_pad_of(conv.node) != NOT_SET:
        return False
    at_once = target.conv_channels
    now, then = multiple_of(at_once, conv.channels) * shape[3], multiple_of(at_once, conv.channels * shape[3])
    return now >= LEAST_SAVING * then and conv.has_pixels(LEAST_PIXELS)


def _patch(conv: IntegerConv, target: Target) -> Patch:
    patch = Patch(conv.node.graph, conv.node, f"fold the window of {conv.node.label}")
    filters, channels, height, width = conv.codes.shape
    top, left, bottom, right = pads_of(conv.node, 2)
    down, step = conv.node.attribute("dilations", [1, 1])
    copies = multiple_of(target.conv_channels, width) if channels == 1 else width
    weight = np.zeros((filters, copies, channels, height, 1), np.int8)
    weight[:, :width, :, :, 0] = conv.codes.transpose(0, 3, 1, 2)
    codes = _shifted(conv, patch, [place * step if place < width else 0 for place in range(copies)], (left, right))
    pair = patch.op("DequantizeLinear", codes, *conv.pair.inputs[1:], hint=f"{conv.activation.name}_shifted")
    name = f"{conv.weight.inputs[0].name}_folded" if conv.weight.inputs[0] is not None else ""
    folded = patch.constant(weight.reshape(filters, copies * channels, height, 1), name)
    stated = conv.weight.attributes()
    kernel = patch.op("DequantizeLinear", folded, *conv.weight.inputs[1:], hint=f"{name}_dequantized", **stated)
    attributes = conv.node.attributes()
    attributes |= {"kernel_shape": [height, 1], "pads": [top, 0, bottom, 0], "dilations": [down, 1]}
    inputs = [pair, kernel, *conv.node.inputs[2:]]
    hint = f"{conv.product.name}_folded"
    made = patch.node("Conv", inputs, outputs=[hint], name=f"{conv.node.display_name}_folded", **attributes)
    patch.replace(conv.product, made[0])
    return patch


def _shifted(conv: IntegerConv, patch: Patch, shifts: list[int], pads: tuple[int, int]) -> Value:
    """Put copies of codes that begin at these places behind one another, padded by what stands for zero."""
    codes, name = conv.read, conv.read.name
    if any(pads):
        ends = patch.constant(np.array([0, 0, 0, pads[0], 0, 0, 0, pads[1]]), f"{name}_pads")
        codes = patch.op("Pad", codes, ends, conv.pair.inputs[2], hint=f"{name}_padded")
    axis, made = patch.constant(np.array([3]), f"{name}_axis"), {}
    for shift in sorted(set(shifts)):
        start = patch.constant(np.array([shift]), f"{name}_start_{shift}")
        left_out = max(shifts) - shift
        end = patch.constant(np.array([-left_out if left_out else np.iinfo(np.int64).max]), f"{name}_end_{shift}")
        made[shift] = patch.op("Slice", codes, start, end, axis, hint=f"{name}_from_{shift}")
    return patch.op("Concat", *(made[shift] for shift in shifts), hint=f"{name}_shifted", axis=1)
