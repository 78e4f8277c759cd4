"""Quantized variants of a model, made from one set of statistics, for every search to judge.

Tests: `tests/search/test_trial_passes.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from onnxq.calibration.layer_moments import MeasuredLayers, rows_read
from onnxq.calibration.output_sensitivity import OutputSensitivity
from onnxq.calibration.parts import calibrate_in_parts
from onnxq.calibration.qparams import QParams
from onnxq.calibration.ranges import Needs, needs_of
from onnxq.calibration.second_moments import InputMoments
from onnxq.calibration.stats import Stats
from onnxq.data.generated_text import generated_text
from onnxq.data.samples import Samples, spread_samples
from onnxq.ir import Model, Node, Value
from onnxq.ir.storage.scratch_file import Spool
from onnxq.lowering.rewrite import rewrite
from onnxq.planning.copy_plan import can_copy_plans
from onnxq.planning.decision import Choices, Override, Plan
from onnxq.progress import Observer, Silent, judged
from onnxq.rounding.block_solver import BlockSolution
from onnxq.rounding.by_segments import moments_by_segments
from onnxq.rounding.layer_by_layer import block_jobs, can_step, round_layer_by_layer, round_on_moments
from onnxq.rounding.weights import WeightKey, Weights
from onnxq.runtime.fork import in_copy
from onnxq.runtime.memory import collect_garbage
from onnxq.search.float_outputs import FloatTensors
from onnxq.search.held_out import HoldoutSplit
from onnxq.search.range_trial import MIN_MAX, RangeChoice, choose_ranges, measure_folds, with_ranges
from onnxq.search.sqnr_evaluator import SqnrEvaluator
from onnxq.stages.measure import (
    TRIAL_COLUMNS,
    QParamsCache,
    also_in_8bit,
    choose_qparams,
    is_measured,
    layers_needing_moments,
    measure,
    rounded_by_moments,
    settled_kinds,
)
from onnxq.stages.prepared import Prepared
from onnxq.stages.replan import copy_planned, copy_prepared, exclude_unreached_bodies, quantize_copy, replan
from onnxq.targets.assumed_shapes import known_count

SEQUENTIAL, MOST_ELEMENTS = 256, 1 << 22  # samples that advance together layer by layer, and elements of their inputs
GENERATED = "chose codes on {} token sequences that the model generated itself"
TO_NEAREST = "rounded {} to nearest: codes chosen on some of the samples gained nothing on the others"
# Rows of a layer's input for each column. Codes that are chosen on so many are as good on others, and the layer's own
# held-out half is proof enough
ENOUGH_ROWS, PLENTY = 8, 16
PLANS_KEPT = 8  # for models that are made by them later
CHANCE = 0.2  # dB that codes may lose on held-out samples: each layer has passed a test of its own


ChooseBits = Callable[..., Prepared]  # of a prepared model, samples, statistics


class Variants:
    """The same model quantized with other choices: ranges and codes of the weights are found once.

    Args:
        prepared: The float model and its plan.
        stats: Of everything that is calibrated; what a variant needs besides is measured when it is asked for.
        weights: The codes.
        split: The float model for onnxruntime, and the samples to judge on, and to measure further ranges on.
        half: What was fitted on half of the samples, where that is known.
        detailed: Whether what is measured besides is for a report as well.

    """

    def __init__(
        self,
        prepared: Prepared,
        stats: Stats,
        weights: Weights,
        split: HoldoutSplit,
        half: FittedHalf | None = None,
        *,
        detailed: bool = False,
    ) -> None:
        self.prepared, self.stats, self.weights, self.split = prepared, stats, weights, split
        self.baseline, self.samples = split.baseline, split.samples
        self.half, self._detailed = half, detailed
        self._ranges: QParamsCache = {}
        self._plans: dict[frozenset[tuple[str, Override]], Plan] = {}  # the last few, of `prepared.model`

    def judged_by(self, split: HoldoutSplit) -> Variants:
        """Return the same, judged on other samples; ranges are still measured on all."""
        made = Variants(self.prepared, self.stats, self.weights, split, self.half, detailed=self._detailed)
        made.samples = self.samples
        return made

    @property
    def judge(self) -> SqnrEvaluator:
        """The float outputs on a few samples."""
        return self.split.ranking_evaluator

    @property
    def fine_judge(self) -> SqnrEvaluator:
        """The float outputs on more samples, where single nodes are weighed."""
        return self.split.fine_evaluator

    def model(
        self, choices: Choices, change: Callable[[Model], object] | None = None, *, costs_count: bool = True
    ) -> Model:
        """Quantize a copy with these choices, its constants changed before if there is something to change."""
        prepared = self._copy(choices, costs_count=costs_count)
        if change is not None:
            change(prepared.model)
        return rewrite(prepared.model, prepared.plan, self.qparams(prepared), self.weights)

    def round_4bit_weights(self, choices: Choices) -> None:
        """Choose codes for the weights that these choices store in 4 bit, on what is known of their layers' inputs."""
        prepared = self._copy(choices)
        self.weights.learn(prepared.plan, self.qparams(prepared), self.stats, layers_needing_moments(prepared.plan))

    def planned(self, choices: Choices) -> Plan:
        """Return the plan with these choices, which must not be changed: `model` quantizes a copy by it."""
        if not choices:
            return self.prepared.plan
        if not can_copy_plans(self.prepared.model):
            return self._copy(choices).plan
        key = frozenset(choices.items())
        plan = self._plans.pop(key, None) or replan(self.prepared, choices).plan
        self._plans[key] = plan  # the last one
        for oldest in list(self._plans)[:-PLANS_KEPT]:
            del self._plans[oldest]
        return plan

    def replan(self, choices: Choices) -> tuple[Prepared, dict[Value, QParams]]:
        """Return the model planned with the final choices, and the scales and zero points of its activations."""
        prepared = self._copy(choices) if choices else self.prepared
        return prepared, self.qparams(prepared)

    def _copy(self, choices: Choices, *, costs_count: bool = True) -> Prepared:
        """Return a copy that is planned with some choices; bodies that no sample has run stay float."""
        if choices and costs_count and can_copy_plans(self.prepared.model):
            return copy_planned(self.prepared, self.planned(choices))
        return exclude_unreached_bodies(copy_prepared(self.prepared, choices, costs_count=costs_count), self.stats)

    def qparams(self, prepared: Prepared) -> dict[Value, QParams]:
        """Return scale and zero point of everything that a copy reads in 8 bit."""
        unknown = [value for value in prepared.plan.calibrated() if value.name not in self.stats]
        if unknown:
            # One run of the samples measures what other choices could ask for as well
            unknown = list(dict.fromkeys([*unknown, *self._others(prepared)]))
            plan = prepared.plan
            kinds = (
                OutputSensitivity(plan).kinds if self._detailed else settled_kinds(plan, None, self.samples, unknown)
            )
            self.stats = self.stats.merge(calibrate_in_parts(prepared.model, unknown, self.samples, kinds=kinds))
        return choose_qparams(prepared.plan, self.stats, self._ranges)

    def _others(self, prepared: Prepared) -> list[Value]:
        """Return the values of a copy that are not measured yet, and that other plans have in 8 bit."""
        values = prepared.model.graph.values
        names = (value.name for value in also_in_8bit(self.prepared.plan) if value.name not in self.stats)
        found = (values.get(name) for name in names)
        return [value for value in found if value is not None and is_measured(value)]

    def noises(
        self,
        several: Iterable[Choices],
        *,
        costs_count: bool = True,
        judge: SqnrEvaluator | None = None,
        inside: FloatTensors | None = None,
    ) -> Iterator[np.ndarray]:
        """Yield the squared error of every output by its squared size with each of several choices.

        Args:
            several: The choices.
            costs_count: Whether nodes that take longer in 8 bit may stay in float.
            judge: What measures it, if not `self.judge`.
            inside: Tensors of `prepared.model`; see `SqnrEvaluator.noises`.

        """
        made = (self.model(choices, costs_count=costs_count) for choices in several)
        return (judge or self.judge).noises(made, inside)


