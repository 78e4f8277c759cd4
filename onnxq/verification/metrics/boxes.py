"""Intersection over union of boxes, in percent, whatever order they come in.

Boxes are matched as in COCO. The one with the highest score goes first. It takes the box of its class that it overlaps
most, of those that are left. The value is the mean overlap of the pairs. A box without a partner counts as 0.

Source: Lin et al., 2014, "Microsoft COCO: Common Objects in Context", and `COCOeval.evaluateImg` of pycocotools, whose
limit of 100 boxes is used as well.

Tests: `tests/verification/test_metric_of_boxes.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from onnxq.data.labels import Labels
from onnxq.errors import DataError
from onnxq.verification.metrics.named_metric import Arrays, MetricRun, find_label, numbers, refuse_outputs

USUAL = ("_boxes", "_box", "_bboxes", "_bbox")
LEAST_SCORE = 0.25  # of boxes that count, as ultralytics shows them
MOST = 100  # boxes of a picture
CORNERS = 4
COLUMNS = 6  # of an output that holds all: corners, score, class


class Boxes(NamedTuple):
    """The boxes of a picture.

    Attributes:
        corners: x1, y1, x2, y2; float64 `[n, 4]`.
        scores: float64 `[n]`.
        classes: int64 `[n]`.

    """

    corners: np.ndarray
    scores: np.ndarray
    classes: np.ndarray

    def best(self) -> Boxes:
        """Return those that count, the highest score first."""
        order = np.argsort(-self.scores, kind="stable")
        order = order[self.scores[order] >= LEAST_SCORE][:MOST]
        return Boxes(*(array[order] for array in self))


class BoxOverlap(MetricRun):
    """Collects the boxes of each picture."""

    def __init__(self, labels: Labels) -> None:
        super().__init__(labels)
        self._boxes: list[Boxes] = []

    def add(self, inputs: Arrays, outputs: Arrays) -> None:
        """Keep the boxes that count."""
        found = read_boxes(outputs)
        if found is None:
            raise refuse_outputs("iou", "boxes", outputs)
        self._boxes += [boxes.best() for boxes in found]

    def score(self, reference: MetricRun) -> float:
        """Return the mean overlap with the labels, or with the boxes of the float model if there are none."""
        assert isinstance(reference, BoxOverlap)
        labels = find_label(self.labels, USUAL, _holds_boxes)
        expected = reference._boxes if labels is None else list(_labelled(labels))
        if len(expected) != len(self._boxes):
            told = f"there are boxes for {len(expected)} pictures, and the model was given {len(self._boxes)}"
            raise DataError(f"iou: {told}", "Give an array of boxes for each picture, padded with zeros.")
        known = labels is None or any((one.classes != 0).any() for one in expected)
        pairs = [match_boxes(got, wanted, by_class=known) for got, wanted in zip(self._boxes, expected, strict=True)]
        count = sum(len(overlaps) for overlaps in pairs)
        return 100.0 * float(sum(overlaps.sum() for overlaps in pairs)) / count if count else 100.0


def match_boxes(got: Boxes, wanted: Boxes, *, by_class: bool = True) -> np.ndarray:
    """Match boxes greedily.

    Args:
        got: Of the model, the highest score first.
        wanted: What they are held to.
        by_class: Whether only boxes of one class are matched.

    Returns:
        The overlap of each pair, 0 to 1, and a 0 for each box of either that has no partner; float64.

    """
    overlap = overlaps(got.corners, wanted.corners)
    if by_class:
        overlap[got.classes[:, None] != wanted.classes[None]] = 0.0
    found: list[float] = []
    for row in overlap:
        column = int(row.argmax()) if row.size else 0
        if row.size and row[column] > 0:
            found.append(float(row[column]))
            overlap[:, column] = 0.0
    alone = len(got.corners) + len(wanted.corners) - 2 * len(found)
    return np.array([*found, *[0.0] * alone])


def overlaps(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return intersection over union of each box `[n, 4]` with each `[m, 4]`: float64 `[n, m]`."""
    low = np.maximum(first[:, None, :2], second[None, :, :2])
    high = np.minimum(first[:, None, 2:], second[None, :, 2:])
    shared = np.prod(np.maximum(high - low, 0.0), axis=2)
    areas = [np.prod(np.maximum(boxes[:, 2:] - boxes[:, :2], 0.0), axis=1) for boxes in (first, second)]
    union = areas[0][:, None] + areas[1][None] - shared
    return np.asarray(np.divide(shared, union, out=np.zeros_like(shared), where=union > 0))


