"""Codes, scales and zero points of a weight in blocks, of least error at the layer's output.

Codes follow by error feedback in Babai's order (GPTQ, see `coordinate_descent.Feedback`) on grids that leave little to
clip, then by coordinate descent; scales once more by least squares over all blocks of a channel. How far H is trusted
is decided on samples that it was not made of.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from onnxq.calibration.gram import Gram
from onnxq.calibration.qparams import TINY
from onnxq.ops.forms.block_codes import BlockCodes
from onnxq.rounding.block_grids import BlockGrid, best_grid, exported
from onnxq.rounding.coordinate_descent import Feedback, damped, descend, nearest
from onnxq.rounding.gptq import Method, MomentSource, shows_something

DAMPINGS = (1e-3, 1e-2, 0.1)
PROBED = 64  # channels that this is tried on
SWEEPS, REFITS = 3, 3
STARTS = (1.0, 1.05)  # times the scales that are expected to be best
LEAST_WEIGHT = 1e-4  # of a column in the cost of a block, relative to the mean: no element is free
SLAB = 1 << 21  # elements that are worked on at a time: 16 MB in float64


@dataclass(frozen=True)
class BlockSolution:
    """A weight in blocks, and how it was found.

    Attributes:
        codes: Codes, scales and zero points of the rows.
        method: As of `RoundedWeight`.
        gain: Held-out output error of rounding to nearest over that of codes from the other half, in dB.

    """

    codes: BlockCodes
    method: Method
    gain: float = 0.0


def solve_blocks(rows: np.ndarray, moments: MomentSource | None, bits: int, block_size: int) -> BlockSolution:
    """Choose codes, scales and zero points.

    Args:
        rows: Float `[channels, n]`, finite.
        moments: Second moments of the layer's input; None weighs elements by their size.
        bits: 2 to 8.
        block_size: Elements of a row that share a scale and a zero point.

    Returns:
        Codes of which no channel has a greater held-out error than rounded to nearest on the best grid.

    """
    rows = np.asarray(rows, np.float64)
    moments = None if moments is None else _Joined(moments)
    held_out = None if moments is None else moments.held_out()
    if moments is None or held_out is None or not rows.size or not shows_something(held_out):
        grid = best_grid(rows, _by_size(rows), bits, block_size, "nearest")
        return BlockSolution(_exported(rows, _nearest(rows, grid), grid), "weight error")
    return _Search(rows, bits, block_size, held_out).run(moments)


@dataclass(frozen=True)
class _Joined:
    """Second moments whose blocks stand in one matrix."""

    moments: MomentSource

    @property
    def assumed(self) -> bool:
        return self.moments.assumed

    def fitted(self) -> Gram:
        return _joined(self.moments.fitted())

    def held_out(self) -> Gram:
        return _joined(self.moments.held_out())

    def total(self) -> Gram:
        return _joined(self.moments.total())


def _joined(gram: Gram) -> Gram:
    count, size, _ = gram.matrix.shape
    if count == 1:
        return gram
    full = np.zeros((1, count * size, count * size))
    for index, block in enumerate(gram.matrix):
        part = slice(index * size, (index + 1) * size)
        full[0, part, part] = block
    return Gram(full[:, : gram.n, : gram.n], gram.mean, gram.rows)


def _by_size(rows: np.ndarray) -> np.ndarray:
    """Weigh elements as k-quants do without data: large ones count for more."""
    return np.asarray(np.sqrt(np.square(rows).mean(axis=1, keepdims=True)) + np.abs(rows))


def _nearest(rows: np.ndarray, grid: BlockGrid) -> np.ndarray:
    return nearest(rows, grid.steps(rows.shape[1]), grid.bounds(rows.shape[1]))


def _exported(rows: np.ndarray, codes: np.ndarray, grid: BlockGrid) -> BlockCodes:
    full = codes + grid.wide(grid.zeros, rows.shape[1])
    return BlockCodes(full.astype(np.uint8), grid.scales.astype(np.float32), grid.zeros.astype(np.uint8))


class _Search:
    """The search for one weight; codes are relative to their zero points."""

    def __init__(self, rows: np.ndarray, bits: int, block_size: int, held_out: Gram) -> None:
        self.rows, self.bits, self.block_size, self.held_out = rows, bits, block_size, held_out
        weights = _diagonal(held_out)
        self.plain = best_grid(rows, weights, bits, block_size, "nearest")
        self.nearest = _nearest(rows, self.plain)
        self.plain_errors = held_out.errors(self._change(self.nearest, self.plain))

    def run(self, moments: MomentSource) -> BlockSolution:
        """Decide how far H is trusted, then choose codes with all of it."""
        fitted = self.held_out if moments.assumed else moments.fitted()
        if not shows_something(fitted):
            return BlockSolution(_exported(self.rows, self.nearest, self.plain), "nearest")
        damping, held = self._trust(fitted)
        gains = held < self.plain_errors
        total = fitted if moments.assumed else moments.total()
        H = damped(total.matrix, damping)
        codes, grid = self._solve(Gram(H, total.mean, total.rows), Feedback(H), refine=True)
        gains &= self.held_out.errors(self._change(codes, grid)) < self.plain_errors
        codes, grid = np.where(gains[:, None], codes, self.nearest), grid.where(gains, self.plain)
        kept = np.minimum(held, self.plain_errors).sum()
        gain = float(10 * np.log10(max(self.plain_errors.sum(), TINY) / max(kept, TINY)))
        method: Method = "nearest" if not gains.any() else "assumed inputs" if moments.assumed else "output error"
        return BlockSolution(_exported(self.rows, codes, grid), method, 0.0 if moments.assumed else gain)

    def _trust(self, fitted: Gram) -> tuple[float, np.ndarray]:
        """Choose by some of the channels how far H is trusted; give the held-out error of all of them with it, too."""
        probe = self
        if len(self.rows) > PROBED:
            taken = np.arange(PROBED) * len(self.rows) // PROBED
            probe = _Search(self.rows[taken], self.bits, self.block_size, self.held_out)
        best: tuple[float, float, Feedback, Gram] | None = None
        for damping in DAMPINGS:
            H = damped(fitted.matrix, damping)
            gram, feedback = Gram(H, fitted.mean, fitted.rows), Feedback(H)
            codes, grid = probe._solve(gram, feedback, refine=False)
            error = float(probe.held_out.errors(probe._change(codes, grid)).sum())
            best = (error, damping, feedback, gram) if best is None or error < best[0] else best
        assert best is not None
        codes, grid = self._solve(best[3], best[2], refine=False)
        return best[1], self.held_out.errors(self._change(codes, grid))

    def _change(self, codes: np.ndarray, grid: BlockGrid) -> np.ndarray:
        return np.asarray(codes * grid.steps(self.rows.shape[1]) - self.rows)

    def _solve(self, gram: Gram, feedback: Feedback, *, refine: bool) -> tuple[np.ndarray, BlockGrid]:
        """Choose codes from some grids, and refine scales and codes in turn."""
        weights = feedback.weights.reshape(1, -1)
        expected = best_grid(self.rows, weights, self.bits, self.block_size, "feedback")
        best: tuple[np.ndarray, BlockGrid, np.ndarray] | None = None
        for factor in STARTS if refine else STARTS[:1]:
            grid = expected if factor == 1 else expected.scaled(factor)
            codes = self._round(gram, feedback, grid, SWEEPS if refine else 0)
            best = self._better(best, codes, grid, gram)
        assert best is not None
        for _ in range(REFITS if refine else 0):
            scales = refit_scales(self.rows, best[0], best[1], gram)
            grid = BlockGrid(scales, best[1].zeros, self.block_size, best[1].top)
            codes = self._round(gram, None, grid, SWEEPS, best[0])
            best = self._better(best, codes, grid, gram)
        return best[0], best[1]

    def _better(
        self, best: tuple[np.ndarray, BlockGrid, np.ndarray] | None, codes: np.ndarray, grid: BlockGrid, gram: Gram
    ) -> tuple[np.ndarray, BlockGrid, np.ndarray]:
        """Keep for each channel what has the lesser error."""
        errors = gram.errors(self._change(codes, grid))
        if best is None:
            return codes, grid, errors
        which = errors < best[2] * (1 - 1e-9)
        return np.where(which[:, None], codes, best[0]), grid.where(which, best[1]), np.where(which, errors, best[2])

    def _round(
        self, gram: Gram, feedback: Feedback | None, grid: BlockGrid, sweeps: int, codes: np.ndarray | None = None
    ) -> np.ndarray:
        """Error feedback unless codes are given, then coordinate descent, some channels at a time."""
        n = self.rows.shape[1]
        result = np.empty_like(self.rows)
        width = max(SLAB // max(n, 1), 1)
        for first in range(0, len(self.rows), width):
            part = slice(first, first + width)
            own = grid.taken(np.arange(len(self.rows))[part])
            weight, steps = self._column(self.rows[part]), self._column(own.steps(n))
            low, high = (self._column(bound) for bound in own.bounds(n))
            if codes is not None:
                chosen = np.clip(self._column(codes[part]), low, high)
            else:
                assert feedback is not None
                chosen = feedback.round(weight, steps, (low, high))
            chosen = descend(weight, chosen, steps, gram.matrix, (low, high), sweeps) if sweeps else chosen
            result[part] = chosen[0].T
        return result

    @staticmethod
    def _column(rows: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(rows.T)[None]


def _diagonal(gram: Gram) -> np.ndarray:
    """Return the mean square of each column, `[1, n]`, none of them free."""
    diagonal = np.einsum("pbb->pb", gram.matrix).reshape(1, -1)[:, : gram.n]
    return np.asarray(np.maximum(diagonal, LEAST_WEIGHT * diagonal.mean()))


def refit_scales(rows: np.ndarray, codes: np.ndarray, grid: BlockGrid, gram: Gram) -> np.ndarray:
    """Return the scales of least error for codes as they are, those of all blocks of a channel together.

    With `C_b` the codes of block b alone, the error is quadratic in the scales: `A s = r` with
    `A_bc = C_b H C_cᵀ` and `r_b = C_b H wᵀ`.

    Args:
        rows: float64 `[channels, n]`.
        codes: Codes less their zero points, `[channels, n]`.
        grid: The scales so far, which stay where a block has no code besides zero or the result is not positive.
        gram: Full second moments of one group.

    """
    count = grid.scales.shape[1]
    height = max(SLAB // max(rows.shape[1], count * count, 1), 1)
    found = np.empty_like(grid.scales)
    for start in range(0, len(rows), height):
        part = slice(start, start + height)
        found[part] = _refit(rows[part], codes[part], grid.scales[part], grid.block, gram.matrix[0])
    return found


def _refit(rows: np.ndarray, codes: np.ndarray, scales: np.ndarray, block: int, H: np.ndarray) -> np.ndarray:
    starts = np.arange(0, rows.shape[1], block)
    right = np.add.reduceat(codes * (rows @ H), starts, axis=1)
    system = np.empty((len(rows), len(starts), len(starts)))
    for index, start in enumerate(starts):
        part = slice(start, start + block)
        system[:, index] = np.add.reduceat((codes[:, part] @ H[part]) * codes, starts, axis=1)
    diagonal = np.einsum("cbb->cb", system)
    empty = diagonal <= 0
    diagonal[:] = np.where(empty, 1.0, diagonal * (1 + 1e-9))
    found = np.linalg.solve(system, right[..., None])[..., 0]
    return np.asarray(np.where(empty | (found <= 0), scales, exported(found)))