class FittedHalf(NamedTuple):
    """Codes that were chosen on the first half of the samples, of layers in doubt, and what was measured of it."""

    weights: Weights
    stats: Stats


def calibrate_and_round(
    prepared: Prepared,
    split: HoldoutSplit,
    samples: Samples | None,
    stats: str | Path | Stats | None,
    observer: Observer,
    *,
    detailed: bool = False,
    others: Sequence[Value] = (),
    choose_bits: ChooseBits | None = None,
    spool: Spool | None = None,
) -> Variants:
    """Calibrate, and choose the codes of all weights.

    Args:
        prepared: The float model and its plan.
        split: What variants are judged on.
        samples: Samples to calibrate with, if there are any.
        stats: Statistics of an earlier calibration, if there are any.
        observer: Told about each step.
        detailed: Whether statistics are for a report as well.
        others: What is measured besides, for plans of the search.
        choose_bits: Plans the bits of weights in blocks, by samples and statistics.
        spool: Where codes are kept if variants run in segments; they are chosen segment by segment.

    """
    tried = HoldoutChoice()
    if samples is not None and stats is None:
        # Before all samples are measured: second moments are the largest thing in memory, and those of a half go first
        observer.step("trial")
        tried = choose_by_holdout(prepared, split)
    observer.step("calibrate")
    texts = _texts(prepared, samples) if stats is None else []
    staged = bool(texts) and can_step(prepared.model, block_jobs(prepared.plan))
    layers = layers_needing_moments(prepared.plan, blocks=not staged) if spool is None else MeasuredLayers(())
    collect_garbage(prepared.model)
    prepared = with_ranges(prepared, tried.ranges)
    settled = not detailed and not prepared.fast
    if settled and not needs_of(prepared.plan.range_methods) <= {Needs.EXTREMES}:
        others = ()  # ranges by output error hang on who reads a value in 8 bit
    measured = measure(prepared, layers, samples, stats, observer, settled=settled, others=others)
    prepared = exclude_unreached_bodies(prepared, measured)
    if choose_bits is not None:
        observer.step("bits")
        prepared = choose_bits(prepared, texts, measured)
    observer.step("round")
    solutions = _block_solutions(prepared, texts if staged else (), layers, measured)
    if samples is None and solutions and staged:
        prepared = replace(prepared, notes=(*prepared.notes, GENERATED.format(len(texts))))
    plan, remark = prepared.plan, ""
    if not tried.rounding and samples is not None:
        doubtful = layers_in_doubt(plan, samples.count).inputs.keys()
        plan = _narrowed(plan, layers.inputs.keys() - doubtful)
        remark = TO_NEAREST.format(_of_layers(len(doubtful)) if plan.decisions else "the weights")
    qparams = choose_qparams(prepared.plan, measured)
    if spool is None:
        weights = Weights(plan, qparams, measured, layers, solutions=solutions, remark=remark)
    else:
        weights = _rounded_by_segments(prepared, qparams, samples, spool)
    return Variants(prepared, measured, weights, split, tried.half, detailed=detailed)


