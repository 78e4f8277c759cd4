"""Run the command line inside the test process."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from cli_support import Cli, runner
from helpers import build, floats, node

from onnxq.pipeline.quantize import quantize
from onnxq.report import result_warnings

SAMPLES = Path(__file__).parents[2] / "sample_models"


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Run a command. No warning follows from a clock: the sample models gain little on some processors."""
    monkeypatch.setattr(result_warnings, "SLOWER", math.inf)
    monkeypatch.setattr(result_warnings, "NO_FASTER", math.inf)
    return runner(capsys)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with one small model and its data."""
    for name in ("digits_cnn.onnx", "digits_calibration.npz"):
        shutil.copy(SAMPLES / name, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with one product, `m.onnx`, and its data, `d.npz`."""
    monkeypatch.chdir(tmp_path)
    weights = {"w": floats(64, 64)}
    onnx.save(build([node("MatMul", "x w", "y", name="product")], {"x": ["n", 64]}, weights=weights), "m.onnx")
    np.savez("d.npz", x=floats(8, 64, seed=1))
    return tmp_path


@pytest.fixture(scope="session")
def digits_int8(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small model in 8 bit, made once: copy it, never write to it."""
    output = tmp_path_factory.mktemp("quantized") / "q.onnx"
    source, data = SAMPLES / "digits_cnn.onnx", SAMPLES / "digits_calibration.npz"
    quantize(source, output=output, data=[data], sample_limit=8, fast=True)
    return output
