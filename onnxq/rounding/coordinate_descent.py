"""Integer codes that make the error of a layer's output small: error feedback, then coordinate descent.

All functions work on `[problems, columns, channels]` float64 arrays with one `H [columns, columns]` for each problem. A
dense layer is one problem; each group of a Conv and each block of a block-diagonal H is one. A problem's error is `dᵀ H
d` for each channel, `d = codes * steps - weight`.

Sources: GPTQ, https://arxiv.org/abs/2210.17323 (`Feedback`); coordinate descent on codes as in QuantEase,
https://arxiv.org/abs/2309.01885 (`descend`).

Tests: `tests/rounding/test_jobs.py`.
"""

from __future__ import annotations

from copy import copy
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

Bounds = tuple[float | np.ndarray, float | np.ndarray]  # least and greatest code: of all, or of each element
STRIP = 32  # columns handled one by one before a matrix product brings the rest up to date
WIDE_STRIP = 256  # columns of a descent before a matrix product brings the slopes of the others up to date
MOST_GATHERED = 0.5  # share of channels that move, beyond which gathering them takes longer than all
LEAST = 1e-6  # damping of a problem whose inputs are all but zero, relative to the mean of all problems


def damped(H: np.ndarray, damping: float) -> np.ndarray:
    """Add `damping` times the mean of the diagonal to the diagonal of each problem.

    It stands for what the samples do not show, and for the noise of activations that are quantized themselves.
    """
    diagonal = np.einsum("pbb->pb", H).mean(axis=1)
    result = H.copy()
    np.einsum("pbb->pb", result)[:] += np.maximum(damping * diagonal, LEAST * diagonal.mean())[:, None]
    return result


def part_of(bounds: Bounds, index: Any) -> Bounds:
    """Return the bounds of some of the elements."""
    low, high = bounds
    return (low[index] if isinstance(low, np.ndarray) else low), (high[index] if isinstance(high, np.ndarray) else high)


def limit(codes: np.ndarray, bounds: Bounds) -> np.ndarray:
    """Keep codes within bounds, in place.

    NumPy's `clip` does the same in ten times the time of a column, of which a search has tens of thousands.
    """
    np.maximum(codes, bounds[0], out=codes)
    np.minimum(codes, bounds[1], out=codes)
    return codes


def nearest(weight: np.ndarray, steps: np.ndarray, bounds: Bounds) -> np.ndarray:
    """Round each element by itself, to codes within bounds."""
    codes: np.ndarray = weight / steps
    np.rint(codes, out=codes)
    return limit(codes, bounds)


def errors(weight: np.ndarray, codes: np.ndarray, steps: np.ndarray, H: np.ndarray) -> np.ndarray:
    """Return `dᵀ H d` of each channel, `[problems, channels]`."""
    difference = codes * steps - weight
    return np.asarray(np.einsum("pbm,pbm->pm", H @ difference, difference))


def largest_first(diagonal: np.ndarray) -> np.ndarray:
    """Return the order in which columns are rounded, `[problems, columns]`.

    Columns that see the same numbers in another order differ in the last bits of float64, not of float32.
    """
    near_one = np.ldexp(diagonal, -np.frexp(diagonal.max(initial=0))[1])  # float32 ends at squares of 1e19
    return np.argsort(-near_one.astype(np.float32), axis=1, kind="stable")


