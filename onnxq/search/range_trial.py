"""Ranges of activations that a recipe leaves open: the way is taken that serves samples that had no part in it best.

Ranges go from the least to the greatest value, or are those of least error at the outputs of the readers, and either
way may have headroom beyond. Every one of a few folds of samples is judged with ranges of all others. Gains are
averaged over the folds in dB: one sample that goes much further than all others speaks for its own fold only, where by
the sum of all errors it would decide for all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import reduce
from typing import NamedTuple

import numpy as np

from onnxq.calibration.layer_moments import MeasuredLayers
from onnxq.calibration.stats import Stats
from onnxq.data.samples import Samples
from onnxq.ops.forms.scheme import RangesSetting
from onnxq.progress import Silent
from onnxq.rounding.weights import Weights
from onnxq.search.held_out import ENOUGH, MOST, HoldoutSplit, SqnrEvaluator
from onnxq.search.resolution import resolved
from onnxq.stages.measure import measure
from onnxq.stages.prepared import Prepared
from onnxq.stages.replan import copy_prepared, quantize_copy, replan

BY_ERROR = "chose the ranges of activations by the error that they cause at the outputs of the layers that read them"
ROOMIER = "left {:.0f} % of headroom beyond the ranges of activations, for what other samples bring"
WORTH_CHANGING = 0.1  # dB on samples that chose nothing about the ranges
DOUBT = 0.5  # standard errors of a gain over the folds that are taken off
METHODS: tuple[RangesSetting, ...] = ("auto", "output-error")
HEADROOMS = (1.0, 1.1, 1.2)


class RangeChoice(NamedTuple):
    """A way to choose the ranges that a recipe leaves open.

    Attributes:
        method: As in recipes; `auto` is from the least to the greatest value.
        headroom: As in recipes.

    """

    method: RangesSetting
    headroom: float


CANDIDATES = tuple(RangeChoice(method, headroom) for method in METHODS for headroom in HEADROOMS)
MIN_MAX = CANDIDATES[0]


def choose_ranges(prepared: Prepared, split: HoldoutSplit) -> RangeChoice:
    """Choose the way that gains most on samples that had no part in the ranges, weights rounded to nearest.

    Args:
        prepared: The float model and its plan.
        split: At least two samples.

    Returns:
        `MIN_MAX` where no other way gains much, or nothing has to be gained.

    """
    variants, weights = [with_ranges(prepared, way) for way in CANDIDATES], Weights(exact=True)
    found = np.array([_judged(variants, judge, others, weights) for judge, others in _folds(variants[-1], split)])
    gains = np.clip(found, -MOST, MOST) - np.clip(found[:, :1], -MOST, MOST)
    sure = gains.mean(axis=0) - DOUBT * gains.std(axis=0, ddof=1) / np.sqrt(len(gains))
    sure = np.array([resolved(float(gain)) for gain in sure])
    best = int(np.argmax(sure))  # the first, which is the simplest, of those that are equal
    return CANDIDATES[best] if sure[best] >= WORTH_CHANGING and found[:, 0].mean() < ENOUGH else MIN_MAX


def _folds(prepared: Prepared, split: HoldoutSplit) -> Iterator[tuple[SqnrEvaluator, Stats]]:
    """Give the float outputs of every fold, and what is measured of all other samples, with ranges by output error."""

    def measured(samples: Samples) -> Stats:
        return measure(prepared, MeasuredLayers(()), samples, None, Silent(), trial=True)

    folds, rest = split.folds()
    known = [measured(fold) for fold in folds]
    besides = [measured(rest)] if rest is not None else []
    for index, fold in enumerate(folds):
        yield SqnrEvaluator(split.baseline, fold), reduce(Stats.merge, besides + known[:index] + known[index + 1 :])


def _judged(variants: Sequence[Prepared], judge: SqnrEvaluator, others: Stats, weights: Weights) -> list[float]:
    """Give the signal-to-quantization-noise ratio of the worst output of each variant in dB."""
    return [judge.sqnr(quantize_copy(copy_prepared(prepared), others, weights)) for prepared in variants]


def with_ranges(prepared: Prepared, ranges: RangeChoice) -> Prepared:
    """Choose the ranges that the recipe leaves open in this way."""
    if ranges == MIN_MAX:
        return prepared
    notes = [BY_ERROR] if ranges.method == "output-error" else []
    notes += [ROOMIER.format(100 * (ranges.headroom - 1))] if ranges.headroom > 1 else []
    recipe = prepared.plan.recipe.with_ranges(*ranges)
    changed = replace(prepared, plan=replace(prepared.plan, recipe=recipe), notes=(*prepared.notes, *notes))
    return replan(changed)
