"""Ranges by output error and headroom are kept where they serve samples that had no part in them, and nowhere else."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers import build, floats, node, unlike
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from onnxq.calibration.stats_file import fingerprint, save_stats
from onnxq.data.samples import input_specs, wrap_samples
from onnxq.ir import load
from onnxq.pipeline.quantize import quantize
from onnxq.planning.recipe import Recipe, load_recipe, parse_recipe
from onnxq.progress import Silent
from onnxq.search.held_out import HoldoutSplit
from onnxq.search.range_trial import (
    BY_ERROR,
    MIN_MAX,
    ROOMIER,
    WORTH_CHANGING,
    RangeChoice,
    best_candidate,
    coarser_by,
    with_headroom,
    with_known_headroom,
)
from onnxq.search.variants import HoldoutChoice, choose_by_holdout
from onnxq.stages.measure import layers_needing_moments, measure
from onnxq.stages.prepare import prepare

OPEN = load_recipe("static-int8").setting(smoothing=False, bias_correction=False)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A product that does not read the first of 8 channels."""
    weight = unlike(floats(8, 6))
    weight[0] = 0
    path = tmp_path / "m.onnx"
    onnx.save(build([node("MatMul", "x w", "y")], {"x": ["N", 8]}, ["y"], {"w": weight}), path)
    return path


def samples(channel: int, *, size: float = 60.0, only: range = range(12)) -> list[dict[str, np.ndarray]]:
    """Twelve samples of 50 rows; one value of a channel is large in each of `only`."""
    made = [{"x": floats(50, 8, seed=index)} for index in range(12)]
    for index in only:
        made[index]["x"][7, channel] = size + index
    return made


def tried(path: Path, recipe: Recipe, given: list[dict[str, np.ndarray]]) -> HoldoutChoice:
    prepared = prepare(load(path), recipe, with_data=True)
    return choose_by_holdout(
        prepared, HoldoutSplit(prepared.model.copy(), wrap_samples(given, input_specs(prepared.model)))
    )


def notes_and_sqnr(
    path: Path, recipe: Recipe, given: list[dict[str, np.ndarray]], **settings: Any
) -> tuple[bool, float]:
    report = quantize(path, recipe, samples=given, force=True, **settings)
    assert report.comparison is not None
    return BY_ERROR in report.notes, report.comparison.worst_sqnr


def test_outliers_that_nobody_reads_are_cut_off(model):
    given = samples(0)
    assert tried(model, OPEN, given).ranges.method == "output-error"
    assert tried(model, OPEN.setting(ranges="minmax"), given).ranges == MIN_MAX
    noted, sqnr = notes_and_sqnr(model, OPEN, given)
    unnoted, before = notes_and_sqnr(model, OPEN.setting(ranges="minmax"), given)
    assert (noted, unnoted) == (True, False)
    assert sqnr > before + 10
    asked, direct = notes_and_sqnr(model, OPEN.setting(ranges="output-error"), given)
    assert not asked  # nothing was tried
    assert direct == pytest.approx(sqnr, abs=1)


def test_outliers_that_matter_are_kept(model):
    given = samples(1)
    assert tried(model, OPEN, given).ranges.method == "auto"
    noted, sqnr = notes_and_sqnr(model, OPEN, given)
    assert not noted  # and there is room for greater ones: a fifth, which costs 20 log10(1.2) = 1.6 dB
    assert sqnr == pytest.approx(notes_and_sqnr(model, OPEN.setting(ranges="minmax"), given)[1], abs=1.6)


def test_a_sample_that_goes_further_is_judged_by_ranges_of_the_others(model):
    """Half of the samples need what the others clip, and are no part of what chose it when they are judged."""
    given = samples(0, size=20.0)
    assert tried(model, OPEN, given).ranges.method == "output-error"
    for sample in given[::4]:  # one fold
        sample["x"][:, 1] *= 64
    assert tried(model, OPEN, given).ranges.method == "auto"


