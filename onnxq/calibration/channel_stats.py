"""Statistics of each channel of an activation: extremes of its samples, mean and second moment.

The two greatest and the two least values of a channel come from different batches. So the range without the batch that
set it is known, and by how much that batch would then have been clipped. That estimates the clipping of unseen data
from one pass (leave one out).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Self

import numpy as np

from onnxq.calibration.statistic import Statistic

KEPT = 2  # extremes of so many batches


class ChannelStats(Statistic):
    """Extremes, sum and sum of squares of every channel of a tensor; the sums in float64.

    A tensor whose number of channels differs between batches, or that lacks the axis, has none: `channels` is 0, and
    stays 0 whatever is added.

    Args:
        axis: The axis of the channels; negative ones count from the last.

    Attributes:
        high: float32 `[2, channels]`: the greatest value of the batch where it is greatest, then of the next batch;
            -inf while unknown.
        low: float32 `[2, channels]`: the least ones, +inf while unknown.
        total, squares: float64 `[channels]`.
        count: Values seen in each channel.
        batches: Batches seen.

    """

    key = "channels"

    def __init__(self, axis: int = -1) -> None:
        self.axis = axis
        self.count = 0
        self.batches = 0
        self._reset(0)

    def _reset(self, channels: int) -> None:
        self.high = np.full((KEPT, channels), -np.inf, np.float32)
        self.low = np.full((KEPT, channels), np.inf, np.float32)
        self.total = np.zeros(channels)
        self.squares = np.zeros(channels)

    @property
    def channels(self) -> int:
        """How many there are; 0 while nothing was seen or where they are not always the same number."""
        return self.high.shape[1]

    @property
    def mean(self) -> np.ndarray:
        """Mean of every channel, float64 `[channels]`."""
        return self.total / max(self.count, 1)

    @property
    def second_moment(self) -> np.ndarray:
        """Mean of the squares of every channel, float64 `[channels]`."""
        return self.squares / max(self.count, 1)

    def add(self, values: np.ndarray) -> None:
        """Take in a batch."""
        width = values.shape[self.axis] if -values.ndim <= self.axis < values.ndim else 0
        if not self._admits(width):
            return
        # (before, channel, behind): the axes on either side of the channel as one
        axis = self.axis % values.ndim
        parts = values.reshape(math.prod(values.shape[:axis]), width, -1)
        if parts.shape[2] == 1:
            rows = parts[:, :, 0]
            self._take_batch(rows.max(axis=0), rows.min(axis=0))
            exact = rows.astype(np.float64)
            self.total += exact.sum(axis=0)
            self.squares += np.einsum("nc,nc->c", exact, exact)
        else:
            others = (0, 2)
            self._take_batch(parts.max(axis=others), parts.min(axis=others))
            for part in parts:
                exact = part.astype(np.float64)
                self.total += exact.sum(axis=1)
                self.squares += np.einsum("cn,cn->c", exact, exact)
        self.count += values.size // width
        self.batches += 1

    def merge(self, other: Self) -> Self:
        """Return the statistics of both."""
        merged = type(self)(self.axis)
        for part in (self, other):
            if part.batches and merged._admits(part.channels):
                merged._take(part.high, part.low)
                merged.total += part.total
                merged.squares += part.squares
                merged.count += part.count
                merged.batches += part.batches
        return merged

    def divided(self, divisor: np.ndarray) -> Self:
        """Return the statistics of the tensor divided by a positive number for each channel.

        Args:
            divisor: `[channels]`, positive.

        """
        made = type(self)(self.axis)
        made.count, made.batches = self.count, self.batches
        made.high = (self.high / divisor).astype(np.float32)
        made.low = (self.low / divisor).astype(np.float32)
        made.total = self.total / divisor
        made.squares = self.squares / np.square(divisor, dtype=np.float64)
        return made

    def shifted(self, shift: np.ndarray) -> Self:
        """Return the statistics of the tensor with a number added to each channel.

        Args:
            shift: float64 `[channels]`.

        """
        made = type(self)(self.axis)
        made.count, made.batches = self.count, self.batches
        made.high = (self.high + shift).astype(np.float32)
        made.low = (self.low + shift).astype(np.float32)
        made.total = self.total + shift * self.count
        made.squares = self.squares + 2 * shift * self.total + np.square(shift) * self.count
        return made

    def joined(self, positions: int) -> Self:
        """Return the statistics of channels that lie as so many neighbours each on the axis: of a flattened map.

        The batch of each position's maximum is not known. The range without its batch is therefore taken from the next
        batch at the best position. It is less than before if the maxima of two positions are of two batches.
        """
        made = type(self)(self.axis)
        made.count, made.batches = self.count * positions, self.batches
        made.high = self.high.reshape(KEPT, -1, positions).max(axis=2)
        made.low = self.low.reshape(KEPT, -1, positions).min(axis=2)
        made.total = self.total.reshape(-1, positions).sum(axis=1)
        made.squares = self.squares.reshape(-1, positions).sum(axis=1)
        return made

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the state."""
        return {
            "frame": np.array([self.axis, self.count, self.batches], np.int64),
            "extremes": np.concatenate([self.high, self.low]),
            "sums": np.stack([self.total, self.squares]),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> Self:
        """Take the state that `arrays` gave."""
        axis, count, batches = (int(v) for v in arrays["frame"])
        made = cls(axis)
        made.count, made.batches = count, batches
        made.high, made.low = (np.array(part, np.float32) for part in np.split(arrays["extremes"], 2))
        made.total, made.squares = (np.array(part, np.float64) for part in arrays["sums"])
        return made

    def _admits(self, width: int) -> bool:
        """Whether a batch of so many channels can be taken in; where it cannot, give up for good."""
        if not self.batches:
            self._reset(width)
        if width and width == self.channels:
            return True
        self._reset(0)
        self.count = 0
        self.batches = max(self.batches, 1)
        return False

    def _take_batch(self, high: np.ndarray, low: np.ndarray) -> None:
        """Take in the extremes of one batch, `[channels]`; as `_take` does, in fewer steps."""
        zero = np.float32(0)
        (first, second), (last, next_to_last) = self.high, self.low
        second, next_to_last = (
            np.maximum(second, np.minimum(first, high)),
            np.minimum(next_to_last, np.maximum(last, low)),
        )
        self.high = np.array([np.maximum(first, high), second]) + zero
        self.low = np.array([np.minimum(last, low), next_to_last]) + zero

    def _take(self, high: np.ndarray, low: np.ndarray) -> None:
        zero = np.float32(0)  # added, it makes 0.0 of -0.0
        self.high = -np.sort(-np.concatenate([self.high, high]), axis=0)[:KEPT] + zero
        self.low = np.sort(np.concatenate([self.low, low]), axis=0)[:KEPT] + zero
