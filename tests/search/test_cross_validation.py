"""The SQNR to expect on other samples is measured on samples that chose neither ranges nor codes."""

from __future__ import annotations

import math
import os
import threading
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers import build, floats, node

from onnxq.data.samples import input_specs, wrap_samples
from onnxq.ir import load
from onnxq.pipeline.quantize import quantize
from onnxq.progress import Silent
from onnxq.report import Report
from onnxq.runtime.ownership import is_own_process, own_process
from onnxq.search import cross_validation
from onnxq.search.cross_validation import (
    BETWEEN_SETS,
    DECIBEL,
    NORMAL_90,
    CrossValidated,
    Logits,
    Overfitting,
    cross_validate,
    overfitting,
)
from onnxq.search.held_out import HoldoutSplit
from onnxq.search.variants import calibrate_and_round
from onnxq.stages.prepare import prepare
from onnxq.targets import host
from onnxq.verification.compare import compare
from onnxq.verification.error_stats import Difference
from onnxq.verification.records import Comparison, CrossValidation, OutputComparison

NEAREST = 'scheme = "static-int8"\nsmoothing = false\nrounding = "nearest"\nbias_correction = false\n'


def difference(signal: float, noise: float) -> Difference:
    found = Difference(classes=False)
    found.add(np.array([math.sqrt(signal)]), np.array([math.sqrt(signal) - math.sqrt(noise)]))
    return found


def output(name: str, sqnr: float) -> OutputComparison:
    return OutputComparison(name, "float32", 1, False, sqnr, 0.0, 1.0, None)


def test_differences_are_averaged_over_samples_in_decibels() -> None:
    seen = [[difference(1, 1e-4)], [difference(1, 1e-3)]]
    unseen = [[difference(1, 1e-3)], [difference(1, 1e-3)]]
    (found,) = overfitting(["y"], seen, unseen, 2)
    np.testing.assert_allclose([found.gain, found.error], [5.0, 5.0], rtol=1e-6)  # 10 and 0
    off = math.sqrt(2 / 1 * 2 * (4.5e-4) ** 2) / 1.1e-3  # by 4.5e-4 either way from a mean of 5.5e-4
    np.testing.assert_allclose(found.spread, DECIBEL * off, rtol=1e-6)


def test_samples_whose_outputs_are_next_to_zero_count_little() -> None:
    """The probability of a wake word is 1e-8 where none is said, and 40 dB more or less change nothing there."""
    said = [difference(1, 1e-4)], [difference(1, 2e-4)]
    silent = [[difference(1e-12, 1e-20)]] * 3, [[difference(1e-12, 1e-16)]] * 3
    (found,) = overfitting(["y"], [said[0], *silent[0]], [said[1], *silent[1]], 4)
    np.testing.assert_allclose(found.gain, 10 * math.log10(2), rtol=1e-3)


def test_one_sample_that_leaves_all_ranges_counts_as_the_others_do() -> None:
    seen, unseen = [[difference(1, 1e-4)]] * 10, [[difference(1, 1e-4)]] * 9 + [[difference(1, 1e-1)]]
    (found,) = overfitting(["y"], seen, unseen, 10)
    np.testing.assert_allclose([found.gain, found.error], [3.0, 3.0], rtol=1e-6)


def test_equal_outputs_do_not_overfit() -> None:
    (found,) = overfitting(["y"], [[difference(1, 0)], [difference(2, 0)]], [[difference(1, 0)], [difference(2, 0)]], 2)
    assert (found.gain, found.error, found.spread) == (0.0, 0.0, 0.0)
    expected = CrossValidated((found,), 2).expected(Comparison((output("y", math.inf),), 2), 2)
    assert expected is not None
    assert expected.low == expected.sqnr == expected.high == math.inf
    assert "equal" in expected.sentence


def test_overfitting_falls_with_the_number_of_samples() -> None:
    """An error of 1 without it, and of a tenth of a sample's on either side."""
    own, halves, others = (-10 * math.log10(1 + change) for change in (-0.1 / 24, 0.1 / 12, 0.1 / 24))
    shown = CrossValidated((Overfitting("y", own - halves, 0.0, 0.0),), 24)
    found = shown.expected(Comparison((output("y", own),), 24), 24)
    assert found is not None
    np.testing.assert_allclose(found.sqnr, others, atol=2e-4)
    more = shown.expected(Comparison((output("y", own),), 24), 1000)
    assert more is not None
    assert found.sqnr < more.sqnr < own


