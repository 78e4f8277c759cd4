"""`--fast`: calibration over all samples, weights to nearest, and no more than that where the result is of use."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from bench_fast import measure
from helpers import build, floats, node
from onnx import numpy_helper

import onnxq.runtime.in_memory
import onnxq.runtime.session
from onnxq.errors import CheckFailed
from onnxq.pipeline.quantize import quantize
from onnxq.planning.decision import Choices
from onnxq.planning.recipe import parse_recipe
from onnxq.search.budget import Budget
from onnxq.search.fast_search import calibrated, compared
from onnxq.search.variants import Variants
from onnxq.stages.measure import also_in_8bit

SHARED = Path(__file__).parents[2] / "../shared/arena"
WIDTH = 64
RECIPE = (
    'scheme = "static-int8"\nranges = "minmax"\n[[rules]]\nop = "MatMul"\nrounding = "output-error"\nsmoothing = true\n'
)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Build two products whose inputs hold outliers, so that rescaling and rounding have something to gain."""
    spread = np.ones(WIDTH, np.float32)
    spread[3] = 40
    weights = {"s": spread, "w0": floats(WIDTH, WIDTH, seed=1) / 8, "w1": floats(WIDTH, WIDTH, seed=2) / 8}
    nodes = [
        node("Mul", "x s", "m"),
        node("MatMul", "m w0", "h"),
        node("Tanh", "h", "t"),
        node("MatMul", "t w1", "y"),
    ]
    path = tmp_path / "m.onnx"
    path.write_bytes(build(nodes, {"x": [None, WIDTH]}, ["y"], weights).SerializeToString())
    return path


def samples(count: int = 8) -> list[dict[str, np.ndarray]]:
    return [{"x": floats(16, WIDTH, seed=index) * (index + 1)} for index in range(count)]


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "r.toml"
    path.write_text(RECIPE)
    return path


def stored(path: Path) -> dict[str, np.ndarray]:
    return {i.name: numpy_helper.to_array(i) for i in onnx.load(str(path)).graph.initializer}


def pair_scales(weight: np.ndarray) -> np.ndarray:
    """Compute the least scales with which two neighbours of one sign, times 255, stay within 16 bits if rounded up."""
    even, odd = weight[::2].astype(np.float64), weight[1::2].astype(np.float64)
    sums = np.where(even * odd > 0, 255 * (np.abs(even) + np.abs(odd)), 0)
    return sums.max(axis=0) / (32767 - 255)


@pytest.mark.parametrize("target", ["cpu-vnni", "cpu"])
def test_weights_are_rounded_to_nearest_and_ranges_are_those_of_all_samples(model, tmp_path, target):
    quantize(
        model, parse_recipe(RECIPE, "r").for_target(target), output=tmp_path / "q.onnx", samples=samples(), fast=True
    )
    found = stored(tmp_path / "q.onnx")
    for name in ("w0", "w1"):
        weight = stored(model)[name]
        codes = next(array for key, array in found.items() if key.startswith(name) and array.dtype == np.int8)
        scale = next(array for key, array in found.items() if key.startswith(name) and key.endswith("_scale"))
        least = np.abs(weight).max(axis=0) / 127
        if target == "cpu":  # x86 without VNNI adds neighbouring products in 16 bits
            assert (pair_scales(weight) > least).any()
            least = np.maximum(least, pair_scales(weight))
        np.testing.assert_allclose(scale, least, rtol=1e-4)
        assert np.array_equal(codes, np.rint(weight / scale).astype(np.int8))
    reads = np.concatenate([sample["x"] for sample in samples()]) * stored(model)["s"]
    scale = next(array for key, array in found.items() if key == "m_scale")
    assert scale == pytest.approx((max(reads.max(), 0) - min(reads.min(), 0)) / 255, rel=1e-6)


def test_nothing_is_tried_that_the_recipe_does_not_leave_open(model, recipe, tmp_path, monkeypatch):
    opened = []
    original = onnxq.runtime.session.load_native
    for module in (onnxq.runtime.session, onnxq.runtime.in_memory):
        monkeypatch.setattr(module, "load_native", lambda *a, **k: opened.append(1) or original(*a, **k))
    report = quantize(model, recipe, output=tmp_path / "q.onnx", samples=samples(), fast=True, detailed=True)
    assert len(opened) == 3  # float to look at the samples, then both models; the calibration runs in the evaluator
    assert report.comparison.samples == 8
    assert report.comparison.latency is None
    assert not report.activations
    assert not any("rescaled" in note or "corrected" in note for note in report.notes)
    opened.clear()
    slow = quantize(model, recipe, output=tmp_path / "slow.onnx", samples=samples())
    assert len(opened) > 3
    assert slow.comparison.samples == 8
    assert slow.comparison.worst_sqnr > report.comparison.worst_sqnr


