"""Searches for codes where samples have few rows: H = F Fᵀ + a diagonal, and no matrix of all columns is multiplied.

With k rows for b columns, a product with H takes 2 k in place of b multiplications for each element. H is not
decomposed either. The codes are those of `coordinate_descent` on the same H, but for the last bits of sums.

Tests: `tests/rounding/test_few_rows.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from onnxq.calibration.gram import ColumnBlocks, Gram
from onnxq.rounding.coordinate_descent import (
    LEAST,
    STRIP,
    Bounds,
    Descended,
    best_codes,
    in_turn,
    largest_first,
    limit,
    part_of,
)

FEW = 16  # columns for each row, from which on this takes less time
LEFT = 1e-6  # of the largest second moment: less than float32 shows of H


@dataclass(frozen=True)
class FewRowsGram(ColumnBlocks):
    """The same as `Gram`, as a product of few columns with themselves and a diagonal.

    Attributes:
        factor: `[blocks, b, k]`.
        ridge: What is added to the diagonal of its product, `[blocks, b]`.
        mean: See `Gram`.
        rows: See `Gram`.

    """

    factor: np.ndarray
    ridge: np.ndarray
    mean: np.ndarray
    rows: int

    @property
    def shape(self) -> tuple[int, int]:
        """How many blocks there are, and columns of each."""
        return self.ridge.shape[0], self.ridge.shape[1]

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of their elements."""
        return self.factor.dtype

    def diagonal(self) -> np.ndarray:
        """Return the second moment of each column, `[blocks, b]`."""
        return np.asarray(np.einsum("pbk,pbk->pb", self.factor, self.factor) + self.ridge)

    def product(self, cut: np.ndarray) -> np.ndarray:
        """Return the product of each block `[blocks, channels, b]` with H."""
        found: np.ndarray = (cut @ self.factor) @ self.factor.transpose(0, 2, 1)
        found += cut * self.ridge[:, None]
        return found

    def _errors(self, cut: np.ndarray) -> np.ndarray:
        seen = cut @ self.factor
        return np.asarray(np.einsum("pmk,pmk->pm", seen, seen) + np.einsum("pmb,pmb,pb->pm", cut, cut, self.ridge))

    def damped(self, damping: float) -> FewRowsGram:
        """Add to the diagonal what `coordinate_descent.damped` does."""
        diagonal = self.diagonal().mean(axis=1)
        more = np.maximum(damping * diagonal, LEAST * diagonal.mean())[:, None].astype(self.dtype)
        return FewRowsGram(self.factor, self.ridge + more, self.mean, self.rows)


def with_noise(gram: Gram, noise: float) -> Gram | FewRowsGram:
    """Add the same to the diagonal of moments, which are ours to change; those of few rows are factorised."""
    blocks, size = gram.shape
    factor = _factor(gram.matrix, gram.rows) if gram.rows * FEW <= size else None
    if factor is None:
        if noise:
            np.einsum("pbb->pb", gram.matrix)[:] += noise
        return gram
    return FewRowsGram(factor, np.full((blocks, size), noise, gram.dtype), gram.mean, gram.rows)


def _factor(H: np.ndarray, rows: int) -> np.ndarray | None:
    """Return `[blocks, b, rows]` whose product with itself is H, by pivoted Cholesky; None where that misses H."""
    factor = np.zeros((*H.shape[:2], rows), H.dtype)
    left = np.einsum("pbb->pb", H).copy()
    least, which = LEFT * left.max(axis=1), np.arange(len(H))
    for k in range(rows):
        pivot = left.argmax(axis=1)
        most = left[which, pivot]
        column = H[which, pivot] - np.einsum("pbk,pk->pb", factor[:, :, :k], factor[which, pivot, :k])
        sound = most > least
        column *= np.where(sound, 1 / np.sqrt(np.where(sound, most, 1)), 0)[:, None]
        factor[:, :, k] = column
        left -= np.square(column)
        left[which, pivot] = np.where(sound, 0, most)
    return factor if (left.max(axis=1) <= least).all() else None


