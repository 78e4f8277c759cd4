"""A histogram in which an element counts as much as an error in its channel counts at the outputs of its readers.

A layer `y = x Wᵀ` turns an input error e into `e Wᵀ`. If errors of channels are independent, its square is `Σ_k e_k²
‖W_k‖²` with `W_k` the column of channel k. So an element of channel k counts `‖W_k‖²`, in the same bins as in an
ordinary histogram. Weights are integers: sums of them are exact in float64 up to 2**53, so that neither order nor
splitting nor merging changes a count.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Self

import numpy as np

from onnxq.calibration.histogram import CHUNK, Histogram
from onnxq.calibration.thinning import counted_places
from onnxq.runtime.blas_threads import single_threaded_blas

GREATEST = 1 << 16  # weight of the channel that counts most


class WeightedHistogram(Histogram):
    """Counts of float32 values, each multiplied with the weight of its channel.

    `counts` and `zeros` are sums of weights, int64.

    Args:
        weights: int64 `[channels]`, from `channel_weights`.
        axis: The axis of the channels; negative ones count from the last.
        most: As for `Histogram`.

    """

    key = "weighted_histogram"

    def __init__(self, weights: np.ndarray | Sequence[int] = (), axis: int = -1, most: int = 0) -> None:
        super().__init__(most)
        self.weights = np.asarray(weights, np.int64)
        self.axis = axis
        self._spread_for, self._spread_out = (0, 0, 0), np.zeros(0)

    def empty(self) -> Self:
        """Return an empty histogram of the same channels."""
        return type(self)(self.weights, self.axis, self.most)

    def merge(self, other: Self) -> Self:
        """Return the histogram of both; they must have the same weights."""
        if self.axis != other.axis or not np.array_equal(self.weights, other.weights):
            raise ValueError("histograms of different channel weights cannot be merged")
        return super().merge(other)

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the state."""
        return {**super().arrays(), "weights": self.weights, "axis": np.array(self.axis, np.int64)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> Self:
        """Take the state."""
        made = super().from_arrays(arrays)
        made.weights, made.axis = np.array(arrays["weights"], np.int64), int(arrays["axis"])
        return made

    def _count(self, values: np.ndarray, inverse: np.float32) -> None:
        axis = self.axis % values.ndim
        if values.shape[axis] != len(self.weights):
            raise ValueError(f"{values.shape[axis]} channels, but weights for {len(self.weights)}")
        places, times = counted_places(values.size, self.most)
        if places is not None:
            channels = places // math.prod(values.shape[axis + 1 :]) % len(self.weights)
            self._count_flat(values.reshape(-1)[places], (times * self.weights[channels]).astype(np.float64), inverse)
            return
        runs = values.reshape(-1, math.prod(values.shape[axis + 1 :]))  # all elements of one are of one channel
        length = runs.shape[1]
        # Whole rounds of the channels where there is room: their weights are laid once
        height = max(CHUNK // length, 1)
        height -= height % len(self.weights) if height >= len(self.weights) else 0
        spread = np.zeros(0)
        for start in range(0, len(runs), height):
            block = runs[start : start + height]
            if not spread.size or height % len(self.weights):
                spread = self._spread_weights(start, len(block), min(length, CHUNK))
            flat = block.reshape(-1)
            if flat.size > len(spread):  # all of one channel
                spread = np.resize(spread, flat.size)
            self._count_flat(flat, spread, inverse)

    def _spread_weights(self, first: int, runs: int, length: int) -> np.ndarray:
        """Return the weight of every element of so many runs, float64: those of the channels in turn."""
        asked = first % max(len(self.weights), 1), runs, length
        if self._spread_for != asked:  # of one batch as of the next
            weights = self.weights.take(np.arange(first, first + runs), mode="wrap").astype(np.float64)
            self._spread_for, self._spread_out = asked, np.broadcast_to(weights[:, None], (runs, length)).reshape(-1)
        return self._spread_out

    def _count_flat(self, values: np.ndarray, weights: np.ndarray, inverse: np.float32) -> None:
        """Count values whose weights are given."""
        with single_threaded_blas():
            for begin in range(0, values.size, CHUNK):
                chunk = values[begin : begin + CHUNK]
                self._count_chunk(chunk, weights[begin : begin + chunk.size], inverse)

    def _count_chunk(self, chunk: np.ndarray, weights: np.ndarray, inverse: np.float32) -> None:
        self.counts += np.bincount(self._index(chunk, inverse), weights, len(self.counts)).astype(np.int64)
        self.zeros += int(np.dot(weights, chunk == 0))  # picking them out takes longer than all else if they are many


def channel_weights(energies: Sequence[np.ndarray]) -> np.ndarray:
    """Tell what an error in each channel of a value counts.

    Args:
        energies: For each reader `‖W_k‖²` of every channel. Readers count alike: each one's energies are taken in
            relation to their sum, for how large a reader's outputs are is undone by the layers behind it.

    Returns:
        int64 `[channels]`, at most `GREATEST`; 1 for every channel where nothing counts.

    """
    shares = sum(energy / total for energy in energies if 0 < (total := float(energy.sum())) < np.inf)
    if not isinstance(shares, np.ndarray):
        return np.ones(len(energies[0]), np.int64)
    return np.asarray(np.rint(shares * (GREATEST / shares.max())), np.int64)