def test_the_output_that_is_worst_on_others_counts() -> None:
    shown = CrossValidated((Overfitting("a", 12.0, 1.0, 0.5), Overfitting("b", 0.0, 0.0, 0.0)), 10)
    found = shown.expected(Comparison((output("a", 30.0), output("b", 25.0)), 10), 10)
    assert found is not None
    assert (found.output, found.samples) == ("a", 10)
    np.testing.assert_allclose(found.sqnr, 30 - 12 * 2 / 3)
    np.testing.assert_allclose(found.high - found.sqnr, NORMAL_90 * math.sqrt(2 * 0.25 + BETWEEN_SETS**2 + 4 / 9))
    assert shown.expected(Comparison((), 10), 10) is None


WIDTH = NORMAL_90 * BETWEEN_SETS  # half of the interval where samples show no spread


def test_the_interval_starts_at_what_logits_have_where_that_is_less() -> None:
    known = Overfitting("p", 0.0, 0.0, 0.0), Overfitting("q", 0.0, 0.0, 0.0)
    compared = Comparison((output("p", 45.0), output("q", 40.0)), 10)
    found = CrossValidated(known, 10, {"p": Logits(35.0), "q": Logits(50.0)}).expected(compared, 10)
    assert found is not None
    assert (found.output, found.sqnr) == ("q", 40.0)
    np.testing.assert_allclose((found.low, found.high), (35 - WIDTH, 40 + WIDTH))


def test_the_interval_allows_for_one_more_case_in_between() -> None:
    known, compared = Overfitting("p", 0.0, 0.0, 0.0), Comparison((output("p", 55.0),), 24)

    def ends(logits: Logits) -> tuple[float, float]:
        found = CrossValidated((known,), 24, {"p": logits}).expected(compared, 24)
        assert found is not None
        np.testing.assert_allclose(found.high, 55 + WIDTH)
        return found.sqnr, found.low + WIDTH

    noise = 0.09**2 / 4
    made = noise * 0.5 / (noise + 0.5)
    between = 10 * math.log10(24.5 / (24 * 10**-5.5 + made))
    np.testing.assert_allclose(ends(Logits(60.0, 0.0, 0.5, noise)), (55.0, between))
    np.testing.assert_allclose(ends(Logits(50.0, 10.0)), (55.0, 50 - 10 / 1.5))  # half of the samples are 12, of 24
    # Scores of thousands that are off by 60: the case in between has the other class
    far = ends(Logits(30.0, 0.0, 0.5, 1e3))
    np.testing.assert_allclose(far, (55.0, 10 * math.log10(24.5 / 0.5)), atol=0.01)


def test_where_all_samples_are_equal_or_lost() -> None:
    known = Overfitting("p", 0.0, 0.0, 0.0)

    def found(sqnr: float, logits: Logits) -> CrossValidation:
        compared = Comparison((output("p", sqnr),), 24)
        made = CrossValidated((known,), 24, {"p": logits}).expected(compared, 24)
        assert made is not None
        return made

    exact = found(math.inf, Logits(math.inf, 0.0, 0.5, 0.0))
    assert exact.low == exact.sqnr == exact.high == math.inf
    clear = found(math.inf, Logits(50.0, 0.0, 0.5, 1e-5))  # the logits differ, and a case in between would show it
    np.testing.assert_allclose((clear.low, clear.sqnr, clear.high), (50 - WIDTH, 50, 50 + WIDTH))
    lost = found(-math.inf, Logits(50.0, 0.0, 0.5, 0.1))
    assert lost.low == lost.sqnr == lost.high == -math.inf
    assert lost.sentence.split(":")[1].split(",")[0] == " none"


@pytest.mark.parametrize(("reader", "below"), [("Softmax", True), ("LogSoftmax", False)])
def test_logits_are_measured_where_clear_cases_hide_their_error(tmp_path: Path, reader: str, below: bool) -> None:
    nodes = [node("Gemm", "x w b", "z"), node(reader, "z", "p", axis=-1)]
    weights = {"w": 20 * floats(96, 8, seed=2), "b": floats(8, seed=4)}
    onnx.save(build(nodes, {"x": ["N", 96]}, ["p"], weights), tmp_path / "m.onnx")
    recipe = tmp_path / "r.toml"
    recipe.write_text(NEAREST)
    report = quantize(tmp_path / "m.onnx", recipe, samples=some(16, 100), output=tmp_path / "q.onnx")
    assert report.comparison is not None
    assert report.cross_validation is not None
    found = report.cross_validation
    assert (2 * found.sqnr - found.high - found.low > 2) is below  # further down than up


