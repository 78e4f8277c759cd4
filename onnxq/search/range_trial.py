"""Ranges of activations that a recipe leaves open: the way is taken that serves samples that had no part in it best.

Ranges go from the least to the greatest value, or are those of least error at the outputs of the readers. Both may have
headroom beyond. Every one of a few folds of samples is judged with ranges of all others. Gains are averaged over the
folds in dB. So one sample that goes much further than all others decides for its own fold only. By the sum of all
errors it would decide for all folds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from typing import NamedTuple

import numpy as np

from onnxq.calibration.stats import Stats
from onnxq.data.samples import Samples
from onnxq.ops.forms.scheme import RangesSetting
from onnxq.rounding.weights import Weights
from onnxq.search.held_out import HoldoutSplit
from onnxq.search.resolution import round_to_resolution
from onnxq.search.sqnr_evaluator import ENOUGH, MOST
from onnxq.stages.measure import measure_sets
from onnxq.stages.prepared import Prepared
from onnxq.stages.replan import copy_prepared, quantize_copy, replan

BY_ERROR = "chose ranges of activations by output error"
ROOMIER = "left {:.0f} % of headroom beyond the ranges of activations, for what other samples bring"
WORTH_CHANGING = 0.1  # dB on samples that chose nothing about the ranges
DOUBT = 0.5  # standard errors of a gain over the folds that are taken off
LEAST_FOLDS = 2  # before a candidate goes out
METHODS: tuple[RangesSetting, ...] = ("auto", "output-error")
HEADROOMS = (1.0, 1.1, 1.2)
# dB that a tenth of headroom loses on the first fold, from which on others are taken to lose as much: nothing was
# clipped. None of 25 models chose headroom that lost as much
CLIPS_NOTHING = 0.25


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


class MeasuredFolds(NamedTuple):
    """Variants of a model with each way to choose ranges, and what was measured of samples.

    Attributes:
        variants: The float model, planned with each of `CANDIDATES`.
        folds: Samples to judge on, and how to get the statistics of all others.

    """

    variants: Sequence[Prepared]
    folds: Sequence[tuple[Samples, Callable[[], Stats]]]


def measure_folds(prepared: Prepared, split: HoldoutSplit) -> MeasuredFolds:
    """Measure what `choose_ranges` needs, on at least two samples."""
    variants = [with_ranges(prepared, way) for way in CANDIDATES]
    return MeasuredFolds(variants, list(_folds(variants[-1], split)))


def choose_ranges(measured: MeasuredFolds, split: HoldoutSplit) -> RangeChoice:
    """Choose the way that gains most on samples that had no part in the ranges, weights rounded to nearest.

    Args:
        measured: From `measure_folds`.
        split: The same samples.

    Returns:
        `MIN_MAX` where no other way gains much, or nothing has to be gained.

    """
    with split.spool() as spool:
        return _choose_ranges(measured, split, Weights(exact=True, spool=spool))


def _choose_ranges(measured: MeasuredFolds, split: HoldoutSplit, weights: Weights) -> RangeChoice:
    """Do so with codes that all variants share."""
    (variants, folds), coarser = measured, dict[int, float]()

    def judged(fold: int, candidates: Sequence[int]) -> list[float]:
        samples, others = folds[fold]
        judge, stats = split.evaluator(samples), others()

        def found(numbers: Sequence[int]) -> dict[int, float]:
            made = (quantize_copy(copy_prepared(variants[at]), stats, weights) for at in numbers)
            return dict(zip(numbers, judge.sqnrs(made), strict=True))

        if coarser:
            return with_known_headroom(candidates, found, coarser)
        reached = with_headroom(candidates, found)
        if fold == 0:
            coarser.update(coarser_by(reached))
        return reached

    return CANDIDATES[best_candidate(len(folds), len(CANDIDATES), judged)]


def with_headroom(candidates: Sequence[int], judged: Callable[[Sequence[int]], dict[int, float]]) -> list[float]:
    """Judge candidates on a fold: headroom with the better method only, and most of it only where some of it gains.

    The other method is taken to gain as much by headroom. A loss says that nothing was clipped, and codes got coarser
    by that much. Twice as much loses about twice as much.

    Args:
        candidates: Their numbers, ascending.
        judged: Gives the dB of some of them by their numbers.

    """
    steps = len(HEADROOMS)
    plain = [at for at in candidates if at % steps == 0]
    found = judged(plain)
    best = max(plain, key=lambda at: found[at])
    some, most = best + 1, best + 2
    if some in candidates:
        found |= judged([some])
        if most in candidates and found[some] <= found[best]:
            found[most] = 2 * found[some] - found[best]
    found |= judged([most]) if most in candidates and most not in found else {}
    for at in candidates:
        method, alike = at - at % steps, best + at % steps
        if at not in found and method in found and alike in found:
            found[at] = found[method] + found[alike] - found[best]
    rest = [at for at in candidates if at not in found]
    found |= judged(rest) if rest else {}
    return [found[at] for at in candidates]


def coarser_by(reached: Sequence[float]) -> dict[int, float]:
    """Return what headroom costs by its number, in dB, where it does nothing but cost; nothing where it may gain.

    Args:
        reached: dB of all candidates on a fold.

    """
    steps = len(HEADROOMS)
    best = max(range(0, len(reached), steps), key=lambda at: reached[at])
    costs = {step: reached[best + step] - reached[best] for step in range(steps)}
    return costs if costs[1] < -CLIPS_NOTHING else {}


def with_known_headroom(
    candidates: Sequence[int], judged: Callable[[Sequence[int]], dict[int, float]], costs: Mapping[int, float]
) -> list[float]:
    """Judge candidates on a fold where another fold has shown what headroom costs; see `with_headroom`."""
    steps = len(HEADROOMS)
    plain = {at: at - at % steps for at in candidates}
    found = judged([at for at in candidates if plain[at] == at or plain[at] not in plain])
    return [found[at] if at in found else found[plain[at]] + costs[at % steps] for at in candidates]


def best_candidate(folds: int, candidates: int, judged: Callable[[int, Sequence[int]], list[float]]) -> int:
    """Return the number of the candidate that gains most over the first one, and surely; 0 where none does.

    Args:
        folds: How many folds there are.
        candidates: How many candidates there are.
        judged: Gives the dB of some candidates on a fold; it is not asked about those that cannot be chosen any more.

    """
    found = np.full((folds, candidates), np.nan)
    left = list(range(candidates))
    for fold in range(folds):
        found[fold, left] = judged(fold, left)
        if fold == 0 and found[0, 0] >= ENOUGH:
            rest = [judged(other, [0])[0] for other in range(1, folds)]
            if np.mean([found[0, 0], *rest]) >= ENOUGH:
                return 0
        left = still_open(_gains(found[: fold + 1]), folds)
        if left == [0]:
            return 0
    gains = _gains(found)[:, left]
    sure = gains.mean(axis=0) - DOUBT * gains.std(axis=0, ddof=1) / np.sqrt(folds)
    sure = np.array([round_to_resolution(float(gain)) for gain in sure])
    best = int(np.argmax(sure))  # the first, which is the simplest, of those that are equal
    return left[best] if sure[best] >= WORTH_CHANGING and found[:, 0].mean() < ENOUGH else 0


def still_open(gains: np.ndarray, folds: int) -> list[int]:
    """Tell which candidates can still be chosen after some of the folds; `MIN_MAX`, the first, always can.

    A candidate is dropped if it would gain too little even with its best gain on each fold that is left. One fold alone
    says nothing of how much they differ, so none goes out before the second.

    Args:
        gains: dB over `MIN_MAX`, `[folds so far, candidates]`; NaN where a candidate has gone out before.
        folds: How many there are in all.

    Returns:
        Numbers of the candidates, ascending.

    """
    done = len(gains)
    if done < LEAST_FOLDS:
        return list(range(gains.shape[1]))
    most = (gains.sum(axis=0) + (folds - done) * gains.max(axis=0)) / folds
    return [0, *(int(at) for at in np.flatnonzero(most >= WORTH_CHANGING) if at > 0)]


def _gains(found: np.ndarray) -> np.ndarray:
    gains: np.ndarray = np.clip(found, -MOST, MOST) - np.clip(found[:, :1], -MOST, MOST)
    return gains


def _folds(prepared: Prepared, split: HoldoutSplit) -> Iterator[tuple[Samples, Callable[[], Stats]]]:
    """Return every fold, and how to get what is measured of all other samples, with ranges by output error."""
    folds, rest = split.folds()
    most = [] if rest is None else [rest]  # it is the largest
    found = measure_sets(prepared, [*most, *folds])
    besides, known = found[: len(most)], found[len(most) :]
    for index, fold in enumerate(folds):
        yield fold, partial(reduce, Stats.merge, besides + known[:index] + known[index + 1 :])


def with_ranges(prepared: Prepared, ranges: RangeChoice) -> Prepared:
    """Choose the ranges that the recipe leaves open in this way."""
    if ranges == MIN_MAX:
        return prepared
    notes = [BY_ERROR] if ranges.method == "output-error" else []
    notes += [ROOMIER.format(100 * (ranges.headroom - 1))] if ranges.headroom > 1 else []
    recipe = prepared.plan.recipe.with_ranges(*ranges)
    changed = replace(prepared, plan=replace(prepared.plan, recipe=recipe), notes=(*prepared.notes, *notes))
    return replan(changed)
