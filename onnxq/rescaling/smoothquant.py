"""Smooth outlier channels where no producer can take the factors up: in front of the MatMuls that read a value.

Dividing costs a Mul by a vector behind GELU, and behind a normalisation that a residual connection reads too. That is
two passes over the activation; an 8-bit MatMul saves many. It pays if some channels carry outliers that decide the
range of all the others.

If a few channels are far larger than the rest, no factor helps: it moves the range from the activation into the weight.
Their excess over the range of the others is then added in float (`outlier_split.py`), with a Mul or without.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np
from onnx import TensorProto

from onnxq.calibration.channel_stats import ChannelStats
from onnxq.calibration.stats import Stats
from onnxq.ir import Node, Patch, Value
from onnxq.planning.outlier_channels import Range
from onnxq.rescaling.cross_layer import RescaledTensor, Rescaling, measured_inputs, reading_of
from onnxq.rescaling.factor_search import FactorCandidate, best
from onnxq.rescaling.folded_weights import absorbed
from onnxq.rescaling.groups import AbsorbingConstant, linear_reader
from onnxq.rescaling.outlier_split import add_outlier_product, clip, excess
from onnxq.runtime.workers import run_in_order

# Time of passes over a value, divided by that of the 8-bit product that reads it. A Mul counts for all columns of the
# product together. Adding outliers counts for all its channels, and again for each outlier. Measured with 1536
# channels, 384 columns and 144 rows, where the product took 600 microseconds, and the passes about 104, 80 and 4
MUL_SHARE = 66.0
OUTLIERS_SHARE, OUTLIER_SHARE = 204.0, 11.0
# dB that pay for as much time as the product takes
LEAST_GAIN = 20.0
# dB that pay for adding outliers in any case: layers of few channels take next to no time, and would be useless without
ENOUGH_GAIN = 10.0
# With few columns a Mul costs more than a MatMul in 8 bit saves
LEAST_COLUMNS = 64
# How many channels may be outliers
COUNTS = (1, 2, 4, 8)


def smooth(
    nodes: Iterable[Node],
    stats: Stats,
    *,
    opset: int,
    stored: Collection[Node] = (),
    at_run_time: Collection[Node] = (),
    least_gain: float = LEAST_GAIN,
    deferred: bool = False,
) -> Rescaling:
    """Choose factors and outliers for the inputs of MatMul and Gemm, to be divided by a Mul of their own.

    Free changes come first: commit the patches of `equalize` and update the statistics before.

    Args:
        nodes: MatMul and Gemm that will read their first input in 8 bit, with one scale for the tensor; Conv is passed
            over.
        stats: Of their inputs, with `ChannelStats`; values without them are left as they are.
        opset: Operator set of the model.
        stored: Nodes to pass over, too, because they will compute in float.
        at_run_time: Nodes that find the range of their input in every run, so that nothing of it may be clipped.
        least_gain: dB that pay for as much time as the products take that read a value.
        deferred: Whether weights are computed at each reading, see `absorbed`.

    Returns:
        The changes. Within the calibrated ranges the float model computes the same with them, up to rounding in
        float32. Beyond, clipped values stay clipped, as in 8 bit.

    """
    by_value = _readers([n for n in nodes if n.op_type != "Conv" and n not in stored], stats)
    searched = [(value, readers) for value, readers in by_value.items() if _pays(readers)]

    def search(one: tuple[Value, list[AbsorbingConstant]]) -> tuple[FactorCandidate, float]:
        value, readers = one
        reading = reading_of(stats, value, readers, [None] * len(readers))
        price, outlier_prices = prices(readers, least_gain)
        if any(reader.node in at_run_time for reader in readers):
            outlier_prices = {}
        return best([reading], price=price, outlier_prices=outlier_prices)

    made = Rescaling()
    found = list(run_in_order(search, searched))  # all, before the first change is described
    for (value, readers), (candidate, gain) in zip(searched, found, strict=True):
        if candidate.exponent is not None or candidate.outliers:
            bounds = _range_of_others(stats[value.name][ChannelStats], candidate) if candidate.outliers else None
            patch, inserted = _insert(value, readers, candidate, bounds, opset, deferred=deferred)
            made.patches.append(patch)
            nodes_read = tuple(reader.node for reader in readers)
            divisors, outliers = {value.name: candidate.divisor}, candidate.outliers
            made.changes.append(
                RescaledTensor(divisors, nodes_read, candidate.exponent, gain, inserted.name, bounds, outliers)
            )
    return made


def _readers(nodes: Iterable[Node], stats: Stats) -> dict[Value, list[AbsorbingConstant]]:
    """Return the weights that meet each value whose channels were measured."""
    found: dict[Value, list[AbsorbingConstant]] = {}
    for node, value in measured_inputs(nodes, stats).items():
        reader = linear_reader(node, 0)
        if reader is not None:
            found.setdefault(value, []).append(reader)
    return found


def _pays(readers: Sequence[AbsorbingConstant]) -> bool:
    """Whether the weights are the readers' own, and have columns enough for a Mul not to matter."""
    nodes = {reader.node for reader in readers}
    if any(use.node not in nodes or use.slot != 1 for reader in readers for use in reader.value.uses):
        return False
    return sum(map(_columns, readers)) >= LEAST_COLUMNS