def _block_solutions(
    prepared: Prepared, texts: Sequence[Mapping[str, np.ndarray]], layers: MeasuredLayers, measured: Stats
) -> dict[WeightKey, BlockSolution]:
    """Choose codes of weights in blocks: layer by layer on texts, or on second moments where there are none."""
    jobs = block_jobs(prepared.plan)
    if not jobs or not texts:
        return round_on_moments(jobs, layers, measured) if jobs else {}
    return round_layer_by_layer(prepared.model, jobs, texts, checkpoint=prepared.open_checkpoint(texts))


def _rounded_by_segments(
    prepared: Prepared, qparams: Mapping[Value, QParams], samples: Samples | None, spool: Spool
) -> Weights:
    """Choose codes on the inputs of each layer, those of a segment at a time; on assumed ones without samples."""
    weights, plan = Weights(spool=spool), prepared.plan
    if samples is None:
        weights.choose(plan, qparams, Stats(), MeasuredLayers(()))
        return weights
    if prepared.fast:
        return weights
    taken = spread_samples(samples, SEQUENTIAL, MOST_ELEMENTS)
    for nodes, layers, stats in moments_by_segments(prepared.model, rounded_by_moments(plan), taken, spool):
        weights.choose(_narrowed(plan, nodes), qparams, stats, layers)
    return weights


def _texts(prepared: Prepared, given: Samples | None) -> Sequence[Mapping[str, np.ndarray]]:
    """Return samples for weights that are rounded layer by layer: of the data, or those that a decoder generates."""
    if not block_jobs(prepared.plan):
        return []
    if given is None:
        return generated_text(prepared.model)
    return list(spread_samples(given, SEQUENTIAL, MOST_ELEMENTS).values())


