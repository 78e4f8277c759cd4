"""Search codes and scales of one weight on the second moments of its layer's input: see `rounding`.

Tests: `tests/rounding/test_jobs.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from onnxq.calibration.gram import Gram
from onnxq.calibration.qparams import TINY
from onnxq.rounding.coordinate_descent import Bounds, Descended, Feedback, damped, descend, limit, nearest, part_of
from onnxq.rounding.few_rows import FewRowsFeedback, FewRowsGram, descend_few_rows
from onnxq.rounding.saturation_limits import PairLimits
from onnxq.rounding.scale_layout import ScaleLayout, code_bounds, storable

# Tried on the first half of the samples, judged on the second. Few samples want more: MiniLM gains 2.7 dB from 0.0001
# to 0.1, super-resolution with its many pixels loses 5.
DAMPINGS = (1e-4, 1e-2, 0.2)
FEW_ROWS, MANY_ROWS = 4, 64  # for each column, up to which and from which on a trial takes the most and the least
PROBED = 64  # channels that this is tried on, in layers of one group
# Starting scales relative to the predicted one, and how many of them a layer can afford. Each gives other codes, and
# every channel keeps its best. Clipping costs more than coarser steps, so most lie above.
SCALE_FACTORS = (1.0, 1.03, 0.97, 1.06, 1.015, 0.985, 1.045, 0.94)
AFFORDABLE = ((1e7, 8), (4e7, 4), (2.5e8, 2), (float("inf"), 1))  # multiplications of one sweep → starts
COLUMN = 1e5  # further cost of stepping to the next column, in multiplications
SWEEPS = 4
MARGIN = 1e-9  # no choice hangs on the last bits of a sum
SIDE_BY_SIDE = 1 << 17  # elements up to which dampings are tried together: a step for each column takes longer
SLAB = 1 << 21  # elements that are worked on at a time: 16 MB in float64

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
class DampedHessian:
    """Second moments as far as they are trusted, made ready for error feedback, which takes as long as rounding.

    Attributes:
        damping: What was added to H, relative to its mean diagonal.
        gram: H with that.
        feedback: H decomposed.

    """

    damping: float
    gram: Gram
    feedback: Feedback

    @classmethod
    def of(cls, gram: Gram, damping: float) -> DampedHessian:
        """Make moments ready."""
        H = damped(gram.matrix, damping)
        return cls(damping, Gram(H, gram.mean, gram.rows), Feedback(H))


@dataclass(frozen=True)
class FewRowsHessian:
    """The same of few rows; see `DampedHessian`."""

    damping: float
    gram: FewRowsGram
    feedback: FewRowsFeedback

    @classmethod
    def of(cls, gram: FewRowsGram, damping: float) -> FewRowsHessian:
        """Make moments ready."""
        damped_gram = gram.damped(damping)
        return cls(damping, damped_gram, FewRowsFeedback(damped_gram))


AnyGram = Gram | FewRowsGram
Trusted = DampedHessian | FewRowsHessian


class MomentSource(Protocol):
    """The second moments of an input, computed again at each request: they are the largest array here."""

    @property
    def assumed(self) -> bool:
        """Whether they are not measured, and all the same."""

    def fitted(self) -> Gram:
        """Those to make choices on."""

    def held_out(self) -> Gram:
        """Those to judge them on."""

    def total(self) -> Gram:
        """All of them."""


class AnySource(Protocol):
    """The same, where moments of few rows may have another form."""

    @property
    def assumed(self) -> bool:
        """See `MomentSource`."""

    def fitted(self) -> AnyGram:
        """See `MomentSource`."""

    def held_out(self) -> AnyGram:
        """See `MomentSource`."""

    def total(self) -> AnyGram:
        """See `MomentSource`."""


class WeightSolver:
    """The search for one weight; scales are float64 numbers that float32 can hold."""

    def __init__(
        self,
        rows: np.ndarray,
        layout: ScaleLayout,
        limit: int,
        floor: np.ndarray,
        covering: np.ndarray,
        *,
        quick: bool,
        pairs: PairLimits | None = None,
    ) -> None:
        self.quick, self.pairs = quick, pairs
        self.rows, self.layout, self.limit, self.floor, self.covering = rows, layout, limit, floor, covering
        steps = layout.expand(covering)
        self.nearest = nearest(rows, steps, code_bounds(rows, steps, limit, pairs))

    def run(self, measured: AnySource) -> RoundedWeight:
        """Decide how far H is trusted, then choose codes with all of it."""
        held_out = measured.held_out()
        fitted = held_out if measured.assumed else measured.fitted()
        plain = self._errors(held_out, self.nearest, self.covering)
        gains = np.zeros(len(self.rows), bool)
        trusted, held = None, plain
        if shows_something(fitted) and held_out.rows:
            trusted, found = self._trusted(fitted, held_out)
            gains, held = self._better(found, plain), np.minimum(found, plain)
        if trusted is None or not gains.any():
            return RoundedWeight(self.nearest.astype(np.int8), self.layout.shaped(self.covering), "nearest")
        damping = trusted.damping
        if not measured.assumed:
            del fitted, trusted  # as large as what takes their place
            trusted = _ready(measured.total(), damping)
        codes, scales = self._solve(trusted, self._starts(trusted.gram), 1 if self.quick else SWEEPS)
        gains &= self._better(self._errors(held_out, codes, scales), plain)
        codes, scales = self._keep(gains, (codes, scales), (self.nearest, self.covering))
        gain = 10 * np.log10(max(plain.sum(), TINY) / max(held.sum(), TINY))
        method: Method = "output error" if gains.any() else "nearest"
        return RoundedWeight(codes.astype(np.int8), self.layout.shaped(scales), method, float(gain), damping)

    def _trusted(self, fitted: AnyGram, held_out: AnyGram) -> tuple[Trusted, np.ndarray]:
        """Choose by some of the channels how far H is trusted; gives the held-out error of all of them with it, too."""
        if self.quick:  # there is one damping
            only = _ready(fitted, usual_damping(fitted))
            return only, self.trial(only, held_out)
        probe = self._probe() if len(fitted.mean) == 1 else self
        plain = probe._errors(held_out, probe.nearest, probe.covering)
        best: tuple[float, Trusted, np.ndarray] | None = None
        for tried, (candidate, found) in enumerate(probe._trials(fitted, held_out)):
            kept = probe.kept(found, plain)
            gains = best is None or kept < best[0]
            best = (kept, candidate, found) if best is None or gains else best
            del candidate  # before there is another
            if tried and gains:  # the other side of the first one is worse
                break
        assert best is not None
        return best[1], best[2] if probe is self else self.trial(best[1], held_out)

    def _trials(self, fitted: AnyGram, held_out: AnyGram) -> Iterator[tuple[Trusted, np.ndarray]]:
        """Yield each damping and what `trial` gives with it; those of a small H are problems side by side."""
        dampings = in_order(fitted)
        blocks, size = fitted.shape
        few = isinstance(fitted, FewRowsGram)
        if few or len(dampings) * max(blocks * size**2, self.rows.size) > SIDE_BY_SIDE:
            for damping in dampings:
                candidate = _ready(fitted, damping)
                yield candidate, self.trial(candidate, held_out)
                del candidate
            return
        assert isinstance(fitted, Gram)
        matrices = [damped(fitted.matrix, damping) for damping in dampings]
        feedback = Feedback(np.concatenate(matrices))
        parts = feedback.split(len(dampings))
        tried = [self._allowed(self._predicted(fitted, part.weights)) for part in parts]
        laid = zip(*(self._laid(fitted, scales) for scales in tried), strict=True)
        weight, steps, low, high = (np.concatenate(arrays) for arrays in laid)
        codes = np.split(feedback.round(weight, steps, _bounds(weight, low, high)), len(dampings))
        for damping, H, part, scales, chosen in zip(dampings, matrices, parts, tried, codes, strict=True):
            found = self._errors(held_out, self._as_rows(fitted, chosen), scales)
            yield DampedHessian(damping, Gram(H, fitted.mean, fitted.rows), part), found

    def trial(self, fitted: Trusted, held_out: AnyGram) -> np.ndarray:
        """Return the held-out error of each channel under codes from the other half."""
        scales = self._allowed(self._predicted(fitted.gram, fitted.feedback.weights))
        weight, steps, low, high = self._laid(fitted.gram, scales)
        codes = _fed_back(fitted.feedback, weight, steps, _bounds(weight, low, high))
        return self._errors(held_out, self._as_rows(fitted.gram, codes), scales)

    def kept(self, found: np.ndarray, plain: np.ndarray) -> float:
        """Return what a channel keeps of its held-out error on average: the choice must not hang on how large it is."""
        if self.layout.per_tensor:
            return float(found.sum() / max(plain.sum(), TINY))
        return float(np.divide(found, plain, out=np.ones_like(found), where=plain > 0).clip(0, 1).mean())

    def _probe(self) -> WeightSolver:
        """Return the search for a few channels, spread evenly."""
        if len(self.rows) <= PROBED:
            return self
        taken = np.arange(PROBED) * len(self.rows) // PROBED
        floor, covering = (a[taken] if len(a) > 1 else a for a in (self.floor, self.covering))
        layout = ScaleLayout((PROBED, self.layout.n), self.layout.per_tensor, self.layout.block_size)
        pairs = None if self.pairs is None else self.pairs.taken(taken, len(self.rows))
        return WeightSolver(self.rows[taken], layout, self.limit, floor, covering, quick=self.quick, pairs=pairs)

    def _errors(self, gram: AnyGram, codes: np.ndarray, scales: np.ndarray) -> np.ndarray:
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

    def _starts(self, gram: AnyGram) -> tuple[float, ...]:
        columns = gram.shape[1]
        work = (self.rows.size + COLUMN) * columns
        return SCALE_FACTORS[: 1 if self.quick else next(count for most, count in AFFORDABLE if work <= most)]

    def _solve(self, trusted: Trusted, starts: tuple[float, ...], sweeps: int) -> tuple[np.ndarray, np.ndarray]:
        """Choose codes from several starting scales, then refit the scales of the best and go down once more."""
        judged, feedback = trusted.gram, trusted.feedback
        predicted = self._predicted(judged, feedback.weights)
        tried = [self._allowed(predicted * factor) for factor in starts]
        best: _Found | None = None
        for found in self._from_scales(judged, feedback, tried, sweeps):
            best = found if best is None else self._kept_better(found, best)
        assert best is not None
        if self.layout.blocks == 1:
            best = self._kept_better(self._refined(judged, best, sweeps // 2), best)
        return best.codes, best.scales

    def _kept_better(self, one: _Found, other: _Found) -> _Found:
        """Take those channels from `one` that have the lesser error there, and the rest from `other`."""
        which = self._better(one.errors, other.errors)
        codes, scales = self._keep(which, (one.codes, one.scales), (other.codes, other.scales))
        slope = np.where(which[:, None], one.slope, other.slope)
        return _Found(codes, scales, slope, np.where(which, one.errors, other.errors))

    def _allowed(self, scales: np.ndarray) -> np.ndarray:
        """Return the nearest scales that float32 holds and that are not below the floor."""
        return storable(np.maximum(scales, self.floor))

    def _predicted(self, judged: AnyGram, weights: np.ndarray) -> np.ndarray:
        """Return the scales of least error to be expected, by what a squared error in each column costs."""
        reach = None if self.pairs is None else self.pairs.reach(self.rows)
        joined = judged.join(weights[:, None])
        return self.layout.least_predicted(self.rows, joined, self.covering, self.limit, reach)

    def _from_scales(
        self, judged: AnyGram, feedback: Feedback | FewRowsFeedback, tried: Sequence[np.ndarray], sweeps: int
    ) -> Iterator[_Found]:
        """Yield codes for each of several scales: error feedback, then coordinate descent.

        Scales of a small weight are tried side by side, as channels of their own: each column is one step for all.
        """
        together = max(SLAB // max(self.rows.size, 1), 1)
        for first in range(0, len(tried), together):
            some = tried[first : first + together]
            laid = [self._laid(judged, scales) for scales in some]
            weight, steps, low, high = (_joined(arrays, 2) for arrays in zip(*laid, strict=True))
            bounds = _bounds(weight, low, high)
            fed_back = _fed_back(feedback, weight, steps, bounds)
            found = _descended(judged, weight, steps, bounds, sweeps, fed_back)
            for scales, codes, slope in zip(some, *(np.split(a, len(laid), axis=2) for a in found), strict=True):
                yield self._found(judged, scales, codes, slope)

    def _refined(self, judged: AnyGram, best: _Found, sweeps: int) -> _Found:
        """Return codes that a descent finds from those of another scale, the one of least error for them."""
        scales, product = self._refit(judged, best.codes, best.scales)
        weight, steps, low, high = self._laid(judged, scales)
        bounds = _bounds(weight, low, high)
        slope = best.slope + (self.layout.expand(scales) - self.layout.expand(best.scales)) * product
        start, slope = (self._columns(judged, a) for a in (best.codes, slope))
        codes = limit(start.copy(), bounds)
        if (codes != start).any():  # where other scales limit neighbours more
            slope += judged.product(((codes - start) * steps).transpose(0, 2, 1)).transpose(0, 2, 1)
        return self._found(judged, scales, *_descended(judged, weight, steps, bounds, sweeps, codes, slope))

    def _found(self, judged: AnyGram, scales: np.ndarray, codes: np.ndarray, slope: np.ndarray) -> _Found:
        codes, slope = (self._as_rows(judged, a) for a in (codes, slope))
        change = codes * self.layout.expand(scales) - self.rows
        return _Found(codes, scales, slope, np.einsum("mn,mn->m", change, slope))

    def _laid(self, judged: AnyGram, scales: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return weight, steps, and both bounds by column; bounds of one element where they are the same for all."""
        expanded = self.layout.expand(scales)
        bounds = code_bounds(self.rows, expanded, self.limit, self.pairs)
        low, high = (
            self._columns(judged, b) if isinstance(b, np.ndarray) else np.full((1, 1, 1), float(b)) for b in bounds
        )
        weight, steps = (self._columns(judged, a) for a in (self.rows, expanded))
        return weight, np.where(steps > 0, steps, 1.0), low, high  # 1 for columns that only fill up a block

    @staticmethod
    def _columns(gram: AnyGram, rows: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(gram.split(rows).transpose(0, 2, 1))

    @staticmethod
    def _as_rows(gram: AnyGram, columns: np.ndarray) -> np.ndarray:
        """Undo `_columns`."""
        return gram.join(columns.transpose(0, 2, 1))

    def _refit(self, judged: AnyGram, codes: np.ndarray, scales: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the scale of least error for codes as they are, and `z H` of each channel.

        That scale is `(z H w) / (z H zᵀ)` of each channel, or of all.
        """
        cut, weight = judged.split(codes), judged.split(self.rows)
        product = judged.product(cut)
        shares = [np.einsum("pmb,pmb->pm", product, other) for other in (weight, cut)]
        above, below = (a.reshape(len(judged.mean), -1, a.shape[1]).sum(axis=1).reshape(-1, 1) for a in shares)
        if self.layout.per_tensor:
            above, below = above.sum(keepdims=True), below.sum(keepdims=True)
        sound = (above > 0) & (below > 0)
        found = np.where(sound, above / np.where(sound, below, 1.0), scales)
        return self._allowed(found), judged.join(product)


@dataclass(frozen=True)
class _Found:
    """Codes of one scale for each channel.

    Attributes:
        codes: float64 `[channels, n]`.
        scales: As `ScaleLayout` has them.
        slope: `(codes * scales - rows) H`, `[channels, n]`.
        errors: Of each channel.

    """

    codes: np.ndarray
    scales: np.ndarray
    slope: np.ndarray
    errors: np.ndarray


def _ready(gram: AnyGram, damping: float) -> Trusted:
    return FewRowsHessian.of(gram, damping) if isinstance(gram, FewRowsGram) else DampedHessian.of(gram, damping)


def _fed_back(
    feedback: Feedback | FewRowsFeedback, weight: np.ndarray, steps: np.ndarray, bounds: Bounds
) -> np.ndarray:
    """Choose codes by error feedback, some channels of each group at a time."""
    codes = np.empty_like(weight)
    for part in _parts(weight):
        codes[part] = feedback.round(weight[part], steps[part], part_of(bounds, part))
    return codes


def _descended(
    judged: AnyGram,
    weight: np.ndarray,
    steps: np.ndarray,
    bounds: Bounds,
    sweeps: int,
    start: np.ndarray,
    slope: np.ndarray | None = None,
) -> Descended:
    """Go down from codes, some channels of each group at a time; without a sweep, what is known is all there is."""
    if slope is not None and not sweeps:
        return Descended(start, slope)
    codes, slopes = np.empty_like(weight), np.empty_like(weight)
    for part in _parts(weight):
        within = part_of(bounds, part)
        if isinstance(judged, FewRowsGram):
            codes[part], slopes[part] = descend_few_rows(weight[part], start[part], steps[part], judged, within, sweeps)
            continue
        known = None if slope is None else slope[part]
        codes[part], slopes[part] = descend(
            weight[part], start[part], steps[part], judged.matrix, within, sweeps, known
        )
    return Descended(codes, slopes)


def _parts(weight: np.ndarray) -> Iterator[tuple[slice, slice, slice]]:
    """Yield so many channels as fit `SLAB`."""
    width = max(SLAB // max(weight.shape[0] * weight.shape[1], 1), 1)
    for first in range(0, weight.shape[2], width):
        yield np.s_[:, :, first : first + width]


def _joined(arrays: Sequence[np.ndarray], axis: int) -> np.ndarray:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays, axis=axis)


def _bounds(weight: np.ndarray, low: np.ndarray, high: np.ndarray) -> Bounds:
    """Return bounds of each element, or one for all."""
    return (low, high) if low.shape == weight.shape else (float(low.flat[0]), float(high.flat[0]))


def usual_damping(gram: AnyGram) -> float:
    """Return the damping that a trial takes without a search, by how many rows there are for each column."""
    rows = gram.rows / max(gram.n, 1)
    return DAMPINGS[2] if rows < FEW_ROWS else DAMPINGS[1] if rows < MANY_ROWS else DAMPINGS[0]


def in_order(gram: AnyGram) -> tuple[float, ...]:
    """Return the dampings in the order in which they are tried: the middle one, then the more likely side of it.

    The held-out error has one minimum along them. After a second one that gained, the third was better still in 1 of
    303 weights of 20 models.
    """
    least, middle, most = DAMPINGS
    return (middle, least, most) if gram.rows >= MANY_ROWS * gram.n else (middle, most, least)


def shows_something(gram: AnyGram) -> bool:
    """Whether inputs were measured that are not all zero, as those of a branch are that is rarely taken."""
    energy = gram.diagonal().sum()
    return bool(gram.rows) and bool(np.isfinite(energy)) and bool(energy > 0)
