"""Projects and calibrations on executors of the user's: the bytes of one process, and one sentence where it fails."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from process_family import family

from onnxq.cli import main
from onnxq.data.reading import Reading
from onnxq.distributed import runs, worker
from onnxq.distributed.builds import BuildTask, build_on, check_files
from onnxq.distributed.calibrations import _entry
from onnxq.distributed.runs import TaskRun
from onnxq.distributed.shards import Calibration
from onnxq.errors import DataError, EngineError, OutputError
from onnxq.ir import load
from onnxq.project.build import build
from onnxq.project.file import load_project
from onnxq.project.provenance import gather

CALIBRATE = ["calibrate", "digits_cnn.onnx", "-d", "digits_calibration.npz", "-o", "s"]


def onnxq(*arguments: object) -> int:
    return main([str(argument) for argument in arguments])


def tidy(folder: Path) -> bool:
    return not [path.name for path in folder.iterdir() if path.name.startswith(".")]


def bytes_of_all(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.int8.onnx"))}


class Here(Executor):
    """Does a task when it is submitted, in this process."""

    def __init__(self, perform: Any = None) -> None:
        self._perform = perform

    def submit(self, fn: Any, /, *arguments: Any, **_: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result((self._perform or fn)(*arguments))
        except Exception as error:
            future.set_exception(error)
        return future


@dataclass(frozen=True)
class Sum:
    """A task of the tests."""

    numbers: tuple[int, ...]
    name: str = "sum"

    def run(self) -> int:
        if not self.numbers:
            raise OutputError("the disk of this worker is full")
        return sum(self.numbers)


def here(monkeypatch: pytest.MonkeyPatch, perform: Any) -> None:
    import contextlib

    monkeypatch.setattr(runs, "started", lambda name: contextlib.nullcontext(Here(perform)))


def done(versions: dict[str, str], lease: str, processors: int, task: bytes) -> worker.Answer:
    return worker.Answer("done", pickle.loads(task).run())


def test_a_project_has_the_bytes_of_one_process_although_a_worker_is_killed(farm: Path) -> None:
    project = Path("onnxq.toml")
    project.write_text(project.read_text().replace("samples = 8", "samples = 8\nfast = true"))
    entries = load_project().entries
    assert {built.state for built in build(entries)} == {"built"}
    before = bytes_of_all(farm)
    assert len(before) == 2
    for path in farm.glob("*.int8.onnx"):
        path.unlink()
    Path("murders").write_text("1")
    found = build_on("farm:murderous", entries)
    assert [built.state for built in found] == ["built"] * 2
    assert [built.entry for built in found] == list(entries)
    assert bytes_of_all(farm) == before
    assert tidy(farm)


def test_shards_on_an_executor_are_one_run(farm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["calibrate", "digits_cnn.onnx", "-d", "digits_calibration.npz", "--samples", "6"]
    assert onnxq(*command, "-o", "one.stats") == 0
    assert onnxq(*command, "-o", "two.stats", "--executor", "farm:pool", "--shards", "2") == 0
    assert Path("one.stats").read_bytes() == Path("two.stats").read_bytes()
    assert onnxq(*command, "-o", "no.stats", "--executor", "farm:pool", "--shards", "7") == 2
    assert "6 samples make at most 6 shards, not 7" in capsys.readouterr().err
    assert tidy(farm)


def test_a_worker_with_another_version_is_refused_by_name(farm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert onnxq("quantize", "--executor", "farm:old_worker") == 2
    said = capsys.readouterr().err
    assert "has onnxruntime 1.0.0, not " in said
    assert "worker " in said
    assert not bytes_of_all(farm)
    assert tidy(farm)


@pytest.mark.parametrize(
    ("engine", "said"),
    [
        ("farm:broken", "farm:broken failed: RuntimeError: no licence for this cluster"),
        ("farm:number", "farm:number gives int, which is no executor"),
        ("farm:nothing", "there is no 'nothing' in"),
        ("ray", "--executor ray names no engine"),
        ("dask://localhost", "--executor dask://localhost names no engine"),
    ],
)
def test_what_is_no_engine_is_refused(farm: Path, engine: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert onnxq("quantize", "--executor", engine) == 2
    assert said in capsys.readouterr().err
    assert tidy(farm)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["quantize", "digits_cnn.onnx", "--executor", "farm:pool"], "--executor builds the models of a project"),
        ([*CALIBRATE, "--shards", "3"], "--shards needs --executor"),
        ([*CALIBRATE, "--shard", "1/2", "--executor", "a:b"], "--executor measures all shards, --shard only one"),
    ],
)
def test_options_that_contradict_each_other(
    farm: Path, options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert onnxq(*options) == 2
    assert said in capsys.readouterr().err


def test_a_task_that_fails_three_times_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def dying(versions: dict[str, str], lease: str, processors: int, task: bytes) -> worker.Answer:
        numbers = pickle.loads(task).numbers
        calls.append(numbers[0])
        if numbers[0] == 2:
            return worker.Answer("died", "its process ended with code -9")
        return done(versions, lease, processors, task)

    here(monkeypatch, dying)
    found: dict[int, Any] = {}
    TaskRun("x:y", [Sum((1,)), Sum((2,), "the second"), Sum((3,))], tmp_path).results(found.__setitem__)
    assert (found[0], found[2]) == (1, 3)
    assert isinstance(found[1], EngineError)
    assert found[1].message == "the second failed 3 times: its process ended with code -9"
    assert calls == [1, 2, 3, 2, 2]
    assert tidy(tmp_path)


def test_an_engine_that_breaks_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = [RuntimeError("the pool is broken")] * 2

    def fragile(*arguments: Any) -> worker.Answer:
        if left:
            raise left.pop()
        return done(*arguments)

    here(monkeypatch, fragile)
    found: dict[int, Any] = {}
    TaskRun("x:y", [Sum((1, 2)), Sum((3,))], tmp_path).results(found.__setitem__)
    assert found == {0: 3, 1: 3}


def test_a_process_gives_what_its_task_gives_or_why_not(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with runs.Lease(tmp_path) as lease:
        path = str(lease.path)
        answer = worker.perform(worker.installed(), path, 1, pickle.dumps(ModuleTask("print('talk'); found = 7")))
        assert (answer.kind, answer.value) == ("done", 7)
        code = "from onnxq.errors import OutputError; raise OutputError('the disk is full', 'Free some.')"
        answer = worker.perform(worker.installed(), path, 1, pickle.dumps(ModuleTask(code)))
        assert (answer.kind, answer.value.message, answer.value.hint) == ("failed", "the disk is full", "Free some.")
        answer = worker.perform(worker.installed(), path, 1, b"no pickle")
        assert answer.kind == "died"
        assert "ended with code 1" in answer.value
    answer = worker.perform(worker.installed(), path, 1, b"")
    assert answer.kind == "refused"
    assert f"does not see {tmp_path}" in answer.value
    assert "talk" not in capfd.readouterr().out


class ModuleTask:
    """Any code as a task; it pickles as a call of `eval`, for the process does not know this module."""

    def __init__(self, code: str) -> None:
        self._code = code

    def __reduce__(self) -> tuple[Any, ...]:
        body = f"def run(self):\n    {self._code}\n    return found\n"
        return eval, (f"(lambda space: (exec({body!r}, space), type('Found', (), space)())[1])({{}})",)


def test_a_file_that_differs_on_a_worker_is_named(farm: Path) -> None:
    entry = load_project().entries[0]
    wanted = gather(entry, load(entry.source))
    check_files(entry, wanted)
    with pytest.raises(DataError, match=r"digits_calibration.npz is another file here"):
        check_files(entry, {**wanted, "data": {"digits_calibration.npz": "0"}})
    with pytest.raises(DataError, match=r"digits_cnn.onnx is another file here"):
        check_files(entry, {**wanted, "float": {}})
    with pytest.raises(DataError, match=r"/nowhere cannot be entered"):
        BuildTask(entry, wanted, "/nowhere").run()


@pytest.mark.skipif(os.name != "posix", reason="signals of a terminal")
def test_ctrl_c_ends_all_within_two_seconds(farm: Path) -> None:
    run = subprocess.Popen(
        [sys.executable, "-m", "onnxq", "quantize", "--executor", "farm:pool"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    deadline = time.monotonic() + 30
    while not list(farm.glob(".onnxq.*.lease")) and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(1.5)
    below = family(run.pid)
    began = time.monotonic()
    run.send_signal(signal.SIGINT)
    _, said = run.communicate(timeout=30)
    taken = time.monotonic() - began
    assert run.returncode in (130, 0), said
    assert b"Traceback" not in said
    assert taken < 15  # `test_dask.py` holds two seconds; other tests may run beside this one
    while (left := [pid for pid in below if Path(f"/proc/{pid}").exists()]) and time.monotonic() < began + 20:
        time.sleep(0.05)
    assert not left
    assert tidy(farm)


def test_a_tokenizer_that_differs_on_a_worker_is_named(farm: Path) -> None:
    tokenizer = farm / "t.json"
    tokenizer.write_text("{}")
    source = load_project().entries[0].source
    asked = Calibration(source, ("digits_calibration.npz",), Reading(tokenizer=tokenizer))
    wanted = gather(_entry(asked), load(source))
    tokenizer.write_text("[]")
    with pytest.raises(DataError, match=r"t.json is another file here"):
        check_files(_entry(asked), wanted)
