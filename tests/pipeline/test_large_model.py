"""A large model goes through the same choices as a small one, in segments."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from onnxq import Report, quantize
from onnxq.ir.storage import residency
from onnxq.search.budget import Budget

SAMPLES = Path(__file__).parents[2] / "sample_models"
DATA = SAMPLES / "digits_calibration.npz"


@pytest.fixture(scope="module")
def tiny() -> Iterator[None]:
    """Let every model be large, and segments be of 4 kB."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(residency, "LARGE", 0)
        patch.setattr("onnxq.runtime.segmented.SEGMENT", 4096)
        patch.setattr("onnxq.runtime.segmented.BESIDE", 256)
        patch.setattr("onnxq.ir.storage.scratch_file.SPOOLED", 256)
        yield


@pytest.fixture(scope="module")
def large(tiny, tmp_path_factory) -> Report:
    """A large model, by the default recipe."""
    folder = tmp_path_factory.mktemp("large")
    made = quantize(SAMPLES / "digits_cnn.onnx", data=DATA, sample_limit=24, output=folder / "q.onnx")
    assert [path.name for path in folder.iterdir()] == ["q.onnx"]
    return made


def test_codes_nodes_and_expectations_are_chosen_as_for_a_small_one(large, tmp_path, monkeypatch):
    monkeypatch.setattr(residency, "LARGE", 1 << 30)
    small = quantize(SAMPLES / "digits_cnn.onnx", data=DATA, sample_limit=24, output=tmp_path / "q.onnx")
    assert [one.tensor for one in large.sensitivity] == [one.tensor for one in small.sensitivity]
    assert {one.nodes for one in large.weights} == {one.nodes for one in small.weights}
    assert any(one.method == "output error" for one in large.weights)
    assert large.comparison is not None
    assert small.comparison is not None
    assert large.comparison.worst_sqnr == pytest.approx(small.comparison.worst_sqnr, abs=3)
    assert large.cross_validation is not None
    assert any("latency was not measured" in note for note in large.notes)


def test_nodes_return_to_float_for_a_budget(large, tmp_path):
    assert large.comparison is not None
    goal = large.comparison.worst_sqnr + 8
    report = quantize(
        SAMPLES / "digits_cnn.onnx", data=DATA, sample_limit=24, output=tmp_path / "b.onnx", budget=Budget(goal)
    )
    assert report.comparison is not None
    assert report.comparison.worst_sqnr >= goal
    assert report.counts().get("static-int8", 0) < large.counts()["static-int8"]


def test_without_data_scales_at_run_time_are_judged_on_random_numbers(tiny, tmp_path):
    report = quantize(SAMPLES / "digits_cnn.onnx", output=tmp_path / "q.onnx")
    assert report.sensitivity
    assert any(one.method == "assumed inputs" for one in report.weights)
