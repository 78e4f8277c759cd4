"""Smooth outlier channels where no producer can take the factors up: one Mul in front of the MatMuls that read a value.

Behind GELU, and where a residual connection reads a normalisation too, dividing costs a Mul by a vector: two
passes over the activation, where an 8-bit MatMul saves many. It is worth it where a few channels carry outliers that
decide the range of all the others.

Where a single channel towers above the rest, no factor helps: what it takes from the activation's range it puts into
the weight's. The same Mul then sets the channel to zero, and its product with its row of the weight is added in float.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np
from onnx import TensorProto

from onnxq.ir import ArrayTensor, Node, Patch, Value
from onnxq.quant.equalize import Rescaled, Rescaling, measured_inputs, reading_of
from onnxq.quant.folding import Constant, linear_reader
from onnxq.quant.rescale import Candidate, best
from onnxq.quant.stats import Stats

# dB that pay for a Mul
LEAST_GAIN = 1.0
# A Mul costs about 10 % of an 8-bit MatMul of 384 columns; with few columns it costs more than the MatMul saves
LEAST_COLUMNS = 64
# Channels of a value that may be computed apart, and dB that pay for a Slice, a Mul and an Add over the output each
MOST_APART = 2
APART_GAIN = 1.5
# Beyond as many output channels as input channels they cost more than the Mul. MiniLM gains 0.8 dB for 3 % of its time
# with 4.0 here.
WIDEST = 1.0


def smooth(
    nodes: Iterable[Node],
    stats: Stats,
    *,
    stored: Collection[Node] = (),
    weight_share: float = 1.0,
    least_gain: float = LEAST_GAIN,
    least_columns: int = LEAST_COLUMNS,
    widest: float = WIDEST,
) -> Rescaling:
    """Choose factors for the inputs of MatMul and Gemm, to be divided by a Mul of their own.

    What is free comes first: commit the patches of `equalize` and update the statistics before.

    Args:
        nodes: MatMul and Gemm that will read their first input in 8 bit, with one scale for the tensor; Conv is passed
            over.
        stored: Nodes to pass over, too, because they will compute in float.
        stats: Of their inputs, with `ChannelStats`; values without them are left as they are.
        weight_share: How much of the error of rounding weights to nearest counts: 1, or less where the weights are
            going to be rounded better.
        least_gain: dB that a change has to gain.
        least_columns: Output channels that the readers of a value need to have together.
        widest: Output channels for each channel of the input up to which channels may be computed apart.

    Returns:
        The changes. The float model computes the same with them, up to rounding in float32.

    """
    by_value: dict[Value, list[Constant]] = {}
    for node, value in measured_inputs(nodes, stats).items():
        reader = linear_reader(node, 0)
        if reader is not None and node.op_type != "Conv" and node not in stored:
            by_value.setdefault(value, []).append(reader)
    made = Rescaling()
    for value, readers in by_value.items():
        if not _pays(readers, least_columns):
            continue
        candidate, gain = best(
            [reading_of(stats, value, readers, [None] * len(readers))],
            weight_share,
            apart=_most_apart(readers, widest),
            pays=APART_GAIN,
        )
        if (candidate.exponent is not None or candidate.apart) and gain >= least_gain:
            patch, inserted = _insert(value, readers, candidate)
            made.patches.append(patch)
            nodes_read = tuple(reader.node for reader in readers)
            divisors = {value.name: candidate.divisor}
            made.changes.append(
                Rescaled(divisors, nodes_read, candidate.exponent, gain, inserted.name, candidate.apart)
            )
    return made


def _pays(readers: Sequence[Constant], least_columns: int) -> bool:
    """Whether the weights are the readers' own, and have columns enough for a Mul not to matter."""
    nodes = {reader.node for reader in readers}
    if any(use.node not in nodes or use.slot != 1 for reader in readers for use in reader.value.uses):
        return False
    return sum(map(_columns, readers)) >= least_columns


def _columns(reader: Constant) -> int:
    shape = _shape(reader)
    return int(np.prod(shape)) // shape[reader.axis]


def _shape(reader: Constant) -> tuple[int, ...]:
    tensor = reader.value.constant
    assert tensor is not None
    return tensor.shape


def _most_apart(readers: Sequence[Constant], widest: float) -> int:
    """How many channels may be computed apart; it costs two passes over the outputs for each."""
    if any(len(_shape(reader)) != 2 or reader.node.outputs[0] is None for reader in readers):
        return 0
    return MOST_APART if sum(map(_columns, readers)) <= widest * _shape(readers[0])[readers[0].axis] else 0


def _insert(value: Value, readers: Sequence[Constant], candidate: Candidate) -> tuple[Patch, Value]:
    patch = Patch(value.graph, readers[0].node, f"smooth the channels of '{value.name}'")
    kept = (1 / candidate.divisor).astype(np.float32)
    kept[list(candidate.apart)] = 0
    divided = patch.op("Mul", value, patch.constant(kept, f"{value.name}_smoothing"), hint=f"{value.name}_smoothed")
    divided.dtype, divided.shape = TensorProto.FLOAT, value.shape
    channels = [_slice(patch, value, channel) for channel in candidate.apart]
    weights: dict[Value, Value] = {}
    for reader in readers:
        old = reader.value
        assert old.constant is not None
        exact = np.moveaxis(old.constant.numpy(), reader.axis, 0)
        if old not in weights:
            scaled = reader.apply(old.constant.numpy().astype(np.float64), candidate.divisor).astype(np.float32)
            np.moveaxis(scaled, reader.axis, 0)[list(candidate.apart)] = 0
            weights[old] = patch.constant(ArrayTensor(scaled), f"{old.name}_smoothed")
        patch.rewire(reader.node, 0, divided)
        patch.rewire(reader.node, reader.slot, weights[old])
        if channels:
            alpha = np.float32(reader.node.attribute("alpha", 1.0) if reader.node.op_type == "Gemm" else 1.0)
            _add(patch, reader.node, channels, [exact[channel] * alpha for channel in candidate.apart])
    return patch, divided


def _slice(patch: Patch, value: Value, channel: int) -> Value:
    """Give one channel of a value, `[..., 1]`."""
    bounds = [
        patch.constant(np.array([number], np.int64), f"{value.name}_{name}")
        for name, number in (("start", channel), ("end", channel + 1), ("axis", -1))
    ]
    return patch.op("Slice", value, *bounds, hint=f"{value.name}_channel_{channel}")


def _add(patch: Patch, node: Node, columns: Sequence[Value], rows: Sequence[np.ndarray]) -> None:
    """Add the products of a few channels and their rows of the weight to what a node gives, behind its bias."""
    result = node.outputs[0]
    assert result is not None
    after = result.consumers()[0] if len(result.uses) == 1 and not result.is_output else None
    if node.op_type == "MatMul" and after is not None and after.op_type == "Add" and not after.domain:
        others = [source for source in after.inputs if source is not result]
        if len(others) == 1 and others[0] is not None and others[0].constant is not None and after.outputs[0]:
            patch.rename(result, f"{result.name}_without_outlier")
            result = after.outputs[0]  # onnxruntime computes the bias with the product, if it follows at once
    total = result
    for column, row in zip(columns, rows, strict=True):
        term = patch.op("Mul", column, patch.constant(row, f"{node.label}_row"), hint=f"{result.name}_apart")
        total = patch.op("Add", total, term, hint=f"{result.name}_with_outlier")
    patch.replace(result, total)
