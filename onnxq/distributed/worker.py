"""Run a task in a process of its own, which ends with its worker and with the run.

Tests: `tests/distributed/test_runs.py`.
"""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from onnxq.data.remote import SHARED
from onnxq.distributed.lease import Watch
from onnxq.errors import OnnxqError
from onnxq.ir.storage.temporary import folder_of_process
from onnxq.runtime.delayed_signals import delay
from onnxq.runtime.interruption import PATIENCE_OF_TASK, end_on_signals
from onnxq.runtime.processes import end_process
from onnxq.targets.host import limit_processors
from onnxq.version import __version__, installed_version

# The code of the process: it finds modules where the worker does, and then its task
START = (
    "import pickle, sys; sys.path[:] = pickle.load(sys.stdin.buffer); from onnxq.distributed.worker import work; work()"
)
TRIM = "MALLOC_TRIM_THRESHOLD_"
POLL = 0.2  # seconds between two looks at the lease
ENDING = 0.7  # seconds that a process gets to remove its temporary files


@dataclass(frozen=True)
class Answer:
    """The end of a task.

    Attributes:
        kind: `done`; `failed` with an error of onnxq; `refused`, as this worker must not do it; `died`, or `stopped`.
        value: What the task gives, pickled, or a sentence.

    """

    kind: Literal["done", "failed", "refused", "died", "stopped"]
    value: Any


def installed() -> dict[str, str]:
    """Return the versions that decide about bytes, of what is installed here."""
    packages = ("onnxruntime", "numpy")
    return {"onnxq": __version__, **{name: installed_version(name) or "missing" for name in packages}}


def perform(versions: dict[str, str], lease: str, processors: int, task: bytes) -> Answer:
    """Do a task in a new process, and wait for it as long as the lease is there.

    Args:
        versions: From `installed`, where the run began.
        lease: Path of its file.
        processors: How many the task may use.
        task: Pickled: an object with `run`.

    """
    name = f"{socket.gethostname()} (process {os.getpid()})"
    here = installed()
    other = [f"{key} {here[key]}, not {wanted}" for key, wanted in versions.items() if here.get(key) != wanted]
    if other:
        return Answer("refused", f"worker {name} has {'; '.join(other)}")
    if not Path(lease).is_file():
        return Answer("refused", f"worker {name} does not see {Path(lease).parent}")
    process = subprocess.Popen(
        [sys.executable, "-c", START],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
        env=_environment(lease),
    )
    try:
        said = _wait(process, pickle.dumps(sys.path) + pickle.dumps((processors, task)), Watch(Path(lease)))
    finally:
        process.terminate()  # nothing if it has ended
        end_process(process, ENDING)
    if said is None:
        return Answer("stopped", "the run has ended")
    if process.returncode != 0:
        return Answer("died", f"its process on worker {name} ended with code {process.returncode}")
    kind, value = pickle.loads(said)
    return Answer(kind, value)


def _environment(lease: str) -> dict[str, str]:
    """Return the variables of a task's process.

    Dask sets one by which the C library hands memory back at once. A task then waits for pages. Three arena models took
    61 s on two workers with it, and 46 s without (AMD EPYC, Zen 4).
    """
    kept = {name: value for name, value in os.environ.items() if name != TRIM}
    return kept | {SHARED: _fetched_for(lease)}


_folders: dict[str, str] = {}  # by run, what its tasks have fetched here


def _fetched_for(lease: str) -> str:
    """Return the folder of data that tasks of a run fetch; those of runs that are over go."""
    for other in [one for one in _folders if not Path(one).is_file()]:
        shutil.rmtree(_folders.pop(other), ignore_errors=True)
    if lease not in _folders:
        _folders[lease] = str(folder_of_process("onnxq-data-"))
    return _folders[lease]


def _wait(process: subprocess.Popen[bytes], task: bytes, watch: Watch) -> bytes | None:
    """Return the answer of a process to its task; None where the run ends before."""
    assert process.stdin is not None
    assert process.stdout is not None
    said: list[bytes] = []
    stdout = process.stdout
    reader = threading.Thread(target=lambda: said.append(stdout.read()), daemon=True)
    reader.start()
    with suppress(OSError):  # it has died already
        process.stdin.write(task)
        process.stdin.flush()  # it stays open: its end tells the process that the worker is gone
    while reader.is_alive():
        reader.join(POLL)
        if reader.is_alive() and watch.is_over():
            return None
    process.wait()
    return said[0] if said else b""


def work() -> None:
    """Do the task that stdin names, and write what it gives to stdout; `perform` is at the other end of both."""
    processors, task = pickle.load(sys.stdin.buffer)
    limit_processors(processors)
    signal.signal(signal.SIGTERM, _end)
    threading.Thread(target=_end_with_worker, daemon=True).start()
    ends = end_on_signals([signal.SIGTERM], patience=PATIENCE_OF_TASK / 2)
    with ends, os.fdopen(os.dup(sys.stdout.fileno()), "wb") as answer:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what functions of the user print is talk
        try:
            found: tuple[str, Any] = "done", pickle.loads(task).run()
        except OnnxqError as error:
            found = "failed", error
        pickle.dump(found, answer)


def _end_with_worker() -> None:
    """End where stdin ends: the worker was killed. The main thread removes its temporary files first, if it can."""
    os.read(sys.stdin.fileno(), 1)  # past the buffer, whose lock the end of the interpreter wants
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(ENDING)
    os._exit(1)


def _end(number: int, frame: FrameType | None) -> None:
    """End by an exception, so that temporary files are removed; a module that is just imported may talk about it."""
    if delay(number, frame):
        return
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    raise SystemExit(128 + number)