def test_headroom_that_was_found_is_left_and_said(model, tmp_path, monkeypatch):
    scales = []
    for way in (MIN_MAX, RangeChoice("auto", 1.1)):
        monkeypatch.setattr("onnxq.search.variants.choose_ranges", lambda *given, way=way: way)
        report = quantize(model, OPEN, samples=samples(1), output=tmp_path / "y.onnx", force=True)
        made = load(tmp_path / "y.onnx")
        quantizing = next(node for node in made.graph.nodes if node.op_type == "QuantizeLinear")
        scales.append(float(quantizing.inputs[1].constant.numpy()))
        assert (ROOMIER.format(10) in report.notes) == (way != MIN_MAX)
        assert parse_recipe(made.metadata["onnxq_recipe"], "r").scheme.headroom == way.headroom
    assert scales[1] == pytest.approx(1.1 * scales[0])


@pytest.mark.parametrize(
    ("gains", "best"),
    [
        ([[1, 0], [1, 0], [1, 0], [1, 0]], 1),
        ([[1, 2], [1, 2], [1, 2], [1, 2]], 2),
        ([[1, 5], [1, 5], [1, 5], [1, -12]], 1),  # what three folds gain does not make up for what the fourth loses
        ([[9, 0], [-2, 0], [-2, 0], [-2, 0]], 0),  # and one that gains much is not all of them
        ([[0.09, 0]] * 4, 0),
        ([[0.11, 0]] * 4, 1),
        ([[1e9, 0], [-40, 0], [-40, 0], [-40, 0]], 0),  # 1e9 dB is no more than enough
    ],
)
def test_gains_of_all_folds_are_averaged_and_doubted(gains, best):
    """By the sum of errors, one sample of a ResNet decided for headroom that cost all others 7 dB."""
    assert chosen([[30.0 + gain for gain in (0, *fold, -9)] for fold in gains]) == best


@pytest.mark.parametrize(("plain", "best"), [(49.0, 1), (50.0, 0), (np.inf, 0)])
def test_what_is_accurate_already_stays_as_it_is(plain, best):
    """Of 5 networks above 45 dB, 4 lost by what gained in the trial."""
    assert chosen([[plain, plain + 3, 0.0]] * 4) == best


def test_a_model_that_does_not_run_with_other_ranges_keeps_its_own():
    assert chosen([[30.0, -np.inf, -np.inf]] * 4) == 0


def test_ways_that_cannot_win_any_more_are_tried_on_two_folds():
    asked: list[list[int]] = []
    table = [[30.0, 29.0, 31.0, 30.05], [30.0, 28.0, 31.5, 30.01], [30.0, 99.0, 31.0, 99.0], [30.0, 99.0, 31.0, 99.0]]
    assert chosen(table, asked) == 2
    assert asked == [[0, 1, 2, 3], [0, 1, 2, 3], [0, 2], [0, 2]]


def test_no_fold_is_left_to_do_where_nothing_can_be_gained():
    asked: list[list[int]] = []
    assert chosen([[30.0, 29.0], [30.0, 30.0], [30.0, 99.0], [30.0, 99.0]], asked) == 0
    assert asked == [[0, 1], [0, 1]]


@given(arrays(np.float64, (2, 4), elements=st.floats(-9, 9)), arrays(np.float64, (2, 4), elements=st.floats(0, 1)))
def test_a_way_that_goes_out_gains_too_little(first, share):
    """As long as it does on no fold better than on its best of the first two."""
    least, most = first.min(axis=0), first.max(axis=0)
    gains = np.concatenate([first, least + share * (most - least)])
    gains[:, 0] = 0
    asked: list[list[int]] = []
    chosen((30 + gains).tolist(), asked)
    means = gains.mean(axis=0)
    gone = sorted(set(range(4)) - set(asked[-1]))
    assert all(means[at] < WORTH_CHANGING + 1e-9 for at in gone)


def chosen(table, asked=None):
    """Choose by dB for each fold and candidate, and note what was asked."""

    def judged(fold, candidates):
        if asked is not None:
            asked.append(list(candidates))
        return [table[fold][at] for at in candidates]

    return best_candidate(len(table), len(table[0]), judged)


def test_nothing_is_tried_on_one_sample_or_with_statistics_or_fast(model, tmp_path):
    assert tried(model, OPEN, samples(0)[:1]).ranges == MIN_MAX
    assert not notes_and_sqnr(model, OPEN, samples(0), fast=True)[0]
    prepared = prepare(load(model), OPEN, with_data=True)
    given = wrap_samples(samples(0), input_specs(prepared.model))
    stats = measure(prepared, layers_needing_moments(prepared.plan), given, None, Silent())
    save_stats(tmp_path / "s.npz", stats, fingerprint(prepared.source, stats.names))
    assert not notes_and_sqnr(model, OPEN, samples(0), stats=tmp_path / "s.npz")[0]
    asked = OPEN.setting(ranges="output-error")  # statistics serve recipes that differ in the ranges
    assert notes_and_sqnr(model, asked, samples(0), stats=tmp_path / "s.npz") == notes_and_sqnr(
        model, asked, samples(0)
    )


