"""How rescaling is tried: every way on the same statistics of one half of the samples."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers import build, floats, node

from onnxq import trials
from onnxq.ir import load
from onnxq.judge import Split
from onnxq.observer import Silent
from onnxq.quant.equalize import channel_kinds
from onnxq.quant.samples import input_specs, wrap_samples
from onnxq.steps import Prepared, prepare
from onnxq.trials import WAYS, rescale


@pytest.fixture
def towering(tmp_path: Path) -> tuple[Prepared, Split]:
    """A LayerNormalization whose first channel towers above the others, and a product that makes up for it."""
    gain, weight = np.ones(16, np.float32), floats(16, 8, seed=1)
    gain[0], weight[0] = 100, weight[0] / 100
    nodes = [node("LayerNormalization", "x g", "h"), node("MatMul", "h w", "y")]
    path = tmp_path / "m.onnx"
    path.write_bytes(build(nodes, {"x": [None, 16]}, ["y"], {"g": gain, "w": weight}).SerializeToString())
    ready = prepare(load(path), "static-int8", with_data=True)
    samples = wrap_samples([{"x": floats(40, 16, seed=9 + i)} for i in range(12)], input_specs(ready.model))
    return ready, Split(ready.model.copy(), samples)


def test_channels_are_measured_once_for_all_ways_then_the_other_way_and_for_the_one_that_is_kept(towering, monkeypatch):
    ready, split = towering
    measured: list[int] = []

    def counting(model, values, samples, **settings):
        if getattr(settings.get("kinds"), "func", None) is channel_kinds:
            measured.append(len(list(samples)))
        return calibrate(model, values, samples, **settings)

    calibrate = trials.calibrate
    monkeypatch.setattr(trials, "calibrate", counting)
    made = rescale(ready, split, Silent())
    assert len(made.notes) > len(ready.notes), "rescaled"
    assert measured == [6, 6, 12]


def test_no_way_sees_what_another_has_changed(towering):
    ready, split = towering
    assert split.halves is not None
    measured = trials._channels(ready, split.halves[0], Silent())
    known = dict(measured.tensors)
    changed = set()
    for methods in WAYS[1:]:
        once, again = (trials._rescaled(trials.duplicate(ready), methods, measured) for _ in range(2))
        assert once.model.serialize() == again.model.serialize()
        assert measured.tensors == known
        changed.add(once.model.serialize() != ready.model.serialize())
    assert True in changed


def test_a_way_has_to_gain_with_the_halves_in_each_others_place(towering, monkeypatch):
    ready, split = towering
    assert trials._rescaling_the_other_way(ready, split, WAYS[1], Silent()) > trials.WORTH_RESCALING
    gains = iter([-100.0, 0.0])
    monkeypatch.setattr(trials, "_rescaling_the_other_way", lambda *_: next(gains))
    assert rescale(ready, split, Silent()) is ready
    assert rescale(ready, split, Silent()).notes != ready.notes, (
        "what gains much in one place may gain nothing in the other"
    )
