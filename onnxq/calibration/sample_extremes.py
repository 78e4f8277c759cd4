"""Extremes of a tensor in single samples, which show how far other samples may go.

A histogram cannot tell that: it does not know which values came together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import numpy as np

from onnxq.calibration.statistic import Statistic

KEPT = 33  # the greatest peaks that are remembered, on each side
MOST_BATCHES = 128  # whose channels are remembered


class SampleExtremes(Statistic):
    """How many batches and elements there were, and the greatest peaks of batches on both sides of zero."""

    key = "peaks"

    def __init__(self, batches: int = 0, elements: int = 0) -> None:
        self.batches, self.elements = batches, elements
        self._above = np.zeros(0, np.float32)
        self._below = np.zeros(0, np.float32)
        self._waiting: list[tuple[np.float32, np.float32]] = []  # least and greatest of batches that are not sorted in

    @property
    def above(self) -> np.ndarray:
        """The greatest peaks above zero, the greatest first."""
        self._sort_in()
        return self._above

    @property
    def below(self) -> np.ndarray:
        """The same below zero, without their sign."""
        self._sort_in()
        return self._below

    def add(self, values: np.ndarray) -> None:
        """Take in a batch."""
        self.add_between(values, values.min(), values.max())

    def add_between(self, values: np.ndarray, low: np.float32, high: np.float32) -> None:
        """Take in a batch whose extremes are known."""
        self.batches += 1
        self.elements += values.size
        self._waiting.append((low, high))
        if len(self._waiting) >= KEPT:
            self._sort_in()

    def _sort_in(self) -> None:
        if self._waiting:
            low, high = np.array(self._waiting, np.float32).T
            self._above, self._below = _greatest(self._above, high), _greatest(self._below, -low)
            self._waiting = []

    def merge(self, other: Self) -> Self:
        """Return the peaks of both."""
        merged = type(self)(self.batches + other.batches, self.elements + other.elements)
        merged._above, merged._below = _greatest(self.above, other.above), _greatest(self.below, other.below)
        return merged

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the state."""
        counts = np.array([self.batches, self.elements], np.int64)
        return {"counts": counts, "above": self.above, "below": self.below}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> Self:
        """Take the state."""
        made = cls(*(int(count) for count in arrays["counts"]))
        made._above, made._below = (np.array(arrays[side], np.float32) for side in ("above", "below"))
        return made


class ChannelPeaks(Statistic):
    """Extremes of every channel in every batch, for trials: what dividing and shifting channels makes of them follows.

    Nothing is known where the number of channels differs between batches, where the axis is missing, and from the
    129th batch on.

    Args:
        axis: The axis of the channels; negative ones count from the last.

    Attributes:
        high, low: float32 `[batches, channels]`; None where nothing is known.
        elements: How many there were in all channels and batches.

    """

    key = "channel peaks"

    def __init__(self, axis: int = -1) -> None:
        self.axis, self.elements = axis, 0
        self.high: np.ndarray | None = np.zeros((0, 0), np.float32)
        self.low: np.ndarray | None = np.zeros((0, 0), np.float32)

    def add(self, values: np.ndarray) -> None:
        """Take in a batch."""
        if not -values.ndim <= self.axis < values.ndim:
            self.high = self.low = None
            return
        others = tuple(axis for axis in range(values.ndim) if axis != self.axis % values.ndim)
        self._take(values.max(axis=others)[None], values.min(axis=others)[None], values.size)

    def merge(self, other: Self) -> Self:
        """Return the extremes of both, batch after batch."""
        merged = type(self)(self.axis)
        for part in (self, other):
            if part.high is None or part.low is None or len(part.high):
                merged._take(part.high, part.low, part.elements)
        return merged

    def changed(self, divisor: np.ndarray, shift: np.ndarray, bounds: tuple[float, float] | None = None) -> Self:
        """Return those of the tensor after a shift of each channel, a division of each, and a clip.

        Args:
            divisor: `[channels]`, positive.
            shift: `[channels]`, added before.
            bounds: The least and the greatest value that is left.

        """
        made = type(self)(self.axis)
        made.elements = self.elements
        low, high = bounds or (-np.inf, np.inf)
        made.high, made.low = (
            None if part is None else np.clip((part + shift) / divisor, low, high).astype(np.float32)
            for part in (self.high, self.low)
        )
        return made

    def sample_extremes(self) -> SampleExtremes | None:
        """Return those of whole batches; None where nothing is known."""
        if self.high is None or self.low is None or not self.high.size:
            return None
        made = SampleExtremes(len(self.high), self.elements)
        made._waiting = list(zip(self.low.min(axis=1), self.high.max(axis=1), strict=True))
        return made

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the state."""
        empty = np.zeros((0, 0), np.float32)
        high, low = (empty if part is None else part for part in (self.high, self.low))
        frame = np.array([self.axis, self.elements, self.high is not None], np.int64)
        return {"frame": frame, "high": high, "low": low}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> Self:
        """Take the state."""
        axis, elements, known = (int(number) for number in arrays["frame"])
        made = cls(axis)
        made.elements = elements
        made.high, made.low = (np.array(arrays[side], np.float32) if known else None for side in ("high", "low"))
        return made

    def _take(self, high: np.ndarray | None, low: np.ndarray | None, elements: int) -> None:
        self.elements += elements
        if self.high is None or self.low is None or high is None or low is None:
            self.high = self.low = None
            return
        if not self.high.size:
            self.high, self.low = high, low
            return
        if high.shape[1] != self.high.shape[1] or len(self.high) + len(high) > MOST_BATCHES:
            self.high = self.low = None
            return
        self.high, self.low = np.concatenate([self.high, high]), np.concatenate([self.low, low])


def _greatest(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return the greatest of both, the greatest first; what is below zero is no peak, and counts as zero."""
    both = np.maximum(np.concatenate([one, other]), np.float32(0))
    return np.sort(both)[::-1][:KEPT].astype(np.float32)
