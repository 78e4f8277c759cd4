"""Calibrate on parts of the samples, which copies of this process share; the parts are added from first to last.

Sums of floats depend on their order. So samples are cut in the same way whether parts are shared or not, by how many
there are. See `blocks` for shards of a calibration, which are cut finer and written to files.

Tests: `tests/calibration/test_parts.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import TYPE_CHECKING

from onnxq.calibration.blocks import fold, kinds_after
from onnxq.calibration.calibrate import calibrate
from onnxq.calibration.stats import StatisticFactory, Stats, TensorStats, basic_kinds
from onnxq.data.samples import Samples
from onnxq.progress import working
from onnxq.runtime.fork import run_forked
from onnxq.targets.assumed_shapes import assumed_shape

if TYPE_CHECKING:
    from onnxq.ir import Model, Value

FEW = 4  # samples from which on there are parts
# How many parts there are at most, by the bytes of second moments of all layers: each part has its own
PARTS = ((64 << 20, 4), (512 << 20, 2))
# Values times samples, and their elements, below which copies take longer than they save
LEAST_RUNS, LEAST_ELEMENTS = 128, 1 << 22


def calibrate_in_parts(
    model: Model,
    values: Sequence[Value],
    samples: Samples,
    *,
    progress: Callable[[int, int | None], None] | None = None,
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
    parts = None if count is None or count < FEW or most == 1 else samples.parts(min(count // 2, most))
    if count is None or parts is None:
        return calibrate(model, values, samples, progress=progress, kinds=kinds, trial=trial)
    firsts = [0]
    for part in parts:
        firsts.append(firsts[-1] + (part.count or 0))

    def measured(at: int) -> tuple[dict[str, TensorStats], int]:
        found = calibrate(model, values, parts[at], kinds=kinds_after(kinds, firsts[at]), trial=trial)
        return found.tensors, found.samples

    def joined(found: Sequence[tuple[dict[str, TensorStats], int]]) -> Stats:
        return reduce(fold, (Stats.of(kinds, *one) for one in found))

    def done(parts_done: int, _: int) -> None:
        advance(parts_done, len(parts))
        if progress:
            progress(firsts[parts_done], count)

    with working("measure roughly" if trial else "measure") as advance:
        if progress:
            progress(0, count)
        shared = samples.shareable and model.residency.quick and _worth(values, count)
        return joined(run_forked(measured, range(len(parts)), done=done, task_bytes=3 * moment_bytes, copies=shared))


def _worth(values: Sequence[Value], samples: int) -> bool:
    """Tell whether so much is measured that copies are worth it."""
    elements = sum(math.prod(assumed_shape(value, {}) or ()) for value in values)
    return len(values) * samples >= LEAST_RUNS or elements * samples >= LEAST_ELEMENTS