class Feedback:
    """GPTQ: columns are rounded in turn, the largest H_jj first, and those that follow take up the error.

    With `H = R Rᵀ`, R upper triangular, the error is `|Rᵀ d|²`, whose j-th term holds only `d_0 … d_j`: each code makes
    its own term as small as it can, given those before. That is GPTQ, whose factor of the inverse is `R⁻¹`, without
    the inverse (https://arxiv.org/abs/2507.18553).

    Args:
        H: float64 `[problems, columns, columns]`, positive definite.
        dtype: Of what is rounded.

    Attributes:
        weights: What a squared error in a column costs when the columns that follow make the best of it: `R_jj²`,
            `[problems, columns]`.

    """

    def __init__(self, H: np.ndarray, dtype: DTypeLike = np.float64) -> None:
        diagonal = np.einsum("pbb->pb", H)
        self.order = largest_first(diagonal)
        backwards = self.order[:, ::-1]
        # Whole rows at a time, of the transposed matrix, too: ten times faster than element by element
        self._problem = np.arange(len(H))[:, None]
        ordered = H[self._problem, backwards].transpose(0, 2, 1)[self._problem, backwards].transpose(0, 2, 1)
        # Rᵀ: the Cholesky factor of the reversed matrix, reversed again and transposed
        factor = np.linalg.cholesky(ordered)[:, ::-1, ::-1].transpose(0, 2, 1)
        self.factor = np.ascontiguousarray(factor, dtype)
        self.weights = np.empty(diagonal.shape, dtype)
        np.put_along_axis(self.weights, self.order, np.einsum("pbb->pb", self.factor) ** 2, axis=1)

    def split(self, count: int) -> list[Feedback]:
        """Return the problems in so many equal parts."""
        parts = []
        for order, factor, weights in zip(
            *(np.split(array, count) for array in (self.order, self.factor, self.weights)), strict=True
        ):
            part = copy(self)
            part.order, part.factor, part.weights = order, factor, weights
            part._problem = np.arange(len(order))[:, None]
            parts.append(part)
        return parts

    def round(self, weight: np.ndarray, steps: np.ndarray, bounds: Bounds) -> np.ndarray:
        """Return codes for `weight [problems, columns, channels]`, steps of that shape, and bounds of it or for all."""
        weight, steps = (a[self._problem, self.order] for a in (weight, steps))
        bounds = part_of(bounds, (self._problem, self.order))
        owed, codes = np.zeros_like(weight), np.empty_like(weight)
        columns = weight.shape[1]
        for start in range(0, columns, STRIP):
            stop = min(start + STRIP, columns)
            strip, change = owed[:, start:stop], np.empty_like(owed[:, start:stop])
            corner = self.factor[:, start:stop, start:stop]
            for j in range(stop - start):
                step, wanted = steps[:, start + j], weight[:, start + j]
                code = codes[:, start + j]
                np.divide(strip[:, j], corner[:, j, j, None], out=code)
                np.subtract(wanted, code, out=code)
                code /= step
                np.rint(code, out=code)
                limit(code, part_of(bounds, np.s_[:, start + j]))
                change[:, j] = code * step - wanted
                strip[:, j + 1 :] += corner[:, j + 1 :, j, None] * change[:, j, None]
            owed[:, stop:] += self.factor[:, stop:, start:stop] @ change
        result = np.empty_like(codes)
        result[self._problem, self.order] = codes
        return result


class Descended(NamedTuple):
    """Codes that a descent has found.

    Attributes:
        codes: In the shape of the weight.
        slope: `H (codes * steps - weight)` in the same shape, half the slope of the error. Its product with the change
            of the weight is the error of each channel, without another product with H.

    """

    codes: np.ndarray
    slope: np.ndarray


def descend(
    weight: np.ndarray,
    codes: np.ndarray,
    steps: np.ndarray,
    H: np.ndarray,
    bounds: Bounds,
    sweeps: int,
    slope: np.ndarray | None = None,
) -> Descended:
    """Set one code after the other to the best integer for all others as they are; the error never grows.

    Args:
        weight: `[problems, columns, channels]`.
        codes: Where to start, the same shape.
        steps: What one code step is worth, the same shape.
        H: `[problems, columns, columns]`.
        bounds: Least and greatest code, for all or in the shape of the weight.
        sweeps: Passes over all columns at most; it stops early when nothing moves.
        slope: That of the codes to start from, if it is known.

    """
    # A row for each channel: what moves in one strip is few channels, whose slopes lie together then
    codes, steps = (a.transpose(0, 2, 1).copy() for a in (codes, steps))
    low, high = (np.ascontiguousarray(b.transpose(0, 2, 1)) if isinstance(b, np.ndarray) else b for b in bounds)
    bounds = low, high
    if slope is None:
        slope = (codes * steps - weight.transpose(0, 2, 1).copy()) @ H
    else:
        slope = slope.transpose(0, 2, 1).copy()
    diagonal = np.einsum("pbb->pb", H)[:, None]
    inverse = np.divide(1.0, diagonal, out=np.zeros_like(diagonal), where=diagonal > 0)
    columns = codes.shape[2]
    for _ in range(sweeps):
        moved = False
        for start in range(0, columns, WIDE_STRIP):
            moved |= _descend_strips(codes, slope, steps, H, inverse, bounds, start, min(start + WIDE_STRIP, columns))
        if not moved:
            break
    return Descended(*(np.ascontiguousarray(a.transpose(0, 2, 1)) for a in (codes, slope)))


