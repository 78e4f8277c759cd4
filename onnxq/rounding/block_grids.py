"""Scales and zero points of blocks: how the codes of a weight are spaced where neighbours along a row share a grid.

An element `w` of a block is `scale * (code - zero)`, with codes from 0 to `2^bits - 1` and a zero point among them.
Scale and zero point are those of least weighted squared error, as in llama.cpp's k-quants
(https://github.com/ggml-org/llama.cpp/pull/1684), found among candidates and then by least squares.

Tests: `tests/rounding/test_block_solver.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import DTypeLike

from onnxq.calibration.qparams import TINY

FACTORS = (1.0, 1.04, 0.96, 0.92, 0.88, 0.84, 0.8, 0.75, 0.7, 0.64)  # of the scale that covers a block
SHIFTS = (0, -1, 1)  # of the zero point that centers the codes
FINE, FINE_FACTORS = 255, FACTORS[:3]  # nearest codes of 8 bits want no smaller ones
TIE = 1e-9  # relative: no choice hangs on the last bits of a sum
SLACK = 1.00001  # a bound may be above a cost by rounding errors of float32
PIECE = 1 << 18  # elements at a time, so that temporaries stay in the cache
FITTED = 1 << 21  # elements whose scales are fitted together
SHORT, SCALES = 4, 256  # bits of codes, and how many different scales a weight of these has
LEAST_SHARING = 4096  # blocks of a weight from which on a table of scales pays
FINEST = 1 << 14  # ratios of scales are told apart by a part of this
MANTISSA = 10  # bits that scales from least squares keep: sums differ in the last bits from processor to processor

Judged = Literal["nearest", "feedback"]


@dataclass(frozen=True)
class BlockGrid:
    """Scales and zero points of all blocks of a weight in rows.

    Attributes:
        scales: float64 `[channels, blocks]`, positive numbers that float32 can hold.
        zeros: float64 `[channels, blocks]`, integers from 0 to `top`.
        block: Elements of a block; the last one of a row may have fewer.
        top: The largest code.

    """

    scales: np.ndarray
    zeros: np.ndarray
    block: int
    top: int

    def wide(self, values: np.ndarray, n: int) -> np.ndarray:
        """Repeat a number of each block for its elements, `[channels, n]`."""
        return np.repeat(values, self.block, axis=1)[:, :n]

    def steps(self, n: int) -> np.ndarray:
        """Return the scale of each element, `[channels, n]`."""
        return self.wide(self.scales, n)

    def columns(self, values: np.ndarray, n: int, dtype: DTypeLike) -> np.ndarray:
        """Repeat a number of each block for its elements, `[n, channels]`."""
        return np.repeat(values.T.astype(dtype), self.block, axis=0)[:n]

    def bounds(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the least and the greatest `code - zero` of each element, `[channels, n]`."""
        low = self.wide(-self.zeros, n)
        return low, low + self.top

    def where(self, which: np.ndarray, other: BlockGrid) -> BlockGrid:
        """Take some channels from this grid, and the rest from another of the same shape."""
        column = which[:, None]
        scales, zeros = np.where(column, self.scales, other.scales), np.where(column, self.zeros, other.zeros)
        return BlockGrid(scales, zeros, self.block, self.top)

    def taken(self, channels: np.ndarray | slice) -> BlockGrid:
        """Return the grid of some channels."""
        return BlockGrid(self.scales[channels], self.zeros[channels], self.block, self.top)

    def scaled(self, factor: float) -> BlockGrid:
        """Return the grid with coarser or finer scales, around the same zero points."""
        return BlockGrid(exported(self.scales * factor), self.zeros, self.block, self.top)


