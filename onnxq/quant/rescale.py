"""How much error a rescaling of channels causes in 8 bit, and the search for the factors that cause the least.

A value x with one 8-bit scale Δ for all channels, divided by s and read by a weight whose input channels are multiplied
by s, has at the reader's outputs the squared error

    Σ_k s_k² ‖W_k‖² min(Δ²/12, E[x_k²]/s_k²)         rounding of x/s (a channel below Δ/2 is rounded to zero)
  + Σ_k ‖W_k‖² E[clipped part of x_k]²               on data that calibration has not seen: leave one batch out
  + Σ_j E[(D_j x)²]                                  rounding of the weight, D = round(W s)/s - W

Factors come from the family `s = r^a / ‖W‖^(1-a)` of SmoothQuant (https://arxiv.org/abs/2211.10438, equation 4), with
the range r of each channel, or with its mean size, which no outlier sets. They undo every rescaling of the channels
that the model may come with, because `r → c r, ‖W‖ → ‖W‖/c` gives `s → c s`; so does the error, as long as an output
channel whose size is a matter of choice counts by what its own readers make of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from onnxq.quant.channels import ChannelStats
from onnxq.quant.folding import Constant

EXPONENTS = (0.0, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0)
MEAN_EXPONENTS = (0.3, 0.5, 0.6, 0.7, 0.8)
LEVELS = 255
WEIGHT_LEVELS = 127
LARGEST = 1 << 18  # elements of a weight that the error is computed from: whole output channels, evenly taken
# A channel whose share is below this is treated as if it had this share: it may be silent by chance
LEAST_SHARE = 1e-4
# Beyond this, both signs reach about equally far
ONE_SIDED = 2.0


@dataclass(frozen=True)
class Candidate:
    """Factors to try.

    Attributes:
        exponent: `a`; None for no change.
        divisor: `[channels]`, positive.
        without: What the divisor of each channel would have been without the batch that set its range.
        apart: Channels that are not among those read in 8 bit, but computed apart in float.

    """

    exponent: float | None
    divisor: np.ndarray
    without: np.ndarray
    apart: tuple[int, ...] = ()


class Reading:
    """A value that is read in 8 bit, and everybody who reads it.

    Args:
        stats: Of the value, by channel.
        weights: What it is multiplied with: `[groups, outputs, channels / groups, positions]`.
        importance: For each of them what a squared error of an output channel counts, `[groups * outputs]`; None where
            all count the same.
        in_float: Whether it is read in float after all: only the weights are rounded.

    Attributes:
        energy: `[channels]`: what a squared error of a channel counts, in relation to what the readers give.

    """

    def __init__(
        self,
        stats: ChannelStats,
        weights: Sequence[np.ndarray],
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
            outputs = self._outputs(weight)
            counts = np.ones_like(outputs) if given is None else given.reshape(outputs.shape)
            counts = counts / max(float((outputs * counts).sum()), np.finfo(np.float64).tiny)
            squares = np.einsum("goip,goip->goi", weight, weight)
            self.energy += np.matmul(counts[:, None], squares).reshape(-1)
            step = max(1, -(-weight.size // LARGEST))
            taken = np.ascontiguousarray(weight[:, ::step], np.float32)
            self._parts.append((taken, counts[:, ::step], weight.shape[1] / taken.shape[1]))

    def _outputs(self, change: np.ndarray) -> np.ndarray:
        """Mean square of each output `[..., groups, outputs]` of weights; channels correlate by their means alone."""
        groups = change.shape[-4]
        mean, variance = self.mean.reshape(groups, -1), self.variance.reshape(groups, -1)
        spread = np.matmul(np.einsum("...ip,...ip->...i", change, change), variance[:, :, None])
        shift = np.matmul(change.sum(axis=-1), mean[:, :, None])
        return np.asarray((spread + np.square(shift))[..., 0])

    def errors(self, candidates: Sequence[Candidate], weight_share: float) -> np.ndarray:
        """Squared error at the outputs, in relation to their signal, of each candidate: the sum over the readers.

        Args:
            candidates: The factors; the same channels are apart in all of them.
            weight_share: How much of the error of rounding the weights to nearest counts: less than 1 where better
                rounding follows.

        Returns:
            float64 `[candidates]`.

        """
        divisors = np.stack([candidate.divisor for candidate in candidates])
        apart = list(candidates[0].apart)
        total = np.zeros(len(candidates))
        if not self.in_float:
            total += self._activation_errors(divisors, np.stack([c.without for c in candidates]), apart)
        return total + weight_share * sum(self._weight_errors(part, divisors, apart) for part in self._parts)

    def _activation_errors(self, s: np.ndarray, without: np.ndarray, apart: list[int]) -> np.ndarray:
        greatest, least = self.stats.high[0].copy(), self.stats.low[0].copy()
        greatest[apart] = least[apart] = 0
        high = np.maximum((greatest / s).max(axis=1, keepdims=True), 0.0)
        low = np.minimum((least / s).min(axis=1, keepdims=True), 0.0)
        step = np.maximum((high - low) / LEVELS, np.finfo(np.float64).tiny)
        rounding = np.minimum(np.square(s * step) / 12, self.second)
        rounding[:, apart] = 0
        above = np.maximum(greatest - high * without, 0)
        below = np.maximum(low * without - least, 0)
        clipping = (np.square(above) + np.square(below)) / self.stats.count
        return np.asarray((self.energy * (rounding + clipping)).sum(axis=1))

    def _weight_errors(self, part: tuple[np.ndarray, np.ndarray, float], s: np.ndarray, apart: list[int]) -> np.ndarray:
        weight, importance, share = part
        kept = s.astype(np.float32)
        kept[:, apart] = 0
        together = max(1, LARGEST // weight.size)  # small weights by many candidates, large ones by one at a time
        found = []
        for start in range(0, len(s), together):
            chosen = slice(start, start + together)
            scaled = weight * kept[chosen].reshape(-1, len(weight), 1, weight.shape[2], 1)
            scale = np.maximum(np.abs(scaled).max(axis=(3, 4), keepdims=True), np.finfo(np.float32).tiny)
            scale /= np.float32(WEIGHT_LEVELS)
            change = np.rint(scaled / scale)
            change *= scale
            change -= scaled
            change /= s[chosen].reshape(-1, len(weight), 1, weight.shape[2], 1).astype(np.float32)
            found.append((self._outputs(change) * importance).sum(axis=(1, 2)))
        return share * np.concatenate(found)


def weight_of(reader: Constant, array: np.ndarray) -> np.ndarray:
    """Bring a reader's weight into the form `[groups, outputs, channels / groups, positions]`."""
    if reader.node.op_type == "Conv":
        groups = reader.groups
        return array.reshape(groups, len(array) // groups, array.shape[1], -1)
    rows = np.moveaxis(array, reader.axis, -1)
    return rows.reshape(1, -1, rows.shape[-1] // reader.positions, reader.positions)


def best(
    readings: Sequence[Reading], weight_share: float, *, even: bool = False, apart: int = 0, pays: float = 0.0
) -> tuple[Candidate, float]:
    """Search the factors for values that are divided together.

    Args:
        readings: The values.
        weight_share: See `Reading.error`.
        even: Whether factors come from the mean size of each channel instead of its range.
        apart: At most so many channels may be computed apart.
        pays: dB that each of them has to gain.

    Returns:
        The best candidate, and how much less its error is than without a change, in dB; 0 for no change.

    """
    width = readings[0].stats.channels
    unchanged = Candidate(None, np.ones(width), np.ones(width))
    attempts = [unchanged, *(_even_candidates if even else _candidates)(readings)]
    outliers = _outliers(readings, apart)
    chosen, before, least = unchanged, np.inf, np.inf
    for count in range(len(outliers) + 1):
        taken = tuple(sorted(outliers[:count]))
        tried = [replace(candidate, apart=taken) for candidate in attempts] if taken else attempts
        errors = np.sum([reading.errors(tried, weight_share) for reading in readings], axis=0)
        if not count:
            before = least = float(errors[0])
        goal = least * 10 ** (-(pays if count else 0.0) / 10) * (1 - 1e-6)
        for attempt, error in zip(tried, errors.tolist(), strict=True):
            if error < min(least, goal):
                chosen, least = attempt, error
    return chosen, float(10 * np.log10(before / least)) if least > 0 else 0.0


def _outliers(readings: Sequence[Reading], count: int) -> list[int]:
    """Name the channels that carry most, in this order."""
    if not count:
        return []
    reach = np.max([np.maximum(r.stats.high[0], -r.stats.low[0]) for r in readings], axis=0)
    carried = reach * np.sqrt(sum(reading.energy for reading in readings))
    return [int(channel) for channel in np.argsort(-carried, kind="stable")[:count]]


def _even_candidates(readings: Sequence[Reading]) -> Iterator[Candidate]:
    """Give factors from the mean size of each channel: no batch sets it, so none is clipped that goes further."""
    norm = np.sqrt(sum(reading.energy for reading in readings))
    size = np.sqrt(sum(reading.second for reading in readings))
    carried = size * norm
    if not carried.max() > 0:
        return
    norm = np.maximum(norm, norm.max() * LEAST_SHARE**2)
    size = np.maximum(size, carried.max() * LEAST_SHARE / norm)
    for exponent in MEAN_EXPONENTS:
        divisor = size**exponent / norm ** (1 - exponent)
        yield Candidate(exponent, divisor, divisor)


def _candidates(readings: Sequence[Reading]) -> Iterator[Candidate]:
    norm = np.sqrt(sum(reading.energy for reading in readings))
    if not norm.max() > 0:
        return
    norm = np.maximum(norm, norm.max() * LEAST_SHARE**2)
    for weight in _side_weights(readings):
        # Of several values each counts by what its channels carry, seen from the readers
        sides = [np.maximum(r.stats.high, -r.stats.low * np.float32(weight)).astype(np.float64) for r in readings]
        reach = np.maximum(np.max(sides, axis=0), 0)
        carried = reach * norm
        if not carried.max() > 0:
            continue
        first, second = np.maximum(reach, carried.max() * LEAST_SHARE / norm)
        exponents = np.array(EXPONENTS)[:, None]
        divided = norm ** (1 - exponents)
        divisors, without = first**exponents / divided, second**exponents / divided
        # The range of the whole value stays what it was
        sizes = (reach[0] / divisors).max(axis=1, keepdims=True) / reach[0].max()
        yield from map(Candidate, EXPONENTS, divisors * sizes, without * sizes)


def _side_weights(readings: Sequence[Reading]) -> list[float]:
    """How much a negative value counts against a positive one, where one side reaches further than the other.

    After GELU every channel reaches down to -0.17, and a few up to 25: making negative sides equal to positive ones
    would waste half of the codes on them.
    """
    high = max(float(r.stats.high[0].max()) for r in readings)
    low = -min(float(r.stats.low[0].min()) for r in readings)
    if high <= 0 or low <= 0 or 1 / ONE_SIDED < high / low < ONE_SIDED:
        return [1.0]
    ratio = float(np.clip(high / low, 1 / 8, 8))
    return [1.0, ratio]
