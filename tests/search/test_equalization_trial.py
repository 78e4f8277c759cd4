"""Evening channels out: kept where both halves of the samples gain."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers import build, floats, node

from onnxq.calibration.calibrate import calibrate
from onnxq.calibration.output_sensitivity import minimal_statistics
from onnxq.data.samples import Samples, input_specs, wrap_samples
from onnxq.ir import Model, load
from onnxq.rounding.weights import Weights
from onnxq.search.held_out import HoldoutSplit
from onnxq.search.sqnr_evaluator import SqnrEvaluator
from onnxq.search.trials import equalization_trial
from onnxq.search.trials.equalization_trial import equalize_if_it_helps
from onnxq.stages.prepare import prepare
from onnxq.stages.prepared import Prepared
from onnxq.stages.replan import quantize_copy


def round_variant_to_nearest(prepared: Prepared, fitting: Samples) -> Model:
    """Quantize with ranges from a few samples and weights rounded to nearest."""
    kinds = minimal_statistics(prepared.plan)
    measured = calibrate(prepared.model, prepared.plan.calibrated(), fitting, kinds=kinds, trial=True)
    return quantize_copy(prepared, measured, Weights(exact=True))


def bottleneck(
    tmp_path: Path, *, off: float = 0.0, clip: bool = False, recipe: str = ""
) -> tuple[Prepared, HoldoutSplit]:
    """Two Conv with nothing between them and channels up to `off` apart, or a Clip and channels of all sizes."""
    weight = np.abs(floats(16, 8, 1, 1, seed=1)) / 8
    if clip:
        weight *= np.exp2(-np.arange(16.0) / 2).astype(np.float32)[:, None, None, None] * 8
    weights = {
        "a": weight,
        "c": np.linspace(-off, off, 16, dtype=np.float32),
        "b": floats(8, 16, 1, 1, seed=2) / (1 if not clip else np.maximum(weight.sum((1, 2, 3)), 1e-3)[:, None, None]),
        "zero": np.float32(0),
        "six": np.float32(6),
    }
    between = [node("Clip", "h zero six", "z")] if clip else []
    nodes = [node("Conv", "x a c", "h"), *between, node("Conv", "z b" if clip else "h b", "y")]
    path = tmp_path / "m.onnx"
    path.write_bytes(build(nodes, {"x": [None, 8, 6, 6]}, ["y"], weights).SerializeToString())
    (tmp_path / "r.toml").write_text('scheme = "static-int8"\n' + recipe)
    prepared = prepare(load(path), str(tmp_path / "r.toml"), with_data=True)
    samples = [{"x": np.abs(floats(4, 8, 6, 6, seed=9 + i)).clip(0, 2)} for i in range(12)]
    wrapped = wrap_samples(samples, input_specs(prepared.model))
    return prepared, HoldoutSplit(prepared.model.copy(), wrapped)


@pytest.mark.parametrize(("settings", "note"), [({"off": 8.0}, "shifted"), ({"clip": True}, "stretched")])
def test_uneven_channels_are_evened_out_and_other_samples_gain(tmp_path, settings, note):
    prepared, split = bottleneck(tmp_path, **settings)
    others = wrap_samples(
        [{"x": np.abs(floats(4, 8, 6, 6, seed=99 + i)).clip(0, 2)} for i in range(6)], input_specs(prepared.model)
    )
    judge, before = (
        SqnrEvaluator(split.baseline, others),
        round_variant_to_nearest(equalization_trial.copy_prepared(prepared), split.samples),
    )
    made = equalize_if_it_helps(prepared, split)
    assert any(text.startswith(note) for text in made.notes)
    assert judge.sqnr(made.model) > 90  # the float model computes the same
    assert judge.gain(before, round_variant_to_nearest(made, split.samples)) > 1


def test_what_is_turned_off_or_gains_too_little_is_left(tmp_path, monkeypatch):
    prepared, split = bottleneck(tmp_path, off=8.0, recipe="smoothing = false\n")
    assert equalize_if_it_helps(prepared, split) is prepared
    prepared, split = bottleneck(tmp_path, off=8.0)
    before = prepared.model.serialize()
    monkeypatch.setattr(equalization_trial, "WORTH_RESCALING", 1e3)
    assert equalize_if_it_helps(prepared, split) is prepared
    assert prepared.model.serialize() == before


def test_what_loses_on_one_half_is_not_tried_on_the_other(tmp_path, monkeypatch):
    prepared, split = bottleneck(tmp_path, off=8.0)
    tried = []

    def worse(prepared: Prepared, measured: object) -> Prepared:
        tried.append(measured)
        model = prepared.model
        equalization_trial.shift_biases(model, {"h": np.full(16, 100.0)})
        return equalization_trial._changed(prepared, "worse")

    monkeypatch.setattr(equalization_trial, "TRANSFORMS", (worse,))
    monkeypatch.setattr(equalization_trial, "_applies", lambda way, prepared: True)
    assert equalize_if_it_helps(prepared, split) is prepared
    assert len(tried) == 1
