"""Which integer codes and scales a weight gets: of least error at the layer's output, where samples were measured.

With the second moments H of what a layer reads, the mean squared error of its output is `diag(D H Dᵀ)`, D being the
change of the weight. Scales are predicted in closed form, codes follow by error feedback (GPTQ) and coordinate descent,
scales once more by least squares. How far H is to be trusted is decided on samples that it was not made of, and a
channel that gains nothing on those is rounded to nearest.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

import numpy as np

from onnxq.quant.blas import single_threaded_blas
from onnxq.quant.descent import Feedback, damped, descend, nearest
from onnxq.quant.gram import Gram
from onnxq.quant.moments import LayerMoments
from onnxq.quant.qparams import TINY
from onnxq.quant.scales import ScaleLayout, storable

# Tried on the first half of the samples, judged on the second. Few samples want more: MiniLM gains 2.7 dB from 0.0001
# to 0.1, super-resolution with its many pixels loses 5.
DAMPINGS = (1e-4, 1e-2, 0.2)
PROBED = 64  # channels that this is tried on, in layers of one group
# Starting scales relative to the predicted one, and how many of them a layer can afford: each draws other codes, and
# every channel keeps its best. Clipping costs more than coarser steps, so most lie above.
STARTS = (1.0, 1.03, 0.97, 1.06, 1.015, 0.985, 1.045, 0.94)
AFFORDABLE = ((4e7, 8), (2.5e8, 4), (float("inf"), 2))  # multiplications of one sweep → starts
COLUMN = 1e5  # what stepping to the next column costs besides, in multiplications
SWEEPS = 4
MARGIN = 1e-9  # no choice hangs on the last bits of a sum
SLAB = 1 << 21  # elements that are worked on at a time: 16 MB in float64

K = TypeVar("K", bound=Hashable)
Method = Literal["nearest", "weight error", "assumed inputs", "output error"]


@dataclass(frozen=True)
class RoundedWeight:
    """Codes and scales of a weight in rows.

    Attributes:
        codes: int8 `[channels, n]`.
        scales: float32 `[channels]`, `[1]` for one scale, `[channels, blocks]` for blocks.
        method: How they were found; `assumed inputs` with `prior_moments` in place of samples.
        gain: Held-out output error of rounding to nearest over that of codes from the other half, in dB; 0 without
            samples.
        damping: What was added to H, relative to its mean diagonal; None without samples.

    """

    codes: np.ndarray
    scales: np.ndarray
    method: Method
    gain: float = 0.0
    damping: float | None = None

    def dequantized(self) -> np.ndarray:
        """The float32 rows that the codes stand for."""
        return ScaleLayout.of(self.codes.shape, self.scales).expand(self.scales) * self.codes.astype(np.float32)


@dataclass(frozen=True)
class RoundingJob:
    """What `choose_codes` is asked for; `readers` are names for the report, `quick` leaves out most of the search."""

    rows: np.ndarray
    moments: LayerMoments | None = None
    bits: int = 8
    per_tensor: bool = False
    block_size: int | None = None
    minimum_scale: np.ndarray | None = None
    noise: float = 0.0
    readers: tuple[str, ...] = ()
    quick: bool = False


def choose_all(jobs: Mapping[K, RoundingJob], *, threads: int | None = None) -> dict[K, RoundedWeight]:
    """Choose codes for many weights, several at a time; the number of threads changes no bit.

    Args:
        jobs: What to do.
        threads: How many at a time; one for each processor by default.

    """
    workers = threads or os.cpu_count() or 1
    with single_threaded_blas(), ThreadPoolExecutor(workers) as pool:
        return dict(zip(jobs, pool.map(_choose, jobs.values()), strict=True))


def choose_codes(
    rows: np.ndarray,
    moments: LayerMoments | None,
    *,
    bits: int = 8,
    per_tensor: bool = False,
    block_size: int | None = None,
    minimum_scale: np.ndarray | None = None,
    noise: float = 0.0,
) -> RoundedWeight:
    """Choose symmetric codes and scales for a weight.

    Args:
        rows: Float `[channels, n]`, finite; for a Conv `weight.reshape(channels, -1)`.
        moments: Second moments of the layer's input, measured or assumed (`prior_moments`); None chooses scales by the
            weight's own squared error.
        bits: 2 to 8; codes go from `1 - 2^(bits-1)` to `2^(bits-1) - 1`.
        per_tensor: One scale for all channels.
        block_size: A scale for each so many consecutive elements of a row, instead of one a row.
        minimum_scale: `[channels]`, or one for all; scales are not made smaller.
        noise: Variance that is added to each element of the input, `scale² / 12` where it is quantized.

    Returns:
        Codes of which no channel has a greater held-out error than rounded to nearest (with `per_tensor`, no layer).

    Raises:
        ValueError: The rows do not fit the moments, or `bits` is out of range.

    """
    with single_threaded_blas():
        return _choose(RoundingJob(rows, moments, bits, per_tensor, block_size, minimum_scale, noise))


def bias_shift(rows: np.ndarray, rounded: RoundedWeight, moments: LayerMoments) -> np.ndarray:
    """Give what rounding adds to the mean of each output channel, float64 `[channels]`: to be taken off the bias."""
    return moments.total().shift(rounded.dequantized().astype(np.float64) - rows)


def _choose(job: RoundingJob) -> RoundedWeight:
    if not 2 <= job.bits <= 8:
        raise ValueError(f"codes of {job.bits} bits are not offered")
    rows = np.asarray(job.rows, np.float64)
    layout = ScaleLayout(rows.shape, job.per_tensor, job.block_size)
    limit = 2 ** (job.bits - 1) - 1
    floor = layout.floor(job.minimum_scale)
    covering = storable(np.maximum(layout.peak(np.abs(rows)) / limit, floor))
    if job.moments is not None and job.moments.unfolding.n != rows.shape[1]:
        raise ValueError(f"rows of {rows.shape[1]} elements do not fit moments of {job.moments.unfolding.n}")
    total = _noisy(job.moments.total(), job.noise) if job.moments is not None else None
    if total is None or not rows.size or not _shows_something(total):
        scales = layout.least_error(rows, covering, limit, floor)
        codes = nearest(rows, layout.expand(scales), limit)
        return RoundedWeight(codes.astype(np.int8), layout.shaped(scales), "weight error")
    assert job.moments is not None
    halves = _noisy(job.moments.fitted(), job.noise), _noisy(job.moments.held_out(), job.noise)
    result = _Search(rows, layout, limit, floor, covering, quick=job.quick).run(*halves, total)
    assumed = job.moments.assumed and result.method == "output error"
    return replace(result, method="assumed inputs", gain=0.0) if assumed else result


def _shows_something(gram: Gram) -> bool:
    """Whether inputs were measured that are not all zero, as those of a branch are that is rarely taken."""
    energy = np.einsum("pbb->", gram.matrix)
    return bool(gram.rows) and bool(np.isfinite(energy)) and bool(energy > 0)


def _noisy(gram: Gram, noise: float) -> Gram:
    if not noise:
        return gram
    matrix = gram.matrix.copy()
    np.einsum("pbb->pb", matrix)[:] += noise
    return Gram(matrix, gram.mean, gram.rows)


class _Search:
    """The search for one weight; scales are float64 numbers that float32 can hold."""

    def __init__(
        self, rows: np.ndarray, layout: ScaleLayout, limit: int, floor: np.ndarray, covering: np.ndarray, *, quick: bool
    ) -> None:
        self.quick = quick
        self.rows, self.layout, self.limit, self.floor, self.covering = rows, layout, limit, floor, covering
        self.nearest = nearest(rows, layout.expand(covering), limit)

    def run(self, fitted: Gram, held_out: Gram, total: Gram) -> RoundedWeight:
        """Decide how far H is trusted, then choose codes with all of it."""
        plain = self._errors(held_out, self.nearest, self.covering)
        gains = np.zeros(len(self.rows), bool)
        damping, held = None, plain
        if _shows_something(fitted) and held_out.rows:
            probe = self._probe() if len(total.mean) == 1 else self
            damping = min(DAMPINGS, key=lambda candidate: probe.score(fitted, held_out, candidate))
            found = self.trial(fitted, held_out, damping)
            gains, held = self._better(found, plain), np.minimum(found, plain)
        if damping is None or not gains.any():
            return RoundedWeight(self.nearest.astype(np.int8), self.layout.shaped(self.covering), "nearest")
        H = damped(total.matrix, damping)
        codes, scales = self._solve(total, H, Feedback(H), self._starts(total), 1 if self.quick else SWEEPS)
        gains &= self._better(self._errors(held_out, codes, scales), plain)
        codes, scales = self._keep(gains, (codes, scales), (self.nearest, self.covering))
        gain = 10 * np.log10(max(plain.sum(), TINY) / max(held.sum(), TINY))
        method: Method = "output error" if gains.any() else "nearest"
        return RoundedWeight(codes.astype(np.int8), self.layout.shaped(scales), method, float(gain), damping)

    def trial(self, fitted: Gram, held_out: Gram, damping: float) -> np.ndarray:
        """Give the held-out error of each channel under codes from the other half."""
        H = damped(fitted.matrix, damping)
        return self._errors(held_out, *self._solve(fitted, H, Feedback(H), STARTS[:1], sweeps=0))

    def score(self, fitted: Gram, held_out: Gram, damping: float) -> float:
        """Give what a channel keeps of its held-out error on average: the choice must not hang on how large it is."""
        found = self.trial(fitted, held_out, damping)
        plain = self._errors(held_out, self.nearest, self.covering)
        if self.layout.per_tensor:
            return float(found.sum() / max(plain.sum(), TINY))
        return float(np.divide(found, plain, out=np.ones_like(found), where=plain > 0).clip(0, 1).mean())

    def _probe(self) -> _Search:
        """Give the search for a few channels, spread evenly."""
        if len(self.rows) <= PROBED:
            return self
        taken = np.arange(PROBED) * len(self.rows) // PROBED
        floor, covering = (a[taken] if len(a) > 1 else a for a in (self.floor, self.covering))
        layout = ScaleLayout((PROBED, self.layout.n), self.layout.per_tensor, self.layout.block_size)
        return _Search(self.rows[taken], layout, self.limit, floor, covering, quick=self.quick)

    def _errors(self, gram: Gram, codes: np.ndarray, scales: np.ndarray) -> np.ndarray:
        return gram.errors(codes * self.layout.expand(scales) - self.rows)

    def _better(self, one: np.ndarray, other: np.ndarray) -> np.ndarray:
        """Tell which channels have the lesser error; all or none with one scale for all."""
        if self.layout.per_tensor:
            return np.full(len(one), one.sum() < other.sum() * (1 - MARGIN))
        return np.asarray(one < other * (1 - MARGIN))

    def _keep(
        self, which: np.ndarray, one: tuple[np.ndarray, np.ndarray], other: tuple[np.ndarray, np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Take codes and scales of some channels from `one`, of the rest from `other`."""
        column = which[:, None]
        scales = column[: len(one[1])]  # of one scale for all, the channels agree
        return np.where(column, one[0], other[0]), np.where(scales, one[1], other[1])

    def _starts(self, gram: Gram) -> tuple[float, ...]:
        columns = gram.matrix.shape[1]
        work = (self.rows.size + COLUMN) * columns
        return STARTS[: 1 if self.quick else next(count for most, count in AFFORDABLE if work <= most)]

    def _solve(
        self, gram: Gram, H: np.ndarray, feedback: Feedback, starts: tuple[float, ...], sweeps: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Choose codes from several starting scales, then refit the scales of the best and go down once more."""
        judged = Gram(H, gram.mean, gram.rows)
        weights = gram.join(feedback.weights[:, None])
        predicted = self.layout.least_predicted(self.rows, weights, self.covering, self.limit)
        best: tuple[np.ndarray, np.ndarray] | None = None
        least = np.full(len(self.rows), np.inf)
        for factor in starts:
            scales = storable(np.maximum(predicted * factor, self.floor))
            codes = self._round(judged, feedback, scales, sweeps)
            found = self._errors(judged, codes, scales)
            which = self._better(found, least)
            best = (codes, scales) if best is None else self._keep(which, (codes, scales), best)
            least = np.where(which, found, least)
        assert best is not None
        if not sweeps or self.layout.blocks > 1:
            return best
        codes, scales = best
        scales = storable(np.maximum(self._refit(judged, codes, scales), self.floor))
        codes = self._round(judged, None, scales, sweeps // 2, codes)
        return self._keep(self._better(self._errors(judged, codes, scales), least), (codes, scales), best)

    def _round(
        self, judged: Gram, feedback: Feedback | None, scales: np.ndarray, sweeps: int, codes: np.ndarray | None = None
    ) -> np.ndarray:
        """Error feedback unless codes are given, then coordinate descent, some channels of each group at a time."""
        weight, steps = (self._columns(judged, a) for a in (self.rows, self.layout.expand(scales)))
        steps = np.where(steps > 0, steps, 1.0)  # of columns that only fill up a block
        start = None if codes is None else self._columns(judged, codes)
        result = np.empty_like(weight)
        width = max(SLAB // max(weight.shape[0] * weight.shape[1], 1), 1)
        for first in range(0, weight.shape[2], width):
            part = np.s_[:, :, first : first + width]
            if start is None:
                assert feedback is not None
                chosen = feedback.round(weight[part], steps[part], self.limit)
            else:
                chosen = start[part]
            result[part] = descend(weight[part], chosen, steps[part], judged.matrix, self.limit, sweeps)
        return judged.join(result.transpose(0, 2, 1))

    @staticmethod
    def _columns(gram: Gram, rows: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(gram.split(rows).transpose(0, 2, 1))

    def _refit(self, judged: Gram, codes: np.ndarray, scales: np.ndarray) -> np.ndarray:
        """Give the scale of least error for codes as they are: `(z H w) / (z H zᵀ)` of each channel, or of all."""
        cut, weight = judged.split(codes), judged.split(self.rows)
        product = np.matmul(cut, judged.matrix)
        shares = [np.einsum("pmb,pmb->pm", product, other) for other in (weight, cut)]
        above, below = (a.reshape(len(judged.mean), -1, a.shape[1]).sum(axis=1).reshape(-1, 1) for a in shares)
        if self.layout.per_tensor:
            above, below = above.sum(keepdims=True), below.sum(keepdims=True)
        sound = (above > 0) & (below > 0)
        return np.where(sound, above / np.where(sound, below, 1.0), scales)
