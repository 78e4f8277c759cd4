"""Smooth outlier channels where no producer can take the factors up: one Mul in front of the MatMuls that read a value.

Behind GELU, and where a residual connection reads a normalisation too, dividing costs a Mul by a vector: two
passes over the activation, where an 8-bit MatMul saves many. It is worth it where a few channels carry outliers that
decide the range of all the others.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from onnx import TensorProto

from onnxq.ir import ArrayTensor, Node, Patch, Value
from onnxq.quant.equalize import Rescaled, Rescaling, measured_inputs, reading_of
from onnxq.quant.folding import Constant, linear_reader
from onnxq.quant.rescale import best
from onnxq.quant.stats import Stats

# dB that pay for a Mul
LEAST_GAIN = 1.0
# A Mul costs about 10 % of an 8-bit MatMul of 384 columns; with few columns it costs more than the MatMul saves
LEAST_COLUMNS = 64


def smooth(
    nodes: Iterable[Node],
    stats: Stats,
    *,
    weight_share: float = 1.0,
    least_gain: float = LEAST_GAIN,
) -> Rescaling:
    """Choose factors for the inputs of MatMul and Gemm, to be divided by a Mul of their own.

    What is free comes first: commit the patches of `equalize` and update the statistics before.

    Args:
        nodes: MatMul and Gemm that will read their first input in 8 bit, with one scale for the tensor; Conv is passed
            over.
        stats: Of their inputs, with `ChannelStats`; values without them are left as they are.
        weight_share: How much of the error of rounding weights to nearest counts: 1, or less where the weights are
            going to be rounded better.
        least_gain: dB that a change has to gain.

    Returns:
        The changes. The float model computes the same with them, up to rounding in float32.

    """
    by_value: dict[Value, list[Constant]] = {}
    for node, value in measured_inputs(nodes, stats).items():
        reader = linear_reader(node, 0)
        if reader is not None and node.op_type != "Conv":
            by_value.setdefault(value, []).append(reader)
    made = Rescaling()
    for value, readers in by_value.items():
        if not _pays(readers):
            continue
        candidate, gain = best([reading_of(stats, value, readers, None, ())], weight_share)
        if candidate.exponent is not None and gain >= least_gain:
            patch, inserted = _insert(value, readers, candidate.divisor)
            made.patches.append(patch)
            nodes_read = tuple(reader.node for reader in readers)
            made.changes.append(
                Rescaled({value.name: candidate.divisor}, nodes_read, candidate.exponent, gain, inserted.name)
            )
    return made


def _pays(readers: list[Constant]) -> bool:
    """Whether the weights are the readers' own, and have columns enough for a Mul not to matter."""
    nodes = {reader.node for reader in readers}
    if any(use.node not in nodes or use.slot != 1 for reader in readers for use in reader.value.uses):
        return False
    columns = 0
    for reader in readers:
        tensor = reader.value.constant
        assert tensor is not None
        columns += tensor.size // tensor.shape[reader.axis]
    return columns >= LEAST_COLUMNS


def _insert(value: Value, readers: list[Constant], divisor: np.ndarray) -> tuple[Patch, Value]:
    patch = Patch(value.graph, readers[0].node, f"smooth the channels of '{value.name}'")
    factor = patch.constant(ArrayTensor((1 / divisor).astype(np.float32)), f"{value.name}_smoothing")
    divided = patch.op("Mul", value, factor, hint=f"{value.name}_smoothed")
    divided.dtype, divided.shape = TensorProto.FLOAT, value.shape
    weights: dict[Value, Value] = {}
    for reader in readers:
        old = reader.value
        if old not in weights:
            assert old.constant is not None
            scaled = reader.apply(old.constant.numpy().astype(np.float64), divisor).astype(np.float32)
            weights[old] = patch.constant(ArrayTensor(scaled), f"{old.name}_smoothed")
        patch.rewire(reader.node, 0, divided)
        patch.rewire(reader.node, reader.slot, weights[old])
    return patch, divided
