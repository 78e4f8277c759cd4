"""Rescale the channels of values that are read in 8 bit where that is free: equalisation and smoothing by folding.

The gamma and beta of a normalisation absorb the factors, or the weight and bias of a MatMul, Gemm or Conv. The weights
that read the value undo them. Runs on the normalised float model, before anything is quantized.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from onnxq.calibration.channel_stats import ChannelStats
from onnxq.calibration.sample_extremes import ChannelPeaks
from onnxq.calibration.statistic import Statistic
from onnxq.calibration.stats import Extremes, Moments, StatisticFactory, Stats, TensorStats, basic_kinds
from onnxq.ir import Node, Patch, Value
from onnxq.planning.outlier_channels import OutlierClip, Range
from onnxq.rescaling.bounded import required_headroom
from onnxq.rescaling.factor_search import LEAST_SHARE, QuantizedRead, best, weight_of
from onnxq.rescaling.find_groups import find_groups
from onnxq.rescaling.folded_weights import FoldedWeights
from onnxq.rescaling.groups import AbsorbingConstant, ScaleGroup, linear_reader, reader_axis

FOLDED = "rescaled channels of {} tensors (cross-layer equalization)"
DIVIDED = "rescaled channels of {} tensors by a Mul (SmoothQuant)"
OUTLIERS = "split outlier channels of {} tensors off in float"
LEAST_GAIN = 1.0  # dB; below it the estimate is as often wrong as right


def unbounded(group: ScaleGroup) -> bool:
    """Whether no value of a group has an upper bound: then dividing it is free on all samples."""
    return not group.limits


@dataclass(frozen=True)
class RescaledTensor:
    """One change.

    Attributes:
        divisors: For each value that is divided, by name: float64 `[channels]`, positive.
        readers: The nodes whose weights are multiplied.
        exponent: `a` of the factors; None where nothing is divided.
        gain: How much less error the readers' outputs have, in dB, estimated from statistics.
        inserted: Name of the value that the division makes; None where it is free.
        bounds: The range that the inserted value is clipped to; the excess is added in float.
        outliers: The channels that leave it.

    """

    divisors: Mapping[str, np.ndarray]
    readers: tuple[Node, ...]
    exponent: float | None
    gain: float
    inserted: str | None = None
    bounds: Range | None = None
    outliers: tuple[int, ...] = ()


@dataclass
class Rescaling:
    """The changes to make. Commit `patches`, then call `update` on the statistics.

    Attributes:
        changes: What happens to which values.
        patches: The same as patches, to be committed together.

    """

    changes: list[RescaledTensor] = field(default_factory=list)
    patches: list[Patch] = field(default_factory=list)

    def said(self) -> list[str]:
        """Say what happens to how many tensors."""
        counts = {
            FOLDED: sum(len(change.divisors) for change in self.changes if change.inserted is None),
            DIVIDED: sum(bool(change.inserted) and change.exponent is not None for change in self.changes),
            OUTLIERS: sum(change.bounds is not None for change in self.changes),
        }
        return [sentence.format(count) for sentence, count in counts.items() if count]

    def clipped(self) -> dict[str, OutlierClip]:
        """Say which values are clipped, and how."""
        found = {}
        for change in self.changes:
            if change.inserted is not None and change.bounds is not None:
                (divisor,) = change.divisors.values()
                found[change.inserted] = OutlierClip(len(divisor), change.outliers, change.bounds)
        return found

    def update(self, stats: Stats) -> None:
        """Bring statistics of the float model up to date, so that no second calibration is needed.

        Extremes, moments and channels follow exactly; moments of clipped values are bounded. A histogram does not
        follow from them: it is dropped, and ranges have to be chosen by extremes. A tensor without statistics by
        channel is left out, so that `Stats.require` asks for it.
        """
        for change in self.changes:
            for name, divisor in change.divisors.items():
                known = stats.tensors.pop(name, None)
                if known is None:
                    continue
                if change.inserted is not None:
                    stats.tensors[name] = known
                if ChannelStats in known and known[ChannelStats].channels == len(divisor):
                    stats.tensors[change.inserted or name] = rescaled_stats(known, divisor, change.bounds)


def channel_axes(nodes: Iterable[Node]) -> dict[str, int]:
    """Return the channel axis of every value that a MatMul, Gemm or Conv with a constant weight reads, by name."""
    axes: dict[str, int] = {}
    for node in nodes:
        value = node.input(0)
        if value is not None and value.tensor is None and linear_reader(node, 0) is not None:
            axes.setdefault(value.name, reader_axis(node))
    return axes


def channel_kinds(axes: Mapping[str, int], name: str, *, basics: StatisticFactory = basic_kinds) -> Sequence[Statistic]:
    """Make the statistics to collect for a tensor; give `partial(channel_kinds, axes)` to `calibrate`.

    Args:
        axes: Channel axis by name; a tensor that is not in it gets the basic statistics alone.
        name: The tensor.
        basics: The basic statistics; rescaling itself uses none of them.

    """
    return (*basics(name), ChannelStats(axes[name])) if name in axes else basics(name)


def equalize(
    nodes: Iterable[Node],
    stats: Stats,
    *,
    stored: Collection[Node] = (),
    even: bool = False,
    least_gain: float = LEAST_GAIN,
    least_share: float = LEAST_SHARE,
    wanted: Callable[[ScaleGroup], bool] = unbounded,
    deferred: bool = False,
) -> Rescaling:
    """Choose factors for everything that can be divided for free.

    Args:
        nodes: MatMul, Gemm and Conv that will read their first input in 8 bit, with one scale for the tensor, or that
            will compute in float with weights stored in 8 bit.
        stats: Of their inputs, with `ChannelStats`; values without them are left as they are.
        stored: The latter.
        even: Whether factors of maps with only Conv readers come from the mean size of each channel, not its range.
        least_gain: dB that a change has to gain.
        least_share: See `best`.
        wanted: Says whether to change a group.
        deferred: Whether weights are computed at each reading, see `absorbed`.

    Returns:
        The changes. With them the float model computes the same, up to rounding in float32. Groups with an upper bound
        are an exception: channels that go much further than in all samples are clipped.

    """
    measured = measured_inputs(nodes, stats)
    groups = find_groups({value: reader_axis(node) for node, value in measured.items()})
    weights = FoldedWeights(deferred=deferred)
    made = Rescaling()
    for group, readings in _readings(groups, measured, stats, frozenset(stored)).items():
        needed = required_headroom(group, stats) if group.limits else None
        if not wanted(group) or (group.limits and needed is None):
            continue
        evenly = even and all(reader.node.op_type == "Conv" for reader in group.readers)
        candidate, gain = best(readings, even=evenly, needed=needed, least_share=least_share)
        if candidate.exponent is not None and gain >= least_gain:
            divisors = {value.name: np.repeat(candidate.divisor, times) for value, times in group.values.items()}
            nodes_read = tuple(reader.node for reader in group.readers)
            made.changes.append(RescaledTensor(divisors, nodes_read, candidate.exponent, gain))
            weights.change(group.constants, candidate.divisor)
    made.patches = weights.patches()
    return made


def _readings(
    groups: Mapping[Value, ScaleGroup], measured: Mapping[Node, Value], stats: Stats, stored: Collection[Node]
) -> dict[ScaleGroup, list[QuantizedRead]]:
    """Put together what is known of the values of each group, and who reads them.

    The error of a reader's output is weighted by the readers of that output, so the last groups come first. All sizes
    are those of the original model: rescaling one group changes nothing for another, since sizes and weights change
    alike.
    """
    position = {node: index for index, node in enumerate(measured)}
    first = {
        group: min(position.get(reader.node, len(position)) for reader in group.readers)
        for group in dict.fromkeys(groups.values())
        if any(reader.node in measured for reader in group.readers)
    }
    found: dict[ScaleGroup, list[QuantizedRead]] = {}
    counts: dict[ScaleGroup, np.ndarray] = {}
    for group in sorted(first, key=lambda group: -first[group]):
        by_value: dict[tuple[Value, bool, bool], list[AbsorbingConstant]] = {}
        for reader in group.readers:
            if reader.node in measured:
                returns = groups.get(_output(reader.node)) is group  # a residual branch, judged once the rest is known
                key = measured[reader.node], returns, reader.node in stored
                by_value.setdefault(key, []).append(reader)
        found[group] = []
        for (value, returns, in_float), readers in sorted(by_value.items(), key=lambda item: item[0][1]):
            outputs = [groups.get(_output(reader.node)) for reader in readers]
            importance = [None if after is None else counts.get(after) for after in outputs]
            reading = reading_of(stats, value, readers, importance, in_float=in_float)
            found[group].append(reading)
            if not returns:
                counts[group] = counts.get(group, 0) + reading.energy
    return {group: found[group] for group in first}


def _output(node: Node) -> Value:
    value = node.outputs[0]
    assert value is not None
    return value


def measured_inputs(nodes: Iterable[Node], stats: Stats) -> dict[Node, Value]:
    """Return what each MatMul, Gemm and Conv reads, where its channels were measured and are those of the weight."""
    found: dict[Node, Value] = {}
    for node in nodes:
        value = node.input(0)
        reader = linear_reader(node, 0)
        if value is None or reader is None or value.name not in stats or ChannelStats not in stats[value.name]:
            continue
        if stats[value.name][ChannelStats].channels == reader.value.elements.shape[reader.axis] * reader.groups:
            found[node] = value
    return found


def reading_of(
    stats: Stats,
    value: Value,
    readers: Sequence[AbsorbingConstant],
    importance: Sequence[np.ndarray | None],
    *,
    in_float: bool = False,
) -> QuantizedRead:
    """Put together what is known of a value that is read in 8 bit, or by weights in 8 bit.

    Args:
        stats: Of the value, by channel.
        value: The value.
        readers: The weights that it meets.
        importance: For each reader, the weight of an error of its output channels; None if all count the same.
        in_float: Whether it is read in float, and only the weights are rounded.

    """
    weights = (weight_of(reader, reader.value.elements.numpy()) for reader in readers)
    channels = stats[value.name][ChannelStats]
    positions = readers[0].positions
    channels = channels.joined(positions) if positions > 1 else channels
    made = QuantizedRead(channels, weights, importance, in_float=in_float)
    for reader in readers:
        reader.value.elements.release()
    return made


def rescaled_stats(
    known: TensorStats, divisor: np.ndarray, bounds: Range | None = None, shift: np.ndarray | None = None
) -> TensorStats:
    """Return the statistics of a tensor whose channels are shifted, then divided, then clipped.

    Args:
        known: Its statistics before, by channel. Extremes of samples follow where `ChannelPeaks` are among them.
        divisor: `[channels]`, positive.
        bounds: Where it is clipped.
        shift: float64 `[channels]`.

    """
    channels = known[ChannelStats] if shift is None else known[ChannelStats].shifted(shift)
    divided = channels.divided(divisor)
    if bounds is not None:
        for part in (divided.high, divided.low):
            part[np.isfinite(part)] = np.clip(part[np.isfinite(part)], bounds.low, bounds.high)
        divided.squares = np.minimum(divided.squares, divided.count * max(-float(bounds.low), float(bounds.high)) ** 2)
        most = np.sqrt(divided.squares * divided.count)
        divided.total = np.clip(divided.total, -most, most)
    extremes = Extremes(float(divided.low[0].min()), float(divided.high[0].max()))
    count = divided.count * divided.channels
    moments = Moments(count, float(divided.total.sum()), float(divided.squares.sum()))
    return TensorStats([extremes, moments, divided, *_peaks(known, divisor, bounds, shift)])


def _peaks(
    known: TensorStats, divisor: np.ndarray, bounds: Range | None, shift: np.ndarray | None
) -> Iterator[Statistic]:
    """Return extremes of samples, by channel and in all, as far as they are known."""
    if ChannelPeaks not in known:
        return
    added = np.zeros(len(divisor)) if shift is None else shift
    ends = None if bounds is None else (float(bounds.low), float(bounds.high))
    peaks = known[ChannelPeaks].changed(divisor, added, ends)
    extremes = peaks.sample_extremes()
    yield from () if extremes is None else (peaks, extremes)
