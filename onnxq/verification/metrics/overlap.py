"""The metric `iou`: of boxes where the outputs hold boxes, else of class maps.

Tests: `tests/verification/test_metric_of_boxes.py`.
"""

from __future__ import annotations

from onnxq.data.labels import Labels
from onnxq.errors import DataError
from onnxq.verification.metrics.boxes import BoxOverlap, has_boxes
from onnxq.verification.metrics.maps import MapOverlap
from onnxq.verification.metrics.named_metric import Arrays, MetricRun


class Overlap(MetricRun):
    """Reads boxes or maps, as the outputs of the first sample are."""

    def __init__(self, labels: Labels) -> None:
        super().__init__(labels)
        self._run: MetricRun | None = None

    def add(self, inputs: Arrays, outputs: Arrays) -> None:
        """Take the outputs for one sample."""
        if self._run is None:
            self._run = (BoxOverlap if has_boxes(self.labels, outputs) else MapOverlap)(self.labels)
        self._run.add(inputs, outputs)

    def score(self, reference: MetricRun) -> float:
        """Return the mean overlap, in percent."""
        assert isinstance(reference, Overlap)
        assert self._run is not None
        assert reference._run is not None
        if type(self._run) is not type(reference._run):
            told = "the outputs of one model hold boxes, those of the other do not"
            raise DataError(f"iou: {told}", "Give a function as the metric: package.module:function.")
        return self._run.score(reference._run)
