"""Metrics of classifiers: top1, top5 and agreement, in percent.

top-k counts the rows whose label is among the k highest scores (Russakovsky et al., 2015, ImageNet challenge).
Agreement counts the decisions that the float model makes as well.

Tests: `tests/verification/test_metrics_by_name.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from onnxq.data.labels import Labels
from onnxq.data.validation import InputSpec
from onnxq.errors import DataError
from onnxq.verification.error_stats import class_axis
from onnxq.verification.metrics.named_metric import (
    Arrays,
    MetricRun,
    choose_label,
    label_rows,
    numbers,
    pair_rows,
    refuse_outputs,
)

USUAL = ("_label", "_labels", "_y", "_class", "_target", "_targets")
WHAT, KIND = "the class of each sample", "whole numbers that count from 0"
FEW_LABELS = 20  # rows below which labels are not judged
SHIFTED = 30.0  # points that labels gain by another first class, from which on that class is meant
MOST_IGNORED = 2  # different labels below 0: -1 and -100 mean that there is none
BY_CHANCE = 1.5  # times what guessing gives
NO_CLASS = -1  # what a row chooses whose scores are NaN
NO_DECISIONS = np.zeros(0, np.int64)


def holds_classes(array: np.ndarray) -> bool:
    """Whether an array can hold classes: whole numbers, or one-hot rows."""
    return array.dtype.kind in "iub" or (array.ndim == 2 and array.shape[1] > 1 and set(np.unique(array)) <= {0, 1})


def check_classes(metric: str) -> Any:
    """Return the check that the data have classes."""

    def check(labels: Labels, inputs: Sequence[InputSpec]) -> None:
        choose_label(labels, USUAL, holds_classes, metric, WHAT, KIND)

    return check


def scores_last(array: np.ndarray) -> np.ndarray | None:
    """Return class scores as `[rows, …, classes]`; None if no axis holds classes.

    The axis is that of `class_axis`. In a map of four axes, it is the smaller one of the second and the last.
    """
    axis = class_axis(array.shape)
    if axis is None and array.ndim == 4:
        axis = 3 if array.shape[3] < array.shape[1] else 1
        axis = None if array.shape[axis] == 1 else axis
    if axis is None:
        return None
    if array.ndim == 1:
        return array[None]
    moved = np.moveaxis(array, axis, -1)
    wide = tuple(size for size in moved.shape[1:-1] if size > 1)
    return moved.reshape(moved.shape[0], *wide, moved.shape[-1])


def decisions(array: np.ndarray) -> np.ndarray | None:
    """Return which class each row chooses, `[rows, …]` of integers; None if the array holds no decisions."""
    if array.dtype.kind in "iub":
        return np.atleast_1d(array)
    scores = scores_last(array)
    return None if scores is None else np.where(_holds_nan(scores)[..., 0], NO_CLASS, scores.argmax(axis=-1))


def _holds_nan(scores: np.ndarray) -> np.ndarray:
    """Return which rows hold NaN, so that none of their classes is the highest; `[rows, …, 1]`."""
    return np.asarray(np.isnan(scores).any(axis=-1, keepdims=True))


class TopClasses(MetricRun):
    """Counts rows whose label is among the `most` highest scores.

    Args:
        labels: From `Samples.labels`.
        most: How many scores count.

    """

    def __init__(self, labels: Labels, most: int) -> None:
        super().__init__(labels)
        self._most, self._name = most, f"top{most}"
        arrays = choose_label(labels, USUAL, holds_classes, self._name, WHAT, KIND)
        self._arrays = [one.argmax(axis=-1) if _one_hot(one) else one for one in map(np.asarray, arrays)]
        self._highest = max((int(one.max(initial=0)) for one in self._arrays), default=0)
        self._output: str | None = None
        self._classes = 0
        self._rows: list[np.ndarray] = []

    def add(self, inputs: Arrays, outputs: Arrays) -> None:
        """Keep the highest classes of each row, best first."""
        self._output = self._output or self._find(outputs)
        array = np.asarray(outputs[self._output])
        if array.dtype.kind in "iub":
            self._rows.extend(np.atleast_1d(array)[..., None])
            return
        scores = scores_last(array)
        if scores is None:
            raise refuse_outputs(self._name, "scores of classes", outputs)
        self._classes = scores.shape[-1]
        order = np.argsort(-scores.astype(np.float64), axis=-1, kind="stable")
        self._rows.extend(np.where(_holds_nan(scores), NO_CLASS, order[..., : self._most]))

    def _find(self, outputs: Mapping[str, Any]) -> str:
        """Choose the first output with a score for each class."""
        arrays = numbers(outputs)
        found = {
            name: scores.shape[-1]
            for name, array in arrays.items()
            if array.dtype.kind == "f" and (scores := scores_last(array)) is not None
        }
        enough = [name for name, classes in found.items() if classes > max(self._highest, self._most - 1)]
        if enough:
            return enough[0]
        whole = [name for name, array in arrays.items() if array.dtype.kind in "iu" and array.ndim < 2]
        if whole and self._most == 1:
            return whole[0]
        if not found:
            raise refuse_outputs(self._name, "scores of classes", outputs)
        name, classes = max(found.items(), key=lambda item: item[1])
        if classes <= self._highest:
            told = f"the highest label is {self._highest}, and '{name}' has {classes} classes"
            raise DataError(f"{self._name}: {told}", "Number the classes as the model does, from 0.")
        raise DataError(f"{self._name} needs more than {classes} classes: '{name}' has no more", "Use top1.")

    def score(self, reference: MetricRun) -> float:
        """Return the percentage of rows with the right class; labels below 0 do not count."""
        right, counted = self._right(0)
        if not counted:
            raise DataError(f"{self._name}: no row has a label", "Give the class of each sample.")
        return 100.0 * right / counted

    def doubt(self) -> str:
        """Say that classes are counted from another number, or that labels are not those of the samples."""
        below = [label for one in self._arrays for label in np.unique(one[one < 0]).tolist()]
        right, counted = self._right(0)
        if len(set(below)) > MOST_IGNORED:
            having = "row has" if counted == 1 else "rows have"
            return f"only {counted} {having} a label: those from {min(below)} to {max(below)} do not count"
        if counted < FEW_LABELS:
            return ""
        found = 100.0 * right / counted
        for shift, words in ((-1, "less"), (1, "more")):
            moved, rows = self._right(shift)
            share = 100.0 * moved / rows if rows else 0.0
            if rows >= counted / 2 and share >= max(found + SHIFTED, 2 * found):
                shifted = f"{share:.3g} % of labels one {words}"
                return f"the float model is right on {found:.3g} % of the labels, and on {shifted}"
        if self._classes > 2 * self._most and found <= BY_CHANCE * 100.0 * self._most / self._classes:
            return f"the float model is right on {found:.3g} % of the labels, which is no more than guessing"
        return ""

    def _right(self, shift: int) -> tuple[int, int]:
        """Return how many rows have the right class, and how many have one, with `shift` added to all labels."""
        rank = self._rows[0].ndim if self._rows else 1
        labels = [np.asarray(one) for one in label_rows(_squeezed(self._arrays, rank), rank, self._name)]
        right = counted = 0
        for chosen, label in pair_rows(self._rows, labels, self._name):
            if chosen.shape[:-1] != label.shape:
                told = f"a label has shape {list(label.shape)}, and a row of scores {list(chosen.shape[:-1])}"
                raise DataError(f"{self._name}: {told}", "Give one class for each row.")
            meant = label.astype(np.int64) + shift
            used = (meant >= 0) & (shift != 0 or label >= 0)
            right += int(((chosen == meant[..., None]).any(axis=-1) & used).sum())
            counted += int(used.sum())
        return right, counted


def _one_hot(array: np.ndarray) -> bool:
    return array.dtype.kind in "fb" and array.ndim == 2


def _squeezed(arrays: Sequence[np.ndarray], rank: int) -> list[np.ndarray]:
    """Drop a last axis of one, as in labels of shape `[rows, 1]`."""
    return [one[..., 0] if one.ndim == rank + 1 and one.shape[-1] == 1 else one for one in arrays]


class Agreement(MetricRun):
    """Counts decisions that the float model makes as well, in the output where they are fewest."""

    def __init__(self, labels: Labels) -> None:
        super().__init__(labels)
        self.chosen: dict[str, list[np.ndarray]] = {}

    def add(self, inputs: Arrays, outputs: Arrays) -> None:
        """Keep the decisions of each output; a detector may give too few boxes for any."""
        found = {name: decisions(array) for name, array in numbers(outputs).items()}
        if not self.chosen and all(made is None for made in found.values()):
            raise refuse_outputs("agreement", "scores of classes", outputs)
        for name in outputs:
            made = found.get(name)
            self.chosen.setdefault(name, []).append(NO_DECISIONS if made is None else made)

    def score(self, reference: MetricRun) -> float:
        """Return the percentage of equal decisions."""
        assert isinstance(reference, Agreement)
        return min(_agreed(reference.chosen.get(name, []), own) for name, own in self.chosen.items())


def _agreed(expected: Sequence[np.ndarray], got: Sequence[np.ndarray]) -> float:
    """Return the percentage of equal integers; what only one of both has counts as different."""
    equal = total = 0
    for first, second in zip(expected, got, strict=True):
        total += max(first.size, second.size)
        equal += int((first == second).sum()) if first.shape == second.shape else 0
    return 100.0 * equal / total if total else 100.0
