"""Which integer codes and scales a weight gets: of least error at the layer's output, where samples were measured.

H are the second moments of a layer's input, and D is the change of its weight. The mean squared error of its output is
`diag(D H Dᵀ)`. Scales are predicted in closed form, codes follow by error feedback (GPTQ) and coordinate descent,
scales once more by least squares. Other samples than those of H decide how far H is trusted. A channel that gains
nothing on them is rounded to nearest.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain, islice
from threading import Condition
from typing import TypeVar

import numpy as np
from numpy.typing import DTypeLike

from onnxq.calibration.gram import Gram
from onnxq.calibration.second_moments import LayerMoments
from onnxq.ir.storage.shelf import release_array
from onnxq.progress import working
from onnxq.rounding.coordinate_descent import nearest
from onnxq.rounding.few_rows import with_noise
from onnxq.rounding.gptq import AnyGram, RoundedWeight, WeightSolver, shows_something
from onnxq.rounding.saturation_limits import PairLimits
from onnxq.rounding.scale_layout import ScaleLayout, code_bounds, storable
from onnxq.runtime.blas_threads import single_threaded_blas
from onnxq.runtime.fork import can_fork, run_forked
from onnxq.runtime.memory import room_left, trim_heap
from onnxq.runtime.workers import worker_count

IN_WORK = 1 << 30  # bytes that searches take at the same time, however many processors there are
# Elements of a weight from which on it has a thread. Steps of smaller ones are so short that threads wait for the
# interpreter. Two took 1.4 s for 54 weights of 96 x 96 at most, one took 0.9. Intel Sapphire Rapids
WORTH = 1 << 16
WORTH_FORK = 1 << 25  # work from which on copies of this process share it: about 0.1 s
STEP = 1 << 16  # multiplications that take as long as a step to the next column
TOGETHER, SEARCHED = 2 << 20, 20  # bytes of a large weight whose codes are chosen at a time; times as many are taken
FEWEST = 64  # channels of it at least: each step to the next column takes a while
BATCH = 64 << 20  # bytes of large weights that copies of this process share
FLOAT32 = 4  # bytes
COPIES = 8  # of H, damped, ordered and decomposed, that a search holds
K = TypeVar("K", bound=Hashable)
RoundingResult = tuple[np.ndarray, np.ndarray]  # codes, and scales that broadcast against them


@dataclass(frozen=True)
class WeightRows:
    """A weight as one row for each scale: the kept axes in front as one, the shared axes behind them as one."""

    weight: np.ndarray
    axes: tuple[int, ...]

    @property
    def _order(self) -> list[int]:
        return [axis for axis in range(self.weight.ndim) if axis not in self.axes] + list(self.axes)

    @property
    def scale_shape(self) -> list[int]:
        """Shape of scales that broadcast against the weight."""
        return [1 if axis in self.axes else size for axis, size in enumerate(self.weight.shape)]

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows, and elements of each."""
        rows = int(np.prod(self.scale_shape, dtype=np.int64))
        return rows, int(np.prod([self.weight.shape[axis] for axis in self.axes], dtype=np.int64))

    def array(self) -> np.ndarray:
        """Return the rows, contiguous."""
        moved = np.ascontiguousarray(self.weight.transpose(self._order))
        return moved.reshape(int(np.prod(self.scale_shape, dtype=np.int64)), -1)

    def release(self) -> None:
        """Release the pages of the mapped file that holds the elements."""
        release_array(self.weight)

    def floor(self, minimum: np.ndarray) -> np.ndarray:
        """Return a least scale for each row."""
        return np.broadcast_to(minimum.max(axis=self.axes, keepdims=True), self.scale_shape).reshape(-1)

    def filled(self, parts: Iterable[np.ndarray], dtype: DTypeLike) -> np.ndarray:
        """Return an array in the weight's shape that holds rows, given some at a time.

        Args:
            parts: Arrays `[rows, n]`, all rows in order.
            dtype: Of the result.

        """
        made = np.empty(self.weight.shape, dtype)
        moved = made.transpose(self._order)
        rows = moved.reshape(self.shape)  # a view of a matrix; else a copy, which is moved back
        start = 0
        for part in parts:
            rows[start : start + len(part)] = part
            start += len(part)
        if not np.may_share_memory(rows, made):
            moved[...] = rows.reshape(moved.shape)
        return made

    def restore(self, codes: np.ndarray, scales: np.ndarray) -> RoundingResult:
        """Bring codes of the rows back into the weight's shape; scales of blocks along the one shared axis, too."""
        order = self._order
        moved = codes.reshape([self.weight.shape[axis] for axis in order]).transpose(np.argsort(order))
        if scales.ndim < 2:
            return np.ascontiguousarray(moved), scales.reshape(self.scale_shape)
        kept = [self.weight.shape[axis] for axis in order[:-1]]
        blocks = scales.reshape(*kept, scales.shape[1]).transpose(np.argsort(order))
        return np.ascontiguousarray(moved), np.ascontiguousarray(blocks)


