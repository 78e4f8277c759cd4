"""Trials: variants of a quantized model, judged on samples that chose nothing about them.

Statistics predict a gain layer by layer; here it is checked on the whole model before it is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from onnxq.calibration.parts import calibrate_in_parts
from onnxq.calibration.stats import Stats
from onnxq.data.samples import Samples
from onnxq.errors import DataError, ModelError
from onnxq.ir import Model, commit
from onnxq.ir.shape_inference.types import infer_types
from onnxq.progress import Observer
from onnxq.rescaling.cross_layer import Rescaling, channel_axes, channel_kinds, equalize
from onnxq.rescaling.smoothquant import smooth
from onnxq.search.held_out import HoldoutSplit
from onnxq.search.trials.channel_trial import to_rescale
from onnxq.stages.prepared import Prepared
from onnxq.stages.replan import copy_prepared, replan
from onnxq.stages.strategy import Strategy

CHANNEL_SAMPLES = 32  # that channels are measured on once a way is chosen, as many as choose it and more
LEAST_GAIN = 0.2  # dB; less is within what other samples would show
Rescale = Callable[..., Rescaling]
EQUALIZE_EVEN: Rescale = partial(equalize, even=True)
# The cheapest and safest first: what comes later has to gain
RESCALING_METHODS: tuple[tuple[Rescale, ...], ...] = ((EQUALIZE_EVEN,), (equalize,), (equalize, smooth), (smooth,))
# Without data, in clear cases only: a channel that is silent on random numbers may be the loudest on others. From 6 dB
# on, two encoders of speech lost 5 and 15 dB, and others of 13 models gained at most 1.6. A case of 15 dB is clear.
DATA_FREE: Rescale = partial(equalize, even=True, least_gain=12.0, least_share=0.03)
# dB that others have to gain on `EQUALIZE_EVEN`: by so much luck differs where a trial rounds weights to nearest
MIN_LEAD_DB = 1.5
# dB: on faces half a decibel of held-out gain went with a loss of six on other pictures, whose channels clip first
WORTH_RESCALING = 1.0
# dB, where the halves change places: a face detector gained 3.6 dB in one place, lost 1.3 in the other, 4.5 on others
MOST_LOST = 0.2


def rescale(prepared: Prepared, split: HoldoutSplit, observer: Observer) -> Prepared:
    """Divide channels of outliers where that leaves the float function as it is, if the samples show that it pays.

    Every way is tried on one half of the samples, with weights rounded to nearest, and judged on the other half.
    Channels that are stretched to fill the range clip first where other samples go further, which only samples that
    chose nothing can show. The best way is then tried with the halves in each other's place, and
    has to gain on average and to lose nothing there.

    Samples that are made up cannot judge a model. Yet how unevenly channels are scaled shows on any numbers, and
    undoing it in clear cases is free.
    """
    if not _smooths(prepared):
        return prepared
    if split.samples.made_up:
        try:
            return _rescaled(prepared, (DATA_FREE,), _channels(prepared, split.samples, observer))
        except (DataError, ModelError):
            return prepared  # it does not run on random numbers, which the comparison reports
    if split.halves is None:
        return prepared
    trial = split.channel_trial(prepared, 0)
    idle: set[Rescale] = set()  # methods that change nothing

    def variant(methods: Sequence[Rescale]) -> Model | None:
        if methods[0] in idle:
            return None
        changed, stats = _rescaled_with(copy_prepared(prepared), methods, trial.stats)
        if changed.transforms - prepared.transforms < len(methods):  # the same as a way of fewer methods, or none
            if changed.transforms == prepared.transforms:
                idle.add(methods[0])
            return None
        return trial.variant(changed, stats)

    ways = _methods(prepared)
    makers = [partial(variant, methods) for methods in ways]
    gains = split.judge.typical_gains(partial(trial.model_before, prepared), makers, least=WORTH_RESCALING)
    best, chosen = 0.0, None
    for methods, gained in zip(ways, gains, strict=True):
        lead = MIN_LEAD_DB if chosen == RESCALING_METHODS[0] else WORTH_RESCALING
        if gained is not None and gained > best + lead:
            best, chosen = gained, methods
    if not chosen:
        return prepared
    other = _rescaling_the_other_way(prepared, split, chosen)
    if other >= -MOST_LOST and (best + other) / 2 > WORTH_RESCALING:
        return _rescaled(prepared, chosen, _channels(prepared, split.few_of_all(CHANNEL_SAMPLES), observer))
    return prepared


def methods_to_try(prepared: Prepared) -> int:
    """Return how many ways there are to divide channels, of which none may change anything."""
    return len(_methods(prepared)) if _smooths(prepared) else 0


def _smooths(prepared: Prepared) -> bool:
    return any(decision.settings and decision.settings.smoothing for decision in prepared.plan.decisions)


def _methods(prepared: Prepared) -> list[tuple[Rescale, ...]]:
    convolves = any(node.op_type == "Conv" for node in prepared.model.graph.nodes)
    return [methods for methods in RESCALING_METHODS if convolves or methods[0] is not EQUALIZE_EVEN]


def _rescaling_the_other_way(prepared: Prepared, split: HoldoutSplit, methods: Sequence[Rescale]) -> float:
    """Return what rescaling gains in dB, fitted on the half to judge on and judged on the half to fit on."""
    trial = split.channel_trial(prepared, 1)
    after = trial.variant(*_rescaled_with(copy_prepared(prepared), methods, trial.stats))
    return split.swapped_evaluator.gain(trial.model_before(prepared), after)


def _channels(prepared: Prepared, samples: Samples, observer: Observer) -> Stats:
    """Measure the channels of what those nodes read."""
    nodes, _ = to_rescale(prepared)
    axes = channel_axes(nodes)
    values = [value for node in nodes if (value := node.inputs[0]) is not None and value.name in axes]
    if not values:
        return Stats()
    kinds = partial(channel_kinds, axes, basics=lambda name: ())  # ranges are chosen by others, measured afterwards
    return calibrate_in_parts(prepared.model, values, samples, progress=observer.progress, kinds=kinds)


def _rescaled(prepared: Prepared, methods: Sequence[Rescale], measured: Stats) -> Prepared:
    """Divide channels in one way after the other, by statistics of the model before."""
    return _rescaled_with(prepared, methods, measured)[0]


def _rescaled_with(prepared: Prepared, methods: Sequence[Rescale], measured: Stats) -> tuple[Prepared, Stats]:
    """Do the same, and bring a copy of the statistics up to date."""
    nodes, stored = to_rescale(prepared)
    if not measured.names:
        return prepared, measured
    measured, deferred = measured.copy(), prepared.strategy is Strategy.STREAMED
    notes, clipped, count = list(prepared.notes), dict(prepared.plan.clipped), prepared.transforms
    for method in methods:
        if method is smooth:
            at_run_time = {d.node for d in prepared.plan.decisions if d.scheme == "dynamic-int8"}
            method = partial(smooth, opset=prepared.model.opset, at_run_time=at_run_time)
        made = method(nodes, measured, stored=stored, deferred=deferred)
        commit(made.patches)
        made.update(measured)
        notes += made.said()
        count += bool(made.changes)
        clipped |= made.clipped()
    infer_types(prepared.model)
    plan = replace(prepared.plan, clipped=clipped)
    return replan(replace(prepared, plan=plan, notes=tuple(notes), transforms=count)), measured
