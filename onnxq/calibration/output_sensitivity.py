"""Effect of an activation's error at the outputs of the layers that read its 8-bit codes.

Tests: `tests/calibration/test_weighted_histogram.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

import numpy as np

from onnxq.calibration.histogram import Histogram
from onnxq.calibration.im2col import unfolding_of, weight_rows
from onnxq.calibration.layer_moments import MeasuredLayers
from onnxq.calibration.ranges import Needs, needs_of
from onnxq.calibration.statistic import Statistic
from onnxq.calibration.stats import StatisticFactory, basic_kinds, range_kinds
from onnxq.calibration.thinning import EVERYTHING, Thinning
from onnxq.calibration.weighted_histogram import WeightedHistogram, channel_weights
from onnxq.ir import Node, Value
from onnxq.planning.planner import Plan
from onnxq.planning.reader_curves import reader_curve


class OutputSensitivity:
    """The weights with which histograms are to count the channels of what a plan quantizes.

    Args:
        plan: The decisions.
        besides: What else to measure of a tensor.
        otherwise: What to measure where no reader tells channels apart.
        most: How many elements of a batch are counted; 0 for all.

    """

    def __init__(
        self,
        plan: Plan,
        besides: StatisticFactory = basic_kinds,
        otherwise: StatisticFactory = lambda name: (),
        most: int = 0,
    ) -> None:
        self._besides, self._most = besides, most
        self._otherwise = otherwise
        self._by_name: dict[str, tuple[np.ndarray, int]] = {}
        static = {decision.node for decision in plan.decisions if decision.scheme == "static-int8"}
        for value in plan.calibrated():
            everybody = value in plan.paired
            readers = list(dict.fromkeys(use.node for use in value.uses if everybody or use.node in static))
            found = _weights(value, readers, seen=everybody and value.is_output)
            if found is not None:
                self._by_name[value.name] = found

    def kinds(self, name: str) -> Sequence[Statistic]:
        """Make the empty statistics of a tensor, with such a histogram where its readers tell channels apart."""
        found = self._by_name.get(name)
        return (
            *self._besides(name),
            *(self._otherwise(name) if found is None else (WeightedHistogram(*found, self._most),)),
        )


def minimal_statistics(plan: Plan) -> StatisticFactory:
    """Tell what ranges are chosen by while those that the recipe leaves open go from least to greatest value."""
    return range_kinds if needs_of(plan.range_methods) <= {Needs.EXTREMES} else basic_kinds


def trial_statistics(
    plan: Plan,
    layers: MeasuredLayers,
    *,
    settled: bool = False,
    thinning: Thinning = EVERYTHING,
    others: Iterable[Value] = (),
) -> StatisticFactory:
    """List the statistics that choose ranges and codes of a trial, those by output error among them.

    Reports and files want more, but of no trial; measuring it takes longer than many a model runs.

    Args:
        plan: The decisions.
        layers: The layers whose codes are chosen.
        settled: Whether the way to choose ranges is settled; without it, those by output error are tried as well.
        thinning: How much of each sample is measured.
        others: Values that have ranges in other plans.

    """
    needs = needs_of(plan.range_methods, trial=not settled)
    if Needs.HISTOGRAM in needs:
        return OutputSensitivity(plan, layers.kinds).kinds
    besides = with_curves(plan, partial(layers.kinds, basics=range_kinds, thinning=thinning), thinning, others=others)
    if Needs.WEIGHTED_HISTOGRAM not in needs:
        return besides
    return OutputSensitivity(plan, besides, lambda name: (Histogram(thinning.elements),), thinning.elements).kinds


def with_curves(
    plan: Plan, kinds: StatisticFactory, thinning: Thinning = EVERYTHING, *, others: Iterable[Value] = ()
) -> StatisticFactory:
    """Measure histograms, too, of values whose readers make little of negative ones; see `shallow_ends`.

    Args:
        plan: The decisions.
        kinds: What is measured besides.
        thinning: How much of each sample is measured.
        others: Values that have ranges in other plans.

    """
    owners = ({plan.range_owner(value) for value in plan.calibrated()} - plan.followed()) | {*others}
    curved = {value.name for value in owners if (curve := reader_curve(value)) is not None and curve.slope < 1}
    return lambda name: (*kinds(name), Histogram(thinning.elements)) if name in curved else kinds(name)


def _weights(value: Value, readers: Iterable[Node], *, seen: bool) -> tuple[np.ndarray, int] | None:
    """Return the weights of a value's channels, and their axis; None where no reader tells channels apart."""
    known = [channel_energies(node, value) for node in readers]
    found = [energies for energies in known if energies is not None]
    axes = {axis if axis >= 0 or value.shape is None else axis + len(value.shape) for axis, _ in found}
    if len(axes) != 1 or len({len(energies) for _, energies in found}) != 1:
        return None
    alike = np.ones_like(found[0][1])  # for other readers
    return channel_weights([e for _, e in found] + [alike] * (seen + known.count(None))), axes.pop()


def channel_energies(node: Node, value: Value) -> tuple[int, np.ndarray] | None:
    """Return what a squared error of every channel of an input adds to the squared error of a layer's outputs.

    Args:
        node: A reader.
        value: What it reads.

    Returns:
        The axis of the channels, and for each the sum of the squares of what it is multiplied with, float64
        `[channels]`; None where the node is no MatMul, Gemm or Conv of the value with a constant weight.

    """
    found = unfolding_of(node)
    if found is None or node.inputs[found[0]] is not value:
        return None
    slot, unfolding = found
    weight = node.inputs[1 - slot]
    assert weight is not None
    rows = weight_rows(node, weight.elements.numpy())
    rows = rows.reshape(unfolding.groups, -1, rows.shape[1] // unfolding.positions, unfolding.positions)
    energies = np.einsum("goip,goip->gi", rows, rows, dtype=np.float64)
    weight.elements.release()
    return unfolding.axis, energies.reshape(-1)
