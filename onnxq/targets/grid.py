"""Times over sizes: tables that are interpolated, and brought to other sizes.

Tests: `tests/targets/test_costs.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

AXES = ("channels", "filters", "pixels", "rows", "inner", "columns", "batch", "hidden")  # of the tables, in this order
TIMES = ("float", "integer")


def grid_axes(table: Mapping[str, Any]) -> dict[str, list[int]]:
    """Return the sizes that a table goes over; {} for one that goes over none."""
    return {key: table[key] for key in AXES if key in table} if "float" in table else {}


def logarithms(table: Mapping[str, Any], columns: Sequence[str]) -> tuple[list[np.ndarray], np.ndarray]:
    """Return the logarithms of sizes, and those of times `[size of each axis..., column]`."""
    axes = [np.log2(np.asarray(sizes, np.float64)) for sizes in grid_axes(table).values()]
    shape = [len(axis) for axis in axes]
    times = np.stack([np.asarray(table[key], np.float64).reshape(shape) for key in columns], axis=-1)
    return axes, np.log2(times)


def continued(axes: Sequence[np.ndarray], times: np.ndarray, place: Sequence[float]) -> np.ndarray:
    """Interpolate linearly between logarithms; outside the table its edges are continued."""
    lows, weights = [], []
    for axis, position in zip(axes, place, strict=True):
        low = min(max(int(np.searchsorted(axis, position)) - 1, 0), len(axis) - 2)
        lows.append(low)
        weights.append((position - axis[low]) / (axis[low + 1] - axis[low]))
    total = np.zeros(times.shape[-1])
    for corner in product((0, 1), repeat=len(axes)):
        weight = math.prod(w if bit else 1 - w for bit, w in zip(corner, weights, strict=True))
        total += weight * times[tuple(low + bit for low, bit in zip(lows, corner, strict=True))]
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
    own, times = logarithms(table, columns)
    points = product(*([math.log2(size) for size in sizes] for sizes in axes.values()))
    found = np.array([2.0 ** continued(own, times, point) for point in points])
    return dict(table) | dict(axes) | {key: found[:, i].tolist() for i, key in enumerate(columns)}
