"""Choose the lower end of a range whose readers are nearly flat below zero, by least output error.

An error e of a value x becomes about `f'(x) e` behind a curve f. So the rounding of a value counts `f'(x)²`, and one
that is clipped to an end counts `(f(x) - f(end))²`. Both follow from a histogram. Below zero, a LeakyRelu of slope 0.1
makes 1 % of squared errors. In a range that is alike on both sides, half of the codes would serve values that hardly
count.

Tests: `tests/calibration/test_shallow_ends.py`.
"""

from __future__ import annotations

import numpy as np

from onnxq.calibration.histogram import Histogram
from onnxq.calibration.ranges import CLIPPED
from onnxq.calibration.stats import TensorStats
from onnxq.planning.reader_curves import Curve

ENDS = np.exp2(-np.arange(41) / 8)  # of the lower end, down to 1/32


def shallow_end(stats: TensorStats, low: float, high: float, curve: Curve, *, bits: int = 8) -> float:
    """Return the lower end of a range that makes least squared error behind a curve.

    Args:
        stats: Of the tensor; without a `Histogram` the end stays.
        low: The lower end, at most 0.
        high: The upper end, at least 0.
        curve: What all readers make of the tensor.
        bits: Width of the codes.

    """
    if Histogram not in stats or low >= 0 or not high - low < np.inf:
        return low
    histogram = stats[Histogram]
    edges = histogram.edges(stats.min, stats.max)
    counts = histogram.counts.astype(np.float64)
    counts[-histogram.first] -= histogram.zeros
    centers = (edges[:-1] + edges[1:]) / 2
    slopes = np.diff(curve(edges)) / np.maximum(np.diff(edges), np.finfo(np.float64).tiny)
    weights = counts * slopes**2
    ends = low * ENDS
    inside = centers >= ends[:, None]
    beyond = np.where(inside, 0.0, (curve(centers) - curve(ends)[:, None]) ** 2) @ counts
    rounding = inside @ weights * ((high - ends) / (2**bits - 1)) ** 2 / 12
    return float(np.float32(ends[int(np.argmin(rounding + CLIPPED * beyond))]))
