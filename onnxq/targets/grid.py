"""Times over sizes: tables that are interpolated, and brought to other sizes.

Tests: `tests/targets/test_costs.py`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from onnxq.targets.powers import exp2, log2

AXES = ("channels", "filters", "pixels", "rows", "inner", "columns", "batch", "hidden")  # of the tables, in this order
TIMES = ("float", "integer")


def grid_axes(table: Mapping[str, Any]) -> dict[str, list[int]]:
    """Return the sizes that a table goes over; {} for one that goes over none."""
    return {key: table[key] for key in AXES if key in table} if "float" in table else {}


class LogGrid:
    """A table of times over sizes, in logarithms: lists of floats, which NumPy takes longer for than Python does.

    Args:
        table: The table.
        columns: Its times.

    Attributes:
        starts: The least of each of its sizes.
        least: The least of each of its times.

    """

    def __init__(self, table: Mapping[str, Any], columns: Sequence[str]) -> None:
        self._axes = [list(map(log2, sizes)) for sizes in grid_axes(table).values()]
        times = [map(log2, np.ravel(table[key]).tolist()) for key in columns]
        self._times = list(zip(*times, strict=True))
        self.starts = [axis[0] for axis in self._axes]
        self.least = [min(column) for column in zip(*self._times, strict=True)]

    def at(self, place: Sequence[float]) -> list[float]:
        """Interpolate linearly between logarithms; outside the table its edges are continued."""
        cells = [(0, 1.0)]  # index and weight of each corner so far
        for axis, position in zip(self._axes, place, strict=True):
            low = min(max(bisect_left(axis, position) - 1, 0), len(axis) - 2)
            share = (position - axis[low]) / (axis[low + 1] - axis[low])
            cells = [
                (cell * len(axis) + low + bit, weight * (share if bit else 1 - share))
                for cell, weight in cells
                for bit in (0, 1)
            ]
        total = [0.0] * len(self.least)
        for cell, weight in cells:
            for column, time in enumerate(self._times[cell]):
                total[column] += weight * time
        return total


def merged_axes(tables: Sequence[Mapping[str, Any]]) -> dict[str, list[int]]:
    """Return all sizes that tables go over."""
    names = grid_axes(tables[0])
    return {name: sorted({size for table in tables for size in table[name]}) for name in names}


def resampled(table: Mapping[str, Any], axes: Mapping[str, list[int]]) -> dict[str, Any]:
    """Return a table over other sizes: between its own, the same function of sizes."""
    if grid_axes(table) == axes:
        return dict(table)
    columns = [key for key in TIMES if key in table]
    grid = LogGrid(table, columns)
    points = [grid.at(point) for point in product(*(map(log2, sizes) for sizes in axes.values()))]
    return dict(table) | dict(axes) | {key: [exp2(point[i]) for point in points] for i, key in enumerate(columns)}
