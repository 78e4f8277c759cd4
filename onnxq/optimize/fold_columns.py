"""Neighbouring columns as channels: a Conv over few channels in the form that onnxruntime has a fast kernel for.

onnxruntime's QLinearConv goes through the places of a window one by one, and takes a few channels of each. With the
three of a picture it hardly multiplies. Codes lie channels last. So a row of width W with C channels is also a
row of width W/m with m C channels. A Conv with b times as many filters, each shifted by a stride, then computes b
columns at once. It multiplies zeros between them, too. Yet 7 × 7 from 3 to 64 channels with stride 2 took 0.66 of the
time. 3 × 3 from 1 to 16 channels took half (`tests/bench/bench_conv_channels.py`). The new weights are computed from
constants when onnxruntime loads the model: the file hardly grows. Over both axes this is known as space to depth.

A window that begins in the middle of a block reaches over one block more. Rows of one channel are padded on the left
where that spares a block. 5 × 5 over 224 × 224 then multiplies by 40 weights in place of 60.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from onnxq.ir import Model, Node, Patch, Value
from onnxq.ir.pass_manager import register_pass
from onnxq.ir.schemas import PAD_OF_CODES
from onnxq.ir.shape_inference.padding import auto_pad_of, pads_of
from onnxq.optimize.channels_last import channels_first, channels_last
from onnxq.optimize.integer_conv import IntegerConv, integer_convs, multiple_of
from onnxq.targets import UNKNOWN_SIDE, Costs, load_costs
from onnxq.targets.target import Target

AT_ONCE = (1, 2, 4, 8)  # columns; one by one pays behind a stride, as for patches of a picture
FEW_FILTERS = 16
LEAST_SAVING_OF_FEW = 0.35  # with fewer: eight columns of one filter took 1.2 where 0.69 to 0.89 were computed
LEAST_SAVING = 0.1  # of the time, by the model of the target's table, which is right to a tenth
NODES = 3  # more than before: where codes lie otherwise than channels last, and behind the Conv


@dataclass(frozen=True)
class Columns:
    """How the columns of a Conv become channels.

    Attributes:
        made: How many columns of the output are computed at once.
        read: How many of the input are one then.
        before: Of these, how many the window reaches to the left of the one it belongs to.
        width: How many of these the window is wide.
        after: Blocks of padding on the right.
        share: What the Conv takes then, in the time that it took.
        padded: Columns of zeros that are put on the left of the input before.

    """

    made: int
    read: int
    before: int
    width: int
    after: int
    share: float
    padded: int = 0


def columns_of(node: Node, weight: Sequence[int], costs: Costs) -> Columns | None:
    """Choose how many columns of a Conv are computed at once; None where one by one is fastest.

    Args:
        node: A Conv, in float or between Q/DQ pairs.
        weight: Shape of its weight.
        costs: What kernels take.

    """
    if len(weight) not in (3, 4) or weight[-1] == 1 or int(node.attribute("group", 1)) != 1:
        return None
    if auto_pad_of(node).startswith("SAME") or node.attribute("dilations", [1])[-1] != 1:
        return None
    read, made = (value.shape if value is not None else None for value in (node.inputs[0], node.outputs[0]))
    stride = int(node.attribute("strides", [1])[-1])
    if not read or not made or not isinstance(read[-1], int) or not isinstance(made[-1], int):
        return None
    filters, channels, *window = weight
    left = pads_of(node, len(window))[len(window) - 1]
    positions = math.prod(size if isinstance(size, int) else UNKNOWN_SIDE for size in made[2:])
    plain = costs.integer_conv(positions, math.prod(window), multiple_of(4, channels), filters)
    best = None
    for at_once in AT_ONCE:
        block = at_once * stride
        if read[-1] % block or made[-1] % at_once or block * channels % 4 or at_once * filters % 8:
            continue
        saving = LEAST_SAVING if at_once * filters >= FEW_FILTERS else LEAST_SAVING_OF_FEW
        more = made[-1] // at_once - read[-1] // block  # blocks that are made, than that are read
        for padded in (0, left) if channels == 1 and left > 0 and stride < window[-1] and not more else (0,):
            before = -(-(left - padded) // block)
            width = before + 1 + max(0, (block - stride - left + padded + window[-1] - 1) // block)
            after = width - 1 - before + more
            if after < 0:
                continue
            taps = math.prod(window[:-1]) * width
            time = costs.integer_conv(positions // at_once, taps, block * channels, at_once * filters)
            time += costs.borders["node"] + costs.moved("Transpose", positions * stride) if padded else 0.0
            found = Columns(at_once, block, before, width, after, time / plain, padded)
            if found.share <= 1 - saving and (best is None or found.share < best.share):
                best = found
    return best


def neighbours(weight: Sequence[int], columns: Columns, left: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return which elements of a filter the kernel multiplies side by side where a block holds channel after channel.

    If it holds column after column, neighbours are those of the original filter.

    Args:
        weight: Shape of the weight, `[filters, channels, ..., width]`.
        columns: How its columns are folded.
        left: Padding on the left of the Conv.

    Returns:
        For each of the columns that are made at once, the indices of first and second elements in a filter's channels
        and window, flattened.

    """
    _, channels, *window = weight
    numbers = np.arange(math.prod(weight[1:])).reshape(channels, -1, window[-1])
    stride, places = columns.read // columns.made, columns.width * columns.read
    found = []
    for number in range(columns.made):
        first = columns.before * columns.read - left + number * stride
        shifted = np.full((*numbers.shape[:2], places), -1)
        shifted[..., first : first + window[-1]] = numbers
        blocks = shifted.reshape(channels, -1, columns.width, columns.read).transpose(1, 2, 0, 3)
        one, other = blocks.reshape(-1, 2).T
        both = (one >= 0) & (other >= 0)
        found.append((one[both], other[both]))
    return found


