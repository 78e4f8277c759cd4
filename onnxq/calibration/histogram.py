"""A histogram that widens its range by itself; its counts depend on the multiset of values only.

Bin `i` holds the float32 values with `trunc(x / w) == i`, `w = 2**k`: bin 0 is `(-w, w)`, bin `i > 0` is `[i w, (i + 1)
w)`, bin `i < 0` is `((i - 1) w, i w]`. `k` is the smallest exponent with at most `BINS` bins from zero to the least and
to the greatest value. It depends on these two alone. Raising `k` by one sends bin `i` to `trunc(i / 2)`, exactly,
because `trunc(trunc(x / w) / 2) == trunc(x / 2w)`. Order, splitting and merging therefore cannot change a count. The
quotient `x / w` is exact in float32, since `w` is a power of two. If it underflows, it is below 1 in magnitude, and
truncation gives 0 either way.

Tests: `tests/calibration/test_stats.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Self

import numpy as np

from onnxq.calibration.statistic import Statistic
from onnxq.calibration.thinning import counted_places

BINS = 2048
# 2**-126 is the smallest normal float32: subnormal numbers share bin 0
LEAST_EXPONENT = -126
CHUNK = 1 << 15  # elements at a time: the temporaries stay in the second-level cache


class Histogram(Statistic):
    """Counts of float32 values in bins of width `2**exponent` that are anchored at zero.

    Args:
        most: How many elements of a batch are counted, each for several where there are more; 0 for all.

    Attributes:
        exponent: `k`, the width's power of two.
        first: Index of the first bin, at most 0; the last one is at least 0.
        counts: int64, one count for each bin.
        zeros: How many of bin 0 are exactly zero (they cost nothing to quantize).

    """

    key = "histogram"

    def __init__(self, most: int = 0) -> None:
        self.most = most
        self.exponent = LEAST_EXPONENT
        self.first = 0
        self.counts = np.zeros(1, np.int64)
        self.zeros = 0

    @property
    def width(self) -> float:
        """Width of a bin (bin 0 is twice as wide), in units of the tensor."""
        return math.ldexp(1.0, self.exponent)

    @property
    def last(self) -> int:
        """Index of the last bin."""
        return self.first + len(self.counts) - 1

    def add(self, values: np.ndarray) -> None:
        """Count a batch of finite float32 values of any shape."""
        if values.size:
            self.add_between(values, values.min(), values.max())

    def add_between(self, values: np.ndarray, low: np.float32, high: np.float32) -> None:
        """Count a batch that is not empty and whose extremes are known."""
        least, greatest = min(float(low), 0.0), max(float(high), 0.0)
        exponent = max(self.exponent, _least_exponent(least, greatest, self.exponent))
        while True:
            half = exponent - self.exponent
            first = min(_truncate(least, exponent), -(-self.first >> half))
            last = max(_truncate(greatest, exponent), self.last >> half)
            if last - first < BINS:
                break
            exponent += 1
        self._spread(exponent, first, last)
        self._count(values, np.float32(math.ldexp(1.0, -exponent)))

    def empty(self) -> Self:
        """Return an empty histogram of the same kind."""
        return type(self)()

    def merge(self, other: Self) -> Self:
        """Return the histogram of both multisets."""
        merged = self.empty()
        exponent = max(self.exponent, other.exponent)
        while True:
            first = min(-(-h.first >> exponent - h.exponent) for h in (self, other))
            last = max(h.last >> exponent - h.exponent for h in (self, other))
            if last - first < BINS:
                break
            exponent += 1
        merged._spread(exponent, first, last)
        for part in (self, other):
            moved = self.empty()
            moved.exponent, moved.first, moved.counts = part.exponent, part.first, part.counts
            moved._spread(exponent, first, last)
            merged.counts += moved.counts
        merged.zeros = self.zeros + other.zeros
        return merged

    def coarser(self, most: int) -> Self:
        """Return the same values in bins so wide that there are at most `most`, which is at least 3."""
        made = self.empty()
        made.exponent, made.first, made.counts, made.zeros = self.exponent, self.first, self.counts.copy(), self.zeros
        shift = 0
        while (self.last >> shift) + (-self.first >> shift) >= most:
            shift += 1
        made._spread(self.exponent + shift, -(-self.first >> shift), self.last >> shift)
        return made

    def edges(self, low: float, high: float) -> np.ndarray:
        """Return the `bins + 1` ascending edges; the outermost are those of `[low, high]` and zero."""
        index = np.arange(self.first, self.last + 2, dtype=np.float64)
        edges = np.where(index <= 0, index - 1, index) * self.width
        edges[0] = max(edges[0], min(low, 0.0))
        edges[-1] = min(edges[-1], max(high, 0.0))
        return edges

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the state as arrays, to save."""
        return {"frame": np.array([self.exponent, self.first, self.zeros], np.int64), "counts": self.counts}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> Self:
        """Take the state that `arrays` gave."""
        made = cls()
        made.exponent, made.first, made.zeros = (int(v) for v in arrays["frame"])
        made.counts = np.array(arrays["counts"], np.int64)
        return made

    def _count(self, values: np.ndarray, inverse: np.float32) -> None:
        """Count values that the bins reach over; `inverse` is one over the width of a bin."""
        places, times = counted_places(values.size, self.most)
        flat = values.reshape(-1) if places is None else values.reshape(-1)[places]
        for start in range(0, flat.size, CHUNK):
            chunk = flat[start : start + CHUNK]
            self.counts += times * np.bincount(self._index(chunk, inverse), minlength=len(self.counts))
            self.zeros += times * int(np.count_nonzero(chunk == 0))  # of floats it counts six times slower

    def _index(self, chunk: np.ndarray, inverse: np.float32) -> np.ndarray:
        index: np.ndarray = np.multiply(chunk, inverse).astype(np.intp)  # the cast truncates
        index -= self.first
        return index

    def _spread(self, exponent: int, first: int, last: int) -> None:
        """Widen bins to `2**exponent` and extend them to `first..last`, moving the counts."""
        if (exponent, first, last) == (self.exponent, self.first, self.last):
            return
        index = np.arange(self.first, self.last + 1)
        shift = exponent - self.exponent
        index = np.where(index < 0, -(-index >> min(shift, 62)), index >> min(shift, 62))
        counts = np.zeros(last - first + 1, np.int64)
        np.add.at(counts, index - first, self.counts)
        self.exponent, self.first, self.counts = exponent, first, counts


def _truncate(value: float, exponent: int) -> int:
    return int(math.ldexp(value, -exponent))


def _least_exponent(low: float, high: float, start: int) -> int:
    """Smallest exponent, at least `start`, at which the bins from `low` to `high` through zero number at most BINS."""
    if not low and not high:
        return start
    # |x| < 2**e needs k >= e - 11 for its own side alone (2048 == 2**11), so counting begins there
    exponent = max(start, math.frexp(max(-low, high))[1] - (BINS.bit_length() - 1))
    while _truncate(high, exponent) - _truncate(low, exponent) >= BINS:
        exponent += 1
    return exponent
