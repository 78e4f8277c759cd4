"""Choose an activation's range from its statistics: all of it, all but the rarest values, or the least error.

A range method is one function behind `range_method`: the line says its name, what it needs measured, and what the docs
say of it. Recipes take the names of `RangesSetting`, and a test holds both to each other and to the docs.

The error is that of the values themselves. With a histogram that weighs each channel by its readers
(`weighted_histogram`), it is the error at their outputs. Clipping counts more than rounding there. Rounding errors are
independent and add up by their squares; neighbouring values beyond the range are clipped together, in the same
direction.

The squared error of a candidate is computed from the histogram in O(levels), whatever the number of values. Inside a
bin the density is taken as uniform. So the number, sum and sum of squares of all values below any point follow in
closed form from cumulative sums. A quantization cell `[a, b)` that is rounded to `g` costs `S2 - 2 g S1 + g**2 S0`.

A further sample exceeds the greatest value of n samples with a chance of 1 in n + 1, independently in every tensor. In
a small tensor whose peaks differ much from sample to sample, this outweighs the gain of a finer grid. One picture in
thirty that is clipped decides the error of them all. In a large tensor, or one whose peaks are alike, a wider range
only makes the grid coarser. `extrapolate_range` finds the least expected sum of both (`onnxq.calibration.tail_model`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum

import numpy as np

from onnxq.calibration.histogram import Histogram
from onnxq.calibration.sample_extremes import SampleExtremes
from onnxq.calibration.stats import TensorStats
from onnxq.calibration.tail_model import FEWEST, exponential_tail, fit_lognormal
from onnxq.calibration.weighted_histogram import WeightedHistogram
from onnxq.errors import RecipeError
from onnxq.ops.forms.scheme import RangesSetting

# The default of onnxruntime's and TensorRT's calibrators
DEFAULT_PERCENTILE = 99.999
LARGEST = float(np.finfo(np.float32).max)
# Beyond this many levels a cell is narrower than a bin, and its error is s**2 / 12 by the uniform density
MOST_CELLS = 1024
# Weight of a squared clipping error at the outputs, where a rounding error counts 1: see docs/benchmarks/choices.md
CLIPPED = 4.0
ALIKE = 4  # samples whose peaks are the same: that is no chance
WIDTHS = np.linspace(1.0, 2.0, 41)
# Coarse search: halving in half octaves down to 1/64 of the extreme; then twice a finer grid around the best
COARSE = np.exp2(-np.arange(13) / 2)
FINE = np.arange(-3, 4) / 8


class Needs(Enum):
    """The statistics of a tensor that choosing its range needs."""

    EXTREMES = "extremes"
    HISTOGRAM = "histogram"
    WEIGHTED_HISTOGRAM = "weighted histogram"  # see `onnxq.calibration.weighted_histogram`


@dataclass(frozen=True)
class RangeRequest:
    """The statistics that a range is chosen from.

    Attributes:
        stats: Of the tensor.
        low: The least value and 0, whichever is less.
        high: The greatest value and 0, whichever is greater; above `low`.
        percentile: Percent of values to cover; see `choose_range`.
        levels: How many codes there are.
        symmetric: The range is going to be symmetric around zero.

    """

    stats: TensorStats
    low: float
    high: float
    percentile: float
    levels: int
    symmetric: bool

    def ends(self) -> tuple[float, float]:
        """Return the widest range: symmetric around zero where that is asked for."""
        reach = max(-self.low, self.high)
        return (-reach, reach) if self.symmetric else (self.low, self.high)


@dataclass(frozen=True)
class RangeMethod:
    """A way to choose ranges.

    Attributes:
        name: As in recipes.
        summary: What the docs say of it.
        choose: Returns `(lo, hi)` with `lo <= 0 <= hi`; it is mirrored afterwards where the codes are symmetric.
        needs: What has to be measured.
        tried: What has to be measured while variants are tried.
        extrapolates: Whether the range is widened by what other samples are expected to need.

    """

    name: RangesSetting
    summary: str
    choose: Callable[[RangeRequest], tuple[float, float]]
    needs: Needs
    tried: Needs
    extrapolates: bool


METHODS: dict[str, RangeMethod] = {}


def range_method(
    name: RangesSetting, summary: str, needs: Needs, *, tried: Needs | None = None, extrapolates: bool = False
) -> Callable[[Callable[[RangeRequest], tuple[float, float]]], Callable[[RangeRequest], tuple[float, float]]]:
    """Register a range method; see `RangeMethod`. By default it needs the same while variants are tried."""

    def register(
        choose: Callable[[RangeRequest], tuple[float, float]],
    ) -> Callable[[RangeRequest], tuple[float, float]]:
        METHODS[name] = RangeMethod(name, summary, choose, needs, tried or needs, extrapolates)
        return choose

    return register


def needs_of(methods: Iterable[str], *, trial: bool = False) -> set[Needs]:
    """Return what some range methods need measured, in all or while variants are tried."""
    return {METHODS[name].tried if trial else METHODS[name].needs for name in methods}


@range_method(
    "auto",
    "`minmax` or `output-error` with up to a fifth of headroom, whichever gains on held-out samples",
    Needs.EXTREMES,
    tried=Needs.WEIGHTED_HISTOGRAM,
    extrapolates=True,
)
@range_method("minmax", "from the least to the greatest value", Needs.EXTREMES)
def _cover(request: RangeRequest) -> tuple[float, float]:
    return request.low, request.high


def choose_range(
    stats: TensorStats,
    method: str = "minmax",
    *,
    percentile: float = DEFAULT_PERCENTILE,
    bits: int = 8,
    symmetric: bool = False,
) -> tuple[float, float]:
    """Choose the range of real values that a tensor's codes shall cover.

    Args:
        stats: Extremes and histogram of the tensor.
        method: Name of one of `METHODS`.
        percentile: Percent of values to cover, above 50 and at most 100.
        bits: Width of the codes, 2 to 16.
        symmetric: The codes will be symmetric around zero, so the range is.

    Returns:
        `(lo, hi)` with `lo <= 0 <= hi`, within the tensor's extremes (or their mirror image, when symmetric);
        `(0, 0)` for a tensor that is all zero or was never seen.

    Raises:
        RecipeError: The method is unknown, or `percentile` or `bits` is out of range.

    """
    if method not in METHODS:
        raise RecipeError(f"there is no range method '{method}'", f"Choose one of {', '.join(METHODS)}.")
    if not 50 < percentile <= 100 or not 2 <= bits <= 16:
        raise RecipeError(
            f"percentile {percentile} with {bits} bits is out of range", "Percentile: above 50 to 100; bits: 2 to 16."
        )
    wanted = method, percentile, bits, symmetric
    if wanted not in stats.ranges:
        low, high = min(stats.min, 0.0), max(stats.max, 0.0)
        if high > low:
            levels = 2**bits - 1 if symmetric else 2**bits
            low, high = METHODS[method].choose(RangeRequest(stats, low, high, percentile, levels, symmetric))
        if symmetric:
            high = max(-low, high)
            low = -high
        stats.ranges[wanted] = as_float32(low, high)
    return stats.ranges[wanted]


def as_float32(low: float, high: float) -> tuple[float, float]:
    """Return a range as float32 holds it; a wider one ends at the largest numbers."""
    return float(np.float32(max(low, -LARGEST))), float(np.float32(min(high, LARGEST)))


def extrapolate_range(stats: TensorStats, low: float, high: float, *, bits: int = 8) -> tuple[float, float]:
    """Widen a range by what other samples are expected to need, each end that covers all that was seen.

    If samples differ by factors, it is widened even if the least error on seen ones is inside of it. The least error
    would clip the samples that went furthest, and other samples go further by half.

    Args:
        stats: Of the tensor; without `SampleExtremes` the range stays as it is.
        low: Its lower end, at most 0.
        high: Its upper end, at least 0.
        bits: Width of the codes.

    """
    if SampleExtremes not in stats:
        return low, high
    peaks = stats[SampleExtremes]
    if peaks.batches < FEWEST or high <= low:
        return low, high
    below = _end(peaks, peaks.below, -low, high, bits)
    above = _end(peaks, peaks.above, high, -low, bits)
    return as_float32(-below, above)


def add_headroom(stats: TensorStats, low: float, high: float, factor: float) -> tuple[float, float]:
    """Widen a range by room for other samples, but for an end that several samples reach alike.

    The data end there, as pictures do at white. No sample goes further, and codes that match pixel values would match
    them no more.

    Args:
        stats: Of the tensor; without `SampleExtremes` both ends get room.
        low: Its lower end, at most 0.
        high: Its upper end, at least 0.
        factor: What an end is multiplied by, at least 1.

    """
    if factor == 1:
        return low, high
    below, above = (
        (stats[SampleExtremes].below, stats[SampleExtremes].above) if SampleExtremes in stats else (None, None)
    )
    low, high = (end if _alike(peaks) else end * factor for end, peaks in ((low, below), (high, above)))
    return as_float32(low, high)


def _alike(sorted_peaks: np.ndarray | None) -> bool:
    return sorted_peaks is not None and len(sorted_peaks) >= ALIKE and sorted_peaks[ALIKE - 1] == sorted_peaks[0]


def _end(peaks: SampleExtremes, sorted_peaks: np.ndarray, end: float, opposite: float, bits: int) -> float:
    """Return one end of least expected error for a batch: rounding inside it, clipping beyond it."""
    highest = float(sorted_peaks[0])
    if end <= 0 or highest <= 0:
        return end

    def least(ends: np.ndarray, beyond: np.ndarray) -> float:
        rounding = peaks.elements / peaks.batches * ((ends + opposite) / (2**bits - 1)) ** 2 / 12
        return float(ends[int(np.argmin(rounding + CLIPPED * beyond))])

    spread = fit_lognormal(sorted_peaks, peaks.batches)
    if spread is not None:
        ends = WIDTHS * max(end, highest)
        far = least(ends, spread.beyond(ends))
        if far > ends[0]:
            return far
    if end < highest:  # where seen values are clipped, that was weighed
        return end
    ends = WIDTHS * end
    beyond = exponential_tail(peaks, sorted_peaks, ends)
    return end if beyond is None else least(ends, beyond)


def expected_error(stats: TensorStats, lo: float, hi: float, *, bits: int = 8) -> float:
    """Estimate the mean squared error of quantizing the tensor with the range `(lo, hi)`, in squared units.

    Clipping and rounding are both counted; values that are exactly zero cost nothing.
    """
    if not stats.count or lo == hi:
        return stats.second_moment
    return float(_Density(stats, stats.histogram).errors(np.array([lo]), np.array([hi]), 2**bits)[0]) / stats.count


@range_method("percentile", "without the rarest values", Needs.HISTOGRAM)
def _percentile(request: RangeRequest) -> tuple[float, float]:
    """Leave out at most `(100 - percentile) / 2` percent of the values on each side, as onnxruntime does."""
    low, high, histogram = request.low, request.high, request.stats.histogram
    allowed = int(request.stats.count * (100.0 - request.percentile) / 200.0)
    edges = histogram.edges(low, high)
    below = np.cumsum(histogram.counts)
    above = np.cumsum(histogram.counts[::-1])
    first = int(np.searchsorted(below, allowed, side="right"))
    last = len(edges) - 2 - int(np.searchsorted(above, allowed, side="right"))
    if last < first:  # fewer values than are left out on both sides together
        return low, high
    return min(float(edges[first]), 0.0), max(float(edges[last + 1]), 0.0)


@range_method("mse", "least squared error of the tensor", Needs.HISTOGRAM)
def _tensor_error(request: RangeRequest) -> tuple[float, float]:
    density = _Density(request.stats, request.stats.histogram)
    return _least_error(density, *request.ends(), request.levels, request.symmetric)


@range_method(
    "output-error",
    "least squared error at the outputs of the layers that read the tensor",
    Needs.WEIGHTED_HISTOGRAM,
    extrapolates=True,
)
def _output_error(request: RangeRequest) -> tuple[float, float]:
    stats = request.stats
    density = _Density(stats, stats[WeightedHistogram if WeightedHistogram in stats else Histogram], CLIPPED)
    return _least_error(density, *request.ends(), request.levels, request.symmetric)


def _least_error(density: _Density, low: float, high: float, levels: int, symmetric: bool) -> tuple[float, float]:
    """Search the shrink factors of both ends, coarse to fine; the full range is among the candidates.

    The coarse search takes errors of rounding as even, which is a tenth of the work.
    """
    best = full = np.array([1.0, 1.0])
    for factors, even in ((COARSE, True), (np.exp2(FINE), False), (np.exp2(FINE / 8), False)):
        down = np.minimum(best[0] * factors, 1.0) if low < 0 else best[:1]
        up = np.minimum(best[1] * factors, 1.0) if high > 0 else best[1:]
        pairs = np.stack([up, up]) if symmetric else np.stack(np.meshgrid(down, up)).reshape(2, -1)
        # Ties go to what was found before: argmin takes the first
        pairs = np.concatenate([full[:, None], best[:, None], pairs], axis=1)
        errors = density.errors(pairs[0] * low, pairs[1] * high, levels, even=even)
        best = pairs[:, int(np.argmin(errors))]
    return float(best[0] * low), float(best[1] * high)


class _Density:
    """Cumulative count, sum and sum of squares of a tensor's nonzero values, at any point.

    Args:
        stats: The tensor's extremes.
        histogram: Its values.
        clipped: What the squared error of a clipped value counts.

    """

    def __init__(self, stats: TensorStats, histogram: Histogram, clipped: float = 1.0) -> None:
        self.clipped = clipped
        self.edges = histogram.edges(stats.min, stats.max)
        self.first, self.width = histogram.first, histogram.width
        self.counts = histogram.counts.astype(np.float64)
        self.counts[-histogram.first] -= histogram.zeros
        left, right = self.edges[:-1], self.edges[1:]
        bins = np.stack([np.ones_like(left), (left + right) / 2, (left**2 + left * right + right**2) / 3]) * self.counts
        self.cumulative = np.concatenate([np.zeros((3, 1)), np.cumsum(bins, axis=1)], axis=1)
        self.spans = np.maximum(right - left, np.finfo(np.float64).tiny)

    def below(self, points: np.ndarray) -> np.ndarray:
        """Return count, sum and sum of squares of the values below each point: shape `(3, *points.shape)`."""
        index = np.clip(points / self.width, -len(self.counts), len(self.counts)).astype(np.int64) - self.first
        index = np.clip(index, 0, len(self.counts) - 1)
        left = self.edges[index]
        inside = np.clip(points, left, self.edges[index + 1])
        mass = self.counts[index] * ((inside - left) / self.spans[index])
        powers = np.stack([np.ones_like(inside), (left + inside) / 2, (left**2 + left * inside + inside**2) / 3])
        return np.asarray(self.cumulative[:, index] + mass * powers)

    def errors(self, low: np.ndarray, high: np.ndarray, levels: int, *, even: bool = False) -> np.ndarray:
        """Return the total squared error of each candidate range, with the zero point rounded as it will be.

        Args:
            low: Lower ends.
            high: Upper ends, as many.
            levels: How many codes there are.
            even: Whether errors of rounding are taken as evenly spread over a step.

        """
        scale = (high - low) / (levels - 1)
        zero = np.clip(np.rint(-low / scale), 0, levels - 1)
        ends = np.stack([-zero * scale, (levels - 1 - zero) * scale])
        sums = self.below(ends)
        beyond = self._clipping(ends, sums)
        if even or levels > MOST_CELLS:
            return np.asarray((sums[0, 1] - sums[0, 0]) * scale**2 / 12 + self.clipped * beyond)
        grid = (np.arange(levels) - zero[:, None]) * scale[:, None]
        sums = self.below(grid[:, :-1] + scale[:, None] / 2)
        total = np.broadcast_to(self.cumulative[:, -1, None, None], (3, len(low), 1))
        s0, s1, s2 = np.diff(sums, axis=2, prepend=0.0, append=total)
        within = (s2 - 2 * grid * s1 + grid**2 * s0).sum(axis=1)
        return np.asarray(within + (self.clipped - 1.0) * beyond)

    def _clipping(self, ends: np.ndarray, sums: np.ndarray) -> np.ndarray:
        """Return the squared error of all values beyond the least and the greatest code."""
        total = self.cumulative[:, -1, None]
        parts = zip(ends, (sums[:, 0], total - sums[:, 1]), strict=True)
        return np.asarray(sum(np.maximum(s2 - 2 * end * s1 + end**2 * s0, 0) for end, (s0, s1, s2) in parts))
