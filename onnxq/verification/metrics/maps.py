"""Intersection over union of class maps, in percent: the mean over the classes that occur.

Without labels, the classes of the float model are what the quantized one is held to.

Source: Everingham et al., 2010, "The PASCAL Visual Object Classes (VOC) Challenge", section 4.3.

Tests: `tests/verification/test_metrics_by_name.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from onnxq.data.labels import Labels
from onnxq.errors import DataError
from onnxq.verification.metrics.classes import decisions
from onnxq.verification.metrics.named_metric import (
    Arrays,
    MetricRun,
    find_label,
    label_rows,
    numbers,
    pair_rows,
    refuse_outputs,
)

USUAL = ("_mask", "_masks", "_map", "_label", "_labels", "_y", "_target")
IGNORED = 255  # marks pixels that do not count in VOC and Cityscapes
FOREGROUND = 0.5  # of probabilities; logits are cut at 0


def _holds_map(array: np.ndarray) -> bool:
    return array.dtype.kind in "iub" and array.ndim >= 2


class MapOverlap(MetricRun):
    """Collects the class of each pixel."""

    def __init__(self, labels: Labels) -> None:
        super().__init__(labels)
        self._labels = find_label(labels, USUAL, _holds_map)
        self._output: str | None = None
        self._raw: list[np.ndarray] = []
        self._maps: list[np.ndarray] = []
        self.classes = 0
        self._least, self._most = 0.0, 0.0

    def add(self, inputs: Arrays, outputs: Arrays) -> None:
        """Keep the class of each pixel; of maps with one channel, the values."""
        self._output = self._output or self._find(outputs)
        array = np.asarray(outputs[self._output])
        if self._is_binary(array):
            flat = array[:, 0] if array.ndim == 4 and array.shape[1] == 1 else array
            flat = flat[..., 0] if flat.ndim == 4 else flat
            self._least, self._most = float(flat.min(initial=self._least)), float(flat.max(initial=self._most))
            self._raw.extend(flat.astype(np.float32))
            return
        made = decisions(array)
        if made is None:
            raise refuse_outputs("iou", "a map of classes", outputs)
        if array.dtype.kind == "f":
            axes = array.shape[1:] if array.ndim > 1 else array.shape
            self.classes = max(self.classes, min(axes[0], axes[-1]) if array.ndim == 4 else axes[-1])
        self._maps.extend(made)

    def _find(self, outputs: Mapping[str, Any]) -> str:
        """Choose the output with maps: of four axes, of three, or of integers; scores of one class are no map."""
        arrays = numbers(outputs)
        names = [name for name, array in arrays.items() if array.ndim == 4]
        names += [name for name, array in arrays.items() if array.ndim == 3]
        names += [name for name, array in arrays.items() if array.dtype.kind in "iub" and array.ndim == 2]
        if not names:
            raise refuse_outputs("iou", "a map of classes", outputs)
        return names[0]

    def _is_binary(self, array: np.ndarray) -> bool:
        """Whether a map has one channel: of four axes one is 1, or the labels have its very shape."""
        if array.dtype.kind != "f":
            return False
        if array.ndim == 4:
            return 1 in (array.shape[1], array.shape[3])
        return array.ndim == 3 and self._labels is not None and self._labels[0].shape[-2:] == array.shape[1:]

    def rows(self, threshold: float | None = None) -> list[np.ndarray]:
        """Return the map of each row; values of one channel are cut at a threshold."""
        if not self._raw:
            return self._maps
        cut = self.threshold if threshold is None else threshold
        return [(row > cut).astype(np.int64) for row in self._raw]

    @property
    def threshold(self) -> float:
        """The least value of the foreground: 0.5 for probabilities, 0 for logits."""
        return FOREGROUND if self._least >= 0 and self._most <= 1 else 0.0

    def score(self, reference: MetricRun) -> float:
        """Return the mean over classes, or the value of the foreground if there is one channel."""
        assert isinstance(reference, MapOverlap)
        own = self.rows(reference.threshold)
        if self._labels is None:
            expected: Sequence[np.ndarray] = reference.rows(reference.threshold)
        else:
            rank = own[0].ndim + 1 if own else 3
            expected = list(label_rows(_without_ones(self._labels, rank), rank, "iou"))
        classes = 2 if self._raw else self.classes
        return _mean_overlap(expected, own, classes, foreground=bool(self._raw))


def _without_ones(arrays: Sequence[np.ndarray], rank: int) -> list[np.ndarray]:
    """Drop an axis of channels that is 1, as in labels of shape `[rows, 1, height, width]`."""
    found = []
    for one in map(np.asarray, arrays):
        axis = next((axis for axis in (1, one.ndim - 1) if one.ndim == rank + 1 and one.shape[axis] == 1), None)
        found.append(one if axis is None else one.squeeze(axis))
    return found


def _mean_overlap(
    expected: Sequence[np.ndarray], got: Sequence[np.ndarray], classes: int, *, foreground: bool
) -> float:
    """Return the mean of intersection by union over the classes that occur in either, in percent."""
    shared, either = np.zeros(0, np.int64), np.zeros(0, np.int64)
    for own, label in pair_rows(got, expected, "iou"):
        if own.shape != label.shape:
            told = f"a label has shape {list(label.shape)}, and a map {list(own.shape)}"
            raise DataError(f"iou: {told}", "Resize the labels to the size of the output, without blending them.")
        first = label.astype(np.int64)
        if foreground and first.max(initial=0) > 1:
            first = np.where(first == IGNORED, 1, first)  # black and white masks
        used = (first >= 0) & ~((first == IGNORED) & (classes <= IGNORED))
        if classes and first[used].max(initial=0) >= classes:
            told = f"the highest label is {int(first[used].max())}, and the model has {classes} classes"
            raise DataError(f"iou: {told}", "Number the classes as the model does, from 0.")
        first, second = first[used], own[used].astype(np.int64)
        size = int(max(first.max(initial=0), second.max(initial=0), len(shared) - 1)) + 1
        counted = first[first == second], first, second[second >= 0]  # a class below 0 is none
        counts = [np.bincount(one, minlength=size) for one in counted]
        shared = _extended(shared, size) + counts[0]
        either = _extended(either, size) + counts[1] + counts[2] - counts[0]
    start = 1 if foreground else 0
    occurring = np.flatnonzero(either[start:]) + start
    return 100.0 * float((shared[occurring] / either[occurring]).mean()) if occurring.size else 100.0


def _extended(counts: np.ndarray, size: int) -> np.ndarray:
    return np.pad(counts, (0, size - len(counts)))
