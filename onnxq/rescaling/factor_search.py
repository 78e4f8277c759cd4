"""Estimate the error of rescaled channels in 8 bit, and search for the factors of least error.

A value x has one 8-bit scale Δ for all channels. It is divided by s, and the input channels of the weight that reads it
are multiplied by s. The squared error at the reader's outputs is then

    Σ_k s_k² ‖W_k‖² min(Δ²/12, E[x_k²]/s_k²)         rounding of x/s (a channel below Δ/2 is rounded to zero)
  + Σ_k ‖W_k‖² E[clipped part of x_k]²               on data that calibration has not seen: leave one batch out
  + Σ_j E[(D_j x)²]                                  rounding of the weight, D = round(W s)/s - W

If outliers are added in float (`outlier_split.py`), a few channels may leave the range of the others. The step Δ is
that of the others, and nothing of those few is lost. Their rows of the 8-bit weight meet only values within the range.

Factors come from the family `s = r^a / ‖W‖^(1-a)` of SmoothQuant (https://arxiv.org/abs/2211.10438, equation 4).
There r is the range of each channel, or its mean size, which no outlier sets. They undo every rescaling of the channels
that the model may come with, because `r → c r, ‖W‖ → ‖W‖/c` gives `s → c s`. The error does not depend on such a
rescaling either, if an output channel of arbitrary size is weighted by its own readers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from onnxq.calibration.channel_stats import ChannelStats
from onnxq.rescaling.groups import AbsorbingConstant
from onnxq.targets.powers import exp2_array, log2_array

EXPONENTS = (0.0, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0)
POWERS = np.array(EXPONENTS)[:, None]
MEAN_EXPONENTS = (0.3, 0.5, 0.6, 0.7, 0.8)
# Octaves of the room below a bound: by how much a channel is enlarged, and how much other samples keep
HALF_WAY = 0.5
LEVELS = 255
WEIGHT_LEVELS = 127
WIDENED = 1 << 22  # elements of a weight that are in float64 at a time
LARGEST = 1 << 18  # elements of a weight that the error is computed from: whole output channels, evenly taken
# A channel whose share is below this is treated as if it had this share: it may be silent by chance
LEAST_SHARE = 1e-4
# Errors that differ by less are the same but for rounding
LEAST_DIFFERENCE = 1e-6
# Beyond this, both signs reach about equally far
ONE_SIDED = 2.0
TINY = float(np.finfo(np.float64).tiny)
SILENT = 1e-90  # a reader whose outputs have at most this square gives zeros: no float32 squares to less
TINY_FLOAT32 = np.finfo(np.float32).tiny


@dataclass(frozen=True)
class FactorCandidate:
    """Factors that were tried.

    Attributes:
        exponent: `a`; None for no change.
        divisor: `[channels]`, positive.
        outliers: Channels whose excess over the range of all others is added in float.

    """

    exponent: float | None
    divisor: np.ndarray
    outliers: tuple[int, ...] = ()


class FactorCandidates(NamedTuple):
    """Factors to try, together: a chain of small layers has as many searches as layers.

    Attributes:
        exponents: `a` of each.
        divisors: `[candidates, channels]`, positive.
        without: The divisor of each channel without the batch that set its range.

    """

    exponents: tuple[float, ...]
    divisors: np.ndarray
    without: np.ndarray


class QuantizedRead:
    """A value that is read in 8 bit, and everybody who reads it.

    Args:
        stats: Of the value, by channel.
        weights: Of its readers: `[groups, outputs, channels / groups, positions]`.
        importance: For each of them the weight of a squared error of an output channel, `[groups * outputs]`; None if
            all count the same.
        in_float: Whether it is read in float after all: only the weights are rounded.

    Attributes:
        energy: `[channels]`: what a squared error of a channel counts, in relation to what the readers give.

    """

    def __init__(
        self,
        stats: ChannelStats,
        weights: Iterable[np.ndarray],
        importance: Sequence[np.ndarray | None],
        *,
        in_float: bool = False,
    ) -> None:
        self.stats = stats
        self.in_float = in_float
        self.second = stats.second_moment
        self.mean = stats.mean
        self.variance = np.maximum(self.second - np.square(self.mean), 0)
        self._parts: list[tuple[np.ndarray, np.ndarray, float]] = []  # weight, importance of its outputs, share taken
        self.energy = np.zeros(stats.channels)
        for weight, given in zip(weights, importance, strict=True):
            mean, variance = (each.reshape(len(weight), -1, 1) for each in (self.mean, self.variance))
            slices = widened_slices(weight.shape[1], weight.size)
            found = [self._outputs(weight[:, rows].astype(np.float64), mean, variance) for rows in slices]
            outputs = np.concatenate(found, axis=1)[..., 0]
            counts = np.ones_like(outputs) if given is None else given.reshape(outputs.shape)
            signal = float((outputs * counts).sum())
            counts = counts / signal if signal > SILENT else np.zeros_like(counts)
            for rows in slices:
                squares = _squares(weight[:, rows].astype(np.float64))
                self.energy += np.matmul(counts[:, None, rows], squares).reshape(-1)
            step = max(1, -(-weight.size // LARGEST))
            taken = np.ascontiguousarray(weight[:, ::step], np.float32)
            self._parts.append((taken, counts[:, ::step], weight.shape[1] / taken.shape[1]))

    def _outputs(self, change: np.ndarray, mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
        """Mean square of each output of weights; channels correlate by their means alone.

        Args:
            change: `[..., groups, outputs, channels / groups, positions]`.
            mean: Of the channels, `[..., groups, channels / groups, ways]`: of what each of several ways lets through.
            variance: The same.

        Returns:
            `[..., groups, outputs, ways]`.

        """
        if change.shape[-1] == 1:  # a sum over one position takes several times as long as a copy
            total = change[..., 0].astype(np.float64)
            squares = np.square(total)
        else:
            total, squares = change.sum(axis=-1, dtype=np.float64), _squares(change)
        return np.asarray(np.matmul(squares, variance) + np.square(np.matmul(total, mean)))

    def errors(self, divisors: np.ndarray, without: np.ndarray, outliers: np.ndarray | None) -> np.ndarray:
        """Squared error at the outputs, in relation to their signal, of each candidate: the sum over the readers.

        Args:
            divisors: Of each candidate, `[candidates, channels]`.
            without: See `FactorCandidates`.
            outliers: bool `[candidates, channels, ways]`: ways to let channels leave the range of the others; None for
                one way, in which none does.

        Returns:
            float64 `[candidates, ways]`.

        """
        high, low = self._ranges(divisors, outliers)
        total = np.zeros(high.shape)
        if not self.in_float:
            total += self._activation_errors(divisors, without, outliers, high, low)
        mean, variance = self.mean[None, :, None], self.variance[None, :, None]
        if outliers is not None:
            limits = np.maximum(high, -low)[:, None] * divisors[:, :, None]
            left = np.minimum(1.0, limits / np.sqrt(np.maximum(self.second, TINY))[:, None])
            left = np.where(outliers, left, 1.0)
            mean, variance = mean * left, variance * np.square(left)
        for part in self._parts:
            total += self._weight_errors(part, divisors, mean, variance)
        return total

    def _ranges(self, s: np.ndarray, outliers: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """Return the greatest and the least of what is read, `[candidates, ways]`, zero within."""
        high, low = (
            _of_others(extremes[0] / s, outliers).max(axis=1, initial=0.0)
            for extremes in (self.stats.high, -self.stats.low)
        )
        return high, -low

    def _activation_errors(
        self, s: np.ndarray, without: np.ndarray, outliers: np.ndarray | None, high: np.ndarray, low: np.ndarray
    ) -> np.ndarray:
        step = np.maximum((high - low) / LEVELS, TINY)[:, None]
        rounding = np.minimum(np.square(s[:, :, None] * step) / 12, self.second[:, None])
        above = np.maximum(self.stats.high[0][:, None] - high[:, None] * without[:, :, None], 0)
        below = np.maximum(low[:, None] * without[:, :, None] - self.stats.low[0][:, None], 0)
        clipping = (np.square(above) + np.square(below)) / self.stats.count
        if outliers is not None:
            clipping = np.where(outliers, 0.0, clipping)
        return np.asarray(np.einsum("k,ckw->cw", self.energy, rounding + clipping))

    def _weight_errors(
        self, part: tuple[np.ndarray, np.ndarray, float], s: np.ndarray, mean: np.ndarray, variance: np.ndarray
    ) -> np.ndarray:
        weight, importance, share = part
        groups, width = len(weight), weight.shape[2]
        together = max(1, LARGEST // weight.size)  # small weights by many candidates, large ones by one at a time
        found = []
        for start in range(0, len(s), together):
            chosen = slice(start, start + together)
            divisor = s[chosen].reshape(-1, groups, 1, width, 1).astype(np.float32)
            scaled = weight * divisor
            change = np.abs(scaled)
            scale = np.maximum(change.max(axis=(3, 4), keepdims=True), TINY_FLOAT32)
            scale /= np.float32(WEIGHT_LEVELS)
            np.divide(scaled, scale, out=change)
            np.rint(change, out=change)
            change *= scale
            change -= scaled
            change /= divisor
            moments = (
                (each if len(each) == 1 else each[chosen]).reshape(-1, groups, width, each.shape[2])
                for each in (mean, variance)
            )
            found.append((self._outputs(change, *moments) * importance[..., None]).sum(axis=(1, 2)))
        return share * np.concatenate(found)


def _of_others(values: np.ndarray, outliers: np.ndarray | None) -> np.ndarray:
    """Return values `[candidates, channels]` in each way, `[..., ways]`, with 0 for the channels that leave."""
    return values[:, :, None] if outliers is None else np.where(outliers, 0.0, values[:, :, None])


def widened_slices(length: int, size: int) -> list[slice]:
    """Cut an axis of an array of some size such that few of its elements are in float64 at a time."""
    together = max(1, WIDENED * length // max(size, 1))
    return [slice(start, start + together) for start in range(0, length, together)]


def _squares(weight: np.ndarray) -> np.ndarray:
    """Add up the squares of all positions, in float64: candidates lie nearer to each other than float32's last bits."""
    if weight.shape[-1] == 1:
        return np.asarray(np.square(weight[..., 0], dtype=np.float64))
    return np.asarray(np.einsum("...p,...p->...", weight, weight, dtype=np.float64))


