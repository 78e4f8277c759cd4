"""A large model goes through the same choices as a small one, in segments."""

from __future__ import annotations

from pathlib import Path

import pytest

from onnxq import quantize
from onnxq.ir.storage import residency
from onnxq.search.budget import Budget

SAMPLES = Path(__file__).parents[2] / "sample_models"
DATA = SAMPLES / "digits_calibration.npz"


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every model be large, and segments be of 4 kB."""
    monkeypatch.setattr(residency, "LARGE", 0)
    monkeypatch.setattr("onnxq.runtime.segmented.SEGMENT", 4096)
    monkeypatch.setattr("onnxq.runtime.segmented.BESIDE", 256)
    monkeypatch.setattr("onnxq.ir.storage.scratch_file.SPOOLED", 256)


def test_codes_nodes_and_expectations_are_chosen_as_for_a_small_one(tiny, tmp_path, monkeypatch):
    found = {}
    for limit in (0, 1 << 30):
        monkeypatch.setattr(residency, "LARGE", limit)
        out = tmp_path / f"{limit}.onnx"
        found[limit] = quantize(SAMPLES / "digits_cnn.onnx", data=DATA, sample_limit=24, output=out)
    large, small = found[0], found[1 << 30]
    assert [one.tensor for one in large.sensitivity] == [one.tensor for one in small.sensitivity]
    assert {one.nodes for one in large.weights} == {one.nodes for one in small.weights}
    assert any(one.method == "output error" for one in large.weights)
    assert large.comparison is not None
    assert small.comparison is not None
    assert large.comparison.worst_sqnr == pytest.approx(small.comparison.worst_sqnr, abs=3)
    assert large.cross_validation is not None
    assert any("latency was not measured" in note for note in large.notes)
    assert {path.name for path in tmp_path.iterdir()} == {"0.onnx", f"{1 << 30}.onnx"}


def test_nodes_return_to_float_for_a_budget(tiny, tmp_path):
    plain = quantize(SAMPLES / "digits_cnn.onnx", data=DATA, sample_limit=24, output=tmp_path / "a.onnx")
    assert plain.comparison is not None
    goal = plain.comparison.worst_sqnr + 8
    report = quantize(
        SAMPLES / "digits_cnn.onnx", data=DATA, sample_limit=24, output=tmp_path / "b.onnx", budget=Budget(goal)
    )
    assert report.comparison is not None
    assert report.comparison.worst_sqnr >= goal
    assert report.counts().get("static-int8", 0) < plain.counts()["static-int8"]


def test_without_data_scales_at_run_time_are_judged_on_random_numbers(tiny, tmp_path):
    report = quantize(SAMPLES / "digits_cnn.onnx", output=tmp_path / "q.onnx")
    assert report.sensitivity
    assert any(one.method == "assumed inputs" for one in report.weights)
