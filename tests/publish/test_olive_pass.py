"""The pass of Olive, run by Olive itself where it is installed."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from onnxq.ir import load

SAMPLES = Path(__file__).parents[2] / "sample_models"
ROOT = Path(__file__).parents[2]
if importlib.util.find_spec("olive") is None or importlib.util.find_spec("olive.passes") is None:
    pytest.skip("olive-ai is not installed", allow_module_level=True)
RUN = """
import json, sys
from onnxq.publish.olive_pass import write_package_config
from olive.workflows import run

write_package_config("packages.json")
run(json.loads(sys.argv[1]), package_config="packages.json")
"""
SCRIPT = """
import numpy as np
from olive.data.registry import Registry


class Digits:
    def __init__(self):
        self.images = np.load("digits_calibration.npz")["image"][:8]

    def __len__(self):
        return 8

    def __getitem__(self, row):
        return {"image": self.images[row]}, 0


@Registry.register_dataset()
def digits(**_):
    return Digits()
"""
DATA = {
    "name": "digits",
    "type": "DataContainer",
    "user_script": "script.py",
    "load_dataset_config": {"type": "digits"},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("digits_cnn.onnx", "digits_calibration.npz"):
        shutil.copy(SAMPLES / name, tmp_path)
    (tmp_path / "script.py").write_text(SCRIPT)
    return tmp_path


def olive(folder: Path, **parameters: object) -> subprocess.CompletedProcess[str]:
    config = {
        "input_model": {"type": "ONNXModel", "model_path": "digits_cnn.onnx"},
        "passes": {"quantize": {"type": "OnnxqQuantization", **parameters}},
        "no_artifacts": True,
        "output_dir": "out",
        "cache_dir": "cache",
    }
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OLIVE_DISABLE_TELEMETRY": "1"}
    command = [sys.executable, "-c", RUN, json.dumps(config)]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def result(folder: Path, run: subprocess.CompletedProcess[str]) -> Path:
    assert run.returncode == 0, run.stderr
    (found,) = (folder / "out").rglob("*.onnx")
    return found


def test_olive_quantizes_with_options_of_a_project_file(folder: Path) -> None:
    run = olive(folder, data=["digits_calibration.npz"], recipe="static-int8", fast=True, samples=8, max_size="10MB")
    model = load(result(folder, run))
    assert 'name = "static-int8"' in model.metadata["onnxq_recipe"]
    assert any(node.op_type == "QuantizeLinear" for node in model.graph.nodes)


def test_olive_s_own_data_give_the_same_model(folder: Path) -> None:
    own = result(folder, olive(folder, data_config=DATA, recipe="static-int8", fast=True)).read_bytes()
    shutil.rmtree(folder / "out")
    given = olive(folder, data=["digits_calibration.npz"], recipe="static-int8", fast=True, samples=8)
    assert result(folder, given).read_bytes() == own


def test_what_onnxq_refuses_is_said(folder: Path) -> None:
    run = olive(folder, recipe="no-such-recipe")
    assert "no-such-recipe" in run.stdout + run.stderr
    assert not list((folder / "out").rglob("*.onnx"))