def weight_of(reader: AbsorbingConstant, array: np.ndarray) -> np.ndarray:
    """Bring a reader's weight into the form `[groups, outputs, channels / groups, positions]`."""
    if reader.node.op_type == "Conv":
        groups = reader.groups
        return array.reshape(groups, len(array) // groups, array.shape[1], -1)
    rows = np.moveaxis(array, reader.axis, -1)
    return rows.reshape(1, -1, rows.shape[-1] // reader.positions, reader.positions)


def best(
    readings: Sequence[QuantizedRead],
    *,
    even: bool = False,
    price: float = 0.0,
    outlier_prices: Mapping[int, float] | None = None,
    needed: np.ndarray | None = None,
    least_share: float = LEAST_SHARE,
) -> tuple[FactorCandidate, float]:
    """Search the factors for values that are divided together.

    Args:
        readings: The values.
        even: Whether factors come from the mean size of each channel instead of its range.
        price: dB that dividing has to gain.
        outlier_prices: How many channels may leave the range of the others, and dB that this has to gain.
        needed: The share of the room below an upper bound that each channel needs; None without one (`bounded.py`).
        least_share: Least weight of a channel, as a share of the greatest.

    Returns:
        The candidate that gains most beyond its price, and its gain over no change in dB; 0 for no change.

    """
    width = readings[0].stats.channels
    if needed is not None:
        divisor = np.sqrt(np.minimum(needed, 1.0))[None]
        tried = [FactorCandidates((HALF_WAY,), divisor, divisor)]
    else:
        tried = (_even_candidates if even else _candidates)(readings, least_share)
    unchanged = np.ones((1, width))
    exponents = (None, *(exponent for each in tried for exponent in each.exponents))
    divisors = np.concatenate([unchanged, *(each.divisors for each in tried)])
    without = np.concatenate([unchanged, *(each.without for each in tried)])
    prices = {0: 0.0, **(outlier_prices or {})}
    outliers = None
    if outlier_prices:
        outliers = _outlier_order(readings, divisors)[:, :, None] < np.array(list(prices))
    errors = np.sum([reading.errors(divisors, without, outliers) for reading in readings], axis=0)
    if not errors[0, 0] > 0:
        return FactorCandidate(None, divisors[0]), 0.0
    paid = np.full(errors.shape, 1 + LEAST_DIFFERENCE) * 10 ** (np.array(list(prices.values())) / 10)
    paid[1:] *= 10 ** (price / 10)
    paid[0, 0] = 1.0
    place, way = np.unravel_index(np.argmin(errors * paid), errors.shape)
    leaving = () if outliers is None else tuple(np.flatnonzero(outliers[place, :, way]).tolist())
    chosen = FactorCandidate(exponents[place], divisors[place], leaving)
    return chosen, float(10 * np.log10(errors[0, 0] / errors[place, way])) if errors[place, way] > 0 else 0.0


def _outlier_order(readings: Sequence[QuantizedRead], divisors: np.ndarray) -> np.ndarray:
    """Rank channels by how far they reach when divided, `[candidates, channels]`; 0 reaches furthest."""
    reach = np.max([np.maximum(r.stats.high[0], -r.stats.low[0]) for r in readings], axis=0)
    return np.argsort(np.argsort(-(reach / divisors), axis=1, kind="stable"), axis=1)


def _even_candidates(readings: Sequence[QuantizedRead], least_share: float) -> list[FactorCandidates]:
    """Return factors from the mean size of each channel: no batch sets it, so none is clipped that goes further."""
    norm = np.sqrt(sum(reading.energy for reading in readings))
    size = np.sqrt(sum(reading.second for reading in readings))
    carried = size * norm
    if not carried.max() > 0:
        return []
    norm = np.maximum(norm, norm.max() * least_share**2)
    size = np.maximum(size, carried.max() * least_share / norm)
    divisors = _blended(np.array(MEAN_EXPONENTS)[:, None], size, norm)
    return [FactorCandidates(MEAN_EXPONENTS, divisors, divisors)]


def _candidates(readings: Sequence[QuantizedRead], least_share: float) -> list[FactorCandidates]:
    norm = np.sqrt(sum(reading.energy for reading in readings))
    if not norm.max() > 0:
        return []
    found = []
    norm = np.maximum(norm, norm.max() * least_share**2)
    for weight in _side_weights(readings):
        # Several values are weighted by what their channels carry, seen from the readers
        sides = [np.maximum(r.stats.high, -r.stats.low * np.float32(weight)).astype(np.float64) for r in readings]
        reach = np.maximum(np.max(sides, axis=0), 0)
        carried = reach * norm
        if not carried.max() > 0:
            continue
        first, second = np.maximum(reach, carried.max() * least_share / norm)
        divisors, without = _blended(POWERS, first, norm), _blended(POWERS, second, norm)
        # The range of the whole value stays what it was
        sizes = (reach[0] / divisors).max(axis=1, keepdims=True) / reach[0].max()
        found.append(FactorCandidates(EXPONENTS, divisors * sizes, without * sizes))
    return found


def _blended(exponents: np.ndarray, size: np.ndarray, norm: np.ndarray) -> np.ndarray:
    """Return `size^a / norm^(1-a)` for each exponent a of a column."""
    return exp2_array(exponents * log2_array(size) - (1 - exponents) * log2_array(norm))


def _side_weights(readings: Sequence[QuantizedRead]) -> list[float]:
    """How much a negative value counts against a positive one, where one side reaches further than the other.

    After GELU every channel reaches down to -0.17, and a few up to 25. Equal negative and positive sides would waste
    half of the codes.
    """
    high = max(float(r.stats.high[0].max()) for r in readings)
    low = -min(float(r.stats.low[0].min()) for r in readings)
    if high <= 0 or low <= 0 or 1 / ONE_SIDED < high / low < ONE_SIDED:
        return [1.0]
    ratio = float(np.clip(high / low, 1 / 8, 8))
    return [1.0, ratio]
