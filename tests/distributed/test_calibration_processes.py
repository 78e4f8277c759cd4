"""A calibration in several processes: the file of one, one error of several, and none where little is to be done."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onnxq.cli import main
from onnxq.distributed import processes
from onnxq.runtime import processes as runtime
from onnxq.targets.host import limit_processors

SAMPLES = Path(__file__).parents[2] / "sample_models"
MANY = 272  # samples: 17 blocks, which are two groups


@pytest.fixture
def farm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    shutil.copy(SAMPLES / "digits_cnn.onnx", "m.onnx")
    monkeypatch.setattr(processes, "WORTH", 0)
    monkeypatch.setattr(processes, "worker_count", lambda task_bytes: 2)
    yield tmp_path
    limit_processors(os.cpu_count() or 1)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    found: list[Any] = []
    before = subprocess.Popen

    def start(*given: Any, **settings: Any) -> Any:
        found.append(before(*given, **settings))
        return found[-1]

    monkeypatch.setattr(runtime.subprocess, "Popen", start)
    return found


def calibrate(output: str, *more: object) -> int:
    return main(["calibrate", "m.onnx", "-d", "data.npz", "-o", output, "--recipe", "static-int8", *map(str, more)])


def data(count: int, *, broken: tuple[int, ...] = ()) -> None:
    with np.load(SAMPLES / "digits_calibration.npz") as found:
        arrays = {name: np.resize(array, (count, *array.shape[1:])) for name, array in found.items()}
    for array in arrays.values():
        array[list(broken)] = np.nan
    np.savez("data.npz", **arrays)


def test_the_bytes_are_those_of_one_process(farm: Path, started: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    data(MANY)
    assert calibrate("two.stats") == 0
    assert len(started) == 1
    monkeypatch.setattr(processes, "worker_count", lambda task_bytes: 1)
    assert calibrate("one.stats") == 0
    assert len(started) == 1
    assert Path("one.stats").read_bytes() == Path("two.stats").read_bytes()
    assert all(process.poll() is not None for process in started)


def test_a_process_that_is_killed_changes_no_byte(farm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data(20)
    monkeypatch.setattr(processes, "worker_count", lambda task_bytes: 1)
    assert calibrate("one.stats") == 0
    monkeypatch.setattr(processes, "worker_count", lambda task_bytes: 2)
    monkeypatch.setattr(runtime, "START", "import os, sys; sys.stdin.buffer.read(1); os.kill(os.getpid(), 9)")
    assert calibrate("two.stats") == 0
    assert Path("one.stats").read_bytes() == Path("two.stats").read_bytes()


def test_of_several_errors_the_first_sample_is_named(farm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data(20, broken=(3, 18))
    assert calibrate("two.stats") == 2
    assert "data.npz, sample 3\n" in capsys.readouterr().err
    assert not Path("two.stats").exists()


def test_few_samples_start_no_process(farm: Path, started: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    data(16)
    monkeypatch.undo()
    monkeypatch.chdir(farm)
    assert calibrate("one.stats", "--jobs", 2) == 0
    assert not started


def test_samples_of_a_function_are_measured_in_one_process(farm: Path, started: list[Any]) -> None:
    data(8)
    Path("given_here.py").write_text(
        "import numpy as np\ndef samples():\n"
        "    arrays = np.load('data.npz')\n"
        "    for row in range(8): yield {name: array[row:row + 1] for name, array in arrays.items()}\n"
    )
    assert main(["calibrate", "m.onnx", "-d", "given_here:samples", "-o", "one.stats", "--recipe", "static-int8"]) == 0
    assert not started
