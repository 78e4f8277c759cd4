"""Models of a project are built in several processes, and come out as in one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from onnxq.project import jobs
from onnxq.project.build import build
from onnxq.project.file import load_project
from onnxq.project.jobs import build_in_jobs
from onnxq.project.outcome import Built
from onnxq.runtime import memory, processes

QUANTIZED = Path("models/cnn.int8.onnx")
PROCESSES = Path("/proc/self/task")  # where Linux says what a process has started
MANY = 12  # models, of which no run builds all before it is interrupted
MOST_WORK = 2.0  # seconds of processors between an interrupt and the end
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
    monkeypatch.setattr(processes, "START", "raise SystemExit(9)")
    assert [built.state for built in build_in_jobs(load_project().entries, 2)] == ["up to date"]


def test_a_model_that_fails_says_so_and_keeps_none_from_being_built(two: Path) -> None:
    entries = load_project().entries
    Path("data/calibration.npz").unlink()
    first, second = build_in_jobs(entries, 2, force=True)
    assert (first.state, second.state) == ("failed", "built")
    assert first.error is not None
    assert "calibration.npz" in first.error.message
    assert first.error.hint


def test_a_process_builds_one_model_after_another(two: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = [0]
    before = subprocess.Popen

    def count(*given: Any, **settings: Any) -> Any:
        started[0] += 1
        return before(*given, **settings)

    monkeypatch.setattr(subprocess, "Popen", count)
    assert [built.state for built in build_in_jobs(load_project().entries, 1, force=True)] == ["built", "built"]
    assert started == [1]


def test_a_process_that_dies_is_a_failure_of_its_model(two: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "START", "import os, sys; sys.stdin.buffer.read(1); os.kill(os.getpid(), 9)")
    for built in build_in_jobs(load_project().entries, 2, force=True):
        assert built.state == "failed"
        assert built.error is not None
        assert built.error.message == f"{built.entry.quantized}: the process that built it ended by a signal (killed)"


@pytest.mark.skipif(os.name != "posix", reason="signals of a terminal")
def test_an_interrupt_ends_all_processes_and_leaves_nothing(repo: Path) -> None:
    """On a busy machine, an end takes long by the clock: what counts is that hardly any work is done for it."""
    file = Path("onnxq.toml")
    file.write_text(file.read_text() + "".join(SECOND.replace("second", f"model{at}") for at in range(MANY)))
    QUANTIZED.unlink()
    command = [sys.executable, "-m", "onnxq", "quantize", "--force", "--jobs", "2"]
    run = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
    )
    ends = time.monotonic() + 60
    while run.poll() is None and len(_children(run.pid)) < 2 and time.monotonic() < ends and PROCESSES.exists():
        time.sleep(0.05)
    time.sleep(0.5 if PROCESSES.exists() else 3)
    children = _children(run.pid)
    before = _processor_seconds(run.pid, children)
    run.send_signal(signal.SIGINT)
    after = before
    while run.poll() is None and after - before < MOST_WORK:
        after = max(after, _processor_seconds(run.pid, children))
        time.sleep(0.02)
    if run.poll() is None:
        os.killpg(run.pid, signal.SIGKILL)
    _, said = run.communicate(timeout=60)
    assert (run.returncode, b"interrupted" in said, b"Traceback" in said) == (130, True, False), said.decode()
    ends = time.monotonic() + 2  # the copy that removes what is left goes last
    while time.monotonic() < ends and any(map(_is_alive, children)):
        time.sleep(0.02)
    assert not [child for child in children if _is_alive(child)]
    built = [path for path in Path("models").iterdir() if path.name.startswith("model")]
    assert len(built) < MANY
    assert sorted(path.name for path in Path("models").iterdir() if path.suffix != ".onnx") == []


def _processor_seconds(run: int, children: list[int]) -> float:
    """Return what a run has taken of processors, and those of its processes that are still there."""
    ticks = 0
    for process in (run, *children):
        with suppress(OSError):
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15] if process == run else fields[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def _children(parent: int) -> list[int]:
    """List the processes that any thread of one has started."""
    found: list[int] = []
    for listed in Path(f"/proc/{parent}/task").glob("*/children"):
        with suppress(OSError):
            found += map(int, listed.read_text().split())
    return found


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
