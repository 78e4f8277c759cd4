"""Kernel times of several families weighed into one table, by which a plan is good on each of them.

Tests: `tests/targets/test_costs.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from onnxq.targets.grid import merged_axes, resampled
from onnxq.targets.powers import exp2, log2

UNIT = ("pointwise", "spatial", "matmul")  # whose float times are the unit of a family
OTHER = (0.08, 0.02)  # of an operator that a table of elementwise operators leaves out: it moves values


def mixed(tables: Mapping[str, Mapping[str, Any]], shares: Mapping[str, float]) -> dict[str, Any]:
    """Return the weighted sum of tables of kernel times.

    A family's times count in units of the geometric mean of its float times: a slow clock weighs no more than a fast
    one. A cut that is the least by the sum of times is the least by the sum of families' times.

    Args:
        tables: By family; where they go over different sizes, the mix goes over all of them.
        shares: By family.

    """
    names, total = list(shares), sum(shares.values())
    units = {name: _unit(tables[name]) for name in names}
    weights = {name: shares[name] / total * units[names[0]] / units[name] for name in names}
    parts = [(tables[name], weights[name]) for name in names]
    made: dict[str, Any] = {}
    for section, first in tables[names[0]].items():
        if isinstance(first, Mapping) and "source" in first:
            made[section] = _section([(table[section], weight) for table, weight in parts])
    return made


def _section(parts: list[tuple[Mapping[str, Any], float]]) -> dict[str, Any]:
    axes = merged_axes([table for table, _ in parts])
    parts = [(resampled(table, axes), weight) for table, weight in parts]
    keys = dict.fromkeys(key for table, _ in parts for key in table if key != "source" and key not in axes)
    made: dict[str, Any] = dict(axes)
    for key in keys:
        values = [weight * np.asarray(table.get(key, OTHER), np.float64) for table, weight in parts]
        made[key] = sum(values[1:], values[0]).tolist()
    return made


def _unit(table: Mapping[str, Any]) -> float:
    floats = [log2(time) for name in UNIT for time in np.ravel(table[name]["float"]).tolist()]
    return exp2(math.fsum(floats) / len(floats))