class FewRowsFeedback:
    """Error feedback as in `coordinate_descent.Feedback`.

    The error of columns `0 … j`, where all that follow make the best of it, is that of H with `F M Fᵀ` in place of
    `F Fᵀ`. M is `(I + Σ f fᵀ / r)⁻¹` over the columns that follow, and one column changes it by a product.

    Args:
        gram: H, with something on all of its diagonal.

    Attributes:
        weights: See `Feedback`.

    """

    def __init__(self, gram: FewRowsGram) -> None:
        self.order = largest_first(gram.diagonal())
        self._problem = np.arange(len(self.order))[:, None]
        self.factor, ridge = gram.factor[self._problem, self.order], gram.ridge[self._problem, self.order]
        self.reach, self.pivots = np.empty_like(self.factor), np.empty_like(ridge)
        inner = np.repeat(np.eye(self.factor.shape[2], dtype=gram.dtype)[None], len(ridge), axis=0)
        for j in range(ridge.shape[1])[::-1]:
            column = self.factor[:, j]
            reach = np.einsum("pkl,pl->pk", inner, column)
            pivot = ridge[:, j] + np.einsum("pk,pk->p", reach, column)
            self.reach[:, j], self.pivots[:, j] = reach, pivot
            inner -= reach[:, :, None] * (reach / pivot[:, None])[:, None]
        self.weights = np.empty_like(ridge)
        np.put_along_axis(self.weights, self.order, self.pivots, axis=1)

    def round(self, weight: np.ndarray, steps: np.ndarray, bounds: Bounds) -> np.ndarray:
        """Return codes; see `Feedback.round`."""
        weight, steps = (a[self._problem, self.order] for a in (weight, steps))
        bounds = part_of(bounds, (self._problem, self.order))
        codes, columns = np.empty_like(weight), weight.shape[1]
        seen = np.zeros((len(weight), self.factor.shape[2], weight.shape[2]), weight.dtype)
        for start in range(0, columns, STRIP):
            strip = slice(start, min(start + STRIP, columns))
            factor, reach = self.factor[:, strip], self.reach[:, strip]
            owed, corner = reach @ seen, reach @ factor.transpose(0, 2, 1)
            change = np.empty_like(owed)
            for j in range(change.shape[1]):
                step, wanted, code = steps[:, start + j], weight[:, start + j], codes[:, start + j]
                np.divide(owed[:, j], self.pivots[:, start + j, None], out=code)
                np.subtract(wanted, code, out=code)
                code /= step
                np.rint(code, out=code)
                limit(code, part_of(bounds, np.s_[:, start + j]))
                change[:, j] = code * step - wanted
                owed[:, j + 1 :] += corner[:, j + 1 :, j, None] * change[:, j, None]
            seen += factor.transpose(0, 2, 1) @ change
        result = np.empty_like(codes)
        result[self._problem, self.order] = codes
        return result


def descend_few_rows(
    weight: np.ndarray, codes: np.ndarray, steps: np.ndarray, gram: FewRowsGram, bounds: Bounds, sweeps: int
) -> Descended:
    """Do what `coordinate_descent.descend` does: slopes of a strip come from what the change of the weight reads."""
    weight, codes, steps = (a.transpose(0, 2, 1).copy() for a in (weight, codes, steps))
    low, high = (np.ascontiguousarray(b.transpose(0, 2, 1)) if isinstance(b, np.ndarray) else b for b in bounds)
    bounds, factor, ridge = (low, high), gram.factor, gram.ridge[:, None]
    diagonal = gram.diagonal()[:, None]
    inverse = np.divide(1.0, diagonal, out=np.zeros_like(diagonal), where=diagonal > 0)
    seen = (codes * steps - weight) @ factor
    for _ in range(sweeps):
        moved = False
        for start in range(0, codes.shape[2], STRIP):
            strip = slice(start, start + STRIP)
            old, step, part = codes[..., strip], steps[..., strip], factor[:, strip]
            slope = seen @ part.transpose(0, 2, 1)
            slope += (old * step - weight[..., strip]) * ridge[..., strip]
            within = part_of(bounds, np.s_[..., strip])
            wanted = best_codes(old, slope, inverse[..., strip], step, within)
            moving = np.flatnonzero((wanted != old).any(axis=(0, 2)))
            if not moving.size:
                continue
            moved = True
            corner = part @ part.transpose(0, 2, 1)
            np.einsum("pbb->pb", corner)[:] += ridge[:, 0, strip]
            old, step = old[:, moving], step[:, moving]
            within = part_of(bounds, np.s_[:, moving, strip])
            found = in_turn(old, slope[:, moving], step, inverse[..., strip], corner, wanted[:, moving], within)
            codes[:, moving, strip] = found
            seen[:, moving] += ((found - old) * step) @ part
        if not moved:
            break
    slope = seen @ factor.transpose(0, 2, 1)
    slope += (codes * steps - weight) * ridge
    return Descended(*(np.ascontiguousarray(a.transpose(0, 2, 1)) for a in (codes, slope)))