def _columns(reader: AbsorbingConstant) -> int:
    shape = reader.value.elements.shape
    return int(np.prod(shape)) // shape[reader.axis]


def prices(readers: Sequence[AbsorbingConstant], least_gain: float) -> tuple[float, dict[int, float]]:
    """Say what changes of a value have to gain, in dB.

    Args:
        readers: Those who read it.
        least_gain: dB that pay for as much time as the products take.

    Returns:
        What dividing has to gain, and what adding outliers, by their number; none where they cannot be added.

    """
    price = least_gain * MUL_SHARE / sum(map(_columns, readers))
    if any(len(reader.value.elements.shape) != 2 or reader.node.outputs[0] is None for reader in readers):
        return price, {}
    channels = readers[0].value.elements.shape[readers[0].axis]
    counts = [count for count in COUNTS if count < channels]
    shares = {count: (OUTLIERS_SHARE + count * OUTLIER_SHARE) / channels for count in counts}
    return price, {count: min(least_gain * share, ENOUGH_GAIN) for count, share in shares.items()}


def _range_of_others(stats: ChannelStats, candidate: FactorCandidate) -> Range:
    """Return the extremes of a divided value without its outliers, zero within."""
    divided = stats.divided(candidate.divisor)
    others = np.delete(np.stack([divided.low[0], divided.high[0]]), candidate.outliers, axis=1)
    return Range(np.minimum(others[0].min(), np.float32(0)), np.maximum(others[1].max(), np.float32(0)))


def _insert(
    value: Value,
    readers: Sequence[AbsorbingConstant],
    candidate: FactorCandidate,
    bounds: Range | None,
    opset: int,
    *,
    deferred: bool,
) -> tuple[Patch, Value]:
    patch = Patch(value.graph, readers[0].node, f"smooth the channels of '{value.name}'")
    divided = value
    if candidate.exponent is not None:
        kept = patch.constant((1 / candidate.divisor).astype(np.float32), f"{value.name}_smoothing")
        divided = patch.op("Mul", value, kept, hint=f"{value.name}_smoothed")
    read = divided if bounds is None else clip(patch, divided, bounds, opset, f"{value.name}_without_outliers")
    for inserted in (divided, read):
        inserted.dtype, inserted.shape = TensorProto.FLOAT, value.shape
    outliers = excess(patch, divided, candidate.outliers, bounds, opset) if bounds is not None else None
    weights: dict[tuple[Value, int], Value] = {}  # a square one may be read transposed, too
    for reader in readers:
        old = reader.value
        tensor = old.elements
        if candidate.exponent is not None:
            if (old, reader.axis) not in weights:
                tensor = absorbed(tensor, [(reader, candidate.divisor)], deferred=deferred)
                weights[old, reader.axis] = patch.constant(tensor, f"{old.name}_smoothed")
            made = weights[old, reader.axis]
            tensor = made.elements
            patch.rewire(reader.node, reader.slot, made)
        patch.rewire(reader.node, 0, read)
        if outliers is not None:
            rows = np.moveaxis(tensor.numpy(), reader.axis, 0)[list(candidate.outliers)]
            add_outlier_product(patch, reader.node, outliers, rows)
    return patch, read