def test_what_is_left_open_is_settled_in_rules_too():
    recipe = parse_recipe('ranges = "mse"\n[[rules]]\nop = "Conv"\nranges = "auto"\n', "r")
    settled = recipe.with_ranges("output-error", 1.2)
    assert settled.scheme.ranges == "mse"
    assert settled.scheme.headroom == 1.0
    conv = settled.scheme_for("Conv", "c")[0]
    assert (conv.ranges, conv.headroom) == ("output-error", 1.2)
    assert load_recipe("auto").with_ranges("minmax").scheme_for("Gemm", "g")[0].ranges == "minmax"
    assert load_recipe("auto").scheme.ranges == "auto"


@pytest.mark.parametrize(
    ("rule", "ranges", "headroom"),
    [
        ("", "output-error", 1.5 * 1.2),
        ('ranges = "mse"', "mse", 1.5),  # the recipe's own headroom, nothing of what others get
        ("headroom = 2", "output-error", 2 * 1.2),
        ("headroom = 3.9", "output-error", 4),  # which a recipe may say
        ('ranges = "auto"\nheadroom = 2', "output-error", 2 * 1.2),
        ('ranges = "mse"\nheadroom = 2', "mse", 2.0),
    ],
)
def test_headroom_of_a_recipe_and_of_its_rules_is_kept(rule, ranges, headroom):
    recipe = parse_recipe(f'headroom = 1.5\n[[rules]]\nop = "Conv"\nbias = "float"\n{rule}\n', "r")
    before = recipe.scheme_for("Conv", "c")[0].headroom
    settled = recipe.with_ranges("output-error", 1.2).scheme_for("Conv", "c")[0]
    assert (settled.ranges, settled.headroom) == (ranges, pytest.approx(headroom))
    assert recipe.with_ranges("output-error").scheme_for("Conv", "c")[0].headroom == before


def test_headroom_is_judged_with_the_better_method_and_most_of_it_where_some_gains() -> None:
    asked: list[list[int]] = []
    known = {0: 30.0, 1: 29.2, 2: 40.0, 3: 29.0, 4: 31.0, 5: 33.0}

    def judged(numbers: Sequence[int]) -> dict[int, float]:
        asked.append(list(numbers))
        return {number: known[number] for number in numbers}

    assert with_headroom(range(6), judged) == pytest.approx([30.0, 29.2, 28.4, 29.0, 28.2, 27.4])
    assert asked == [[0, 3], [1]]
    asked.clear()
    known[3] = 30.5
    assert with_headroom(range(6), judged) == pytest.approx([30.0, 30.5, 32.5, 30.5, 31.0, 33.0])
    assert asked == [[0, 3], [4], [5]]
    asked.clear()
    assert with_headroom([0, 2, 4], judged) == [30.0, 40.0, 31.0]  # those that say what to expect have gone out
    assert asked == [[0], [2], [4]]


def test_headroom_that_clips_nothing_is_judged_on_one_fold() -> None:
    asked: list[list[int]] = []
    known = {0: 30.0, 3: 31.0}

    def judged(numbers: Sequence[int]) -> dict[int, float]:
        asked.append(list(numbers))
        return {number: known.get(number, 20.0 + number) for number in numbers}

    lost = coarser_by([30.0, 29.2, 28.4, 31.0, 30.2, 29.4])
    assert lost == pytest.approx({0: 0.0, 1: -0.8, 2: -1.6})
    assert with_known_headroom(range(6), judged, lost) == pytest.approx([30.0, 29.2, 28.4, 31.0, 30.2, 29.4])
    assert asked == [[0, 3]]
    asked.clear()
    assert with_known_headroom([0, 4], judged, lost) == [30.0, 24.0]  # the method that says it has gone out
    assert asked == [[0, 4]]
    assert not coarser_by([30.0, 29.9, 29.8, 29.0, 28.9, 28.8])  # something may be clipped