class HoldoutChoice(NamedTuple):
    """The verdict of held-out samples: whether chosen codes gain on them, and which ranges do.

    Attributes:
        rounding: Whether codes are chosen.
        half: The codes that were tried, if they do, and if it is the half for cross-validation.
        ranges: The way to choose ranges.

    """

    rounding: bool = True
    half: FittedHalf | None = None
    ranges: RangeChoice = MIN_MAX


def choose_by_holdout(prepared: Prepared, split: HoldoutSplit) -> HoldoutChoice:
    """Tell whether what is chosen on some of the samples serves others better than what is simpler.

    Those are codes of weights instead of rounding to nearest. If the recipe leaves them open, they are also ranges by
    output error instead of extremes, and headroom beyond either. Every layer has passed such a test of its own by then;
    whether it carries to the outputs shows only the whole model. Only codes of `layers_in_doubt` are tried.
    """
    opened = not prepared.fast and "auto" in prepared.plan.range_methods
    if split.halves is None:
        return HoldoutChoice()
    surely = split.streamed or not layers_in_doubt(prepared.plan, split.samples.count).inputs
    copies = split.shareable and opened and not surely  # else one of the two takes no time
    folds = measure_folds(prepared, split) if opened else None
    found = (lambda: MIN_MAX) if folds is None else partial(choose_ranges, folds, split)
    with in_copy(found, copies=copies, kind="ranges") as ranges:
        rounding, half = (True, None) if surely else _codes_serve_others(prepared, split)
        return HoldoutChoice(rounding, half, ranges())


def read_many_rows(plan: Plan, samples: int | None) -> bool:
    """Tell whether all layers whose codes are chosen read `PLENTY` rows for each column in all samples, or more."""
    layers = layers_needing_moments(plan, blocks=False)
    return all(rows >= PLENTY for rows in _rows_by_column(plan, layers, samples).values())


def layers_in_doubt(plan: Plan, samples: int | None) -> MeasuredLayers:
    """Return the layers whose codes may serve none but their samples: with fewer than `ENOUGH_ROWS` for each column."""
    layers = layers_needing_moments(plan, blocks=False, trial=True)
    found = _rows_by_column(plan, layers, samples)
    return MeasuredLayers([node for node, rows in found.items() if rows < ENOUGH_ROWS], widest=TRIAL_COLUMNS)


def _rows_by_column(plan: Plan, layers: MeasuredLayers, samples: int | None) -> dict[Node, float]:
    """Return how many rows each layer reads in all samples for each column of them."""
    return {
        node: rows_read(node, value, unfolding, plan.costs.shapes, known_count) * (samples or 0) / unfolding.n
        for node, (value, unfolding) in layers.inputs.items()
    }


def _of_layers(count: int) -> str:
    return f"the weights of {count} layer{'s' * (count > 1)}"


def _narrowed(plan: Plan, nodes: Collection[Node]) -> Plan:
    """Return a plan for some of the nodes, to choose codes of theirs alone."""
    return replace(plan, decisions=[decision for decision in plan.decisions if decision.node in nodes])


def _codes_serve_others(prepared: Prepared, split: HoldoutSplit) -> tuple[bool, FittedHalf | None]:
    """Choose codes in doubt on a half of the samples, and judge them on the other; gives them as well if they are kept.

    The halves are those of cross-validation, which would choose the same codes once more.
    """
    if split.fitting_halves is None:
        return True, None
    fitting, others = split.fitting_halves
    spare = copy_prepared(prepared)
    layers = layers_in_doubt(spare.plan, split.samples.count)
    measured = measure(spare, layers, fitting, None, Silent(), trial=True)
    spare = exclude_unreached_bodies(spare, measured)
    qparams = choose_qparams(spare.plan, measured)
    chosen = Weights(_narrowed(spare.plan, layers.inputs.keys()), qparams, measured, layers, quick=True)
    both = (quantize_copy(copy_prepared(prepared), measured, weights) for weights in (None, chosen))
    simple, better = split.few(others).sqnrs(both)
    judged(max(simple, better))
    if better < simple - CHANCE:
        return False, None
    chosen.forget_inputs()
    return True, FittedHalf(chosen, measured.without(InputMoments))
