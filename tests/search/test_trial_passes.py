"""Trials run a model many times; what they measure in each of these passes is no more than they choose by."""

from __future__ import annotations

import weakref
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers import build, floats, node

from onnxq.calibration.histogram import Histogram
from onnxq.calibration.second_moments import LayerMoments
from onnxq.calibration.stats import Moments, Stats
from onnxq.calibration.weighted_histogram import WeightedHistogram
from onnxq.data.samples import input_specs, wrap_samples
from onnxq.errors import DataError
from onnxq.ir import Model, load
from onnxq.lowering.rewrite import rewrite
from onnxq.pipeline import in_memory, settling
from onnxq.pipeline.quantize import quantize
from onnxq.planning.recipe import load_recipe
from onnxq.progress import Silent
from onnxq.runtime import memory
from onnxq.search import variants as variants_module
from onnxq.search.held_out import HoldoutSplit
from onnxq.search.meet_budget import meet_accuracy
from onnxq.search.sensitivity import sensitivity
from onnxq.search.variants import calibrate_and_round
from onnxq.stages import measure
from onnxq.stages.prepare import prepare

SAMPLES = 12


def three_convolutions(path: Path, size: int) -> Path:
    """Write a model of three convolutions, the last without a Relu."""
    nodes = [
        node("Conv", "x w0", "a", pads=[1, 1, 1, 1]),
        node("Relu", "a", "b"),
        node("Conv", "b w1", "c", pads=[1, 1, 1, 1]),
        node("Relu", "c", "d"),
        node("Conv", "d w2", "y", pads=[1, 1, 1, 1]),
    ]
    weights = {f"w{i}": floats(16 if i < 2 else 4, 16 if i else 3, 3, 3, seed=i) for i in range(3)}
    onnx.save(build(nodes, {"x": ["N", 3, size, size]}, ["y"], weights), path)
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return three_convolutions(tmp_path / "m.onnx", 24)


def test_second_moments_of_a_trial_are_gone_when_all_samples_are_measured(model, monkeypatch):
    found: list[weakref.ref[Stats]] = []
    before = variants_module.measure

    def keep(*given, **settings):
        assert not any(list(stats.halves()) for each in found if (stats := each()) is not None)
        measured = before(*given, **settings)
        found.append(weakref.ref(measured))
        return measured

    monkeypatch.setattr(variants_module, "measure", keep)
    monkeypatch.setattr(variants_module, "ENOUGH_ROWS", np.inf)
    quantize(model, samples=[{"x": floats(1, 3, 24, 24, seed=i)} for i in range(SAMPLES)], force=True)
    assert len(found) > 1


@pytest.mark.parametrize("head", [False, True])
def test_codes_are_tried_only_where_a_layer_reads_few_rows(tmp_path, monkeypatch, head):
    """A product of whole pictures reads one row of each; a Conv reads hundreds of them."""
    nodes = [node("Conv", "x w0", "a", pads=[1, 1, 1, 1]), node("Relu", "a", "b")]
    nodes += [node("Flatten", "b", "f"), node("Gemm", "f w1", "y")] if head else []
    weights = {"w0": floats(4, 8, 3, 3), "w1": floats(4 * 64, 10, seed=1)}
    path = tmp_path / "m.onnx"
    used = weights if head else {"w0": weights["w0"]}
    onnx.save(build(nodes, {"x": ["N", 8, 8, 8]}, ["y" if head else "b"], used), path)
    asked: list[bool] = []
    monkeypatch.setattr(variants_module, "_codes_serve_others", lambda *_: (bool(asked.append(True)), None))
    report = quantize(path, "static-int8", samples=[{"x": floats(1, 8, 8, 8, seed=i)} for i in range(24)], force=True)
    assert len(asked) == head
    few = variants_module.TO_NEAREST.format("the weights of 1 layer")  # those of the Conv are chosen
    assert (few in report.notes) == head
    assert any(note.startswith("rounded 1 weight by output error") for note in report.notes)


def test_variants_that_were_tried_do_not_pile_up(tmp_path, monkeypatch):
    made: list[weakref.ref[Model]] = []
    before = variants_module.copy_prepared

    def keep(*given, **settings):
        copy = before(*given, **settings)
        assert sum(other() is not None for other in made) < 5
        made.append(weakref.ref(copy.model))
        return copy

    monkeypatch.setattr(memory, "HEAVY", 0)
    monkeypatch.setattr(variants_module, "copy_prepared", keep)
    small = three_convolutions(tmp_path / "m.onnx", 8)
    quantize(small, samples=[{"x": floats(1, 3, 8, 8, seed=i)} for i in range(SAMPLES)])
    assert len(made) > 8


def test_second_moments_are_in_memory_once_and_no_longer_than_choices_are_made(model, monkeypatch):
    """They are the largest thing: those of a trial go before the next run, all of them before models are compared."""
    made: list[weakref.ref[LayerMoments]] = []
    seen: Counter[str] = Counter()

    def keep(self, *given, **settings):
        before(self, *given, **settings)
        made.append(weakref.ref(self))

    def without(module, name):
        original = getattr(module, name)

        def call(*given, **settings):
            seen[name] += len(made)
            assert not any(moments() for moments in made)
            return original(*given, **settings)

        monkeypatch.setattr(module, name, call)

    before = LayerMoments.__init__
    monkeypatch.setattr(LayerMoments, "__init__", keep)
    without(variants_module, "choose_ranges")
    without(in_memory, "compare")
    quantize(model, samples=[{"x": floats(1, 3, 24, 24, seed=i)} for i in range(SAMPLES)], force=True)
    assert seen["compare"] > 0


