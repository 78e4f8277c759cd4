"""Codes, scales and zero points of a weight in blocks, of least error at the layer's output.

Codes follow by error feedback in Babai's order (GPTQ, see `coordinate_descent.Feedback`) on grids that clip little,
then by coordinate descent. Scales are fitted once more by least squares over all blocks of a channel. How far H is
trusted is decided on samples that it was not made of.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from onnxq.calibration.gram import Gram
from onnxq.calibration.qparams import TINY
from onnxq.ops.forms.block_codes import BlockCodes
from onnxq.rounding.block_grids import BlockGrid, best_grid, few_scales, refit_on_slope
from onnxq.rounding.coordinate_descent import Feedback, descend, nearest
from onnxq.rounding.gptq import DampedHessian, Method, MomentSource, shows_something
from onnxq.rounding.short_block_search import ShortSolution, Trusted, search_shortly
from onnxq.runtime.workers import run_in_order

DAMPINGS = (1e-3, 1e-2, 0.1)
PROBED = 64  # channels that this is tried on
SWEEPS, REFITS = 3, 3
STARTS = (1.0, 1.05)  # times the scales that are expected to be best
LEAST_WEIGHT = 1e-4  # of a column in the cost of a block, relative to the mean: no element is free
CHANNEL_SLAB = 1 << 20  # elements of the channels that are searched for together
ARRAYS = 8  # of so many elements, where a weight is rounded to nearest
ORDER: tuple[Method, ...] = ("nearest", "weight error", "assumed inputs", "output error")
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

    def kept(self, keep: Callable[[np.ndarray], np.ndarray]) -> BlockSolution:
        """Return the same with arrays that something has put out of memory."""
        return replace(self, codes=self.codes.kept(keep))

    def with_few_scales(self, bits: int) -> BlockSolution:
        """Return the same with scales that take a byte each in a file."""
        return replace(self, codes=replace(self.codes, scales=few_scales(self.codes.scales, bits)))


def solve_blocks(
    rows: np.ndarray,
    moments: MomentSource | None,
    bits: int,
    block_size: int,
    *,
    quick: bool = False,
    known: list[Trusted] | None = None,
) -> BlockSolution:
    """Choose codes, scales and zero points.

    If H is block-diagonal, each range of columns is a problem of its own.

    Args:
        rows: Float `[channels, n]`, finite; it is read a few channels at a time.
        moments: Second moments of the layer's input; None weighs elements by their size. So do blocks of H that cut
            blocks of the weight apart.
        bits: 2 to 8.
        block_size: Elements of a row that share a scale and a zero point.
        quick: Search shortly, and trust H as far as is usual.
        known: What a quick search has made of these moments, if they are of one block; it puts that there.

    Returns:
        Codes of which no channel has a greater held-out error than rounded to nearest on the best grid; if `quick`,
        those of `search_shortly`.

    """
    return _solved(rows, moments, bits, block_size, known, quick=quick).with_few_scales(bits)


def _solved(
    rows: np.ndarray,
    moments: MomentSource | None,
    bits: int,
    block_size: int,
    known: list[Trusted] | None,
    *,
    quick: bool,
) -> BlockSolution:
    if moments is None or not rows.size:
        return BlockSolution(_by_weight(rows, bits, block_size), "weight error")
    if known:
        return _joined([search_shortly(rows, known[0], bits, block_size)], assumed=moments.assumed)
    judged = moments.total() if quick else moments.held_out()
    size, n = judged.matrix.shape[1], rows.shape[1]
    if not shows_something(judged) or (size < n and size % block_size):
        return BlockSolution(_by_weight(rows, bits, block_size), "weight error")
    if quick:
        parts = []
        for start in range(0, n, size):
            part, some = _part(judged, start // size), rows[:, start : start + size]
            if not shows_something(part):
                parts.append(ShortSolution(_by_weight(some, bits, block_size), np.zeros(1), np.zeros(1)))
                continue
            trusted = Trusted.of(part)
            parts.append(search_shortly(some, trusted, bits, block_size))
            if known is not None and size >= n:
                known.append(trusted)
            del trusted
        return _joined(parts, assumed=moments.assumed)
    del judged
    found = [
        _RangeSearch(rows[:, start : start + size], _Range(moments, start // size), bits, block_size).run()
        for start in range(0, n, size)
    ]
    method = max((each.method for each in found), key=ORDER.index)
    gain = float(np.mean([each.gain for each in found]))
    return BlockSolution(BlockCodes.joined([each.codes for each in found], axis=1), method, gain)


def _joined(found: list[ShortSolution], *, assumed: bool) -> BlockSolution:
    """Return the solution of all ranges of columns."""
    gain = 0.0 if assumed else float(np.mean([each.gain for each in found]))
    codes = BlockCodes.joined([each.codes for each in found], axis=1)
    return BlockSolution(codes, "assumed inputs" if assumed else "output error", gain)


def _part(gram: Gram, index: int) -> Gram:
    """Return one block of second moments."""
    size = gram.matrix.shape[1]
    mean = gram.mean[:, index * size : (index + 1) * size]
    width = mean.shape[1]
    matrix = gram.matrix[index : index + 1, :width, :width]
    return Gram(matrix if len(gram.matrix) == 1 else matrix.copy(), mean, gram.rows)


@dataclass(frozen=True)
class _Range:
    """One block of second moments."""

    moments: MomentSource
    index: int

    @property
    def assumed(self) -> bool:
        return self.moments.assumed

    def fitted(self) -> Gram:
        return _part(self.moments.fitted(), self.index)

    def held_out(self) -> Gram:
        return _part(self.moments.held_out(), self.index)

    def total(self) -> Gram:
        return _part(self.moments.total(), self.index)


def _slabs(rows: np.ndarray) -> list[slice]:
    height = max(CHANNEL_SLAB // max(rows.shape[1], 1), 1)
    return [slice(start, start + height) for start in range(0, len(rows), height)]


def _by_weight(rows: np.ndarray, bits: int, block_size: int) -> BlockCodes:
    def solve(slab: slice) -> BlockCodes:
        part = np.asarray(rows[slab], np.float64)
        grid = best_grid(part, _by_size(part), bits, block_size, "nearest")
        return _exported(part, _nearest(part, grid), grid)

    return BlockCodes.joined(
        list(run_in_order(solve, _slabs(rows) or [slice(0)], task_bytes=8 * ARRAYS * CHANNEL_SLAB)), axis=0
    )


def _by_size(rows: np.ndarray) -> np.ndarray:
    """Weigh elements as k-quants do without data: large ones count for more."""
    return np.asarray(np.sqrt(np.square(rows).mean(axis=1, keepdims=True)) + np.abs(rows))


def _nearest(rows: np.ndarray, grid: BlockGrid) -> np.ndarray:
    return nearest(rows, grid.steps(rows.shape[1]), grid.bounds(rows.shape[1]))


def _exported(rows: np.ndarray, codes: np.ndarray, grid: BlockGrid) -> BlockCodes:
    full = codes + grid.wide(grid.zeros, rows.shape[1])
    return BlockCodes(full.astype(np.uint8), grid.scales.astype(np.float32), grid.zeros.astype(np.uint8))


class _RangeSearch:
    """The search for a range of columns, some channels at a time."""

    def __init__(self, rows: np.ndarray, moments: _Range, bits: int, block_size: int) -> None:
        self.rows, self.moments, self.bits, self.block_size = rows, moments, bits, block_size
        self.held_out = moments.held_out()

    def run(self) -> BlockSolution:
        """Decide how far H is trusted, then choose codes with all of it."""
        fitted = self.held_out if self.moments.assumed else self.moments.fitted()
        if not shows_something(fitted):
            return BlockSolution(
                BlockCodes.joined([self._search(slab).plain_codes() for slab in _slabs(self.rows)], axis=0), "nearest"
            )
        trusted = self._trust(fitted)
        damping = trusted.damping
        searches = (self._search(slab) for slab in _slabs(self.rows))
        held = np.concatenate([search.errors(*search.solve(trusted, 0)) for search in searches])
        del trusted
        total = fitted if self.moments.assumed else self.moments.total()
        del fitted
        trusted = DampedHessian.of(total, damping)
        parts, plain, kept, gains = [], 0.0, 0.0, False
        for slab in _slabs(self.rows):
            search = self._search(slab)
            codes, grid = search.solve(trusted, REFITS)
            found, told = search.errors(codes, grid), held[slab]
            which = (told < search.plain_errors) & (found < search.plain_errors)
            parts.append(search.chosen(which, codes, grid))
            plain += float(search.plain_errors.sum())
            kept += float(np.minimum(told, search.plain_errors).sum())
            gains = gains or bool(which.any())
        gain = 0.0 if self.moments.assumed else float(10 * np.log10((plain + float(TINY)) / (kept + float(TINY))))
        method: Method = "nearest" if not gains else "assumed inputs" if self.moments.assumed else "output error"
        return BlockSolution(BlockCodes.joined(parts, axis=0), method, gain)

    def _search(self, channels: slice | np.ndarray) -> _Search:
        rows = np.asarray(self.rows[channels], np.float64)
        return _Search(rows, self.bits, self.block_size, self.held_out)

    def _trust(self, fitted: Gram) -> DampedHessian:
        """Choose by some of the channels how far H is trusted."""
        count = min(len(self.rows), PROBED)
        probe = self._search(np.arange(count) * len(self.rows) // count)
        best: tuple[float, DampedHessian] | None = None
        for damping in DAMPINGS:
            trusted = DampedHessian.of(fitted, damping)
            error = float(probe.errors(*probe.solve(trusted, 0)).sum())
            best = (error, trusted) if best is None or error < best[0] else best
        assert best is not None
        return best[1]


class _Search:
    """The search for some channels; codes are relative to their zero points."""

    def __init__(self, rows: np.ndarray, bits: int, block_size: int, held_out: Gram) -> None:
        self.rows, self.bits, self.block_size, self.held_out = rows, bits, block_size, held_out
        weights = _diagonal(held_out)
        self.plain = best_grid(rows, weights, bits, block_size, "nearest")
        self.nearest = _nearest(rows, self.plain)
        self.plain_errors = self.errors(self.nearest, self.plain)

    def errors(self, codes: np.ndarray, grid: BlockGrid) -> np.ndarray:
        """Return the held-out error of each channel."""
        return self.held_out.errors(self._change(codes, grid))

    def plain_codes(self) -> BlockCodes:
        """Return the codes of rounding to nearest."""
        return _exported(self.rows, self.nearest, self.plain)

    def chosen(self, which: np.ndarray, codes: np.ndarray, grid: BlockGrid) -> BlockCodes:
        """Return these codes for some of the channels, and those of rounding to nearest for the rest."""
        codes = np.where(which[:, None], codes, self.nearest)
        return _exported(self.rows, codes, grid.where(which, self.plain))

    def solve(self, trusted: DampedHessian, refits: int) -> tuple[np.ndarray, BlockGrid]:
        """Choose codes by error feedback; with refits from several grids, then refine scales and codes in turn."""
        gram, feedback = trusted.gram, trusted.feedback
        weights = feedback.weights.reshape(1, -1)
        expected = best_grid(self.rows, weights, self.bits, self.block_size, "feedback")
        best: tuple[np.ndarray, BlockGrid, np.ndarray] | None = None
        sweeps = SWEEPS if refits else 0
        for factor in STARTS if refits else STARTS[:1]:
            grid = expected if factor == 1 else expected.scaled(factor)
            codes = self._round(gram, feedback, grid, sweeps)
            best = self._better(best, codes, grid, gram)
        assert best is not None
        for _ in range(refits):
            scales = refit_scales(self.rows, best[0], best[1], gram)
            grid = BlockGrid(scales, best[1].zeros, self.block_size, best[1].top)
            codes = self._round(gram, None, grid, sweeps, best[0])
            best = self._better(best, codes, grid, gram)
        return best[0], best[1]

    def _change(self, codes: np.ndarray, grid: BlockGrid) -> np.ndarray:
        return np.asarray(codes * grid.steps(self.rows.shape[1]) - self.rows)

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
            chosen = descend(weight, chosen, steps, gram.matrix, (low, high), sweeps).codes if sweeps else chosen
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

    Args:
        rows: float64 `[channels, n]`.
        codes: Codes less their zero points, `[channels, n]`.
        grid: The scales so far, which stay where a block has no code besides zero or the result is not positive.
        gram: Full second moments of one group.

    """
    slope = gram.matrix[0] @ (codes * grid.steps(rows.shape[1]) - rows).T
    return refit_on_slope(np.ascontiguousarray(codes.T), slope, grid, gram.matrix[0])
