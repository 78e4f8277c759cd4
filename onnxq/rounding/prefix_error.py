"""Compensate in a layer's weight for the error of the quantized layers before it.

A layer behind quantized layers reads `x̂` instead of `x`. The float weight then leaves the error `e = W (x - x̂)`. The
part of it that depends on `x̂` goes into the weight: `ΔW = E[e x̂ᵀ] (E[x̂ x̂ᵀ] + λ)⁻¹`. Codes are chosen for `W + a ΔW`.

The term is that of Qronos (https://arxiv.org/abs/2505.11695). The strength `a` is that of QEP
(https://arxiv.org/abs/2504.09629); the other half of the samples decides about it here. The error of the residual
stream (LoaQ, https://arxiv.org/abs/2509.06297) is left out: with it, the perplexity of two decoders rose.

Tests: `tests/rounding/test_prefix_error.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from onnxq.calibration.gram import Gram
from onnxq.calibration.im2col import Unfolding
from onnxq.calibration.second_moments import ROWS_PER_ITEM, LayerMoments, halves_of
from onnxq.ir.storage.shelf import release_array
from onnxq.rounding.cholesky import inverted

RIDGES = (1e-1, 1.0, 1e-2)  # λ, relative to the mean of the diagonal; the last only if the second serves no better
SLAB = 1 << 22  # elements of a weight that are corrected at a time
LEAST_GAIN = 1e-4  # of the error: a weight that gains less stays as it is
PROBED = 1 << 19  # elements of the channels that choose for all; 256 channels of 1536 choose otherwise than all
TOGETHER, LEAST_ROWS = 1 << 20, 128  # elements of rows that are multiplied at a time: 4 MB, but no fewer rows

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
        least = LEAST_GAIN * self.squares[1] / self.rows[1]
        fitted = moments.fitted()
        return _best_choice(
            self.sums, self.rows, fitted, moments.held_out(), least, lambda ridge: _inverses(fitted, ridge)
        )

    def corrected(self, moments: LayerMoments) -> np.ndarray:
        """Return the weight to choose codes for, float32 `[channels, n]`; the weight itself where nothing is gained.

        Args:
            moments: Second moments of `x̂`, of the same samples.

        """
        choice = self.choice(moments)
        if choice is None:
            return self.weight
        total = moments.total()
        change = _solve((self.sums[0] + self.sums[1]) / sum(self.rows), total, _inverses(total, choice.ridge))
        return np.asarray(self.weight + choice.strength * change, np.float32)


class CommonErrors(ABC):
    """Sums of `e x̂ᵀ` for channels as they are asked for, by which a weight is corrected in place.

    Attributes:
        rows: How many rows each half has.

    """

    def __init__(self, moments: LayerMoments) -> None:
        self._moments = moments
        self._kept: dict[tuple[str, float], list[np.ndarray]] = {}
        self.rows = [0, 0]

    @abstractmethod
    def sums(self, rows: np.ndarray, which: slice, half: int) -> Iterator[np.ndarray]:
        """Visit the sums of some channels in each range of columns of H.

        Args:
            rows: The float weight `[channels, n]`.
            which: The channels.
            half: 0 for the first half of the samples, 1 for both.

        """

    @abstractmethod
    def release(self) -> None:
        """Release what is mapped."""

    def choice(self, rows: np.ndarray, which: slice) -> Choice | None:
        """Return what serves best on the second half of the samples for some channels; None where nothing is gained.

        Args:
            rows: The float weight `[channels, n]`.
            which: The channels.

        """
        if not all(self.rows):
            return None
        fitted, held_out = self._moments.fitted(), self._moments.held_out()
        own = np.concatenate([*self.sums(rows, which, 0)], axis=1)
        other = np.concatenate([*self.sums(rows, which, 1)], axis=1) - own
        self.release()
        return _best_choice(
            (own, other), self.rows, fitted, held_out, 0.0, lambda ridge: self._inverses("fitted", fitted, ridge)
        )

    def correct(self, rows: np.ndarray, choice: Choice) -> None:
        """Add the change that compensates to a float32 weight `[channels, n]`, in place."""
        height = max(SLAB // max(rows.shape[1], 1), 1)
        inverses = self._kept.get(("total", choice.ridge))
        if inverses is None:
            inverses = list(self._inverses("total", self._moments.total(), choice.ridge))
        factor = np.float32(choice.strength / sum(self.rows))
        for first in range(0, len(rows), height):
            which, changes = slice(first, first + height), []
            for sums, inverse in zip(self.sums(rows, which, 1), inverses, strict=True):
                width = sums.shape[1]
                changes.append(sums @ inverse[:width, :width])
            rows[which] += factor * np.concatenate(changes, axis=1)
        self.release()

    def _inverses(self, name: str, gram: Gram, ridge: float) -> Iterable[np.ndarray]:
        """Return the inverse of each block; one of a single block is kept for other weights that read the same."""
        if len(gram.matrix) > 1:
            return _inverses(gram, ridge)
        if (name, ridge) not in self._kept:
            self._kept[name, ridge] = list(_inverses(gram, ridge))
        return self._kept[name, ridge]


class InputErrors(CommonErrors):
    """Sums of `(x - x̂)ᵀ x̂`, one range of columns of H after the other: they serve all weights that read `x̂`.

    A weight's sums of `e x̂ᵀ` are its product with them, so no weight takes a pass over the samples of its own.

    Args:
        samples: Gives for each sample what `PrefixError.add` takes; it is called once for each range.
        moments: Second moments of `x̂`, of the same samples.
        keep: Puts an array of `n` rows out of memory.

    Attributes:
        parts: float32 `[n, columns]` for each range: sums of the first half, and of both.

    """

    def __init__(self, samples: PairSource, moments: LayerMoments, keep: Callable[[np.ndarray], np.ndarray]) -> None:
        super().__init__(moments)
        self.parts = []
        n = moments.unfolding.n
        for start in range(0, n, moments.block):
            columns = slice(start, min(start + moments.block, n))
            sums = np.zeros((2, n, columns.stop - start), np.float32)
            self.rows = [0, 0]
            for half, read, errors in _rows_together(samples, moments.unfolding, n):
                errors -= read
                sums[half] += errors.T @ read[:, columns]
                self.rows[half] += len(read)
            sums[1] += sums[0]
            self.parts.append((keep(sums[0]), keep(sums[1])))

    def sums(self, rows: np.ndarray, which: slice, half: int) -> Iterator[np.ndarray]:
        """Visit the sums of some channels in each range of columns of H."""
        return (rows[which] @ part[half] for part in self.parts)

    def release(self) -> None:
        """Release what is mapped."""
        for pair in self.parts:
            for part in pair:
                release_array(part)


class OutputErrors(CommonErrors):
    """Sums of `e x̂ᵀ` of one weight, of what its layer gives in the float model.

    A weight with fewer channels than columns, which reads `x̂` alone, takes fewer products so than by `InputErrors`. If
    H is whole, `e x̂ᵀ` is `(W x) x̂ᵀ - W H`.

    Args:
        weight: Float rows `[channels, n]`.
        samples: Gives for each sample what the layer reads behind quantized layers, `[..., n]`, and what it gives in
            the float model, `[..., channels]`.
        moments: Second moments of `x̂`, of the same samples.
        keep: Puts an array out of memory.

    Attributes:
        parts: float32 `[channels, n]`: sums of the first half, and of both.

    """

    def __init__(
        self,
        weight: np.ndarray,
        samples: PairSource,
        moments: LayerMoments,
        keep: Callable[[np.ndarray], np.ndarray],
    ) -> None:
        super().__init__(moments)
        whole = moments.block >= moments.unfolding.n
        sums = np.zeros((2, *weight.shape), np.float32)
        for half, read, given in _rows_together(samples, moments.unfolding, len(weight)):
            if not whole:
                given -= read @ weight.T
            sums[half] += given.T @ read
            self.rows[half] += len(read)
        if whole:
            for total, moment in zip(sums, moments.halves, strict=True):
                total -= weight @ moment.sums()[0][0]
        sums[1] += sums[0]
        self.parts = keep(sums[0]), keep(sums[1])

    def sums(self, rows: np.ndarray, which: slice, half: int) -> Iterator[np.ndarray]:
        """Visit the sums of some channels in each range of columns of H."""
        n, size = rows.shape[1], self._moments.block
        return (self.parts[half][which, start : min(start + size, n)] for start in range(0, n, size))

    def release(self) -> None:
        """Release what is mapped."""
        for part in self.parts:
            release_array(part)


def _rows_together(
    samples: PairSource, unfolding: Unfolding, width: int
) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yield the half, 0 or 1, and rows of both arrays of pairs, as many as pay to be added to a large matrix.

    Arrays are good until the next ones are asked for, and may be changed.

    Args:
        samples: Pairs of arrays with the same rows.
        unfolding: How a layer reads the first.
        width: Columns of the second.

    """
    height = max(TOGETHER // unfolding.n, LEAST_ROWS)
    kept = tuple(np.empty((2, height, columns), np.float32) for columns in (unfolding.n, width))
    filled, items = [0, 0], 0
    for pair in samples():
        for parts in zip(*(unfolding.rows(each, ROWS_PER_ITEM) for each in pair), strict=True):
            for (half, one), (_, two) in zip(*(halves_of(each, items) for each in parts), strict=True):
                while len(one):
                    part = slice(filled[half], min(filled[half] + len(one), height))
                    count = part.stop - part.start
                    kept[0][half, part], kept[1][half, part] = one[:count], two[:count]
                    one, two, filled[half] = one[count:], two[count:], part.stop
                    if part.stop == height:
                        yield half, kept[0][half], kept[1][half]
                        filled[half] = 0
            items += len(parts[0])
    for half, count in enumerate(filled):
        if count:
            yield half, kept[0][half, :count], kept[1][half, :count]


def compensated(
    rows: np.ndarray, samples: PairSource, moments: LayerMoments, errors: Callable[[], CommonErrors] | None = None
) -> np.ndarray:
    """Return the weight to choose codes for.

    Args:
        rows: The float weight `[channels, n]`; it is changed in place if there are `errors`.
        samples: Gives for each sample what `PrefixError.add` takes.
        moments: Second moments of `x̂`, of the same samples.
        errors: Gives what the weight is corrected with; a few of its channels choose how. Without it, the weight has
            sums in float64, and all channels choose.

    Returns:
        float32 `[channels, n]`; the weight itself where nothing is gained.

    """
    if errors is None:
        error = PrefixError(rows, moments.halves[0].gram.dtype)
        for quantized, exact in samples():
            error.add(quantized, exact)
        return error.corrected(moments)
    found = errors()
    choice = found.choice(rows, slice(None, None, -(-rows.size // PROBED)))
    if choice is not None:
        found.correct(rows, choice)
    return rows


def _best_choice(
    sums: Sequence[np.ndarray],
    rows: Sequence[int],
    fitted: Gram,
    held_out: Gram,
    least: float,
    inverses: Callable[[float], Iterable[np.ndarray]],
) -> Choice | None:
    """Return what serves best on the second half; None where it gains no more than `least`.

    Args:
        sums: Of `e x̂ᵀ` in both halves, `[channels, n]`.
        rows: How many rows each half has.
        fitted: Second moments of the first half.
        held_out: Those of the second.
        least: Error of a row.
        inverses: Gives the inverse of each block of `fitted` with a ridge.

    """
    best, most = None, least
    for ridge in RIDGES:
        if best is not None and ridge < RIDGES[0] < best.ridge:
            break  # gains have one maximum
        change = _solve(sums[0] / rows[0], fitted, inverses(ridge))
        size = float(held_out.errors(change).sum())
        along = float((change * sums[1]).sum()) / rows[1]
        strength = min(max(along / size, 0.0), 1.0) if size > 0 else 0.0
        gain = strength * (2 * along - strength * size)
        if gain > most:
            best, most = Choice(ridge, strength), gain
    return best


def _solve(sums: np.ndarray, gram: Gram, inverses: Iterable[np.ndarray]) -> np.ndarray:
    """Return the change of the weight, block by block of H."""
    parts = [block @ inverse for block, inverse in zip(gram.split(sums), inverses, strict=True)]
    return gram.join(np.stack(parts))


def _inverses(gram: Gram, ridge: float) -> Iterator[np.ndarray]:
    """Visit the inverse of each block of H with a ridge."""
    return (inverted(_system(gram, index, ridge)) for index in range(len(gram.matrix)))


def _system(gram: Gram, index: int, ridge: float) -> np.ndarray:
    """Return a block of H with a ridge."""
    system: np.ndarray = gram.matrix[index].copy()
    diagonal = np.einsum("bb->b", system)
    diagonal += max(ridge * float(diagonal.mean()), float(np.finfo(system.dtype).tiny))
    return system
