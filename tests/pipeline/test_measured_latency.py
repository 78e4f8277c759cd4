"""A model for this computer that is measured no faster than float computes in float, and says so."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from helpers import build, floats, node

from onnxq import quantize
from onnxq.report import Report
from onnxq.verification.records import Latency


def convolutions(path: Path) -> Path:
    """Two convolutions of many channels, which every table finds faster in 8 bit."""
    nodes = [node("Conv", "x w0", "c"), node("Relu", "c", "r"), node("Conv", "r w1", "y")]
    weights = {"w0": floats(64, 64, 3, 3, seed=1, scale=0.1), "w1": floats(64, 64, 3, 3, seed=2, scale=0.1)}
    onnx.save(build(nodes, {"x": [1, 64, 16, 16]}, ["y"], weights), path)
    return path


def quantized(folder: Path, monkeypatch: pytest.MonkeyPatch, ratio: float, **options: str | bool) -> Report:
    source = convolutions(folder / "m.onnx")
    monkeypatch.setattr(
        "onnxq.verification.compare.time_pair", lambda reference, result, feeds: Latency(1.0, ratio, ratio, pairs=3)
    )
    samples = [{"x": floats(1, 64, 16, 16, seed=seed)} for seed in range(2)]
    return quantize(source, output=folder / "q.onnx", samples=samples, force=True, **options)  # type: ignore[arg-type]


def schemes(report: Report) -> set[str | None]:
    return {decision.scheme for decision in report.nodes if decision.op_type == "Conv"}


def test_a_model_that_is_measured_slower_here_computes_in_float(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = quantized(tmp_path, monkeypatch, 0.98, target="native")
    assert schemes(report) == {"weight-int8"}
    assert any("its latency here is 0.98 of float's" in line for line in report.notes)
    assert (tmp_path / "q.onnx").stat().st_size < 0.4 * (tmp_path / "m.onnx").stat().st_size


@pytest.mark.parametrize(
    ("ratio", "options"), [(0.97, {"target": "native"}), (1.2, {}), (1.2, {"target": "native", "fast": True})]
)
def test_integers_stay_where_they_are_faster_or_nothing_is_measured_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ratio: float, options: dict[str, str | bool]
) -> None:
    report = quantized(tmp_path, monkeypatch, ratio, **options)
    assert schemes(report) == {"static-int8"}
    assert not any("its latency here" in line for line in report.notes)