@dataclass(frozen=True)
class RoundingJob:
    """A weight to choose symmetric codes and scales for.

    Attributes:
        rows: Float `[channels, n]`, finite; for a Conv `weight.reshape(channels, -1)`. For a weight in another layout,
            they are made while it is rounded.
        moments: Second moments of the layer's input, measured or assumed (`prior_moments`); None chooses scales by the
            weight's own squared error.
        bits: 2 to 8; codes go from `1 - 2^(bits-1)` to `2^(bits-1) - 1`.
        per_tensor: One scale for all channels.
        block_size: A scale for each so many consecutive elements of a row, instead of one a row.
        minimum_scale: `[channels]`, or one for all; scales are not made smaller.
        noise: Variance that is added to each element of the input, `scale² / 12` where it is quantized.
        readers: Names for the report.
        quick: Whether most of the search is left out.
        pairs: Keeps products of neighbours within 16 bits.

    """

    rows: np.ndarray | WeightRows
    moments: LayerMoments | None = None
    bits: int = 8
    per_tensor: bool = False
    block_size: int | None = None
    minimum_scale: np.ndarray | None = None
    noise: float = 0.0
    readers: tuple[str, ...] = ()
    quick: bool = False
    pairs: PairLimits | None = None

    @property
    def bytes(self) -> int:
        """About what the search takes in memory."""
        moments = self.moments
        return 0 if moments is None else COPIES * 8 * moments.unfolding.columns * moments.block


def solve_all(jobs: Mapping[K, RoundingJob], *, threads: int | None = None) -> dict[K, RoundedWeight]:
    """Choose codes for many weights, several at a time; the number of threads changes no bit.

    Args:
        jobs: What to do.
        threads: How many at a time; one for each processor by default.

    """
    workers, left = threads or worker_count(), room_left()
    room = _Room(IN_WORK if left is None else min(IN_WORK, left))

    def choose(job: RoundingJob) -> RoundedWeight:
        with room.taken(job.bytes):
            return solve(job)

    if threads is None and can_fork() and sum(map(_work, jobs.values())) >= WORTH_FORK:
        return _solve_in_copies(jobs)
    chosen: dict[K, RoundedWeight] = {}
    large = {key: job for key, job in jobs.items() if math.prod(job.rows.shape) >= WORTH and len(jobs) > 1}
    small = {key: job for key, job in jobs.items() if key not in large}
    with working("round") as advance, single_threaded_blas(), ThreadPoolExecutor(workers) as pool:
        for part, found in ((large, pool.map(choose, large.values())), (small, map(choose, small.values()))):
            for key, one in zip(part, found, strict=True):
                chosen[key] = one
                advance(len(chosen), len(jobs))
    trim_heap(max((job.bytes for job in jobs.values()), default=0))
    return {key: chosen[key] for key in jobs}


def solve_in_parts(jobs: Mapping[K, RoundingJob]) -> Iterator[tuple[K, RoundedWeight]]:
    """Yield codes of large weights, chosen some channels at a time, as each has a scale of its own.

    Copies of this process share the work. No more weights are worked on together than `BATCH` bytes, or one.

    Args:
        jobs: What to do; no least scale is asked for.

    """
    for batch in _batches(jobs):
        parts = {key: _parts(job) for key, job in batch.items()}
        with single_threaded_blas():
            found = iter(run_forked(solve, list(chain(*parts.values())), task_bytes=SEARCHED * TOGETHER))
        trim_heap(SEARCHED * TOGETHER)
        for key, own in parts.items():
            yield key, _joined(list(islice(found, len(own))))


def _batches(jobs: Mapping[K, RoundingJob]) -> Iterator[dict[K, RoundingJob]]:
    """Split jobs, in their order, where the weights reach `BATCH` bytes in float32."""
    batch: dict[K, RoundingJob] = {}
    size = 0
    for key, job in jobs.items():
        batch[key] = job
        size += math.prod(job.rows.shape) * FLOAT32
        if size >= BATCH:
            yield batch
            batch, size = {}, 0
    if batch:
        yield batch


