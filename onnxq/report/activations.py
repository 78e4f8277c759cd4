"""The statistics of activations, and the grid of codes of each.

Tests: `tests/report/test_report_activations.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from onnxq.calibration.histogram import Histogram
from onnxq.calibration.qparams import QParams
from onnxq.calibration.ranges import expected_error
from onnxq.calibration.stats import Stats, TensorStats
from onnxq.ir import Value
from onnxq.planning.planner import Plan

PERCENTILES = (0.1, 1.0, 50.0, 99.0, 99.9)
MOST_BINS = 128


@dataclass(frozen=True)
class Activation:
    """An activation that the quantized model holds in codes: what was measured of it, and its scale and zero point.

    Attributes:
        tensor: Its name in the normalised float model.
        nodes: The quantized nodes that read it or make it, by name, in graph order.
        elements: How many elements were measured.
        minimum: The least of them.
        maximum: The greatest of them.
        percentiles: Pairs of a percentage and the value that this share of the elements does not exceed, to the width
            of a histogram's bin.
        dtype: Type of the codes, such as `uint8`.
        scale: What one step of the codes stands for.
        zero_point: The code of zero.
        low: The least value that a code stands for.
        high: The greatest one.
        sqnr: Signal-to-quantization-noise ratio in dB that rounding to this grid and clipping at its ends leaves, by
            the histogram; infinite where it costs nothing.
        edges: Edges of the histogram's bins, ascending, one more than there are bins; the bin around zero can be twice
            as wide as the others.
        counts: Elements in each bin.

    """

    tensor: str
    nodes: tuple[str, ...]
    elements: int
    minimum: float
    maximum: float
    percentiles: tuple[tuple[float, float], ...]
    dtype: str
    scale: float
    zero_point: int
    low: float
    high: float
    sqnr: float
    edges: tuple[float, ...]
    counts: tuple[int, ...]

    @property
    def clipped(self) -> float:
        """Percentage of the elements that lie outside the range, to the width of a bin."""
        mids = (np.asarray(self.edges[1:]) + np.asarray(self.edges[:-1])) / 2
        outside = (mids < self.low - self.scale / 2) | (mids > self.high + self.scale / 2)
        return 100.0 * float(np.asarray(self.counts)[outside].sum()) / max(self.elements, 1)


def activation_records(plan: Plan, qparams: Mapping[Value, QParams], stats: Stats) -> tuple[Activation, ...]:
    """Describe every calibrated activation of a plan that is not carried out yet, in graph order.

    Args:
        plan: The decisions; its values still have the names they were measured under.
        qparams: Scale and zero point of each calibrated value.
        stats: Statistics of a calibration.

    """
    nodes: dict[Value, list[str]] = {}
    clamps = {maker: clamp for clamp, maker in plan.absorbed.items()}
    for decision in plan.decisions:
        if decision.form is None or decision.scheme != "static-int8":
            continue
        node = decision.node
        touched = [node.inputs[slot] for slot in decision.form.activations] + [*plan.pairs_behind(node)]
        for value in touched:
            if value is not None:
                nodes.setdefault(plan.scale_owner(value), []).append(node.display_name)
        if node in clamps:
            nodes.setdefault(plan.scale_owner(plan.outputs[node]), []).append(clamps[node].display_name)
    return tuple(
        describe_activation(value.name, dict.fromkeys(nodes.get(value, ())), stats[value.name], qparams[value])
        for value in plan.calibrated()
        if value in qparams
    )


def describe_activation(tensor: str, nodes: Iterable[str], stats: TensorStats, qparams: QParams) -> Activation:
    """Describe one activation from its statistics and the grid that was chosen for it."""
    scale, zero_point = float(qparams[0]), int(qparams[1])
    kind = np.iinfo(qparams[1].dtype)
    low, high = (kind.min - zero_point) * scale, (kind.max - zero_point) * scale
    noise = expected_error(stats, low, high, bits=kind.bits)
    sqnr = 10 * math.log10(stats.second_moment / noise) if noise > 0 and stats.second_moment > 0 else math.inf
    coarse = stats.histogram.coarser(MOST_BINS)
    return Activation(
        tensor=tensor,
        nodes=tuple(nodes),
        elements=stats.count,
        minimum=stats.min,
        maximum=stats.max,
        percentiles=tuple(zip(PERCENTILES, percentiles(stats, PERCENTILES), strict=True)),
        dtype=str(qparams[1].dtype),
        scale=scale,
        zero_point=zero_point,
        low=low,
        high=high,
        sqnr=sqnr,
        edges=tuple(coarse.edges(stats.min, stats.max).tolist()),
        counts=tuple(coarse.counts.tolist()),
    )


def percentiles(stats: TensorStats, wanted: Iterable[float]) -> list[float]:
    """Read percentiles off the histogram: the upper edge of the bin that each falls into, float64."""
    histogram: Histogram = stats.histogram
    edges = histogram.edges(stats.min, stats.max)
    below = np.cumsum(histogram.counts)
    ranks = np.asarray(list(wanted)) / 100 * stats.count
    bins = np.minimum(np.searchsorted(below, ranks, side="left"), len(edges) - 2)
    found = np.where(bins == -histogram.first, np.clip(0.0, edges[bins], edges[bins + 1]), edges[bins + 1])
    return [float(value) for value in np.clip(found, stats.min, stats.max)]
