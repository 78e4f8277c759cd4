"""A repository with one model that is built, made once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from onnxq.project.build import build
from onnxq.project.file import load_project

SAMPLES = Path(__file__).parents[2] / "sample_models"
PROJECT = """
[[models]]
float = "models/cnn.onnx"
data = ["data/calibration.npz"]
samples = 8
fast = true
max-size = "100 kB"
thresholds = { min-sqnr = 20.0, min-agreement = 90 }
"""


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("built")
    (root / "models").mkdir()
    (root / "data").mkdir()
    shutil.copy(SAMPLES / "digits_cnn.onnx", root / "models" / "cnn.onnx")
    shutil.copy(SAMPLES / "digits_calibration.npz", root / "data" / "calibration.npz")
    (root / "onnxq.toml").write_text(PROJECT)
    (done,) = build(load_project(root / "onnxq.toml").entries)
    assert done.state == "built", done.error
    return root


@pytest.fixture
def repo(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy to spoil; the working folder."""
    root = tmp_path / "repo"
    shutil.copytree(built, root)
    monkeypatch.chdir(root)
    return root
