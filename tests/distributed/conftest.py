"""A project of two small models, and executors of the kind that users give, in a module of the working folder."""

from __future__ import annotations

import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SAMPLES = Path(__file__).parents[2] / "sample_models"
PROJECT = """
[defaults]
data = ["digits_calibration.npz"]
samples = 8

[[models]]
float = "digits_cnn.onnx"
recipe = "dynamic-int8"

[[models]]
float = "digits_attention.onnx"
recipe = "dynamic-int8"

"""
ENGINES = '''
import os
import signal
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path


def pool():
    return ProcessPoolExecutor(2, mp_context=get_context("spawn"))


class Murderous(ProcessPoolExecutor):
    """Kills one of its workers when it has begun, as often as the file `murders` says."""

    def submit(self, *arguments):
        future = super().submit(*arguments)
        left = int(Path("murders").read_text())
        if left:
            Path("murders").write_text(str(left - 1))
            time.sleep(float(os.environ.get("MURDER_AFTER", "0.5")))
            os.kill(next(iter(self._processes)), signal.SIGKILL)
        return future


def murderous():
    return Murderous(1, mp_context=get_context("spawn"))


def other_version():
    import onnxq.distributed.worker as worker

    versions = worker.installed()
    worker.installed = lambda: versions | {"onnxruntime": "1.0.0"}


def old_worker():
    return ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=other_version)


def broken():
    raise RuntimeError("no licence for this cluster")


def number():
    return 3
'''


@pytest.fixture
def farm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working folder."""
    for name in ("digits_cnn", "digits_attention"):
        shutil.copy(SAMPLES / f"{name}.onnx", tmp_path)
    shutil.copy(SAMPLES / "digits_calibration.npz", tmp_path)
    (tmp_path / "onnxq.toml").write_text(PROJECT)
    (tmp_path / "farm.py").write_text(ENGINES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)  # processes of a pool look there, too
    monkeypatch.delitem(sys.modules, "farm", raising=False)
    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # children hear it, although this may be a background job
    yield tmp_path
    signal.signal(signal.SIGINT, before)
    sys.modules.pop("farm", None)
