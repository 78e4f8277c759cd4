"""Compensate in a layer's weight for the error of the quantized layers before it.

A layer behind quantized layers reads `x̂` instead of `x`. The float weight then leaves the error `e = W (x - x̂)`. The
part of it that depends on `x̂` goes into the weight: `ΔW = E[e x̂ᵀ] (E[x̂ x̂ᵀ] + λ)⁻¹`. Codes are chosen for `W + a ΔW`.

The term is that of Qronos (https://arxiv.org/abs/2505.11695). The strength `a` is that of QEP
(https://arxiv.org/abs/2504.09629); the other half of the samples decides about it here. The error of the residual
stream (LoaQ, https://arxiv.org/abs/2509.06297) is left out: with it, the perplexity of two decoders rose.

Tests: `tests/rounding/test_prefix_error.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from onnxq.calibration.gram import Gram
from onnxq.calibration.im2col import Unfolding
from onnxq.calibration.second_moments import ROWS_PER_ITEM, LayerMoments, halves_of
from onnxq.ir.storage.shelf import release_array

RIDGES = (1e-2, 1e-1, 1.0)  # λ, relative to the mean of the diagonal
SLAB = 1 << 22  # elements of a weight from which on it is large, and that are corrected at a time
LEAST_GAIN = 1e-4  # of the error: a weight that gains less stays as it is

PROBED = 256  # channels of a large weight, which choose for all

Pair = tuple[np.ndarray, np.ndarray]
PairSource = Callable[[], Iterable[Pair]]


class Choice(NamedTuple):
    """How a weight compensates: the ridge, and the strength from 0 to 1."""

    ridge: float
    strength: float


class PrefixError:
    """Sums of `e x̂ᵀ` in two halves, which are those of `LayerMoments`.

    Args:
        weight: Float rows `[channels, n]`.
        dtype: Of the sums.

    """

    def __init__(self, weight: np.ndarray, dtype: DTypeLike = np.float64) -> None:
        self.weight = weight
        self.sums = [np.zeros(weight.shape, dtype) for _ in range(2)]
        self.rows, self.squares = [0, 0], [0.0, 0.0]
        self._items = 0

    def add(self, quantized: np.ndarray, exact: np.ndarray) -> None:
        """Take in a sample.

        Args:
            quantized: What the layer reads behind quantized layers, `[..., n]`.
            exact: What it reads in the float model, of the same shape.

        """
        error = (exact - quantized) @ self.weight.T.astype(quantized.dtype, copy=False)
        n, stacked = self.weight.shape[1], np.concatenate([quantized, error], axis=-1)
        for items in Unfolding(stacked.shape[-1]).rows(stacked, ROWS_PER_ITEM):
            for half, rows in halves_of(items, self._items):
                read, wrong = rows[:, :n], rows[:, n:]
                self.sums[half] += wrong.T @ read
                self.squares[half] += float(np.square(wrong, dtype=np.float64).sum())
                self.rows[half] += len(rows)
            self._items += len(items)

    def choice(self, moments: LayerMoments) -> Choice | None:
        """Return what served best on the other half of the samples; None where too little is gained.

        Args:
            moments: Second moments of `x̂`, of the same samples.

        """
        if not all(self.rows):
            return None
        fitted, held_out = moments.fitted(), moments.held_out()
        best, most = None, LEAST_GAIN * self.squares[1] / self.rows[1]
        for ridge in RIDGES:
            change = _solve(self.sums[0] / self.rows[0], fitted, ridge)
            size = float(held_out.errors(change).sum())
            along = float((change * self.sums[1]).sum()) / self.rows[1]
            strength = min(max(along / size, 0.0), 1.0) if size > 0 else 0.0
            gain = strength * (2 * along - strength * size)
            if gain > most:
                best, most = Choice(ridge, strength), gain
        return best

    def corrected(self, moments: LayerMoments) -> np.ndarray:
        """Return the weight to choose codes for, float32 `[channels, n]`; the weight itself where nothing is gained.

        Args:
            moments: Second moments of `x̂`, of the same samples.

        """
        choice = self.choice(moments)
        if choice is None:
            return self.weight
        change = _solve((self.sums[0] + self.sums[1]) / sum(self.rows), moments.total(), choice.ridge)
        return np.asarray(self.weight + choice.strength * change, np.float32)


class InputErrors:
    """Means of `(x - x̂) x̂ᵀ`, one range of columns of H after the other: they serve all weights that read `x̂`.

    Args:
        samples: Gives for each sample what `PrefixError.add` takes; it is called once for each range.
        moments: Second moments of `x̂`, of the same samples.
        keep: Puts an array of `n` rows out of memory.

    Attributes:
        parts: float32 `[n, columns]` for each range.

    """

    def __init__(self, samples: PairSource, moments: LayerMoments, keep: Callable[[np.ndarray], np.ndarray]) -> None:
        self._moments, self.parts = moments, []
        unfolding = moments.unfolding
        for start in range(0, unfolding.n, moments.block):
            part = np.zeros((unfolding.n, min(moments.block, unfolding.n - start)), np.float32)
            count = 0
            for quantized, exact in samples():
                pairs = (unfolding.rows(each, ROWS_PER_ITEM) for each in (quantized, exact))
                for read, meant in zip(*pairs, strict=True):
                    known = read.reshape(-1, unfolding.n)
                    part += (meant.reshape(known.shape) - known).T @ known[:, start : start + part.shape[1]]
                    count += len(known)
            part /= max(count, 1)
            self.parts.append(keep(part))

    def correct(self, rows: np.ndarray, choice: Choice) -> None:
        """Add the change that compensates to a float32 weight `[channels, n]`, in place."""
        total = self._moments.total()
        height = max(SLAB // max(rows.shape[1], 1), 1)
        inverses = [np.linalg.inv(_system(total, index, choice.ridge)) for index in range(len(total.matrix))]
        del total
        for first in range(0, len(rows), height):
            slab, changes = rows[first : first + height], []
            for part, inverse in zip(self.parts, inverses, strict=True):
                width = part.shape[1]
                changes.append((slab @ part) @ inverse[:width, :width])
            slab += np.float32(choice.strength) * np.concatenate(changes, axis=1)
        for part in self.parts:
            release_array(part)


def compensated(
    rows: np.ndarray, samples: PairSource, moments: LayerMoments, errors: Callable[[], InputErrors]
) -> np.ndarray:
    """Return the weight to choose codes for.

    Args:
        rows: The float weight `[channels, n]`; a large one is changed in place.
        samples: Gives for each sample what `PrefixError.add` takes.
        moments: Second moments of `x̂`, of the same samples.
        errors: Gives what large weights are corrected with, of which a few channels choose how.

    Returns:
        float32 `[channels, n]`; the weight itself where nothing is gained.

    """
    small = rows.size <= SLAB
    error = PrefixError(rows if small else rows[:: -(-len(rows) // PROBED)], moments.halves[0].gram.dtype)
    for quantized, exact in samples():
        error.add(quantized, exact)
    if small:
        return error.corrected(moments)
    choice = error.choice(moments)
    if choice is not None:
        errors().correct(rows, choice)
    return rows


def _solve(sums: np.ndarray, gram: Gram, ridge: float) -> np.ndarray:
    """Return the change of the weight, block by block of H."""
    blocks = gram.split(sums)
    parts = [np.linalg.solve(_system(gram, index, ridge), block.T).T for index, block in enumerate(blocks)]
    return gram.join(np.stack(parts))


def _system(gram: Gram, index: int, ridge: float) -> np.ndarray:
    """Return a block of H with a ridge."""
    system: np.ndarray = gram.matrix[index].copy()
    diagonal = np.einsum("bb->b", system)
    diagonal += max(ridge * float(diagonal.mean()), float(np.finfo(system.dtype).tiny))
    return system
