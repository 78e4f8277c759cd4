"""Models of a project are built in several processes, and come out as in one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from onnxq.project import jobs
from onnxq.project.build import Built, build
from onnxq.project.file import load_project
from onnxq.project.jobs import build_in_jobs
from onnxq.runtime import memory

QUANTIZED = Path("models/cnn.int8.onnx")
SECOND = """
[[models]]
float = "models/cnn.onnx"
quantized = "models/second.onnx"
recipe = "dynamic-int8"
"""


@pytest.fixture
def two(repo: Path) -> Path:
    """A project with a model that is up to date, and one that is missing."""
    Path("onnxq.toml").write_text(Path("onnxq.toml").read_text() + SECOND)
    return repo


def test_the_bytes_are_those_of_one_process(two: Path) -> None:
    entries = load_project().entries
    assert [built.state for built in build(entries, force=True)] == ["built", "built"]
    before = [entry.quantized.read_bytes() for entry in entries]
    ended: list[Built] = []
    found = build_in_jobs(entries, 2, force=True, done=ended.append)
    assert [built.state for built in found] == ["built", "built"]
    assert [built.entry for built in found] == list(entries)
    assert sorted(ended, key=lambda built: entries.index(built.entry)) == found
    assert [entry.quantized.read_bytes() for entry in entries] == before


def test_what_is_up_to_date_takes_no_process(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "START", "raise SystemExit(9)")
    assert [built.state for built in build_in_jobs(load_project().entries, 2)] == ["up to date"]


def test_a_model_that_fails_says_so_and_keeps_none_from_being_built(two: Path) -> None:
    entries = load_project().entries
    Path("data/calibration.npz").unlink()
    first, second = build_in_jobs(entries, 2, force=True)
    assert (first.state, second.state) == ("failed", "built")
    assert first.error is not None
    assert "calibration.npz" in first.error.message
    assert first.error.hint


def test_a_process_that_dies_is_a_failure_of_its_model(two: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "START", "import os, sys; sys.stdin.buffer.read(); os.kill(os.getpid(), 9)")
    for built in build_in_jobs(load_project().entries, 2, force=True):
        assert built.state == "failed"
        assert built.error is not None
        assert built.error.message == f"{built.entry.quantized}: the process that built it ended with code -9"


@pytest.mark.skipif(os.name != "posix", reason="signals of a terminal")
def test_an_interrupt_ends_all_processes_and_leaves_nothing(two: Path) -> None:
    QUANTIZED.unlink()
    command = [sys.executable, "-m", "onnxq", "quantize", "--force", "--jobs", "2"]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    time.sleep(3)
    children = _children(run.pid)
    run.send_signal(signal.SIGINT)
    started = time.monotonic()
    _, said = run.communicate(timeout=60)
    assert time.monotonic() - started < 5
    assert (run.returncode, b"interrupted" in said, b"Traceback" in said) == (130, True, False) or run.returncode == 0
    assert not [child for child in children if _is_alive(child)]
    assert sorted(path.name for path in Path("models").iterdir() if path.suffix != ".onnx") == []


def _children(parent: int) -> list[int]:
    listed = Path(f"/proc/{parent}/task/{parent}/children")
    return [int(child) for child in listed.read_text().split()] if listed.exists() else []


def _is_alive(process: int) -> bool:
    stat = Path(f"/proc/{process}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def test_memory_limits_how_many_are_built_at_a_time(two: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = load_project().entries
    assert jobs._as_memory_allows(8, entries) == 8
    monkeypatch.setattr(memory, "_limit", 3 * (jobs.BUILD_BYTES + 8 * entries[0].source.stat().st_size) + 5)
    assert jobs._as_memory_allows(8, entries) == 3
    monkeypatch.setattr(memory, "_limit", 1)
    assert jobs._as_memory_allows(8, entries) == 1


def test_a_size_that_is_none_is_refused(two: Path) -> None:
    command = [sys.executable, "-m", "onnxq", "quantize", "--memory", "much"]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode != 0
    assert "--memory cannot be 'much'" in run.stderr
