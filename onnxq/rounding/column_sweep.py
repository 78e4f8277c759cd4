"""Choose one row of codes after the other, and let those behind know: the order of error feedback and of descents.

A row holds one element of each channel. The rows behind it are owed its change, by a matrix. Few rows take that one
by one. More of them take it by a product, and the rest by products of many rows, so that memory is gone over few times.

Tests: `tests/rounding/test_column_sweep.py`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

FEW, STRIP, WIDE = 8, 32, 256  # rows


def sweep(owed: np.ndarray, coupling: np.ndarray, change: np.ndarray, choose: Callable[[int], None]) -> None:
    """Visit all rows in order, with what those before have added to them.

    Args:
        owed: `[n, channels]`, changed in place: row i gets `coupling[i, j] * change[j]` of each row j before it.
        coupling: `[n, n]`, of which the part below the diagonal counts.
        change: `[n, channels]`, which is written.
        choose: Writes a row of `change`; it may read that row of `owed`.

    """
    n = len(owed)
    for begin in range(0, n, WIDE):
        end = min(begin + WIDE, n)
        for start in range(begin, end, STRIP):
            stop = min(start + STRIP, end)
            for first in range(start, stop, FEW):
                last = min(first + FEW, stop)
                for row in range(first, last):
                    choose(row)
                    owed[row + 1 : last] += coupling[row + 1 : last, row, None] * change[row]
                _pass_on(owed, coupling, change, first, last, stop)
            _pass_on(owed, coupling, change, start, stop, end)
        _pass_on(owed, coupling, change, begin, end, n)


def _pass_on(owed: np.ndarray, coupling: np.ndarray, change: np.ndarray, first: int, last: int, end: int) -> None:
    """Add what some rows have changed to those from `last` to `end`."""
    if last < end:
        owed[last:end] += coupling[last:end, first:last] @ change[first:last]
