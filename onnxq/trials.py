"""Trials: variants of a quantized model, judged on samples that chose nothing about them.

What statistics promise layer by layer is checked here on the whole model before it is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from onnxq.anew import carried_out, duplicate, planned_anew, reached
from onnxq.errors import DataError, ModelError
from onnxq.ir import Model, Node, Value, commit
from onnxq.ir.types import infer_types
from onnxq.judge import Judge, Split
from onnxq.observer import Observer, Silent
from onnxq.quant.calibrate import calibrate
from onnxq.quant.collecting import collect
from onnxq.quant.equalize import Rescaling, channel_axes, channel_kinds, equalize
from onnxq.quant.plan import Choices
from onnxq.quant.qparams import QParams
from onnxq.quant.readers import OutputWeights, least_kinds
from onnxq.quant.rewrite import rewrite
from onnxq.quant.samples import Samples
from onnxq.quant.smooth import smooth
from onnxq.quant.stats import Stats
from onnxq.quant.weights import Weights
from onnxq.range_trial import PLAIN, Ranges, best_ranges, with_ranges
from onnxq.steps import Known, Prepared, choose_qparams, layers_to_measure, measure

TO_NEAREST = "rounded the weights to nearest: codes chosen on some of the samples gained nothing on the others"
LEAST_GAIN = 0.2  # dB; less is within what other samples would show
Rescale = Callable[..., Rescaling]
EVEN: Rescale = partial(equalize, even=True)
# The cheapest and safest first: what comes later has to gain
WAYS: tuple[tuple[Rescale, ...], ...] = ((EVEN,), (equalize,), (equalize, smooth), (smooth,))
# Without data, in clear cases only; a channel that is silent on random numbers may be the loudest on others
BLIND: Rescale = partial(equalize, even=True, least_gain=6.0, least_share=0.03)
# dB that others have to gain on `EVEN`: by so much luck differs where weights are rounded to nearest for a trial
LEAD = 1.5
# dB: on faces half a decibel of held-out gain went with a loss of six on other pictures, whose channels clip first
WORTH_RESCALING = 1.0


class Variants:
    """The same model quantized with other choices: ranges and codes of the weights are found once.

    Args:
        ready: The float model and its plan.
        stats: Of everything that is calibrated; what a variant needs besides is measured when it is asked for.
        weights: The codes.
        split: The float model for onnxruntime, and the samples to judge on, and to measure further ranges on.

    """

    def __init__(self, ready: Prepared, stats: Stats, weights: Weights, split: Split) -> None:
        self.ready, self.stats, self.weights, self.split = ready, stats, weights, split
        self.baseline, self.samples = split.baseline, split.samples
        self._ranges: Known = {}

    @property
    def judge(self) -> Judge:
        """The float outputs on a few samples."""
        return self.split.quick_judge

    def model(
        self, choices: Choices, change: Callable[[Model], object] | None = None, *, costs_count: bool = True
    ) -> Model:
        """Quantize a copy with these choices, its constants changed before if there is something to change."""
        ready = reached(duplicate(self.ready, choices, costs_count=costs_count), self.stats)
        if change is not None:
            change(ready.model)
        return rewrite(ready.model, ready.plan, self.qparams(ready), self.weights)

    def learn_codes(self, choices: Choices) -> None:
        """Choose codes for the weights that these choices store in 4 bit, on what is known of their layers' inputs."""
        ready = reached(duplicate(self.ready, choices), self.stats)
        self.weights.learn(ready.plan, self.qparams(ready), self.stats, layers_to_measure(ready.plan))

    def settled(self, choices: Choices) -> tuple[Prepared, dict[Value, QParams]]:
        """Give the model planned with the final choices, and the scales and zero points of its activations."""
        ready = reached(duplicate(self.ready, choices), self.stats) if choices else self.ready
        return ready, self.qparams(ready)

    def qparams(self, ready: Prepared) -> dict[Value, QParams]:
        """Give scale and zero point of everything that a copy reads in 8 bit."""
        unknown = [value for value in ready.plan.calibrated() if value.name not in self.stats]
        if unknown:
            kinds = OutputWeights(ready.plan).kinds
            self.stats = self.stats.merge(calibrate(ready.model, unknown, self.samples, kinds=kinds))
        return choose_qparams(ready.plan, self.stats, self._ranges)

    def noise(self, choices: Choices, *, costs_count: bool = True) -> np.ndarray:
        """Give the squared error of every output by its squared size with these choices."""
        return self.judge.noise(self.model(choices, costs_count=costs_count))


