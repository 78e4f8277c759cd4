"""How far a tensor goes in single samples, which shows how far it may go in others.

A histogram cannot tell that: it does not know which values came together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import numpy as np

from onnxq.calibration.statistic import Statistic

KEPT = 33  # the greatest peaks that are remembered, on each side


class SampleExtremes(Statistic):
    """How many batches and elements there were, and the greatest peaks of batches on both sides of zero."""

    key = "peaks"

    def __init__(self, batches: int = 0, elements: int = 0) -> None:
        self.batches, self.elements = batches, elements
        self.above = np.zeros(0, np.float32)
        self.below = np.zeros(0, np.float32)

    def add(self, values: np.ndarray) -> None:
        """Take in a batch."""
        self.add_between(values, values.min(), values.max())

    def add_between(self, values: np.ndarray, low: np.float32, high: np.float32) -> None:
        """Take in a batch whose extremes are known."""
        self.batches += 1
        self.elements += values.size
        self.above = _greatest(self.above, high)
        self.below = _greatest(self.below, -low)

    def merge(self, other: Self) -> Self:
        """Return the peaks of both."""
        merged = type(self)(self.batches + other.batches, self.elements + other.elements)
        merged.above, merged.below = _greatest(self.above, other.above), _greatest(self.below, other.below)
        return merged

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the state."""
        counts = np.array([self.batches, self.elements], np.int64)
        return {"counts": counts, "above": self.above, "below": self.below}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> Self:
        """Take the state."""
        made = cls(*(int(count) for count in arrays["counts"]))
        made.above, made.below = (np.array(arrays[side], np.float32) for side in ("above", "below"))
        return made


def _greatest(one: np.ndarray, other: np.ndarray | np.float32) -> np.ndarray:
    """Return the greatest of both, the greatest first; what is below zero is no peak, and counts as zero."""
    both = np.maximum(np.append(one, other), np.float32(0))
    return np.sort(both)[::-1][:KEPT].astype(np.float32)