def folds(conv: IntegerConv, target: Target) -> Columns | None:
    """Say how the columns of an integer Conv become channels, if they do."""
    if conv.depthwise or not target.timed:
        return None
    return columns_of(conv.node, conv.codes.shape, load_costs(target.name))


@register_pass(order=90, timed=True, operators=("Conv",), opset=PAD_OF_CODES, types=True, for_target=True)
def fold_columns(model: Model, target: Target) -> Iterator[Patch]:
    """Turn neighbouring columns into channels where convolutions are faster for it.

    Args:
        model: A quantized model of operator set 11 or later whose types are inferred. Its
            results on codes stay the same to the bit.
        target: Says what kernels take.

    """
    for graph in model.graph.graphs():
        convs = integer_convs(graph)
        made = {conv.made for conv in convs}
        for conv in convs:
            columns = folds(conv, target)
            if columns is not None:
                yield _patch(conv, columns, by_pixel=conv.read in made or conv.channels == 1)


def _patch(conv: IntegerConv, columns: Columns, *, by_pixel: bool) -> Patch:
    """Describe the Conv over blocks of columns.

    Args:
        conv: The Conv.
        columns: How its columns are folded.
        by_pixel: Whether a block holds one column after the other, as the output of a Conv does. Otherwise it holds one
            channel after the other, so that several codes are moved at once.

    """
    patch = Patch(conv.node.graph, conv.node, f"fold the columns of {conv.node.label}")
    assert conv.activation.shape is not None
    assert conv.product.shape is not None
    width, made = conv.activation.shape[-1], conv.product.shape[-1]
    assert isinstance(width, int)
    blocks = _blocks(conv, columns, width // columns.read, patch, by_pixel=by_pixel)
    pair = patch.op("DequantizeLinear", blocks, *conv.pair.inputs[1:], hint=f"{conv.activation.name}_blocks")
    inputs = [pair, _weight(conv, columns, patch, by_pixel=by_pixel)]
    if conv.bias is not None and (codes := conv.bias.inputs[0]) is not None:
        inputs.append(_dequantized(conv.bias, _repeated(codes, columns, patch), columns, patch))
    attributes = {name: value for name, value in conv.node.attributes().items() if name != "auto_pad"}
    axes = conv.codes.ndim - 2
    pads = pads_of(conv.node, axes)
    pads[axes - 1], pads[-1] = columns.before, 0 if columns.padded else columns.after
    strides = [*attributes.get("strides", [1] * axes)[:-1], 1]
    attributes |= {"kernel_shape": [*conv.codes.shape[2:-1], columns.width], "pads": pads, "strides": strides}
    name, hint = f"{conv.node.display_name}_blocks", f"{conv.product.name}_blocks"
    product = patch.node("Conv", inputs, outputs=[hint], name=name, **attributes)[0]
    quantized = patch.op("QuantizeLinear", product, *conv.quantize.inputs[1:], hint=f"{conv.made.name}_blocks")
    last = channels_last(quantized, conv.codes.ndim, patch)
    patch.replace(conv.made, _as_image(last, conv, patch, [made, conv.filters], conv.made.name))
    return patch


def _as_image(last: Value, conv: IntegerConv, patch: Patch, sizes: Sequence[Any], name: str) -> Value:
    """Let rows that lie channels last have so many columns and channels, and put the channels first."""
    axes = conv.codes.ndim
    shape = patch.constant(np.array([*[0] * (axes - 2), *sizes]), f"{name}_sizes")
    rows = patch.op("Reshape", last, shape, hint=f"{name}_rows")
    return channels_first(rows, axes, patch, name)


def _blocks(conv: IntegerConv, columns: Columns, count: int, patch: Patch, *, by_pixel: bool) -> Value:
    """Put so many blocks of columns in the place of columns, and those that padding adds."""
    codes, axes, size = _padded(conv, columns, patch), conv.codes.ndim, columns.read
    count += columns.width - 1 if columns.padded else 0
    name, sides = conv.read.name, conv.activation.shape[2:-1] if conv.activation.shape is not None else ()
    if conv.channels == 1 and all(isinstance(side, int) for side in sides):  # then first and last are the same
        sizes = patch.constant(np.array([0, *sides, count, size]), f"{name}_blocks_sizes")
        rows = patch.op("Reshape", codes, sizes, hint=f"{name}_blocks_rows")
        return channels_first(rows, axes, patch, f"{name}_blocks")
    if by_pixel:
        last = channels_last(codes, axes, patch)
    else:
        shape = patch.constant(np.array([*[0] * (axes - 1), count, size]), f"{name}_columns")
        split = patch.op("Reshape", codes, shape, hint=f"{name}_split")
        order = [0, *range(2, axes), 1, axes]
        last = patch.op("Transpose", split, hint=f"{name}_channels_last", perm=order)
    return _as_image(last, conv, patch, [count, size * conv.channels], f"{name}_blocks")


def _padded(conv: IntegerConv, columns: Columns, patch: Patch) -> Value:
    """Pad rows of codes with the code of zero: on the left as the Conv does, on the right to whole blocks."""
    if not columns.padded:
        return conv.read
    ends = np.zeros(2 * conv.codes.ndim, np.int64)
    ends[conv.codes.ndim - 1] = columns.padded
    ends[-1] = (columns.width - 1) * columns.read - columns.padded
    zero = [value for value in conv.pair.inputs[2:3] if value is not None]
    return patch.op(
        "Pad", conv.read, patch.constant(ends, f"{conv.read.name}_ends"), *zero, hint=f"{conv.read.name}_wide"
    )


def _weight(conv: IntegerConv, columns: Columns, patch: Patch, *, by_pixel: bool) -> Value:
    """Shift every filter by a stride for each of the columns that are made at once."""
    codes, rank = conv.weight.inputs[0], conv.codes.ndim
    assert codes is not None
    name, (filters, channels, *window) = codes.name, conv.codes.shape
    left = pads_of(conv.node, len(window))[len(window) - 1]
    stride, places = columns.read // columns.made, columns.width * columns.read
    shifted = []
    for number in range(columns.made):
        first = columns.before * columns.read - left + columns.padded + number * stride
        pads = np.zeros(2 * rank, np.int64)
        pads[rank - 1], pads[-1] = first, places - first - window[-1]
        ends = patch.constant(pads, f"{name}_pads_{number}")
        shifted.append(patch.op("Pad", codes, ends, hint=f"{name}_shifted_{number}"))
    every = patch.op("Concat", *shifted, hint=f"{name}_shifted", axis=0) if len(shifted) > 1 else shifted[0]
    sizes = [columns.made * filters, channels, *window[:-1], columns.width, columns.read]
    split = patch.op("Reshape", every, patch.constant(np.array(sizes), f"{name}_split_sizes"), hint=f"{name}_split")
    order = [0, rank, 1] if by_pixel else [0, 1, rank]
    moved = patch.op("Transpose", split, hint=f"{name}_moved", perm=[*order, *range(2, rank)])
    sizes = [columns.made * filters, channels * columns.read, *window[:-1], columns.width]
    joined = patch.op("Reshape", moved, patch.constant(np.array(sizes), f"{name}_sizes"), hint=f"{name}_blocks")
    return _dequantized(conv.weight, joined, columns, patch)


def _dequantized(pair: Node, codes: Value, columns: Columns, patch: Patch) -> Value:
    """Dequantize codes for all columns that are made at once, the scales of one for each of them."""
    made = pair.outputs[0]
    assert made is not None
    each = pair.inputs[0].shape[:1] if pair.inputs[0] is not None and pair.inputs[0].shape is not None else ()
    scales = [
        _repeated(value, columns, patch) if value is not None and value.shape == each != (1,) else value
        for value in pair.inputs[1:]
    ]
    return patch.op("DequantizeLinear", codes, *scales, hint=f"{made.name}_blocks", **pair.attributes())


def _repeated(value: Value, columns: Columns, patch: Patch) -> Value:
    if columns.made == 1:
        return value
    return patch.op("Concat", *[value] * columns.made, hint=f"{value.name}_blocks", axis=0)