def fit(
    ready: Prepared, split: Split, given: Samples | None, stats: str | Path | Stats | None, watch: Observer
) -> Variants:
    """Calibrate, and choose the codes of all weights.

    Args:
        ready: The float model and its plan.
        split: What variants are judged on.
        given: Samples to calibrate with, if there are any.
        stats: Statistics of an earlier calibration, if there are any.
        watch: Told about each step.

    """
    watch.step("calibrate")
    # Before all samples are measured: second moments are the largest thing in memory, and those of a half go first
    tried = Tried() if given is None or stats is not None else try_out(ready, split)
    layers = layers_to_measure(ready.plan)
    collect(ready.model)
    measured = measure(ready, layers, given, stats, watch)
    ready = reached(ready, measured)
    watch.step("round")
    ready = reached(with_ranges(ready, tried.ranges), measured)
    weights = Weights(remark=TO_NEAREST)
    if tried.rounding:
        weights = Weights(ready.plan, choose_qparams(ready.plan, measured), measured, layers)
    return Variants(ready, measured, weights, split)


def rescale(ready: Prepared, split: Split, watch: Observer) -> Prepared:
    """Divide channels of outliers where that leaves the float function as it is, if the samples show that it pays.

    Every way is tried on one half of the samples, with weights rounded to nearest, and judged on the other half.
    Channels that are stretched to fill the range clip first where other samples go further, which only samples that
    chose nothing can show. The best way is then tried with the halves in each other's place, and
    has to gain on average.

    Samples that are made up cannot judge a model. Yet how unevenly channels are scaled shows on any numbers, and
    undoing it in clear cases is free.
    """
    if not any(decision.settings and decision.settings.smoothing for decision in ready.plan.decisions):
        return ready
    if split.samples.made_up:
        try:
            return _rescaled(ready, (BLIND,), _channels(ready, split.samples, watch))
        except (DataError, ModelError):
            return ready  # it does not run on random numbers, which the comparison reports
    if split.halves is None:
        return ready
    fitting = split.halves[0]
    measured = _channels(ready, fitting, watch, trial=True)
    least: float | None = None
    best, chosen = 0.0, None
    for methods in WAYS:
        if methods[0] is EVEN and not any(node.op_type == "Conv" for node in ready.model.graph.nodes):
            continue
        changed = _rescaled(duplicate(ready), methods, measured)
        if changed.notes == ready.notes:
            continue
        if least is None:
            least = split.judge.typical(nearest(duplicate(ready), fitting))
        gained = split.judge.typical(nearest(changed, fitting)) - least
        del changed  # with weights of its own
        if gained > best + (LEAD if chosen == WAYS[0] else WORTH_RESCALING):
            best, chosen = gained, methods
    if chosen and (best + _rescaling_the_other_way(ready, split, chosen, watch)) / 2 > WORTH_RESCALING:
        return _rescaled(ready, chosen, _channels(ready, split.samples, watch))
    return ready


def _rescaling_the_other_way(ready: Prepared, split: Split, methods: Sequence[Rescale], watch: Observer) -> float:
    """Give what rescaling gains in dB, fitted on the half to judge on and judged on the half to fit on."""
    fitting, judge = split.held_out, split.judge_of_fitted
    measured, before = _channels(ready, fitting, watch, trial=True), nearest(duplicate(ready), fitting)
    return judge.gain(before, nearest(_rescaled(duplicate(ready), methods, measured), fitting))