def best_grid(rows: np.ndarray, weights: np.ndarray, bits: int, block_size: int, judged: Judged) -> BlockGrid:
    """Find scale and zero point of each block.

    Args:
        rows: float64 `[channels, n]`.
        weights: What a squared error costs: `[channels, n]`, or `[1, n]` for all channels.
        bits: Width of the codes.
        block_size: Elements of a row that share a scale and a zero point.
        judged: By the error of rounding to nearest, or by what error feedback leaves to be expected: the variance of
            an error within a step, and what lies beyond the least and the greatest code.

    """
    channels, n = rows.shape
    count, top = -(-n // block_size), 2**bits - 1
    scales, zeros = np.empty((channels, count)), np.empty((channels, count))
    height = max(PIECE // max(count * block_size, 1), 1)
    for start in range(0, channels, height):
        part = slice(start, start + height)
        cut = _cut(rows[part], count, block_size)
        costs = _cut(weights if len(weights) == 1 else weights[part], count, block_size)
        scales[part], zeros[part] = _best(cut, costs, top, judged)
    return BlockGrid(scales, zeros, block_size, top)


def exported(scales: np.ndarray) -> np.ndarray:
    """Round scales to positive numbers of few bits, which float32 holds; 1 for 0."""
    mantissa, exponent = np.frexp(np.where(scales > 0, np.maximum(scales, TINY), 1.0))
    return np.asarray(np.ldexp(np.rint(mantissa * 2.0**MANTISSA), exponent - MANTISSA))


def few_scales(scales: np.ndarray, bits: int) -> np.ndarray:
    """Let a weight have at most 256 different scales, which a file holds in a byte each (`narrow_constants`).

    The ends of a range of scales that become one have the least ratio with which 256 ranges hold them all. On layers of
    SmolLM2, scales change by 0.1 to 0.3 %, and errors grow by 0.002 dB. Codes of 8 bits are finer than that.

    Args:
        scales: Positive float32 `[channels, blocks]`.
        bits: Of the codes.

    Returns:
        float32; the same where codes are long, or where a table would save little.

    """
    if bits > SHORT or scales.size < LEAST_SHARING:
        return scales
    known = np.unique(scales).astype(np.float64)
    if len(known) <= SCALES:
        return scales
    finest, steps = 1, 1
    while len(_ranges(known, steps)) > SCALES:
        finest, steps = steps + 1, 2 * steps
    while finest < steps:
        middle = (finest + steps) // 2
        finest, steps = (finest, middle) if len(_ranges(known, middle)) <= SCALES else (middle + 1, steps)
    starts = _ranges(known, steps)
    ends = np.append(starts[1:], len(known))
    table = exported((known[starts] + known[ends - 1]) / 2).astype(np.float32)
    found, last = np.empty_like(scales), known[ends - 1].astype(np.float32)
    for row, own in zip(found, scales, strict=True):  # of a head, places of all would be 30 MB and more
        np.take(table, np.searchsorted(last, own), out=row)
    return found


def _ranges(known: np.ndarray, steps: int) -> np.ndarray:
    """Return where ranges of sorted numbers begin whose ends are so many steps of 1 / `FINEST` apart."""
    ends = np.searchsorted(known, known * (1 + steps / FINEST), side="right")
    starts = [0]
    while (end := int(ends[starts[-1]])) < len(known):
        starts.append(end)
        if len(starts) > SCALES:
            break
    return np.array(starts)


def _cut(rows: np.ndarray, count: int, block_size: int) -> np.ndarray:
    """Cut rows into blocks, `[channels, blocks, block_size]`, the last one filled up with zeros."""
    missing = count * block_size - rows.shape[1]
    full = np.pad(rows, ((0, 0), (0, missing))) if missing else rows
    return full.reshape(len(rows), count, block_size)


def _best(cut: np.ndarray, weights: np.ndarray, top: int, judged: Judged) -> tuple[np.ndarray, np.ndarray]:
    ends = [each(cut, axis=2)[..., None] for each in (np.argmin, np.argmax)]  # `min` takes twice as long for short rows
    least_element, greatest = (np.take_along_axis(cut, end, 2)[..., 0] for end in ends)
    low, high = np.minimum(least_element, 0.0), np.maximum(greatest, 0.0)
    covering = (high - low) / top
    best_scale, best_zero = exported(covering), np.zeros_like(covering)
    least = np.full(covering.shape, np.inf)
    expected = _ExpectedCost(cut, weights, top, ends) if judged == "feedback" else None
    factors = FINE_FACTORS if top >= FINE and judged == "nearest" else FACTORS
    for factor in factors:
        scale = exported(covering * factor)
        middle = np.rint(top / 2 - (low + high) / (2 * scale))
        for shift in SHIFTS:
            zero = np.clip(middle + shift, 0, top)
            if expected is not None:
                found = scale, expected.of(scale, zero, least)
            else:
                found = _fitted(cut, weights, scale, zero, top)
            better = found[1] < least * (1 - TIE)
            least = np.where(better, found[1], least)
            best_scale, best_zero = np.where(better, found[0], best_scale), np.where(better, zero, best_zero)
    return best_scale, best_zero


class _ExpectedCost:
    """The error that feedback leaves to be expected in each block, counted where it can be less than a known one.

    Args:
        cut: Elements `[channels, blocks, block_size]`.
        weights: What a squared error costs, of that shape or with one channel.
        top: The largest code.
        ends: Where the least and the greatest element of each block are, `[channels, blocks, 1]`.

    """

    def __init__(self, cut: np.ndarray, weights: np.ndarray, top: int, ends: Sequence[np.ndarray]) -> None:
        self._cut, self._weights, self._top = cut, weights, top
        self._variance = weights.sum(axis=2) / 12
        costs = np.broadcast_to(weights, cut.shape)
        self._ends = [[np.take_along_axis(each, end, 2)[..., 0] for each in (cut, costs)] for end in ends]

    def of(self, scale: np.ndarray, zero: np.ndarray, least: np.ndarray) -> np.ndarray:
        """Return the cost of each block, float64 `[channels, blocks]`; infinity where it cannot be less than `least`.

        Most scales clip the least or the greatest element so far that this alone costs more.
        """
        (lowest, one), (highest, other) = self._ends
        below, above = np.maximum(-zero - lowest / scale, 0), np.maximum(highest / scale - (self._top - zero), 0)
        bound = self._variance + one * np.square(below) + other * np.square(above)
        cost = np.full(scale.shape, np.inf)
        which = np.nonzero(scale**2 * bound < least * SLACK)
        alike = (which[0] if len(self._weights) > 1 else np.zeros_like(which[0]), which[1])
        step, offset = scale[which], zero[which].astype(self._cut.dtype, copy=False)
        beyond = self._cut[which] / step[:, None].astype(self._cut.dtype, copy=False)
        beyond -= _limited(beyond.copy(), offset, self._top)
        np.square(beyond, out=beyond)
        beyond *= self._weights[alike]
        cost[which] = step**2 * (self._variance[alike] + beyond.sum(axis=1))
        return cost


def _fitted(
    cut: np.ndarray, weights: np.ndarray, scale: np.ndarray, zero: np.ndarray, top: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the scale of least squares for the codes of a scale, and the cost of rounding to nearest with it."""
    codes = _codes(cut, scale, zero, top)
    weighted = weights * codes
    above, below = (np.einsum("cbn,cbn->cb", weighted, other) for other in (cut, codes))
    sound = (above > 0) & (below > 0)
    scale = np.where(sound, exported(above / np.where(sound, below, 1.0)), scale)
    codes = _codes(cut, scale, zero, top)
    codes *= scale[..., None]
    codes -= cut
    np.square(codes, out=codes)
    codes *= weights
    return scale, codes.sum(axis=2)


def _codes(cut: np.ndarray, scale: np.ndarray, zero: np.ndarray, top: int) -> np.ndarray:
    """Return the nearest codes, less their zero points."""
    codes: np.ndarray = cut / scale[..., None]
    np.rint(codes, out=codes)
    return _limited(codes, zero, top)


def _limited(codes: np.ndarray, zero: np.ndarray, top: int) -> np.ndarray:
    """Keep codes less their zero points within bounds, in place; NumPy's `clip` takes three times as long."""
    np.maximum(codes, -zero[..., None], out=codes)
    np.minimum(codes, (top - zero)[..., None], out=codes)
    return codes


def refit_on_slope(codes: np.ndarray, slope: np.ndarray, grid: BlockGrid, H: np.ndarray) -> np.ndarray:
    """Return the scales of least error for codes as they are, those of all blocks of a channel together.

    With `C_b` the codes of block b alone, the error is quadratic in the scales: `A (s' - s) = -g` with
    `A_bc = C_bᵀ H C_c` and `g_b = C_bᵀ H d`.

    Args:
        codes: Codes less their zero points, `[n, channels]`.
        slope: `H d`, of the same shape.
        grid: The scales so far, which stay where a block has no code besides zero or the result is not positive.
        H: `[n, n]`.

    """
    count = grid.scales.shape[1]
    width = max(FITTED // max(len(codes), count * count, 1), 1)
    found = np.empty_like(grid.scales)
    for start in range(0, codes.shape[1], width):
        part = slice(start, start + width)
        found[part] = _refit(codes[:, part], slope[:, part], grid.scales[part], grid.block, H)
    return found


def _refit(codes: np.ndarray, slope: np.ndarray, scales: np.ndarray, block: int, H: np.ndarray) -> np.ndarray:
    count = scales.shape[1]
    system = np.empty((count, count, len(scales)))
    for index, start in enumerate(range(0, len(codes), block)):  # A is symmetric
        product = H[start:, start : start + block] @ codes[start : start + block]
        product *= codes[start:]
        system[index, index:] = _sums(product, block)
        system[index:, index] = system[index, index:]
    system = np.ascontiguousarray(system.transpose(2, 0, 1))
    diagonal = np.einsum("cbb->cb", system)
    empty = diagonal <= 0
    diagonal[:] = np.where(empty, 1.0, diagonal * (1 + 1e-9))
    down = _sums(codes * slope, block).T.astype(np.float64)
    found = scales - np.linalg.solve(system, down[..., None])[..., 0]
    return np.asarray(np.where(empty | (found <= 0), scales, exported(found)))


def _sums(values: np.ndarray, block: int) -> np.ndarray:
    """Add the rows of each block, `[blocks, channels]`; the last block may have fewer rows."""
    whole = len(values) // block * block
    found = values[:whole].reshape(-1, block, values.shape[1]).sum(axis=1)
    return found if whole == len(values) else np.concatenate([found, values[whole:].sum(axis=0, keepdims=True)])