def _parts(job: RoundingJob) -> list[RoundingJob]:
    """Return the job for some channels of a weight after the other; the whole one where it is small or in groups."""
    weight, axes = (job.rows.weight, job.rows.axes) if isinstance(job.rows, WeightRows) else (job.rows, (1,))
    kept = [axis for axis in range(weight.ndim) if axis not in axes]
    groups = 1 if job.moments is None else job.moments.unfolding.groups
    if weight.nbytes <= TOGETHER or len(kept) != 1 or groups > 1:
        return [job]
    count = weight.shape[kept[0]]
    height = max(count * TOGETHER // weight.nbytes, FEWEST)
    slices = ((*[slice(None)] * kept[0], slice(start, start + height)) for start in range(0, count, height))
    return [replace(job, rows=WeightRows(weight[part], axes)) for part in slices]


def _joined(found: Sequence[RoundedWeight]) -> RoundedWeight:
    """Put the channels of a weight one behind the other."""
    best = max(found, key=lambda one: one.gain)
    method = next((one.method for one in found if one.method != "nearest"), best.method)
    codes, scales = (np.concatenate(arrays) for arrays in ([o.codes for o in found], [o.scales for o in found]))
    return replace(best, codes=codes, scales=scales, method=method)


def _solve_in_copies(jobs: Mapping[K, RoundingJob]) -> dict[K, RoundedWeight]:
    """Do the same in copies of this process, the most work first."""
    keys = sorted(jobs, key=lambda key: -_work(jobs[key]))  # a stable order: equal ones stay as they come
    most = max(job.bytes for job in jobs.values())
    with working("round") as advance:
        found = run_forked(lambda key: solve(jobs[key]), keys, done=advance, task_bytes=most)
    trim_heap(most)
    chosen = dict(zip(keys, found, strict=True))
    return {key: chosen[key] for key in jobs}


def _work(job: RoundingJob) -> int:
    """Return about what a search takes, in multiplications and steps of its columns."""
    rows, columns = job.rows.shape
    block = columns if job.moments is None else job.moments.block
    return int((rows * columns + STEP) * block)


class _Room:
    """So many bytes for threads to share; one that wants more than there is gets all of it."""

    def __init__(self, size: int) -> None:
        self._size, self._left, self._freed = size, size, Condition()

    @contextmanager
    def taken(self, size: int) -> Iterator[None]:
        """Wait until there is room, and take it."""
        size = min(size, self._size)
        with self._freed:
            self._freed.wait_for(lambda: size <= self._left)
            self._left -= size
        try:
            yield
        finally:
            with self._freed:
                self._left += size
                self._freed.notify_all()


def solve(job: RoundingJob) -> RoundedWeight:
    """Choose codes of which no channel has a greater held-out error than rounded to nearest (`per_tensor`: no layer).

    Raises:
        ValueError: The rows do not fit the moments, or `bits` is out of range.

    """
    if not 2 <= job.bits <= 8:
        raise ValueError(f"codes of {job.bits} bits are not offered")
    rows = np.asarray(job.rows.array() if isinstance(job.rows, WeightRows) else job.rows, np.float64)
    if isinstance(job.rows, WeightRows):
        job.rows.release()
    layout = ScaleLayout(rows.shape, job.per_tensor, job.block_size)
    limit = 2 ** (job.bits - 1) - 1
    floor = layout.floor(job.minimum_scale)
    covering = np.maximum(layout.peak(np.abs(rows)) / limit, floor)
    if job.pairs is not None:
        covering = np.maximum(covering, layout.floor(job.pairs.covering(rows)))
    covering = storable(covering)
    if job.moments is not None and job.moments.unfolding.n != rows.shape[1]:
        raise ValueError(f"rows of {rows.shape[1]} elements do not fit moments of {job.moments.unfolding.n}")
    measured = None if job.moments is None else _Noisy(job.moments, job.noise)
    if measured is None or not rows.size or not measured.shown:
        scales = layout.least_error(rows, covering, limit, floor, job.pairs)
        steps = layout.expand(scales)
        codes = nearest(rows, steps, code_bounds(rows, steps, limit, job.pairs))
        return RoundedWeight(codes.astype(np.int8), layout.shaped(scales), "weight error")
    result = WeightSolver(rows, layout, limit, floor, covering, quick=job.quick, pairs=job.pairs).run(measured)
    assumed = measured.assumed and result.method == "output error"
    return replace(result, method="assumed inputs", gain=0.0) if assumed else result


@dataclass(frozen=True)
class _Noisy:
    """Second moments with the noise of a quantized input."""

    moments: LayerMoments
    noise: float

    @property
    def assumed(self) -> bool:
        return self.moments.assumed

    @property
    def shown(self) -> bool:
        """Whether inputs were measured that are not all zero."""
        if self.assumed:
            return shows_something(self.total())
        energy = sum(float(np.einsum("pbb->", half.sums()[0])) for half in self.moments.halves)
        rows = sum(half.rows for half in self.moments.halves)
        return bool(rows) and math.isfinite(energy) and (energy > 0 or self.noise > 0)

    def fitted(self) -> AnyGram:
        """The half to make choices on."""
        return self._with_noise(self.moments.fitted())

    def held_out(self) -> AnyGram:
        """The half to judge them on."""
        return self._with_noise(self.moments.held_out())

    def total(self) -> AnyGram:
        """Both halves."""
        return self._with_noise(self.moments.total())

    def _with_noise(self, gram: Gram) -> AnyGram:
        if self.assumed:
            np.einsum("pbb->pb", gram.matrix)[:] += self.noise
            return gram
        return with_noise(gram, self.noise)  # made for us