def to_rescale(ready: Prepared) -> tuple[list[Node], frozenset[Node]]:
    """Give the nodes whose channels may be divided, and those of them that only store their weights in 8 bit."""
    wanted = [d for d in ready.plan.decisions if d.settings and d.settings.smoothing and d.node.graph.parent is None]
    nodes = [d.node for d in wanted if d.scheme in ("static-int8", "dynamic-int8", "weight-int8")]
    return nodes, frozenset(d.node for d in wanted if d.scheme == "weight-int8")


def _channels(ready: Prepared, samples: Samples, watch: Observer, *, trial: bool = False) -> Stats:
    """Measure the channels of what those nodes read; roughly for a trial."""
    nodes, _ = to_rescale(ready)
    axes = channel_axes(nodes)
    values = [value for node in nodes if (value := node.inputs[0]) is not None and value.name in axes]
    if not values:
        return Stats()
    kinds = partial(channel_kinds, axes, basics=lambda name: ())  # ranges are chosen by others, measured afterwards
    return calibrate(ready.model, values, samples, progress=watch.progress, kinds=kinds, trial=trial)


def _rescaled(ready: Prepared, methods: Sequence[Rescale], measured: Stats) -> Prepared:
    """Divide channels in one way after the other, by statistics of the model before."""
    nodes, stored = to_rescale(ready)
    if not measured.names:
        return ready
    measured = measured.copy()
    notes, clipped = list(ready.notes), dict(ready.plan.clipped)
    for method in methods:
        if method is smooth:
            at_run_time = {d.node for d in ready.plan.decisions if d.scheme == "dynamic-int8"}
            method = partial(smooth, opset=ready.model.opset, at_run_time=at_run_time)
        made = method(nodes, measured, stored=stored)
        commit(made.patches)
        made.update(measured)
        notes += made.said()
        clipped |= made.clipped()
    infer_types(ready.model)
    ready = replace(ready, plan=replace(ready.plan, clipped=clipped))
    return replace(ready, plan=planned_anew(ready, ready.model), notes=tuple(notes))


class Tried(NamedTuple):
    """What held-out samples say: whether chosen codes serve them, and which ranges do."""

    rounding: bool = True
    ranges: Ranges = PLAIN


def try_out(ready: Prepared, split: Split) -> Tried:
    """Tell whether what is chosen on some of the samples serves others better than what is simpler.

    Those are codes of weights instead of rounding to nearest, and where the recipe leaves them open, ranges by output
    error instead of extremes, and headroom beyond either. Every layer has passed such a test of its own by then;
    whether it carries to the outputs shows only the whole model.
    """
    opened = not ready.fast and "auto" in ready.plan.range_methods
    if split.halves is None:
        return Tried()
    rounding = not layers_to_measure(ready.plan).values or _codes_serve_others(ready, split, split.halves[0])
    return Tried(rounding, best_ranges(ready, split) if opened else PLAIN)


def _codes_serve_others(ready: Prepared, split: Split, fitting: Samples) -> bool:
    """Choose codes on a half of the samples, and judge them on the other."""
    spare = duplicate(ready)
    layers = layers_to_measure(spare.plan)
    measured = measure(spare, layers, fitting, None, Silent(), trial=True)
    simple = split.judge.sqnr(carried_out(duplicate(ready), measured))
    spare = reached(spare, measured)
    chosen = Weights(spare.plan, choose_qparams(spare.plan, measured), measured, layers, quick=True)
    return split.judge.sqnr(carried_out(duplicate(ready), measured, chosen)) > simple


def nearest(ready: Prepared, fitting: Samples) -> Model:
    """Quantize with ranges from a few samples and weights rounded to nearest."""
    kinds = least_kinds(ready.plan)
    measured = calibrate(ready.model, ready.plan.calibrated(), fitting, kinds=kinds, trial=True)
    return carried_out(ready, measured, Weights(exact=True))
