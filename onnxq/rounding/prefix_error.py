"""Compensate in a layer's weight for the error of the quantized layers before it.

A layer behind quantized layers reads `x̂` instead of `x`. The float weight then leaves the error `e = W (x - x̂)`. The
part of it that depends on `x̂` goes into the weight: `ΔW = E[e x̂ᵀ] (E[x̂ x̂ᵀ] + λ)⁻¹`. Codes are chosen for `W + a ΔW`.

The term is that of Qronos (https://arxiv.org/abs/2505.11695). The strength `a` is that of QEP
(https://arxiv.org/abs/2504.09629); the other half of the samples decides about it here. The error of the residual
stream (LoaQ, https://arxiv.org/abs/2509.06297) is left out: with it, the perplexity of two decoders rose.

Tests: `tests/rounding/test_prefix_error.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from onnxq.calibration.gram import Gram
from onnxq.calibration.im2col import Unfolding
from onnxq.calibration.second_moments import ROWS_PER_ITEM, LayerMoments, halves_of

RIDGES = (1e-2, 1e-1, 1.0)  # λ, relative to the mean of the diagonal
SLAB = 1 << 22  # elements of the weight at a time: 32 MB for each of two sums
LEAST_GAIN = 1e-4  # of the error: a weight that gains less stays as it is

Pair = tuple[np.ndarray, np.ndarray]


class PrefixError:
    """Sums of `e x̂ᵀ` in two halves, which are those of `LayerMoments`.

    Args:
        weight: Float rows `[channels, n]`.

    """

    def __init__(self, weight: np.ndarray) -> None:
        self.weight = weight
        self.sums = [np.zeros(weight.shape) for _ in range(2)]
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

    def corrected(self, moments: LayerMoments, ridges: Sequence[float] = RIDGES) -> tuple[np.ndarray, float | None]:
        """Return the weight to choose codes for, float32 `[channels, n]`, and the ridge that served best.

        Args:
            moments: Second moments of `x̂`, of the same samples.
            ridges: Which to try.

        Returns:
            The weight, and the ridge; None with the weight as it was.

        """
        if not all(self.rows):
            return self.weight, None
        fitted, held_out = moments.fitted(), moments.held_out()
        best = (0.0, 0.0, ridges[0])
        for ridge in ridges:
            change = _solve(self.sums[0] / self.rows[0], fitted, ridge)
            size = float(held_out.errors(change).sum())
            along = float((change * self.sums[1]).sum()) / self.rows[1]
            strength = min(max(along / size, 0.0), 1.0) if size > 0 else 0.0
            gain = strength * (2 * along - strength * size)
            best = max(best, (gain, strength, ridge))
        gain, strength, ridge = best
        if gain <= LEAST_GAIN * self.squares[1] / self.rows[1]:
            return self.weight, None
        change = _solve((self.sums[0] + self.sums[1]) / sum(self.rows), moments.total(), ridge)
        return np.asarray(self.weight + strength * change, np.float32), ridge


def compensated(rows: np.ndarray, samples: Callable[[], Iterable[Pair]], moments: LayerMoments) -> np.ndarray:
    """Return the weight to choose codes for, some channels at a time.

    Args:
        rows: The float weight `[channels, n]`.
        samples: Gives for each sample what `PrefixError.add` takes; it is called once for each slab of channels.
        moments: Second moments of `x̂`, of the same samples.

    Returns:
        float32 `[channels, n]`; the weight itself where nothing is gained.

    """
    height = max(SLAB // max(rows.shape[1], 1), 1)
    ridges: Sequence[float] = RIDGES
    result = rows
    for start in range(0, len(rows), height):
        slab = slice(start, start + height)
        error = PrefixError(rows[slab])
        for quantized, exact in samples():
            error.add(quantized, exact)
        weight, ridge = error.corrected(moments, ridges)
        if ridge is not None:
            result = rows.copy() if result is rows else result
            result[slab], ridges = weight, (ridge,)
    return result


def _solve(sums: np.ndarray, gram: Gram, ridge: float) -> np.ndarray:
    """Return the change of the weight, block by block of H."""
    blocks = gram.split(sums)
    size = gram.matrix.shape[1]
    scale = np.einsum("pbb->pb", gram.matrix).mean(axis=1)[:, None, None]
    system = gram.matrix + np.maximum(ridge * scale, np.finfo(np.float64).tiny) * np.eye(size)
    return gram.join(np.linalg.solve(system, blocks.transpose(0, 2, 1)).transpose(0, 2, 1))
