"""The search for codes of a large model's weight in blocks, with as few products with H as serve.

The steps are those of `block_solver`, each once: error feedback, a sweep of coordinate descent, scales by least
squares, and another sweep. `d H`, the slope of the error, follows all changes, so an error takes no product of its own.

Tests: `tests/rounding/test_short_block_search.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from onnxq.calibration.gram import Gram
from onnxq.calibration.qparams import TINY
from onnxq.ir.storage.shelf import release_array
from onnxq.ops.forms.block_codes import BlockCodes
from onnxq.rounding.block_grids import BlockGrid, best_grid, refit_on_slope
from onnxq.rounding.coordinate_descent import Feedback, damped, descend_rows, nearest
from onnxq.runtime.workers import run_in_order

DAMPING = 1e-2
SWEEPS, REFITS = 1, 1  # 3 of each gain 0.1 dB on layers of two decoders, in twice the time
TOGETHER = 1 << 20  # elements of the channels that are searched for together: 4 MB in float32
COMPARED = 16  # of so many channels one is rounded to nearest, too, to tell what is gained
ARRAYS = 24  # of so many elements, in a search


@dataclass(frozen=True)
class Trusted:
    """One block of H, damped, and its decomposition, which serve all weights that read the same.

    Attributes:
        H: `[n, n]`, of the type of all products.
        feedback: Of the same in float64.

    """

    H: np.ndarray
    feedback: Feedback

    @classmethod
    def of(cls, gram: Gram) -> Trusted:
        """Decompose second moments of one block."""
        dtype = gram.matrix.dtype
        H = damped(gram.matrix.astype(np.float64, copy=False), DAMPING)
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
        return float(10 * np.log10((self.plain.sum() + TINY) / (self.kept.sum() + TINY)))

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
    """The search for some channels; codes are relative to their zero points."""

    def __init__(self, trusted: Trusted, bits: int, block_size: int) -> None:
        self.H, self.feedback, self.bits, self.block_size = trusted.H, trusted.feedback, bits, block_size

    def run(self, rows: np.ndarray) -> ShortSolution:
        """Choose codes of rows `[channels, n]`."""
        n = rows.shape[1]
        grid = best_grid(rows, self.feedback.weights, self.bits, self.block_size, "feedback")
        codes = self._feedback(rows, grid)
        slope, errors = self._descend(rows, codes, grid)
        best = grid
        for _ in range(REFITS):
            scales = refit_on_slope(codes, slope, best, self.H)
            own, refined = BlockGrid(scales, best.zeros, best.block, best.top), codes.copy()
            changed, found = self._descend(rows, refined, own)
            which = found < errors
            codes, slope = (np.where(which[:, None], a, b) for a, b in ((refined, codes), (changed, slope)))
            best, errors = own.where(which, best), np.where(which, found, errors)
        full = codes + best.wide(best.zeros, n)
        kept = BlockCodes(full.astype(np.uint8), best.scales.astype(np.float32), best.zeros.astype(np.uint8))
        return ShortSolution(kept, self._plain(rows[::COMPARED], grid), errors[::COMPARED])

    def _plain(self, rows: np.ndarray, grid: BlockGrid) -> np.ndarray:
        """Return the error of some channels rounded to nearest."""
        n, grid = rows.shape[1], grid.taken(np.s_[::COMPARED])
        return self._errors(rows, nearest(rows, grid.steps(n), grid.bounds(n)), grid)[0]

    def _feedback(self, rows: np.ndarray, grid: BlockGrid) -> np.ndarray:
        """Return codes by error feedback, which goes column by column."""
        n, dtype = rows.shape[1], rows.dtype
        steps, low = (np.repeat(a.T.astype(dtype), grid.block, axis=0)[:n] for a in (grid.scales, -grid.zeros))
        columns = np.ascontiguousarray(rows.T)
        codes = self.feedback.round(columns[None], steps[None], (low[None], (low + grid.top)[None]))
        return np.ascontiguousarray(codes[0].T)

    def _descend(self, rows: np.ndarray, codes: np.ndarray, grid: BlockGrid) -> tuple[np.ndarray, np.ndarray]:
        """Change codes in place; return the slope and the error of each channel."""
        n, dtype = rows.shape[1], rows.dtype
        _, slope = self._errors(rows, codes, grid)
        steps, low = (grid.wide(a.astype(dtype), n) for a in (grid.scales, -grid.zeros))
        bounds = low[None], (low + grid.top)[None]
        descend_rows(codes[None], slope[None], steps[None], self.H[None], bounds, SWEEPS)
        steps = codes * steps
        steps -= rows
        return slope, np.einsum("cn,cn->c", steps, slope)

    def _errors(self, rows: np.ndarray, codes: np.ndarray, grid: BlockGrid) -> tuple[np.ndarray, np.ndarray]:
        """Return the error of each channel, and its slope."""
        change = codes * grid.wide(grid.scales.astype(rows.dtype), rows.shape[1])
        change -= rows
        slope = change @ self.H
        return np.einsum("cn,cn->c", change, slope), slope
