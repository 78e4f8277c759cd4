"""The search for codes of a large model's weight in blocks, with as few products with H as serve.

The steps are those of `block_solver`, each once: error feedback, a sweep of coordinate descent, scales by least
squares, and another sweep. Without the first sweep, layers of a decoder lose nothing, and inputs of few directions
0.7 dB. Channels are columns, so that a row of codes is chosen at once for all of them.

Tests: `tests/rounding/test_short_block_search.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from onnxq.calibration.gram import Gram
from onnxq.calibration.qparams import TINY
from onnxq.ir.storage.shelf import release_array
from onnxq.ops.forms.block_codes import BlockCodes
from onnxq.rounding.block_grids import BlockGrid, best_grid, refit_on_slope
from onnxq.rounding.column_sweep import sweep
from onnxq.rounding.coordinate_descent import Feedback, damped, limit, nearest
from onnxq.runtime.workers import run_in_order

DAMPING = 1e-2  # of H at least
# Times columns by rows: few rows show little of H. On layers of SmolLM2 and other text, that gains 1.4 to 2.3 dB with 2
# windows of 256 tokens. With 16 it is 0.2 to 1 dB. With 0.5, it gains a quarter more, but inputs of few directions lose
# 1 dB
DOUBT = 0.2
TOGETHER = 1 << 20  # elements of the channels that are searched for together: 4 MB in float32
COMPARED = 16  # of so many channels one is rounded to nearest, too, to tell what is gained
ARRAYS = 24  # of so many elements, in a search


@dataclass(frozen=True)
class Trusted:
    """One block of H, damped, and its decomposition, which serve all weights that read the same.

    Attributes:
        H: `[n, n]`, of the type of all products, times a power of two.
        feedback: Of the same in float64.

    """

    H: np.ndarray
    feedback: Feedback

    @classmethod
    def of(cls, gram: Gram) -> Trusted:
        """Decompose second moments of one block, whose magnitude does not matter: squares in float32 end soon."""
        dtype = gram.matrix.dtype
        damping = max(DAMPING, DOUBT * gram.matrix.shape[1] / max(gram.rows, 1))
        H = damped(gram.matrix.astype(np.float64, copy=False), damping)
        H *= np.ldexp(1.0, -np.frexp(np.diagonal(H[0]).max())[1])
        return cls(H[0].astype(dtype), Feedback(H, dtype))


@dataclass(frozen=True)
class ShortSolution:
    """Codes of some channels in a range of columns.

    Attributes:
        codes: Codes, scales and zero points.
        plain: Error of one of `COMPARED` channels rounded to nearest.
        kept: Error of the same channels as they are.

    """

    codes: BlockCodes
    plain: np.ndarray
    kept: np.ndarray

    @property
    def gain(self) -> float:
        """Error of rounding to nearest over that of the codes, on the same samples, in dB."""
        return float(10 * np.log10((self.plain.sum() + float(TINY)) / (self.kept.sum() + float(TINY))))

    @classmethod
    def stacked(cls, parts: Iterable[ShortSolution], shape: tuple[int, ...], block_size: int) -> ShortSolution:
        """Return the solution of all channels; parts are let go as they come: codes of a head are 100 MB and more."""
        blocks, start = (shape[0], -(-shape[1] // block_size)), 0
        codes = BlockCodes(np.empty(shape, np.uint8), np.empty(blocks, np.float32), np.empty(blocks, np.uint8))
        errors: list[tuple[np.ndarray, np.ndarray]] = []
        for part in parts:
            place = slice(start, start + len(part.codes.codes))
            codes.codes[place], codes.scales[place] = part.codes.codes, part.codes.scales
            codes.zeros[place] = part.codes.zeros
            errors.append((part.plain, part.kept))
            start = place.stop
        return cls(codes, *(np.concatenate(each) for each in zip(*errors, strict=True)))


def search_shortly(rows: np.ndarray, trusted: Trusted, bits: int, block_size: int) -> ShortSolution:
    """Choose codes, scales and zero points for a range of columns, some channels at a time.

    Args:
        rows: Float `[channels, n]`, finite.
        trusted: Second moments of the columns; their type is that of all products.
        bits: 2 to 8.
        block_size: Elements of a row that share a scale and a zero point.

    Returns:
        The codes. Without clipping, an error is at most that of Babai's nearest plane
        (https://arxiv.org/abs/2507.18553), so no channel is rounded to nearest instead.

    """
    dtype = trusted.H.dtype
    search = _ShortSearch(trusted, bits, block_size)
    found = run_in_order(search.run, _slabs(rows, dtype), task_bytes=ARRAYS * TOGETHER * dtype.itemsize)
    return ShortSolution.stacked(found, rows.shape, block_size)


def _slabs(rows: np.ndarray, dtype: np.dtype[Any]) -> Iterator[np.ndarray]:
    height = max(TOGETHER // max(rows.shape[1], 1), 1)
    for start in range(0, len(rows), height):
        part = rows[start : start + height]
        yield np.array(part, dtype, order="C")
        release_array(part)  # of a head, in whose file these rows are neighbours


class _ShortSearch:
    """The search for some channels, which are columns here; codes are relative to their zero points."""

    def __init__(self, trusted: Trusted, bits: int, block_size: int) -> None:
        self.H, self.feedback, self.bits, self.block_size = trusted.H, trusted.feedback, bits, block_size

    def run(self, rows: np.ndarray) -> ShortSolution:
        """Choose codes of rows `[channels, n]`; each is searched for between -1 and 1."""
        n, dtype, exponents = rows.shape[1], rows.dtype, np.frexp(np.abs(rows).max(axis=1, initial=0))[1]
        rows = np.ldexp(rows, -exponents[:, None])
        first = best_grid(rows, self.feedback.weights, self.bits, self.block_size, "feedback")
        weight, steps = np.ascontiguousarray(rows.T), first.columns(first.scales, n, dtype)
        low = first.columns(-first.zeros, n, dtype)
        bounds = low, low + dtype.type(first.top)
        codes = self._feedback(weight, steps, bounds)
        self._descend(codes, self._slope(weight, codes, steps), steps, bounds)
        scales = refit_on_slope(codes, self._slope(weight, codes, steps), first, self.H)
        grid = BlockGrid(scales, first.zeros, first.block, first.top)
        steps = grid.columns(scales, n, dtype)
        self._descend(codes, self._slope(weight, codes, steps), steps, bounds)
        errors = self._compared(rows[::COMPARED], codes, first, grid)
        plain, kept = (np.ldexp(each.astype(np.float64), 2 * exponents[::COMPARED]) for each in errors)
        grid = replace(grid, scales=np.maximum(np.ldexp(scales, exponents[:, None]), TINY))
        return ShortSolution(self._exported(codes, low, grid), plain, kept)

    def _feedback(self, weight: np.ndarray, steps: np.ndarray, bounds: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        """Return codes by error feedback."""
        order, factor = self.feedback.order[0], self.feedback.factor[0]
        weight, steps, low, high = (array[order] for array in (weight, steps, *bounds))
        codes, change, diagonal = np.empty_like(weight), np.empty_like(weight), np.diagonal(factor)
        owed = np.zeros_like(weight)

        def choose(row: int) -> None:
            code = codes[row]
            np.divide(owed[row], diagonal[row], out=code)
            np.subtract(weight[row], code, out=code)
            code /= steps[row]
            np.rint(code, out=code)
            limit(code, (low[row], high[row]))
            np.multiply(code, steps[row], out=change[row])
            change[row] -= weight[row]

        sweep(owed, factor, change, choose)
        owed[order] = codes
        return owed

    def _slope(self, weight: np.ndarray, codes: np.ndarray, steps: np.ndarray) -> np.ndarray:
        """Return the slope of the error."""
        change = codes * steps
        change -= weight
        return np.asarray(self.H @ change)

    def _descend(
        self, codes: np.ndarray, slope: np.ndarray, steps: np.ndarray, bounds: tuple[np.ndarray, np.ndarray]
    ) -> None:
        """Set one code after the other to the best integer for all others as they are, in place."""
        change, inverse = np.empty_like(codes), 1 / np.diagonal(self.H)
        low, high = bounds

        def choose(row: int) -> None:
            best, code = change[row], codes[row]
            np.multiply(slope[row], inverse[row], out=best)
            best /= steps[row]
            np.subtract(code, best, out=best)
            np.rint(best, out=best)
            limit(best, (low[row], high[row]))
            before = code.copy()
            code[:] = best
            best -= before
            best *= steps[row]

        sweep(slope, self.H, change, choose)

    def _compared(
        self, rows: np.ndarray, codes: np.ndarray, first: BlockGrid, grid: BlockGrid
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the errors of some channels rounded to nearest, and of their codes."""
        n, some = rows.shape[1], np.s_[::COMPARED]
        plain = nearest(rows, first.taken(some).steps(n), first.taken(some).bounds(n))
        pairs = (plain, first), (codes[:, some].T, grid)
        changes = (chosen * each.taken(some).steps(n) - rows for chosen, each in pairs)
        plain, kept = (np.einsum("cn,cn->c", change @ self.H, change) for change in changes)
        return plain, kept

    @staticmethod
    def _exported(codes: np.ndarray, low: np.ndarray, grid: BlockGrid) -> BlockCodes:
        full = (codes - low).astype(np.uint8)
        return BlockCodes(np.ascontiguousarray(full.T), grid.scales.astype(np.float32), grid.zeros.astype(np.uint8))