def _descend_strips(
    codes: np.ndarray,
    slope: np.ndarray,
    steps: np.ndarray,
    H: np.ndarray,
    inverse: np.ndarray,
    bounds: Bounds,
    begin: int,
    end: int,
) -> bool:
    """Go once over some columns, and bring the slopes of all others up to date with one product; tell what moved."""
    before, changed = codes[..., begin:end].copy(), np.zeros(codes.shape[1], bool)
    for start in range(begin, end, STRIP):
        strip = slice(start, min(start + STRIP, end))
        within = part_of(bounds, np.s_[..., strip])
        wanted = best_codes(codes[..., strip], slope[..., strip], inverse[..., strip], steps[..., strip], within)
        # As long as no code of a channel moves, its slopes stay: a channel in which none wants to stays as it is
        moving = np.flatnonzero((wanted != codes[..., strip]).any(axis=(0, 2)))
        if moving.size:
            changed[moving] = True
            old, step = codes[:, moving, strip], steps[:, moving, strip]
            found = in_turn(
                old,
                slope[:, moving, strip],
                step,
                inverse[..., strip],
                H[:, strip, strip],
                wanted[:, moving],
                part_of(bounds, np.s_[:, moving, strip]),
            )
            codes[:, moving, strip] = found
            slope[:, moving, begin:end] += ((found - old) * step) @ H[:, strip, begin:end]
    if not changed.any():
        return False
    which = slice(None) if changed.mean() > MOST_GATHERED else np.flatnonzero(changed)
    difference = (codes[:, which, begin:end] - before[:, which]) * steps[:, which, begin:end]
    for others in (slice(0, begin), slice(end, codes.shape[2])):
        slope[:, which, others] += difference @ H[:, begin:end, others]
    return True


def in_turn(
    codes: np.ndarray,
    slope: np.ndarray,
    steps: np.ndarray,
    inverse: np.ndarray,
    H: np.ndarray,
    wanted: np.ndarray,
    bounds: Bounds,
) -> np.ndarray:
    """Set the codes of a strip, in each channel one column after the other, with the slopes that those before leave.

    Channels know nothing of each other, so the next code that moves is set in all of them at once, wherever it is.

    Args:
        codes: `[problems, channels, columns]`, as `slope`, `steps` and `wanted`, the best integers as things are.
        slope: Of the error.
        steps: What one code step is worth.
        inverse: One over the diagonal of H, `[problems, 1, columns]`.
        H: `[problems, columns, columns]`.
        wanted: See above.
        bounds: Least and greatest code, for all or in the shape of the codes.

    """
    shape, width = codes.shape, codes.shape[2]
    result = codes.reshape(-1, width).copy()
    problem = np.repeat(np.arange(shape[0]), shape[1])
    codes, slope, steps, wanted = (a.reshape(-1, width) for a in (result, slope, steps, wanted))
    low, high = (b.reshape(-1, width) if isinstance(b, np.ndarray) else b for b in bounds)
    bounds = low, high
    column, left = np.arange(width), np.arange(len(result))
    ahead = wanted != codes
    while True:
        going = ahead.any(axis=1)
        left, problem = left[going], problem[going]
        if not left.size:
            return result.reshape(shape)
        codes, slope, steps, wanted, ahead = (a[going] for a in (codes, slope, steps, wanted, ahead))
        bounds = part_of(bounds, going)
        row, first = np.arange(len(left)), ahead.argmax(axis=1)
        change = (wanted[row, first] - codes[row, first]) * steps[row, first]
        result[left, first] = codes[row, first] = wanted[row, first]
        slope += H[problem, first] * change[:, None]
        wanted = best_codes(codes, slope, inverse[problem, 0], steps, bounds)
        ahead = (wanted != codes) & (column > first[:, None])


def best_codes(
    codes: np.ndarray, slope: np.ndarray, inverse: np.ndarray, steps: np.ndarray, bounds: Bounds
) -> np.ndarray:
    """Return the best integer for each code with all others as they are."""
    best: np.ndarray = slope * inverse
    best /= steps
    np.subtract(codes, best, out=best)
    np.rint(best, out=best)
    return limit(best, bounds)
