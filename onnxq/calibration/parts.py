"""Calibrate on parts of the samples, which copies of this process share; the parts are added from first to last.

Sums of floats depend on their order. So samples are cut in the same way whether parts are shared or not, by counts of
samples and elements. See `blocks` for shards of a calibration, which are cut finer and written to files.

Tests: `tests/calibration/test_parts.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import reduce
from itertools import accumulate, groupby
from typing import TYPE_CHECKING, NamedTuple

from onnxq.calibration.blocks import fold, kinds_after
from onnxq.calibration.calibrate import calibrate, ready_to_measure
from onnxq.calibration.stats import StatisticFactory, Stats, basic_kinds
from onnxq.data.samples import Samples
from onnxq.progress import Advance, OnSample, unfollowed, working
from onnxq.runtime.fork import can_fork, run_forked
from onnxq.targets.assumed_shapes import assumed_shape

if TYPE_CHECKING:
    from onnxq.ir import Model, Value

FEW = 4  # samples from which on there are parts
# How many parts there are at most, by the bytes of second moments of all layers: each part has its own
PARTS = ((64 << 20, 4), (512 << 20, 2))
# Values times samples, and their elements, below which copies take longer than they save, and there are no parts
LEAST_RUNS, LEAST_ELEMENTS = 2048, 1 << 22


def calibrate_in_parts(
    model: Model,
    values: Sequence[Value],
    samples: Samples,
    *,
    progress: OnSample | None = None,
    kinds: StatisticFactory = basic_kinds,
    trial: bool = False,
    moment_bytes: int = 0,
) -> Stats:
    """Measure values of the float model over all samples, some of them at a time in other processes.

    Args:
        model: The float model.
        values: What to measure.
        samples: What to measure on.
        progress: Called with the number of samples done and the total (None while unknown).
        kinds: Makes the statistics to collect for a tensor of that name.
        trial: See `calibrate`.
        moment_bytes: Of all second moments that are measured.

    Raises:
        DataError, ModelError, ValueError: As `calibrate`; of several errors, that of the first sample.

    """
    cut = _cut(values, samples, moment_bytes)
    if len(cut) == 1:
        return calibrate(model, values, samples, progress=progress, kinds=kinds, trial=trial)
    run = _Parts(model, values, [(cut, kinds)], trial, progress)
    return run.measured(moment_bytes)[0]


def calibrate_sets(
    model: Model, values: Sequence[Value], sets: Sequence[tuple[Samples, StatisticFactory]], *, trial: bool = False
) -> list[Stats]:
    """Measure values over each of several sets of samples, with statistics of its own; the largest set comes first.

    The same as `calibrate_in_parts` of each, but that processes share all of them, and the model is opened once.
    """
    return _Parts(model, values, [(_cut(values, samples), kinds) for samples, kinds in sets], trial).measured()


def _cut(values: Sequence[Value], samples: Samples, moment_bytes: int = 0) -> list[Samples]:
    """Cut samples into parts: alike on every machine, for sums depend on it."""
    count = samples.count
    most = next((most for size, most in PARTS if moment_bytes <= size), 1)
    if count is None or count < FEW or most == 1 or not _is_much(values, count):
        return [samples]
    return samples.parts(min(count // 2, most)) or [samples]


class _Part(NamedTuple):
    """A part of a set of samples: its number among the sets, and the place of its first sample there."""

    number: int
    samples: Samples
    kinds: StatisticFactory
    first: int


class _Parts:
    """The parts of sets of samples that a model is measured on; see `calibrate_in_parts`."""

    def __init__(
        self,
        model: Model,
        values: Sequence[Value],
        sets: Sequence[tuple[Sequence[Samples], StatisticFactory]],
        trial: bool,
        progress: OnSample | None = None,
    ) -> None:
        self._model, self._values, self._trial, self._progress = model, values, trial, progress
        self._runs = ready_to_measure(model, values, trial=trial)  # here, for all copies of this process
        self._parts = [
            _Part(number, part, kinds, first)
            for number, (parts, kinds) in enumerate(sets)
            for part, first in zip(parts, accumulate((part.count or 0 for part in parts), initial=0), strict=False)
        ]
        self._firsts = [0, *accumulate(part.samples.count or 0 for part in self._parts)]

    def measured(self, moment_bytes: int = 0) -> list[Stats]:
        """Measure all parts, and add those of each set."""
        shareable = all(part.samples.shareable for part in self._parts)
        shared = shareable and self._model.residency.quick and can_fork() and _is_much(self._values, self._firsts[-1])
        with working("measure roughly" if self._trial else "measure") as advance:
            self._tell(0)
            found = self._shared(advance, 3 * moment_bytes) if shared else self._in_turn(advance)
            sets = groupby(zip(self._parts, found, strict=True), key=lambda one: one[0].number)
            return [reduce(fold, (stats for _, stats in parts)) for _, parts in sets]

    def _tell(self, done: int) -> None:
        """Say how many samples are done."""
        if self._progress:
            self._progress(done, self._firsts[-1])

    def _shared(self, advance: Advance, task_bytes: int) -> list[Stats]:
        """Measure parts in copies of this process; what is at work is parts, which have about as many samples each."""

        def done(parts: int, _: int) -> None:
            advance(parts, len(self._parts))
            self._tell(self._firsts[parts])

        advance(0, len(self._parts))
        return run_forked(self._measured, self._parts, done=done, task_bytes=task_bytes)

    def _in_turn(self, advance: Advance) -> Iterator[Stats]:
        """Measure one part after another, the samples of each several at a time."""
        advance(0, self._firsts[-1])
        for part, first in zip(self._parts, self._firsts, strict=False):

            def done(samples: int, _: int | None, before: int = first) -> None:
                advance(before + samples, self._firsts[-1])
                self._tell(before + samples)

            with unfollowed():
                found = self._measured(part, done)
            yield found

    def _measured(self, part: _Part, progress: OnSample | None = None) -> Stats:
        kinds = kinds_after(part.kinds, part.first)
        return calibrate(
            self._model,
            self._values,
            part.samples,
            progress=progress,
            kinds=kinds,
            trial=self._trial,
            runs=self._runs,
        )


def _is_much(values: Sequence[Value], samples: int) -> bool:
    """Tell whether so much is measured that copies are worth it, by counts alone."""
    elements = sum(math.prod(assumed_shape(value, {}) or ()) for value in values)
    return len(values) * samples >= LEAST_RUNS or elements * samples >= LEAST_ELEMENTS
