"""How much of a tensor is measured where only choices of a run hang on it, by the number of samples that there are.

Extremes are of all elements. Counts of values and second moments of rows are means: some of the elements give the same
choices. A model of small tensors would otherwise take a hundred times as long to measure as to run.

Tests: `tests/calibration/test_thinning.py`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

GOLDEN = (5**0.5 - 1) / 2
ELEMENTS, LEAST_ELEMENTS = 1 << 20, 1 << 12  # of a tensor that are counted: of all samples, of each
ROWS, ROWS_PER_COLUMN, LEAST_ROWS = 1 << 14, 64, 64  # of what a layer reads: of all samples, likewise for a column of H
KEPT_PLACES = 64  # tensors of a size whose places are kept


class Thinning(NamedTuple):
    """The most that is measured of one sample.

    Attributes:
        elements: Elements of a tensor that are counted; 0 for all.
        samples: How many samples share the rows that are measured; 0 for as many rows as there are.

    """

    elements: int = 0
    samples: int = 0

    @classmethod
    def of(cls, samples: int | None) -> Thinning:
        """Return what is measured of each of so many samples; everything where their number is unknown."""
        return cls(max(ELEMENTS // samples, LEAST_ELEMENTS), samples) if samples else cls()

    def rows(self, columns: int, most: int) -> int:
        """Return how many rows of a sample are measured.

        Args:
            columns: Of a row.
            most: How many are in any case.

        """
        if not self.samples:
            return most
        wanted = max(ROWS, ROWS_PER_COLUMN * columns)
        return min(max(-(-wanted // self.samples), LEAST_ROWS), most)


EVERYTHING = Thinning()


def spread_places(count: int, most: int) -> np.ndarray:
    """Choose `most` of `count` places, ascending: one in each equal stretch, shifted by the golden ratio.

    No regular step, so that no column of a picture is missed.
    """
    index = np.arange(most)
    return np.minimum(((index + (index * GOLDEN) % 1.0) * (count / most)).astype(np.int64), count - 1)


@lru_cache(maxsize=KEPT_PLACES)
def counted_places(size: int, most: int) -> tuple[np.ndarray | None, int]:
    """Return which of the elements of a tensor are counted, and for how many each stands; None for all of them."""
    times = size // most if most else 1
    return (spread_places(size, size // times), times) if times > 1 else (None, 1)