def read_boxes(outputs: Mapping[str, Any]) -> list[Boxes] | None:
    """Find boxes among the outputs of a detector, for each picture of a batch.

    An output with four columns holds boxes if another one has their scores: one for each box, or one for each class.
    A third output may have their classes. Or one output has six columns: corners, score and class.

    Returns:
        The boxes; None where no output holds any.

    """
    arrays = {name: np.asarray(array) for name, array in outputs.items()}
    floats = {name: array for name, array in numbers(outputs).items() if array.dtype.kind == "f"}
    for name, array in floats.items():
        if array.ndim in (2, 3) and array.shape[-1] == CORNERS:
            rows = array.shape[:-1]
            scores = [one for other, one in floats.items() if other != name and _scores_of(one, rows)]
            if scores:
                classes = next((one for one in arrays.values() if one.dtype.kind in "iu" and one.shape == rows), None)
                return list(_separate(array, scores[0], classes))
    found = next((array for array in floats.values() if _holds_all(array)), None)
    return None if found is None else list(_together(found))


def _scores_of(array: np.ndarray, rows: tuple[int, ...]) -> bool:
    return array.shape == rows or (array.ndim == len(rows) + 1 and array.shape[:-1] == rows)


def _holds_all(array: np.ndarray) -> bool:
    """Whether columns are corners, a score from 0 to 1 and a whole number, in each row."""
    if array.ndim not in (2, 3) or array.shape[-1] != COLUMNS:
        return False
    left, top, right, bottom, score, kind = np.moveaxis(array, -1, 0)
    valid = (right >= left) & (bottom >= top) & (score >= 0) & (score <= 1) & (kind == np.round(kind))
    return bool(valid.all())


def _separate(corners: np.ndarray, scores: np.ndarray, classes: np.ndarray | None) -> Iterator[Boxes]:
    pictures, count = math.prod(corners.shape[:-2]), corners.shape[-2]  # of which there may be none
    columns = scores.shape[-1] if scores.ndim == corners.ndim else 1
    corners = corners.reshape(pictures, count, CORNERS)
    scores = scores.reshape(pictures, count, columns).astype(np.float64)
    kinds = scores.argmax(axis=2)
    best = scores.max(axis=2)
    if scores.shape[2] == 2:  # background and object
        kinds, best = np.zeros_like(kinds), scores[:, :, 1]
    if classes is not None:
        kinds = classes.reshape(pictures, count).astype(np.int64)
    for one, score, kind in zip(corners, best, kinds, strict=True):
        yield Boxes(one.astype(np.float64), score, kind)


def _together(array: np.ndarray) -> Iterator[Boxes]:
    for rows in array.reshape(math.prod(array.shape[:-2]), *array.shape[-2:]).astype(np.float64):
        yield Boxes(rows[:, :CORNERS], rows[:, CORNERS], rows[:, CORNERS + 1].astype(np.int64))


def _holds_boxes(array: np.ndarray) -> bool:
    return array.dtype.kind in "fiu" and array.ndim in (2, 3) and array.shape[-1] in (CORNERS, CORNERS + 1)


def _labelled(arrays: Sequence[np.ndarray]) -> Iterator[Boxes]:
    """Read labels: `[pictures, boxes, 4 or 5]` for each file, or `[boxes, 4 or 5]` for each picture.

    The fifth column is the class. Boxes without an area only fill up.
    """
    for array in map(np.asarray, arrays):
        for rows in array[None] if array.ndim == 2 else array:
            corners = rows[:, :CORNERS].astype(np.float64)
            real = (corners[:, 2:] > corners[:, :2]).all(axis=1)
            classes = rows[:, CORNERS].astype(np.int64) if rows.shape[1] > CORNERS else np.zeros(len(rows), np.int64)
            yield Boxes(corners[real], np.ones(int(real.sum())), classes[real])


def has_boxes(labels: Labels, outputs: Mapping[str, Any]) -> bool:
    """Whether the metric is about boxes: the data have none of another kind, and the outputs hold some."""
    maps = find_label(labels, ("_mask", "_masks", "_map"), lambda array: array.dtype.kind in "iub" and array.ndim >= 2)
    boxes = find_label(labels, USUAL, _holds_boxes)
    if maps is not None and boxes is None:
        return False
    if any(array.ndim == 4 for array in numbers(outputs).values()) and boxes is None:
        return False
    return read_boxes(outputs) is not None
