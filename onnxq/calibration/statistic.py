"""The protocol of a mergeable measurement of a tensor.

Tests: `tests/calibration/test_stats.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Self

import numpy as np


class Statistic(ABC):
    """One thing that is measured of a tensor: a commutative monoid whose constructor makes the empty one."""

    key: ClassVar[str]

    @abstractmethod
    def add(self, values: np.ndarray) -> None:
        """Take in a non-empty batch of finite float32 values, in the tensor's own shape."""

    def add_between(self, values: np.ndarray, low: np.float32, high: np.float32) -> None:
        """Take in a batch, as `add` does, whose least and greatest value are known: several ask for the same two."""
        self.add(values)

    @abstractmethod
    def merge(self, other: Self) -> Self:
        """Return what one pass over both would have given; neither is changed."""

    @abstractmethod
    def arrays(self) -> dict[str, np.ndarray]:
        """Return the state as numeric arrays whose rank does not depend on the data, to save."""

    @classmethod
    @abstractmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> Self:
        """Take the state that `arrays` gave."""
