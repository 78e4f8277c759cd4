"""Where 8 bit saves little of the time and is far from float, a model computes in float from the start."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from helpers import build, floats, node

from onnxq import quantize
from onnxq.report import Report
from onnxq.search.trials import small_savings


def quantized(folder: Path) -> Report:
    """Quantize two convolutions of many channels, which every table finds faster in 8 bit."""
    nodes = [node("Conv", "x w0", "c"), node("Relu", "c", "r"), node("Conv", "r w1", "y")]
    weights = {"w0": floats(64, 64, 3, 3, seed=1, scale=0.1), "w1": floats(64, 64, 3, 3, seed=2, scale=0.1)}
    onnx.save(build(nodes, {"x": [1, 64, 16, 16]}, ["y"], weights), folder / "m.onnx")
    samples = [{"x": floats(1, 64, 16, 16, seed=seed)} for seed in range(4)]
    return quantize(folder / "m.onnx", output=folder / "q.onnx", samples=samples, force=True)


@pytest.mark.parametrize(("small", "far", "stored"), [(9.0, 99.0, True), (9.0, 0.0, False), (0.0, 99.0, False)])
def test_both_have_to_be_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: float, far: float, stored: bool
) -> None:
    monkeypatch.setattr(small_savings, "SMALL", small)
    monkeypatch.setattr(small_savings, "FAR", far)
    report = quantized(tmp_path)
    schemes = {decision.scheme for decision in report.nodes if decision.op_type == "Conv"}
    assert schemes == ({"weight-int8"} if stored else {"static-int8"})
    assert any(note.startswith("8 bit would save") for note in report.notes) == stored