def test_what_nodes_need_that_are_quantized_alone_is_measured_with_all_else(tmp_path, monkeypatch):
    """What a Concat joins has its range; where one part stays float, the others need ranges of their own."""
    nodes = [node("Conv", f"x w{i}", f"a{i}", pads=[1, 1, 1, 1]) for i in range(3)]
    nodes += [node("Concat", "a0 a1 a2", "b", axis=1), node("Conv", "b w3", "y", pads=[1, 1, 1, 1])]
    weights = {f"w{i}": floats(16 if i < 3 else 4, 48 if i == 3 else 3, 3, 3, seed=i) for i in range(4)}
    onnx.save(build(nodes, {"x": ["N", 3, 24, 24]}, ["y"], weights), tmp_path / "m.onnx")
    passes: list[tuple[str, ...]] = []
    for module in (variants_module, measure):
        before = module.calibrate_in_parts

        def keep(model, values, *given, before=before, **settings):
            passes.append(tuple(value.name for value in values))
            return before(model, values, *given, **settings)

        monkeypatch.setattr(module, "calibrate_in_parts", keep)
    seen: list[int] = []
    monkeypatch.setattr(settling, "meet_accuracy", lambda *given: seen.append(len(passes)) or meet_accuracy(*given))
    given = [{"x": floats(1, 3, 24, 24, seed=i)} for i in range(SAMPLES)]
    quantize(tmp_path / "m.onnx", load_recipe("auto").setting(ranges="minmax"), samples=given, force=True)
    assert "a0" in passes[seen[0] - 1]
    assert not any("a0" in names for names in passes[seen[0] :])


def test_a_range_is_searched_for_once_in_each_trial(model, monkeypatch):
    given = [{"x": floats(1, 3, 24, 24, seed=i)} for i in range(SAMPLES)]
    prepared = prepare(load(model), load_recipe("auto").setting(ranges="output-error"), with_data=True)
    split = HoldoutSplit(prepared.model.copy(), wrap_samples(given, input_specs(prepared.model)))
    variants = calibrate_and_round(prepared, split, split.samples, None, Silent())
    ranges: Counter[object] = Counter()
    before = measure.scheme_qparams

    def count(stats, scheme, *given):
        ranges[id(stats), scheme] += 1
        return before(stats, scheme, *given)

    monkeypatch.setattr(measure, "scheme_qparams", count)
    sensitivity(variants)
    assert set(ranges.values()) == {1}


def test_only_one_pass_measures_what_reports_want(model, monkeypatch):
    seen: Counter[type] = Counter()

    def count(kind):
        before = kind.add_between

        def add(self, values, low, high):
            seen[type(self)] += 1
            return before(self, values, low, high)

        monkeypatch.setattr(kind, "add_between", add)

    for kind in (Histogram, Moments):  # weighted ones count by the first, too
        count(kind)
    quantize(model, samples=[{"x": floats(1, 3, 24, 24, seed=i)} for i in range(SAMPLES)], force=True)
    tensors = 4  # that are calibrated at most
    assert seen[Moments] <= tensors * SAMPLES
    most = 3 * tensors * SAMPLES  # both halves for a trial and for the cross-validation, and all samples at the end
    assert seen[WeightedHistogram] <= most
    assert 0 < seen[Histogram] <= most


def test_a_sample_of_a_half_is_named_as_the_data_count_it(tmp_path):
    nodes = [node("Conv", "x w0", "a"), node("Exp", "a", "b"), node("Conv", "b w1", "y")]
    path = tmp_path / "m.onnx"
    onnx.save(build(nodes, {"x": ["N", 3, 8, 8]}, ["y"], {"w0": floats(4, 3, 3, 3), "w1": floats(4, 4, 3, 3)}), path)
    given = [{"x": floats(1, 3, 8, 8, seed=i) * (500 if i == 4 else 0.1)} for i in range(8)]
    with pytest.raises(DataError, match="sample 4"):
        quantize(path, "static-int8", samples=given, force=True)


@pytest.mark.parametrize("width", [8, 32])
def test_a_copy_that_is_judged_has_the_codes_that_are_written(tmp_path, width, monkeypatch):
    """Codes are known by the weight that they were chosen for, which a copy has to share however small it is."""
    weights = {"w": floats(width, width, seed=1) / 4, "v": floats(width, width, seed=2) / 4}
    nodes = [node("MatMul", "x w", "h"), node("Relu", "h", "r"), node("MatMul", "r v", "y")]
    onnx.save(build(nodes, {"x": [16, width]}, ["y"], weights), tmp_path / "m.onnx")
    prepared = prepare(load(tmp_path / "m.onnx"), load_recipe("static-int8").setting(smoothing=False), with_data=True)
    given = wrap_samples([{"x": floats(16, width, seed=10 + i)} for i in range(12)], input_specs(prepared.model))
    monkeypatch.setattr(variants_module, "_codes_serve_others", lambda *given: (True, None))
    variants = calibrate_and_round(prepared, HoldoutSplit(prepared.model.copy(), given), given, None, Silent())
    assert variants.weights.chosen()
    judged = variants.model({})
    again, qparams = variants.replan({})
    codes = {value.name: value.constant.numpy().copy() for value in judged.initializers() if value.constant is not None}
    written = rewrite(again.model, again.plan, qparams, variants.weights)
    assert codes.keys() == {value.name for value in written.initializers()}
    for value in written.initializers():
        assert value.constant is not None
        np.testing.assert_array_equal(value.constant.numpy(), codes[value.name], err_msg=value.name)
