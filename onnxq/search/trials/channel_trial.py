"""Quantize variants with divided or shifted channels without running the float model again.

Dividing and shifting channels changes no other tensor, and the statistics of those that it changes follow. So the float
model runs once on a half of the samples for all variants of all trials.

Tests: `tests/search/test_rescaling_trial.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from onnxq.calibration.channel_stats import ChannelStats
from onnxq.calibration.output_sensitivity import minimal_statistics
from onnxq.calibration.parts import calibrate_in_parts
from onnxq.calibration.sample_extremes import ChannelPeaks
from onnxq.calibration.statistic import Statistic
from onnxq.calibration.stats import StatisticFactory, Stats
from onnxq.data.samples import Samples
from onnxq.ir import Model, Node, Value
from onnxq.ir.storage.scratch_file import Spool
from onnxq.rescaling.centering import centerable_tensors
from onnxq.rescaling.cross_layer import channel_axes
from onnxq.rescaling.find_groups import find_groups
from onnxq.rounding.weights import Weights
from onnxq.stages.measure import complete
from onnxq.stages.prepared import Prepared
from onnxq.stages.replan import copy_prepared, quantize_copy


class ChannelTrial:
    """Statistics of a half of the samples, of a model before its channels are changed.

    Args:
        prepared: The model and its plan.
        fitting: The half.
        scratch: For a large model: a folder for codes, which else stay in memory.

    Attributes:
        stats: Of everything that is calibrated, and by channel of what can be changed.

    """

    def __init__(self, prepared: Prepared, fitting: Samples, scratch: Path | None = None) -> None:
        self.model, self._fitting, self._scratch = prepared.model, fitting, scratch
        self._weights = Weights(exact=True)
        nodes, _ = to_rescale(prepared)
        values, calibrated = prepared.model.graph.values, prepared.plan.calibrated()
        axes = channel_axes(nodes) | {value.name: 1 for value in centerable_tensors(prepared.model.graph)}
        axes = _divided_with(axes, values, calibrated) | axes
        taken = dict.fromkeys([*(values[name] for name in axes), *calibrated])
        kinds = partial(_kinds, axes, minimal_statistics(prepared.plan))
        self.stats = (
            calibrate_in_parts(prepared.model, list(taken), fitting, kinds=kinds, trial=True) if taken else Stats()
        )

    def model_before(self, prepared: Prepared) -> Model:
        """Return the model with channels as they are, weights rounded to nearest."""
        return self.variant(copy_prepared(prepared), self.stats)

    def variant(self, changed: Prepared, stats: Stats) -> Model:
        """Return a changed model, weights rounded to nearest.

        Args:
            changed: The model, which is not needed any more, and its plan.
            stats: Those from before, brought up to date. What they lack is measured.

        """
        stats = complete(stats, changed, self._fitting, minimal_statistics(changed.plan))
        if self._scratch is None:
            return quantize_copy(changed, stats, self._weights)
        with Spool(self._scratch) as spool:  # codes of a model that is tried are gone with it
            return quantize_copy(changed, stats, Weights(exact=True, spool=spool))


def to_rescale(prepared: Prepared) -> tuple[list[Node], frozenset[Node]]:
    """Return the nodes whose channels may be divided, and those of them that only store their weights in 8 bit."""
    wanted = [d for d in prepared.plan.decisions if d.settings and d.settings.smoothing and d.node.graph.parent is None]
    nodes = [d.node for d in wanted if d.scheme in ("static-int8", "dynamic-int8", "weight-int8")]
    return nodes, frozenset(d.node for d in wanted if d.scheme == "weight-int8")


def _divided_with(axes: Mapping[str, int], values: Mapping[str, Value], calibrated: Sequence[Value]) -> dict[str, int]:
    """Return the channel axes of calibrated values that are divided with others: their ranges follow, too."""
    groups = find_groups({values[name]: axis for name, axis in axes.items()})
    found = {value.name: group.axes[value] for value, group in groups.items() if value in group.axes}
    return {value.name: found[value.name] for value in calibrated if value.name in found}


def _kinds(axes: dict[str, int], basics: StatisticFactory, name: str) -> Sequence[Statistic]:
    return (*basics(name), *((ChannelStats(axes[name]), ChannelPeaks(axes[name])) if name in axes else ()))