def spoilt_convolutions(path: Path, factors: list[float]) -> list[dict[str, np.ndarray]]:
    """Write convolutions one after another; one channel in front of each is so many times as large as the others."""
    nodes, weights, value = [], {}, "x"
    for index, factor in enumerate(factors):
        scale = np.ones((64, 1, 1), np.float32)
        scale[0] = factor
        weights |= {f"s{index}": scale, f"w{index}": floats(64, 64, 3, 3, seed=index, scale=0.05) / scale[None]}
        nodes += [
            node("Tanh", value, f"t{index}"),
            node("Mul", f"t{index} s{index}", f"m{index}"),
            node("Conv", f"m{index} w{index}", f"y{index}", pads=[1, 1, 1, 1]),
        ]
        value = f"y{index}"
    onnx.save(build(nodes, {"x": [1, 64, 16, 16]}, [value], weights), path)
    return [{"x": floats(1, 64, 16, 16, seed=index)} for index in range(4)]


def test_what_loses_most_returns_to_float_where_the_model_would_be_of_little_use(tmp_path):
    data = spoilt_convolutions(tmp_path / "m.onnx", [1, 1, 30, 1, 1])
    report = quantize(tmp_path / "m.onnx", output=tmp_path / "q.onnx", samples=data, fast=True)
    schemes = [one.scheme for one in report.nodes if one.op_type == "Conv"]
    assert schemes[2] in ("weight-int8", "weight-int12")
    assert schemes.count("static-int8") >= 3
    assert report.comparison.worst_sqnr >= 20


def test_a_search_finds_all_ranges_measured(tmp_path, monkeypatch):
    data = spoilt_convolutions(tmp_path / "m.onnx", [1, 1, 80, 1, 1])
    model = onnx.load(tmp_path / "m.onnx")
    for one in model.graph.node:  # what a Relu reads is not in 8 bit
        one.op_type = "Relu" if one.op_type == "Tanh" else one.op_type
    onnx.save(model, tmp_path / "m.onnx")
    seen = []

    def searched(variants, *_):
        seen.append((variants.prepared.plan, variants.stats))
        return {}

    monkeypatch.setattr("onnxq.pipeline.in_memory.fewest_for_use", searched)
    quantize(tmp_path / "m.onnx", output=tmp_path / "q.onnx", samples=data, fast=True)
    [(plan, stats)] = seen
    names = {value.name for value in also_in_8bit(plan)}
    assert names <= set(stats.names)
    assert names > {value.name for value in plan.calibrated()} - {"x"}


@pytest.mark.parametrize("factor", [25, 80])  # the second is so far from float that no node is tried alone
def test_weights_are_stored_where_no_few_nodes_are_enough(tmp_path, factor):
    data = spoilt_convolutions(tmp_path / "m.onnx", [factor] * 3)
    report = quantize(tmp_path / "m.onnx", output=tmp_path / "q.onnx", samples=data, fast=True)
    assert {one.scheme for one in report.nodes if one.op_type == "Conv"} <= {"weight-int8", "weight-int12"}
    assert report.comparison.worst_sqnr >= 20


def test_what_is_good_enough_is_not_searched(tmp_path, monkeypatch):
    data = spoilt_convolutions(tmp_path / "m.onnx", [1, 1, 1])
    monkeypatch.setattr("onnxq.pipeline.in_memory.fewest_for_use", lambda *_: pytest.fail("it searched"))
    report = quantize(tmp_path / "m.onnx", output=tmp_path / "q.onnx", samples=data, fast=True)
    assert report.counts()["static-int8"] >= 3


@pytest.mark.parametrize(
    ("run_time", "count", "expected"), [(1e9, None, 2), (1e9, 8, 2), (1e9, 32, 4), (1e9, 500, 4), (1e6, 64, 16)]
)
def test_fewer_samples_are_compared_where_each_takes_long(run_time, count, expected):
    assert compared(run_time, count) == expected


