"""The file depends neither on how many jobs there are, nor on the memory that they may take."""

from __future__ import annotations

import hashlib
from pathlib import Path

import onnx
import pytest
from helpers import build, floats, node

from onnxq.pipeline.quantize import quantize
from onnxq.runtime import memory
from onnxq.targets import host


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Convolutions whose channels differ much in size, so that all trials have something to find."""
    nodes = [
        node("Conv", "x w0", "a", pads=[1, 1, 1, 1]),
        node("Clip", "a low high", "b"),
        node("Conv", "b w1", "c", pads=[1, 1, 1, 1]),
        node("Sigmoid", "c", "s"),
        node("Mul", "c s", "d"),
        node("Conv", "d w2 bias", "y", pads=[1, 1, 1, 1]),
    ]
    weights = {f"w{i}": floats(16 if i < 2 else 4, 16 if i else 3, 3, 3, seed=i) for i in range(3)}
    weights["w0"] *= 4.0 ** (floats(16, 1, 1, 1, seed=7))
    weights |= {"low": floats() * 0, "high": floats() * 0 + 6, "bias": floats(4, seed=8)}
    path = tmp_path / "m.onnx"
    onnx.save(build(nodes, {"x": ["N", 3, 24, 24]}, ["y"], weights), path)
    return path


def _digest(model: Path, monkeypatch: pytest.MonkeyPatch, processors: int, most: int | None = None) -> str:
    monkeypatch.setattr(host.os, "sched_getaffinity", lambda _: set(range(processors)), raising=False)
    monkeypatch.setattr(memory, "_limit", most)
    output = model.with_name("q.onnx")
    quantize(model, samples=[{"x": floats(1, 3, 24, 24, seed=i)} for i in range(12)], output=output, force=True)
    return hashlib.sha256(output.read_bytes()).hexdigest()


def test_the_file_does_not_depend_on_the_number_of_jobs(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = _digest(model, monkeypatch, 1)
    assert _digest(model, monkeypatch, 2) == alone
    assert _digest(model, monkeypatch, 5) == alone
    assert _digest(model, monkeypatch, 5, most=1) == alone
