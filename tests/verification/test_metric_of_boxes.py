"""Boxes against boxes, in whatever order: figures that were worked out by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from onnxq import measure_metric
from onnxq.data.samples import InputSpec, open_samples
from onnxq.errors import DataError
from onnxq.verification.metrics.boxes import Boxes, match_boxes, overlaps, read_boxes
from onnxq.verification.metrics.overlap import Overlap
from tests.helpers import build, node

FLOAT = 1
HALVES = np.array([[0, 0, 4, 4], [10, 10, 14, 14], [0, 20, 4, 24]], np.float32)
CERTAIN = np.array([0.9, 0.8, 0.7], np.float32)


def run(outputs: list[dict[str, np.ndarray]], **labels: list[np.ndarray]) -> Overlap:
    made = Overlap(labels)
    for one in outputs:
        made.add({}, one)
    return made


def boxes(corners: np.ndarray, scores: np.ndarray, **more: np.ndarray) -> dict[str, np.ndarray]:
    return {"boxes": corners, "scores": scores, **more}


def test_overlap_is_intersection_by_union() -> None:
    first = np.array([[0, 0, 4, 4], [5, 5, 5, 5]], float)
    second = np.array([[2, 0, 6, 4], [0, 0, 4, 4], [4, 4, 8, 8]], float)
    np.testing.assert_allclose(overlaps(first, second), [[8 / 24, 1, 0], [0, 0, 0]])


def test_the_order_of_boxes_makes_no_difference() -> None:
    expected = run([boxes(HALVES, CERTAIN)])
    order = [2, 0, 1]
    found = run([boxes(HALVES[order], CERTAIN[order][::-1])])
    assert found.score(expected) == 100
    assert expected.score(expected) == 100


def test_the_highest_score_takes_its_box_first() -> None:
    wanted = Boxes(np.array([[0, 0, 4, 4]], float), np.ones(1), np.zeros(1, int))
    got = Boxes(np.array([[2, 0, 6, 4], [0, 0, 4, 4]], float), np.array([0.9, 0.8]), np.zeros(2, int))
    np.testing.assert_allclose(match_boxes(got, wanted), [8 / 24, 0])


def test_a_box_without_partner_counts_as_nothing() -> None:
    expected = run([boxes(HALVES, CERTAIN)])
    assert run([boxes(HALVES[:2], CERTAIN[:2])]).score(expected) == pytest.approx(200 / 3)
    wrong = np.array([0, 0, 1])
    right = run([boxes(HALVES, CERTAIN, labels=np.array([0, 0, 2]))])
    assert run([boxes(HALVES, CERTAIN, labels=wrong)]).score(right) == pytest.approx(200 / 4)


def test_boxes_with_low_scores_do_not_count() -> None:
    expected = run([boxes(HALVES, CERTAIN)])
    more = np.concatenate([HALVES, HALVES + 30])
    assert run([boxes(more, np.array([0.9, 0.8, 0.7, 0.2, 0.1, 0], np.float32))]).score(expected) == 100
    assert run([boxes(HALVES, 0 * CERTAIN)]).score(run([boxes(HALVES, 0 * CERTAIN)])) == 100


def test_scores_of_two_classes_are_those_of_background_and_object() -> None:
    both = np.stack([1 - CERTAIN, CERTAIN], axis=1)
    (found,) = read_boxes(boxes(HALVES[None], both[None])) or []
    np.testing.assert_allclose(found.scores, CERTAIN)
    assert not found.classes.any()
    (three,) = read_boxes(boxes(HALVES, np.array([[0.1, 0.9, 0], [0.8, 0, 0.2], [0, 0, 1]], np.float32))) or []
    assert three.classes.tolist() == [1, 0, 2]


def test_six_columns_are_corners_score_and_class(tmp_path: Path) -> None:
    rows = np.concatenate([HALVES, CERTAIN[:, None], np.array([[0], [1], [1]])], axis=1).astype(np.float32)[None]
    model = build([node("Gather", "x i", "y", axis=1)], {"x": ["n", 3, 6]}, weights={"i": np.array([2, 0, 1])})
    kept = build([node("Identity", "x", "y")], {"x": ["n", 3, 6]})
    labels = np.array([[[10, 10, 14, 14, 1], [0, 0, 4, 2, 0], [0, 0, 0, 0, 0]]])
    np.savez(tmp_path / "d.npz", x=rows, _boxes=labels)
    np.savez(tmp_path / "e.npz", x=rows)
    given = [open_samples([tmp_path / name], [InputSpec("x", FLOAT, ("n", 3, 6))]) for name in ("d.npz", "e.npz")]
    found, original = model.SerializeToString(), kept.SerializeToString()
    assert measure_metric("iou", found, given[0], float_model=original) == pytest.approx(100 * (1 + 0.5 + 0) / 3)
    assert measure_metric("iou", found, given[1], float_model=original) == 100


def test_outputs_that_hold_no_boxes_are_maps() -> None:
    tall = np.zeros((1, 5, 6), np.float32)
    tall[..., 5] = 0.5  # no class
    assert read_boxes({"y": tall}) is None
    assert read_boxes({"y": HALVES}) is None


def test_labels_for_another_number_of_pictures_are_refused() -> None:
    found = run([boxes(HALVES, CERTAIN)], _boxes=[np.zeros((2, 1, 4))])
    with pytest.raises(DataError, match="there are boxes for 2 pictures, and the model was given 1"):
        found.score(found)


def test_models_of_two_kinds_are_not_compared() -> None:
    with pytest.raises(DataError, match="the outputs of one model hold boxes"):
        run([boxes(HALVES, CERTAIN)]).score(run([{"y": np.eye(4, dtype=np.float32)[None]}]))


@pytest.mark.parametrize("shape", [(0,), (1, 0)])
def test_a_picture_without_boxes_counts_those_of_the_other_model(shape: tuple[int, ...]) -> None:
    nothing = boxes(np.zeros((*shape, 4), np.float32), np.zeros(shape, np.float32))
    together = {"boxes": np.zeros((*shape, 6), np.float32)}
    classes = {"boxes": np.zeros((*shape, 4), np.float32), "scores": np.zeros((*shape, 3), np.float32)}
    for one in (nothing, together, classes):
        found = read_boxes(one)
        assert found is not None
        assert [len(each.corners) for each in found] == [0]
    assert run([boxes(HALVES, CERTAIN), nothing]).score(run([boxes(HALVES, CERTAIN), nothing])) == 100
    assert run([nothing]).score(run([boxes(HALVES, CERTAIN)])) == 0