@pytest.mark.parametrize(
    ("run_time", "count", "expected"), [(1e9, 8, 8), (1e9, 64, 16), (1e9, 2000, 500), (1e7, 100, 37), (1e6, 64, 64)]
)
def test_fewer_samples_are_calibrated_on_where_all_take_long(run_time, count, expected):
    assert calibrated(run_time, count) == expected


def test_a_report_says_how_many_samples_were_calibrated_on(model, recipe, tmp_path, monkeypatch):
    monkeypatch.setattr("onnxq.search.fast_search.CALIBRATION_TIME", 0)
    monkeypatch.setattr("onnxq.search.fast_search.FEWEST_CALIBRATED", 1)
    report = quantize(model, recipe, output=tmp_path / "q.onnx", samples=samples(), fast=True)
    assert report.calibration_samples == 2
    assert any(note.startswith("calibrated on 2 of 8 samples") for note in report.notes)
    assert "the ones calibrated on" not in report.samples
    reads = np.concatenate([samples()[place]["x"] for place in (0, 4)]) * stored(model)["s"]
    scale = next(array for key, array in stored(tmp_path / "q.onnx").items() if key == "m_scale")
    assert scale == pytest.approx((max(reads.max(), 0) - min(reads.min(), 0)) / 255, rel=1e-6)


def test_a_search_runs_few_groups_of_nodes(tmp_path, monkeypatch):
    worst, tried = 13, []
    data = spoilt_convolutions(tmp_path / "m.onnx", [14 if index == worst else 1 for index in range(20)])
    original = Variants.noises
    monkeypatch.setattr(Variants, "noises", lambda self, kept, **more: original(self, noted(tried, kept), **more))
    report = quantize(tmp_path / "m.onnx", output=tmp_path / "q.onnx", samples=data, fast=True)
    schemes = [one.scheme for one in report.nodes if one.op_type == "Conv"]
    assert 4 < len(tried) <= 16
    assert schemes[worst] != "static-int8"
    assert schemes.count("static-int8") >= 17
    assert report.comparison.worst_sqnr >= 20


def noted(tried: list[Choices], several: Iterable[Choices]) -> Iterator[Choices]:
    for choices in several:
        tried.append(choices)
        yield choices


def test_it_runs_without_data(model, tmp_path):
    report = quantize(model, output=tmp_path / "q.onnx", fast=True)
    assert report.counts()["weight-int8"] == 2  # so small, they are faster in float


def test_a_budget_is_checked_and_not_searched_for(model, tmp_path):
    reached = quantize(model, output=tmp_path / "q.onnx", samples=samples(), fast=True).comparison.worst_sqnr
    missed = Budget(reached + 10)
    with pytest.raises(CheckFailed, match="dB asked for"):
        quantize(model, output=tmp_path / "no.onnx", samples=samples(), fast=True, budget=missed)
    quantize(model, output=tmp_path / "searched.onnx", samples=samples(), budget=missed)
    assert not (tmp_path / "no.onnx").exists()


def test_a_metric_is_checked_even_where_nothing_is_left_open(model, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    code = "import itertools\n\ncalls = itertools.count()\n\n\ndef first(outputs, labels):\n    return -next(calls)\n"
    (tmp_path / "fast_metric.py").write_text(code)  # the float model is measured first
    budget = Budget(metric="fast_metric:first", max_drop=1e9)
    quantize(model, output=tmp_path / "q.onnx", samples=samples(), fast=True, budget=budget)
    with pytest.raises(CheckFailed, match="misses the budget"):
        quantize(model, output=tmp_path / "no.onnx", samples=samples(), fast=True, budget=replace(budget, max_drop=0.5))
    assert not (tmp_path / "no.onnx").exists()


def test_settings_of_rules_are_overruled():
    fast = parse_recipe(RECIPE, "r").fast()
    scheme, why = fast.scheme_for("MatMul", "m")
    assert (scheme.name, scheme.rounding, scheme.smoothing) == ("static-int8", "nearest", False)
    assert not scheme.bias_correction
    assert parse_recipe(fast.to_toml(), "again") == fast
    assert why == "rule op = 'MatMul', name = '*'"


@pytest.mark.bench
@pytest.mark.parametrize("name", ["super_resolution superres", "ultraface_rfb320 face", "minilm minilm"])
def test_it_takes_little_more_than_running_the_float_model(name):
    model, data = name.split()
    source, calibration = SHARED / "models" / f"{model}.onnx", SHARED / "data" / f"{data}_calib.npz"
    if not source.exists():
        pytest.skip("the models are not here")
    _, limit, command = measure(source, calibration)
    assert command <= limit
