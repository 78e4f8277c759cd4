"""Metrics by name against figures that were worked out by hand or by a definition written down here."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from onnxq import measure_metric
from onnxq.data.samples import InputSpec, open_samples, wrap_samples
from onnxq.errors import CheckFailed, DataError
from onnxq.pipeline.quantize import quantize
from onnxq.search.budget import Budget
from onnxq.verification.metrics.by_name import METRICS
from onnxq.verification.metrics.classes import Agreement
from onnxq.verification.metrics.nearness import Cosine
from onnxq.verification.user_metric import MetricJudge, check_drop, check_labels, compare_metric, try_metric
from tests.helpers import build, floats, node

FLOAT = 1
INT64 = 7
SCORES = np.array([[0.1, 0.7, 0.2, 0, 0, 0], [0.9, 0, 0.1, 0, 0, 0], [0, 0.1, 0.3, 0.6, 0, 0]], np.float32)


def same(shape: list[int | str]) -> bytes:
    """A model that gives its input."""
    return bytes(build([node("Identity", "x", "y")], {"x": shape}).SerializeToString())


def shifted(shape: list[int | str], by: float) -> bytes:
    weights = {"b": np.array(by, np.float32)}
    return bytes(build([node("Add", "x b", "y")], {"x": shape}, weights=weights).SerializeToString())


def scaled(shape: list[int | str], factors: np.ndarray) -> bytes:
    made = build([node("Mul", "x f", "y")], {"x": shape}, weights={"f": factors.astype(np.float32)})
    return bytes(made.SerializeToString())


def saved(path: Path, x: np.ndarray, **labels: np.ndarray):
    np.savez(path / "d.npz", x=x, **labels)
    shape = ("n", *x.shape[1:])
    return open_samples([path / "d.npz"], [InputSpec("x", FLOAT, shape)])


def value(path: Path, name: str, x: np.ndarray, model: bytes | None = None, **labels: np.ndarray) -> float:
    float_model = same(["n", *x.shape[1:]])
    return measure_metric(name, model or float_model, saved(path, x, **labels), float_model=float_model)


def test_top1_and_top5(tmp_path: Path) -> None:
    y = np.array([1, 2, 5])
    assert value(tmp_path, "top1", SCORES, _y=y) == pytest.approx(100 / 3)
    assert value(tmp_path, "top5", SCORES, _y=y) == pytest.approx(200 / 3)  # of equal scores the first ones count
    assert value(tmp_path, "top1", SCORES, _label=y[:, None]) == pytest.approx(100 / 3)
    assert value(tmp_path, "top1", SCORES, _label=np.eye(6)[y]) == pytest.approx(100 / 3)
    assert value(tmp_path, "top1", SCORES, _label=np.array([1, -1, 5])) == 50  # below 0: does not count
    assert value(tmp_path, "top1", SCORES[:, :, None, None], _label=y) == pytest.approx(100 / 3)


def test_labels_of_a_function_of_the_user() -> None:
    samples = [{"x": row[None], "_label": np.int64(label)} for row, label in zip(SCORES, (1, 0, 3), strict=True)]
    given = wrap_samples(samples, [InputSpec("x", FLOAT, ("n", 6))])
    assert measure_metric("top1", same(["n", 6]), given) == 100


def test_agreement_counts_the_decisions_of_the_float_model(tmp_path: Path) -> None:
    flipped = scaled(["n", 6], np.array([1, 0.1, 1, 1, 1, 1]))  # the first row then prefers class 2
    assert value(tmp_path, "agreement", SCORES) == 100
    assert value(tmp_path, "agreement", SCORES, flipped) == pytest.approx(200 / 3)


def test_decisions_that_only_one_of_two_detectors_makes_are_different() -> None:
    float_model, quantized = Agreement({}), Agreement({})
    for run, counts in ((float_model, (3, 2, 1)), (quantized, (3, 1, 1))):
        for count in counts:  # of one score nothing is chosen
            run.add({}, {"boxes": np.eye(count, 4, dtype=np.float32), "scores": np.ones(count, np.float32)})
    assert float_model.score(float_model) == 100
    assert quantized.score(float_model) == 50


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_cosine_of_what_is_not_finite_is_no_number(bad: float) -> None:
    float_model, quantized = Cosine({}), Cosine({})
    float_model.add({}, {"y": np.ones(4, np.float32)})
    quantized.add({}, {"y": np.array([1, 1, 1, bad], np.float32)})
    assert np.isnan(quantized.score(float_model))
    for run in (float_model, quantized):
        run.outputs = {"equal": [np.ones(4, np.float32)]} | run.outputs  # whatever the order
    assert np.isnan(quantized.score(float_model))


def test_rows_of_nan_choose_no_class() -> None:
    spoilt = np.array([[np.nan, 1, 0], [np.nan] * 3, [0, 1, 0]], np.float32)
    top = METRICS["top1"].begin({"_label": [np.array([1, 0, 1])]})
    top.add({}, {"y": spoilt})
    assert top.score(top) == pytest.approx(100 / 3)
    float_model, quantized = Agreement({}), Agreement({})
    float_model.add({}, {"y": np.array([[2, 1, 0]] * 3, np.float32)})
    quantized.add({}, {"y": spoilt})
    assert quantized.score(float_model) == 0


def test_perplexity_of_logits_that_are_too_large_is_no_exception() -> None:
    for logits, expected in (([0, 1e4, 0], np.inf), ([0, np.inf, 0], np.nan), ([-np.inf] * 3, np.nan)):
        run = METRICS["perplexity"].begin({})
        run.add({"ids": np.array([[0, 0]])}, {"y": np.full((1, 2, 3), np.array(logits, np.float32))})
        assert np.array_equal(run.score(run), expected, equal_nan=True)


def test_pictures_of_no_rows_and_classes_below_zero() -> None:
    empty = {"y": np.ones((0, 1, 4, 4), np.float32)}
    psnr, iou = METRICS["psnr"].begin({}), METRICS["iou"].begin({})
    psnr.add({}, empty)
    iou.add({}, empty)
    with pytest.raises(DataError, match="no pictures"):
        psnr.score(psnr)
    assert iou.score(iou) == 100
    float_model, quantized = METRICS["iou"].begin({}), METRICS["iou"].begin({})
    float_model.add({}, {"y": np.ones((1, 4, 4), np.int64)})
    quantized.add({}, {"y": np.full((1, 4, 4), -1)})
    assert quantized.score(float_model) == 0


def test_cosine_is_that_of_the_least_similar_output(tmp_path: Path) -> None:
    x = floats(5, 4)
    factors = np.array([1, -1, 1, 1])
    expected = (x * x * factors).sum() / (x * x).sum()
    assert value(tmp_path, "cosine", x) == pytest.approx(1)
    assert value(tmp_path, "cosine", x, scaled(["n", 4], factors)) == pytest.approx(expected, abs=1e-6)


def test_psnr_of_targets_and_of_the_float_model(tmp_path: Path) -> None:
    x = np.linspace(0.2, 0.8, 2 * 1 * 4 * 4, dtype=np.float32).reshape(2, 1, 4, 4)
    model = shifted(["n", 1, 4, 4], 0.1)
    assert value(tmp_path, "psnr", x) == 100
    assert value(tmp_path, "psnr", x, model) == pytest.approx(20, abs=1e-4)
    assert value(tmp_path, "psnr", x, _target=x + np.float32(0.01)) == pytest.approx(40, abs=1e-3)
    bytes_ = (x * 255).astype(np.float32)
    found = value(tmp_path, "psnr", bytes_, _target=bytes_ + np.float32(2.55))
    assert found == pytest.approx(40, abs=1e-2)


def test_psnr_without_targets_is_a_distance_and_no_drop(tmp_path: Path) -> None:
    x = np.linspace(0.2, 0.8, 2 * 1 * 4 * 4, dtype=np.float32).reshape(2, 1, 4, 4)
    for labels, words in (({}, "to the float model"), ({"_target": x}, "80 less")):
        metric = MetricJudge("psnr", same(["n", 1, 4, 4]), saved(tmp_path, x, **labels))
        found = metric.compare(shifted(["n", 1, 4, 4], 0.1))
        assert found.is_distance == (not labels)
        assert found.change_words() == words


def test_iou_of_class_maps(tmp_path: Path) -> None:
    label = np.array([[[0, 0, 1, 1], [0, 0, 1, 255]]])
    chosen = np.array([[[0, 1, 1, 1], [0, 0, 1, 0]]])
    scores = np.moveaxis(np.eye(9, dtype=np.float32)[chosen], -1, 1)  # [1, 9, 2, 4] is wider than the map is high
    wide = np.pad(scores, [(0, 0), (0, 0), (0, 20), (0, 20)])
    wide[:, 0, 2:], wide[:, 0, :, 4:] = 1, 1
    mask = np.zeros((1, 22, 24), np.int64)
    mask[:, :2, :4] = label
    ignored = np.where(np.arange(24)[None, None] >= 4, 255, mask)
    ignored[:, 2:] = 255
    assert value(tmp_path, "iou", wide, _mask=ignored) == pytest.approx(100 * (3 / 4 + 3 / 4) / 2)
    assert value(tmp_path, "iou", np.moveaxis(wide, 1, -1), _mask=ignored) == pytest.approx(75)
    assert value(tmp_path, "iou", wide) == 100


def test_iou_of_one_channel_is_that_of_the_foreground(tmp_path: Path) -> None:
    x = np.zeros((1, 1, 8, 8), np.float32)
    x[..., :4, :4] = 0.9
    mask = np.zeros((1, 8, 8), np.uint8)
    mask[:, :4, 2:6] = 255
    assert value(tmp_path, "iou", x, _mask=mask) == pytest.approx(100 * 8 / 24)
    assert value(tmp_path, "iou", 20 * x - 10, _mask=mask) == pytest.approx(100 * 8 / 24)  # logits are cut at 0
    assert value(tmp_path, "iou", x, scaled(["n", 1, 8, 8], np.array(0.5))) == 0
    assert value(tmp_path, "iou", x) == 100


def language() -> tuple[bytes, np.ndarray]:
    table = floats(7, 7)
    model = build([node("Gather", "t ids", "logits")], {"ids": (INT64, ["n", 5])}, ["logits"], {"t": table})
    return bytes(model.SerializeToString()), table


@pytest.mark.parametrize("labelled", [False, True])
def test_perplexity_of_token_ids(tmp_path: Path, labelled: bool) -> None:
    model, table = language()
    ids = np.array([[1, 2, 3, 4, 5], [6, 0, 1, 1, 2]])
    following = np.concatenate([ids[:, 1:], [[-1], [-1]]], axis=1)
    np.savez(tmp_path / "d.npz", ids=ids, **({"_next": following} if labelled else {}))
    given = open_samples([tmp_path / "d.npz"], [InputSpec("ids", INT64, ("n", 5))])
    logs = table - np.log(np.exp(table.astype(np.float64)).sum(axis=-1, keepdims=True))
    losses = [-logs[a, b] for row in ids for a, b in pairwise(row)]
    found = compare_metric("perplexity", model, model, given)
    assert found.float_value == pytest.approx(np.exp(np.mean(losses)), rel=1e-5)
    assert (found.drop, found.lower_is_better) == (0, True)


@pytest.mark.parametrize("halves", [False, True])
def test_spearman_of_pairs(tmp_path: Path, halves: bool) -> None:
    left = np.array([[1, 0], [1, 0], [1, 0], [1, 0]], np.float32)
    right = np.array([[1, 0], [1, 1], [0, 1], [-1, 0]], np.float32)  # cosines 1, 0.7, 0, -1
    score = np.array([5.0, 1.0, 3.0, 0.5])
    if halves:
        found = value(tmp_path, "spearman", np.concatenate([left, right]), _score=score)
    else:
        rows = np.stack([left, right], axis=1).reshape(8, 2)
        found = value(tmp_path, "spearman", rows, _score=score.repeat(2), _pair=np.arange(4).repeat(2))
    assert found == pytest.approx(0.8)  # 1 - 6 · Σd² / (n · (n² - 1)), d = 0, 1, -1, 0


def test_spearman_of_scores_shares_ranks(tmp_path: Path) -> None:
    x = np.array([[1], [2], [2], [3]], np.float32)
    assert value(tmp_path, "spearman", x, _score=np.array([1, 2, 2, 9])) == pytest.approx(1)
    assert value(tmp_path, "spearman", x, _score=np.array([9, 2, 2, 1])) == pytest.approx(-1)


@pytest.mark.parametrize(
    ("name", "labels", "sentence"),
    [
        ("top1", {}, "top1 needs the class of each sample, and the data have no labels"),
        ("top5", {"_text": np.array(["a", "b", "c"])}, "the data have only '_text'"),
        ("top1", {"_label": np.array(["0", "1", "2"])}, "the data have only '_label' (text)"),
        ("top1", {"_a": np.arange(3), "_b": np.arange(3)}, "'_a' and '_b' could both be the class"),
        ("spearman", {}, "spearman needs a score for each pair, and the data have no labels"),
        ("perplexity", {}, "perplexity needs next tokens, and no input holds token ids"),
    ],
)
def test_missing_labels_are_named_before_a_model_is_run(tmp_path: Path, name: str, labels, sentence: str) -> None:
    with pytest.raises(DataError, match=re.escape(sentence)):
        check_labels(name, saved(tmp_path, SCORES, **labels))


@pytest.mark.parametrize(
    ("name", "x", "labels", "sentence"),
    [
        ("top1", SCORES, {"_y": np.array([0, 1, 6])}, "the highest label is 6, and 'y' has 6 classes"),
        ("top1", SCORES, {"_y": np.array([0, 1])}, "there are labels for 2 rows, and outputs for 3"),
        ("top1", SCORES, {"_y": np.array([-1, -1, -1])}, "no row has a label"),
        ("top1", SCORES[:, :1], {"_y": np.arange(3)}, "top1 needs scores of classes, and the model gives 'y' [1, 1]"),
        ("top5", SCORES[:, :4], {"_y": np.arange(3)}, "top5 needs more than 4 classes"),
        ("psnr", SCORES, {"_target": SCORES[:, :2]}, "a picture of the data has shape"),
        ("iou", SCORES[:, None, :, None], {"_mask": np.ones((3, 5, 1), int)}, "a label has shape [5, 1]"),
        ("spearman", SCORES, {"_score": np.arange(2.0)}, "there are 2 scores for 3 rows, and pairs are not clear"),
    ],
)
def test_labels_that_do_not_fit_are_named(tmp_path: Path, name: str, x: np.ndarray, labels, sentence: str) -> None:
    with pytest.raises(DataError, match=re.escape(sentence)):
        value(tmp_path, name, x, **labels)


def test_labels_of_another_kind_have_a_remedy_of_their_own(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        check_labels("top1", saved(tmp_path, SCORES, _label=np.array(["0", "1", "2"])))
    assert caught.value.hint == "Save '_label' as whole numbers that count from 0."
    with pytest.raises(DataError) as caught:
        check_labels("spearman", saved(tmp_path, SCORES, _score=np.array(["0", "1", "2"])))
    assert "Save '_score' as numbers." in str(caught.value.hint)


def test_the_nearest_name_is_suggested(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="'top2' is no metric") as caught:
        check_labels("top2", saved(tmp_path, SCORES))
    assert "Did you mean 'top" in str(caught.value.hint)


def classifier() -> tuple[bytes, np.ndarray]:
    model = build([node("MatMul", "x w", "y")], {"x": ["n", 16]}, weights={"w": floats(16, 6)})
    return bytes(model.SerializeToString()), floats(64, 16)


def test_a_run_measures_a_named_metric_and_keeps_to_its_drop(tmp_path: Path) -> None:
    encoded, x = classifier()
    (tmp_path / "m.onnx").write_bytes(encoded)
    np.savez(tmp_path / "d.npz", x=x, _y=(x @ floats(16, 6)).argmax(axis=-1))
    given = str(tmp_path / "d.npz")
    report = quantize(tmp_path / "m.onnx", "static-int8", data=given, budget=Budget(metric="top1"), force=True)
    assert report.comparison is not None
    assert report.comparison.metric is not None
    assert (report.comparison.metric.name, report.comparison.metric.float_value) == ("top1", 100)
    with pytest.raises(CheckFailed, match="cosine"):
        quantize(tmp_path / "m.onnx", "static-int8", data=given, budget=Budget(metric="cosine", max_drop=0), force=True)


def test_a_budget_of_perplexity_is_one_of_how_far_it_rises() -> None:
    from onnxq.verification.records import Comparison, MetricComparison

    worse = Comparison((), 1, metric=MetricComparison("perplexity", 10.0, 12.5, lower_is_better=True))
    assert worse.missed(max_drop=2) == ["perplexity rose by 2.5, 0.5 more than 2"]
    assert not worse.missed(max_drop=3)


def test_all_names_of_the_issue_are_there() -> None:
    assert set(METRICS) == {"top1", "top5", "agreement", "cosine", "psnr", "iou", "perplexity", "greedy", "spearman"}


def test_labels_counted_from_one_are_noticed_by_the_float_model(tmp_path: Path) -> None:
    x, right = floats(40, 6), floats(40, 6).argmax(axis=1)
    of = compare_metric(
        "top1", same(["n", 6]), same(["n", 6]), saved(tmp_path, x[right < 5], _label=right[right < 5] + 1)
    )
    assert of.doubt == "the float model is right on 0 % of the labels, and on 100 % of labels one less"
    down = compare_metric("top1", same(["n", 6]), same(["n", 6]), saved(tmp_path, x, _label=right - 1))
    assert down.doubt.endswith("of labels one more")
    mixed = compare_metric("top1", same(["n", 6]), same(["n", 6]), saved(tmp_path, x, _label=(right + 3) % 6))
    assert mixed.doubt == "the float model is right on 0 % of the labels, which is no more than guessing"
    assert not compare_metric("top1", same(["n", 6]), same(["n", 6]), saved(tmp_path, x, _label=right)).doubt
    left_out = np.where(right % 2, right, -100)
    assert not compare_metric("top1", same(["n", 6]), same(["n", 6]), saved(tmp_path, x, _label=left_out)).doubt
    negative = compare_metric("top1", same(["n", 6]), same(["n", 6]), saved(tmp_path, x, _label=-right))
    zeros = int((right == 0).sum())
    assert negative.doubt == f"only {zeros} rows have a label: those from -5 to -1 do not count"


@pytest.mark.parametrize("name", ["psnr", "iou"])
def test_a_row_of_numbers_is_no_picture_and_no_map(tmp_path: Path, name: str) -> None:
    samples = saved(tmp_path, floats(3, 1, 12)[:, 0])
    with pytest.raises(DataError, match=f"{name} needs .*, and the model gives 'y'"):
        try_metric(name, same(["n", 12]), samples.limit(1), None)


def test_a_label_beyond_the_classes_is_found_on_the_first_sample(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the highest label is 6, and 'y' has 6 classes"):
        try_metric("top1", same(["n", 6]), saved(tmp_path, SCORES, _label=np.array([1, 2, 6])), None)


def test_labels_of_another_type_are_named_with_it(tmp_path: Path) -> None:
    samples = saved(tmp_path, SCORES, _label=np.array([1, 2, 5], np.float32))
    with pytest.raises(DataError, match=r"the data have only '_label' \(float32\)"):
        check_labels("top1", samples)


@pytest.mark.parametrize(("name", "most", "values"), [("top1", 300, "0 to 100"), ("cosine", 5, "-1 to 1")])
def test_a_drop_that_no_values_can_have_is_refused(name: str, most: float, values: str) -> None:
    with pytest.raises(DataError, match=f"a drop of {most} can never be missed: {name} is from {values}"):
        check_drop(name, most)
    check_drop(name, 0.5)
    check_drop("perplexity", 500)
