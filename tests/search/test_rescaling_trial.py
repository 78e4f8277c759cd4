"""How rescaling is tried: every way on the same statistics of one half of the samples."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers import build, floats, node, run

from onnxq.calibration.calibrate import calibrate
from onnxq.calibration.parts import calibrate_in_parts
from onnxq.calibration.sample_extremes import SampleExtremes
from onnxq.calibration.stats import Extremes, range_kinds
from onnxq.data.samples import input_specs, wrap_samples
from onnxq.ir import load
from onnxq.ir.storage import residency, scratch_file
from onnxq.pipeline.quantize import quantize
from onnxq.progress import Silent
from onnxq.search.held_out import HoldoutSplit
from onnxq.search.sqnr_evaluator import SqnrEvaluator
from onnxq.search.trials import channel_trial, rescaling_trial
from onnxq.search.trials.rescaling_trial import RESCALING_METHODS, rescale
from onnxq.stages.prepare import prepare
from onnxq.stages.prepared import Prepared


@pytest.fixture
def towering(tmp_path: Path) -> tuple[Prepared, HoldoutSplit]:
    """A LayerNormalization whose first channel towers above the others, and a product that makes up for it."""
    gain, weight = np.ones(16, np.float32), floats(16, 8, seed=1)
    gain[0], weight[0] = 100, weight[0] / 100
    nodes = [node("LayerNormalization", "x g", "h"), node("MatMul", "h w", "y")]
    path = tmp_path / "m.onnx"
    path.write_bytes(build(nodes, {"x": [None, 16]}, ["y"], {"g": gain, "w": weight}).SerializeToString())
    prepared = prepare(load(path), "static-int8", with_data=True)
    samples = wrap_samples([{"x": floats(40, 16, seed=9 + i)} for i in range(12)], input_specs(prepared.model))
    return prepared, HoldoutSplit(prepared.model.copy(), samples)


def test_the_float_model_runs_once_for_all_ways_then_the_other_way_and_for_the_one_that_is_kept(towering, monkeypatch):
    prepared, split = towering
    measured: list[int] = []

    def counting(model, values, samples, **settings):
        measured.append(len(list(samples)))
        return calibrate_in_parts(model, values, samples, **settings)

    for module in (rescaling_trial, channel_trial):
        monkeypatch.setattr(module, "calibrate_in_parts", counting)
    made = rescale(prepared, split, Silent())
    assert len(made.notes) > len(prepared.notes), "rescaled"
    assert measured == [6, 6, 12]


def test_ranges_of_a_variant_are_those_that_its_samples_have(towering):
    prepared, split = towering
    trial = split.channel_trial(prepared, 0)
    assert split.channel_trial(prepared, 0) is trial
    changed, stats = rescaling_trial._rescaled_with(
        rescaling_trial.copy_prepared(prepared), RESCALING_METHODS[1], trial.stats
    )
    assert changed.transforms > prepared.transforms
    assert split.halves is not None
    measured = calibrate(changed.model, changed.plan.calibrated(), split.halves[0], kinds=range_kinds, trial=True)
    for name in measured.names:
        for kind in (Extremes, SampleExtremes):
            for key, array in measured[name][kind].arrays().items():
                np.testing.assert_allclose(stats[name][kind].arrays()[key], array, rtol=1e-6, err_msg=f"{name} {key}")


def test_no_way_sees_what_another_has_changed(towering):
    prepared, split = towering
    assert split.halves is not None
    measured = rescaling_trial._channels(prepared, split.halves[0], Silent())
    known = dict(measured.tensors)
    changed = set()
    for methods in RESCALING_METHODS[1:]:
        once, again = (
            rescaling_trial._rescaled(rescaling_trial.copy_prepared(prepared), methods, measured) for _ in range(2)
        )
        assert once.model.serialize() == again.model.serialize()
        assert measured.tensors == known
        changed.add(once.model.serialize() != prepared.model.serialize())
    assert True in changed


def test_a_way_has_to_gain_with_the_halves_in_each_others_place(towering, monkeypatch):
    prepared, split = towering
    assert (
        rescaling_trial._rescaling_the_other_way(prepared, split, RESCALING_METHODS[1])
        > rescaling_trial.WORTH_RESCALING
    )
    gains = iter([-100.0, 0.0])
    monkeypatch.setattr(rescaling_trial, "_rescaling_the_other_way", lambda *_: next(gains))
    assert rescale(prepared, split, Silent()) is prepared
    assert rescale(prepared, split, Silent()).notes != prepared.notes, (
        "what gains much in one place may gain nothing in the other"
    )


def test_ways_are_judged_by_typical_samples(towering, monkeypatch):
    prepared, split = towering
    monkeypatch.setattr(SqnrEvaluator, "sqnr", lambda *_: pytest.fail("the largest sample would decide"))
    assert rescale(prepared, split, Silent()).notes != prepared.notes


@pytest.mark.parametrize("scheme", ["static-int8", "dynamic-int8"])
def test_a_large_model_is_rescaled_as_a_small_one_is(towering, tmp_path, monkeypatch, scheme):
    """Its variants run in segments, and what their codes are made of is computed at each reading."""
    _, split = towering
    for name in ("segmented.BESIDE", "segmented.SEGMENT"):
        monkeypatch.setattr(f"onnxq.runtime.{name}", 256)
    monkeypatch.setattr(scratch_file, "SPOOLED", 256)
    found = {}
    for smoothing, limit in (("true", 0), ("true", 1 << 30), ("false", 0)):
        monkeypatch.setattr(residency, "LARGE", limit)
        recipe = tmp_path / "r.toml"
        settings = 'ranges = "minmax"\nrounding = "nearest"\nbias_correction = false\n'
        recipe.write_text(f'name = "r"\nscheme = "{scheme}"\n{settings}smoothing = {smoothing}\n', encoding="utf-8")
        report = quantize(
            tmp_path / "m.onnx", recipe, output=tmp_path / "q.onnx", samples=list(split.samples), force=True
        )
        assert any("rescaled channels" in note for note in report.notes) == (smoothing == "true")
        assert not any("not rescaled" in note for note in report.notes)
        assert report.comparison is not None
        found[smoothing, limit] = report.comparison.worst_sqnr
    assert found["true", 0] == pytest.approx(found["true", 1 << 30], abs=0.3)
    assert found["true", 0] > found["false", 0] + 5
    assert {path.name for path in tmp_path.iterdir()} == {"m.onnx", "q.onnx", "r.toml"}


def test_a_channel_that_is_silent_on_random_numbers_may_be_loud_on_others(tmp_path):
    """Without data: the text encoder of a speech model had such channels behind a Relu, and fell from 34 to 11 dB."""
    first, bias, last = floats(64, 16, 3, scale=0.2), np.zeros(64, np.float32), floats(32, 64, 3, seed=1, scale=0.1)
    first[:16], bias[:16] = np.abs(first[:16]), -6.0  # on what is positive, those outweigh it
    sizes = np.exp(floats(48, seed=3) * 1.2)[:, None, None]  # of the others: there is a lot to gain
    first[16:], last[:, 16:] = first[16:] * sizes, last[:, 16:] / sizes[:, 0]
    nodes = [node("Conv", "x w b", "c", pads=[1, 1]), node("Relu", "c", "r"), node("Conv", "r v", "y", pads=[1, 1])]
    weights = {"w": first, "b": bias, "v": last}
    onnx.save(build(nodes, {"x": [1, 16, 200]}, ["y"], weights), tmp_path / "m.onnx")
    report = quantize(tmp_path / "m.onnx", output=tmp_path / "q.onnx")
    assert any("rescaled" in note for note in report.notes)
    feeds = {"x": np.abs(floats(1, 16, 200, seed=2)) + np.float32(1.5)}
    expected, got = (run((tmp_path / name).read_bytes(), feeds)[0] for name in ("m.onnx", "q.onnx"))
    noise = np.square(expected - got).sum() / np.square(expected).sum()
    assert -10 * np.log10(noise) > 25  # 1.8 where such channels are enlarged as if they stayed silent


@pytest.mark.parametrize(("spread", "clear"), [(0.4, False), (1.2, True)])
def test_random_numbers_decide_clear_cases_alone(tmp_path, spread, clear):
    """Without data: a network for voice activity had 10 dB for 25, since 6 dB were enough on random numbers."""
    sizes = np.exp(floats(64, seed=3) * spread)[:, None, None]
    first, last = floats(64, 16, 3, scale=0.2) * sizes, floats(32, 64, 3, seed=1, scale=0.1) / sizes[:, 0]
    nodes = [node("Conv", "x w", "c", pads=[1, 1]), node("Relu", "c", "r"), node("Conv", "r v", "y", pads=[1, 1])]
    model = build(nodes, {"x": [1, 16, 200]}, ["y"], {"w": first, "v": last})
    onnx.save(model, tmp_path / "m.onnx")
    report = quantize(tmp_path / "m.onnx", output=tmp_path / "q.onnx")
    assert any("rescaled" in note for note in report.notes) == clear
