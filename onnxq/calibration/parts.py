"""Calibrate on parts of the samples, which copies of this process share; the parts are added from first to last.

Sums of floats depend on their order. So samples are cut in the same way whether parts are shared or not, by counts of
samples and elements. See `blocks` for shards of a calibration, which are cut finer and written to files.

Tests: `tests/calibration/test_parts.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import reduce
from itertools import accumulate
from typing import TYPE_CHECKING

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
    count = samples.count
    most = next((most for size, most in PARTS if moment_bytes <= size), 1)
    cut = count is not None and count >= FEW and most > 1 and _is_much(values, count)
    parts = samples.parts(min(count // 2, most)) if cut and count is not None else None
    if parts is None:
        return calibrate(model, values, samples, progress=progress, kinds=kinds, trial=trial)
    shared = samples.shareable and model.residency.quick and can_fork()
    run = _Parts(model, values, parts, kinds, trial, progress)
    with working("measure roughly" if trial else "measure") as advance:
        run.tell(0)
        found = run.shared(advance, 3 * moment_bytes) if shared else run.in_turn(advance)
        return reduce(fold, found)


class _Parts:
    """The parts of the samples that a model is measured on; see `calibrate_in_parts`."""

    def __init__(
        self,
        model: Model,
        values: Sequence[Value],
        parts: Sequence[Samples],
        kinds: StatisticFactory,
        trial: bool,
        progress: OnSample | None,
    ) -> None:
        self._model, self._values, self._parts = model, values, parts
        self._kinds, self._trial, self._progress = kinds, trial, progress
        self._runs = ready_to_measure(model, values, trial=trial)  # here, for all copies of this process
        self._firsts = [0, *accumulate(part.count or 0 for part in parts)]

    def tell(self, done: int) -> None:
        """Say how many samples are done."""
        if self._progress:
            self._progress(done, self._firsts[-1])

    def shared(self, advance: Advance, task_bytes: int) -> list[Stats]:
        """Measure parts in copies of this process; what is at work is parts, which have about as many samples each."""

        def done(parts: int, _: int) -> None:
            advance(parts, len(self._parts))
            self.tell(self._firsts[parts])

        advance(0, len(self._parts))
        return run_forked(self._measured, range(len(self._parts)), done=done, task_bytes=task_bytes)

    def in_turn(self, advance: Advance) -> Iterator[Stats]:
        """Measure one part after another, the samples of each several at a time."""
        advance(0, self._firsts[-1])
        for at, first in enumerate(self._firsts[:-1]):

            def done(samples: int, _: int | None, before: int = first) -> None:
                advance(before + samples, self._firsts[-1])
                self.tell(before + samples)

            with unfollowed():
                found = self._measured(at, done)
            yield found

    def _measured(self, at: int, progress: OnSample | None = None) -> Stats:
        kinds = kinds_after(self._kinds, self._firsts[at])
        model, values, samples = self._model, self._values, self._parts[at]
        return calibrate(model, values, samples, progress=progress, kinds=kinds, trial=self._trial, runs=self._runs)


def _is_much(values: Sequence[Value], samples: int) -> bool:
    """Tell whether so much is measured that copies are worth it, by counts alone."""
    elements = sum(math.prod(assumed_shape(value, {}) or ()) for value in values)
    return len(values) * samples >= LEAST_RUNS or elements * samples >= LEAST_ELEMENTS