def network(tmp_path: Path) -> Path:
    """Two layers with long rows, whose codes follow few samples closely."""
    nodes = [node("Gemm", "x w0 b0", "h"), node("Relu", "h", "r"), node("Gemm", "r w1 b1", "y")]
    weights = {"w0": floats(96, 96, seed=1), "w1": floats(96, 8, seed=2), "b0": floats(96, seed=3)}
    weights["b1"] = floats(8, seed=4)
    onnx.save(build(nodes, {"x": ["N", 96]}, ["y"], weights), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def some(count: int, seed: int) -> list[dict[str, np.ndarray]]:
    """Samples of eight directions and some noise."""
    mixed = floats(8, 96, seed=77) / 8**0.5
    return [
        {"x": np.tanh(floats(1, 8, seed=seed + place) @ mixed + floats(1, 96, seed=5000 + seed + place) / 10)}
        for place in range(count)
    ]


def test_it_is_nearer_to_other_samples_than_what_is_measured_on_those_that_chose(tmp_path: Path) -> None:
    path = network(tmp_path)
    recipe = tmp_path / "r.toml"
    recipe.write_text('scheme = "static-int8"\nsmoothing = false\nbias_correction = false\n')
    report = quantize(path, recipe, samples=some(16, 100), output=tmp_path / "q.onnx")
    assert report.comparison is not None
    assert report.cross_validation is not None
    others = compare(path, tmp_path / "q.onnx", some(48, 1000), latency=False).worst_sqnr
    fitted, found = report.comparison.worst_sqnr, report.cross_validation
    assert found.sqnr < fitted - 0.5
    assert abs(found.sqnr - others) < abs(fitted - others)
    assert found.low < others < found.high
    assert found.sentence in report.to_markdown()


def test_nothing_is_said_where_nothing_is_fitted(tmp_path: Path) -> None:
    path = network(tmp_path)

    def said(recipe: str = "dynamic-int8", count: int = 6, **settings: bool) -> object:
        options = {"samples": some(count, 100), "force": True, "output": tmp_path / "q.onnx", **settings}
        return quantize(path, recipe, **options).cross_validation  # type: ignore[arg-type]

    (tmp_path / "dynamic.toml").write_text(NEAREST.replace("static", "dynamic"))
    assert said(str(tmp_path / "dynamic.toml")) is None
    (tmp_path / "static.toml").write_text(NEAREST)
    assert said(str(tmp_path / "static.toml")) is not None
    assert said(str(tmp_path / "static.toml"), 1) is None
    assert said(str(tmp_path / "static.toml"), fast=True) is None


@pytest.mark.parametrize("count", [2, 3])
def test_every_sample_is_judged_once(tmp_path: Path, count: int) -> None:
    (tmp_path / "r.toml").write_text(NEAREST)
    prepared = prepare(load(network(tmp_path)), str(tmp_path / "r.toml"), with_data=True)
    given = wrap_samples(some(count, 100), input_specs(prepared.model))
    split = HoldoutSplit(prepared.model.copy(), given)
    found = cross_validate(calibrate_and_round(prepared, split, given, None, Silent()), {})
    assert found is not None
    assert (found.samples, [one.output for one in found.outputs]) == (count, ["y"])


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="copies are made on Linux")
def test_a_copy_of_the_process_tells_the_same_of_a_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, found = os.getpid(), []
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1}, raising=False)
    monkeypatch.setattr(host, "_limit", None)
    monkeypatch.setattr(threading, "enumerate", lambda: [threading.main_thread()])
    monkeypatch.setattr(threading, "current_thread", threading.main_thread)
    before = cross_validation.fitted_on_half

    def fitted(*given: Any) -> Any:
        assert not is_own_process() or os.getpid() != here
        return before(*given)

    monkeypatch.setattr(cross_validation, "fitted_on_half", fitted)
    for entered in (nullcontext, own_process):
        prepared = prepare(load(network(tmp_path)), "static-int8", with_data=True)
        given = wrap_samples(some(12, 100), input_specs(prepared.model))
        split = HoldoutSplit(prepared.model.copy(), given)
        with entered():
            variants = calibrate_and_round(prepared, split, given, None, Silent())
            assert variants.half is not None
            found.append(cross_validate(variants, {}))
    assert repr(found[0]) == repr(found[1])


def test_a_low_expectation_is_a_warning(tmp_path: Path) -> None:
    report = quantize(network(tmp_path), "static-int8", samples=some(24, 100), output=tmp_path / "q.onnx")
    assert isinstance(report, Report)
    assert report.cross_validation is not None
    lowered = replace(report.cross_validation, sqnr=15.0)
    (warning,) = [line for line in replace(report, cross_validation=lowered).warnings if line.code == "low-sqnr"]
    assert warning.message.startswith("'y' is expected to have, on other samples, 15.0 dB, an error of 18 %")
