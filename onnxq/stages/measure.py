"""Statistics of the float model, and scales and zero points from them.

Tests: `tests/stages/test_moved_ranges.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from onnx import TensorProto

from onnxq.calibration.activation_qparams import coarsened, scheme_qparams
from onnxq.calibration.blocks import BlockMeter, Blocks, BlockSums
from onnxq.calibration.calibrate import calibrate
from onnxq.calibration.layer_moments import WIDEST, MeasuredLayers
from onnxq.calibration.output_sensitivity import OutputSensitivity, trial_statistics, with_curves
from onnxq.calibration.parts import calibrate_in_parts, calibrate_sets
from onnxq.calibration.qparams import QParams
from onnxq.calibration.ranges import Needs, needs_of
from onnxq.calibration.statistic import Statistic
from onnxq.calibration.stats import StatisticFactory, Stats, range_kinds
from onnxq.calibration.stats_file import load_stats
from onnxq.calibration.thinning import Thinning
from onnxq.data.samples import Samples
from onnxq.ir import Node, Value
from onnxq.ops.forms.scheme import Scheme
from onnxq.planning.logit_reach import Reach, least_reach
from onnxq.planning.planner import Plan
from onnxq.planning.reader_curves import Curve, reader_curve
from onnxq.planning.static_bounds import exact_bounds, flat_beyond
from onnxq.progress import Observer
from onnxq.stages.prepared import Prepared
from onnxq.stages.strategy import Strategy

TRIAL_COLUMNS = 576  # of a full H
MOST_WEIGHT_BYTES = 512 << 20  # of layers whose second moments are measured


def layers_needing_moments(plan: Plan, *, blocks: bool = True, trial: bool = False) -> MeasuredLayers:
    """Name the layers whose weights are rounded by what they read; none where those weights are large together.

    Args:
        plan: The decisions.
        blocks: Whether those count whose blocks have zero points, which are rounded layer by layer where there are
            samples.
        trial: Whether codes are chosen for a trial, with H in smaller blocks.

    """
    nodes = rounded_by_moments(plan, blocks=blocks)
    weights = {value: value.constant.nbytes for node in nodes for value in node.reads if value.constant}
    widest = TRIAL_COLUMNS if trial else WIDEST
    return MeasuredLayers(nodes if sum(weights.values()) <= MOST_WEIGHT_BYTES else (), widest=widest)


def rounded_by_moments(plan: Plan, *, blocks: bool = True) -> list[Node]:
    """Return the nodes whose weights are rounded by what they read, where that is measured."""
    rounded = [
        d
        for d in plan.decisions
        if d.settings and d.settings.rounding == "output-error" and d.settings.weight_bits <= 8
    ]
    return [d.node for d in rounded if d.settings and (blocks or not d.settings.zero_points)]


def measure(
    prepared: Prepared,
    layers: MeasuredLayers,
    samples: Samples | None,
    stats: str | Path | Stats | None,
    observer: Observer,
    *,
    trial: bool = False,
    settled: bool = False,
    others: Sequence[Value] = (),
) -> Stats:
    """Return the statistics that the plan needs: those that the caller has, or those of one pass over the samples.

    Args:
        prepared: The model and its plan.
        layers: Those whose inputs' second moments are measured as well.
        samples: What to measure on.
        stats: Statistics of an earlier calibration, or a file of them.
        observer: Told about progress.
        trial: Measure only what choices need, with the last bits of float32, ranges by output error among them.
        settled: Measure only what settled ranges and codes need, and nothing for files and reports.
        others: What is measured besides, for other plans.

    """
    values = [*prepared.plan.calibrated(), *layers.values, *others]
    if isinstance(stats, Stats):
        return stats
    if stats is not None:
        return load_stats(stats, expected=prepared.identity)[0]
    if not values or samples is None:
        return Stats()
    if settled:
        kinds = settled_kinds(prepared.plan, layers, samples, others)
    else:
        kinds = _kinds(prepared, layers, samples, trial=trial, others=others)
    return calibrate_in_parts(
        prepared.model,
        values,
        samples,
        progress=observer.progress,
        kinds=kinds,
        trial=trial,
        moment_bytes=layers.bytes,
    )


def measure_sets(prepared: Prepared, several: Sequence[Samples]) -> list[Stats]:
    """Return what choices of ranges need of each of several sets of samples, by a trial; see `measure`."""
    values, layers = prepared.plan.calibrated(), MeasuredLayers(())
    if not values:
        return [Stats() for _ in several]
    sets = [(samples, _kinds(prepared, layers, samples, trial=True)) for samples in several]
    return calibrate_sets(prepared.model, values, sets, trial=True)


def measure_blocks(
    prepared: Prepared, layers: MeasuredLayers, samples: Samples, blocks: Blocks, span: range, observer: Observer
) -> BlockSums:
    """Return the sums of blocks of the samples, for a file: of all blocks, or of those of one shard.

    Raises:
        DataError, ModelError: As `calibrate`.

    """
    meter = BlockMeter(blocks, span, _kinds(prepared, layers, samples, trial=False))
    part = samples.between(blocks.first(span.start), blocks.first(span.stop))
    values = [*prepared.plan.calibrated(), *layers.values]
    calibrate(prepared.model, values, part, progress=observer.progress, meter=meter)
    return meter.sums


def settled_kinds(
    plan: Plan, layers: MeasuredLayers | None, samples: Samples, others: Sequence[Value] = ()
) -> StatisticFactory:
    """Choose what settled ranges need of each tensor, and codes of weights where layers are given."""
    layers, thinning = layers or MeasuredLayers(()), Thinning.of(samples.count)
    return trial_statistics(plan, layers, settled=True, thinning=thinning, others=others)


def complete(stats: Stats, prepared: Prepared, samples: Samples, kinds: StatisticFactory) -> Stats:
    """Return statistics with what a plan needs and they lack, measured roughly; the very same where nothing is."""
    missing = [value for value in prepared.plan.calibrated() if not _has(stats, value.name, kinds(value.name))]
    if not missing:
        return stats
    made = stats.copy()
    made.tensors.update(calibrate_in_parts(prepared.model, missing, samples, kinds=kinds, trial=True).tensors)
    return made


def _has(stats: Stats, name: str, wanted: Sequence[Statistic]) -> bool:
    return name in stats and all(type(statistic) in stats[name] for statistic in wanted)


def also_in_8bit(plan: Plan) -> list[Value]:
    """Return the values of the main graph that nodes read or give in 8 bit in one plan or another."""
    decisions = [one for one in plan.decisions if one.scheme == "static-int8" and one.node.graph.parent is None]
    values = (value for one in decisions for value in (*one.node.inputs, *one.node.outputs))
    return list(dict.fromkeys(value for value in values if value is not None and is_measured(value)))


def is_measured(value: Value) -> bool:
    """Tell whether a value holds floats that samples decide about."""
    return value.tensor is None and value.dtype == TensorProto.FLOAT


def _kinds(
    prepared: Prepared, layers: MeasuredLayers, samples: Samples, *, trial: bool, others: Sequence[Value] = ()
) -> StatisticFactory:
    """Choose what is measured of each tensor."""
    needs = needs_of(prepared.plan.range_methods)
    if prepared.fast and needs <= {Needs.EXTREMES}:
        return with_curves(prepared.plan, range_kinds, others=others)
    if trial:
        return trial_statistics(prepared.plan, layers, thinning=Thinning.of(samples.count))
    if Needs.WEIGHTED_HISTOGRAM in needs or prepared.strategy is not Strategy.STREAMED:
        # for statistics that are kept, whatever the recipe
        return OutputSensitivity(prepared.plan, layers.kinds).kinds
    return layers.kinds


# By the value, its settings, its bounds, its reach, and what its readers make of it
QParamsCache = dict[tuple[str, Scheme, tuple[float, float], Reach, Curve | None], QParams]


def choose_qparams(plan: Plan, stats: Stats, cache: QParamsCache | None = None) -> dict[Value, QParams]:
    """Turn the statistics of every calibrated value into its scale and zero point.

    Args:
        plan: The decisions.
        stats: Of every calibrated value.
        cache: What was chosen for other plans from the same statistics, which is added to: a range of least error is
            found among hundreds.

    """
    values = plan.calibrated()
    stats.require(value.name for value in values)
    cache, chosen = {} if cache is None else cache, {}
    followed = plan.followed()
    for value in values:
        owner = plan.range_owner(value)
        curve = None if owner in followed else reader_curve(owner)
        bounds, reach = _bounds(owner, owner in followed), least_reach(owner)
        key = owner.name, plan.range_settings(owner), bounds, reach, curve
        if key not in cache:
            cache[key] = scheme_qparams(stats[owner.name], *key[1:])
        chosen[value] = cache[key]
    return coarsened(plan, chosen)


def _bounds(owner: Value, followed: bool) -> tuple[float, float]:
    """Return the bounds of a value that chooses a range: those of its readers count where no other value follows it."""
    low, high = exact_bounds(owner)
    least, most = (low, high) if followed else flat_beyond(owner)
    return max(low, least), min(high, most)
