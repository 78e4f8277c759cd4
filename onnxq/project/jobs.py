"""Build the models of a project in several processes at a time.

Each process has its share of the processors, so that onnxruntime and NumPy do not start more threads than there are.
The files do not depend on the number of jobs, nor on the order in which they end.

Tests: `tests/project/test_project_jobs.py`.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from threading import Lock
from types import FrameType, TracebackType

from onnxq.errors import ModelError
from onnxq.project.build import Built, build, up_to_date
from onnxq.project.entry import Entry
from onnxq.runtime.memory import limit_memory, memory_limit
from onnxq.targets.host import available_processors, limit_processors

# The program of a process: it finds modules where this one does, and then its tasks
START = "import pickle, sys; sys.path[:] = pickle.load(sys.stdin.buffer); from onnxq.project.jobs import work; work()"
# Memory of a build: a constant, and a factor for each byte of the model's file; see `docs/benchmarks.md`
BUILD_BYTES, BYTES_PER_BYTE = 400 << 20, 8
PATIENCE = 1.5  # seconds that a process gets to remove its temporary files


def build_in_jobs(
    entries: Sequence[Entry], jobs: int, *, force: bool = False, done: Callable[[Built], None] | None = None
) -> list[Built]:
    """Build models in processes of their own; one that fails does not keep the others from being built.

    Args:
        entries: The models.
        jobs: How many to build at a time, fewer where `limit_memory` leaves room for fewer; those that are up to date
            take no process.
        force: Build those that are up to date as well.
        done: Told what became of each model, in the order in which they end.

    Returns:
        What became of each model, in the order of `entries`.

    """
    found: dict[int, Built] = {}

    def note(at: int, built: Built) -> None:
        found[at] = built
        if done is not None:
            done(built)

    for at, entry in enumerate(entries):
        if not force and (settled := up_to_date(entry)) is not None:
            note(at, settled)
    stale = [at for at in range(len(entries)) if at not in found]
    jobs = _as_memory_allows(min(jobs, len(stale)), [entries[at] for at in stale])
    with ThreadPoolExecutor(jobs) as pool, _Processes(max(available_processors() // jobs, 1), jobs) as processes:
        running = {pool.submit(processes.build, entries[at]): at for at in stale}
        try:
            for future in as_completed(running):
                note(running[future], future.result())
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    return [found[at] for at in range(len(entries))]


def _as_memory_allows(jobs: int, entries: Sequence[Entry]) -> int:
    """Return how many of the largest models may be built at a time; one at least."""
    most = memory_limit()
    if most is not None:
        largest = max((entry.source.stat().st_size for entry in entries if entry.source.is_file()), default=0)
        jobs = min(jobs, most // (BUILD_BYTES + BYTES_PER_BYTE * largest))
    return max(jobs, 1)


class _Processes:
    """Processes that build one model after another, and are gone at the end whatever happens.

    A process takes most of a second to import what it needs, so it is kept for the next model.

    Args:
        share: How many processors each of them may use.
        jobs: How many there are at a time, which share the memory.

    """

    def __init__(self, share: int, jobs: int) -> None:
        most = memory_limit()
        self._share = share, None if most is None else max(most // jobs, 1)
        self._lock = Lock()
        self._started: set[subprocess.Popen[bytes]] = set()
        self._idle: list[subprocess.Popen[bytes]] = []
        self._closed = False

    def __enter__(self) -> _Processes:
        return self

    def build(self, entry: Entry) -> Built:
        """Build a model in a process that is idle, or in a new one, and wait for it."""
        process = self._take()
        if process is None:
            return Built(entry, "failed", error=ModelError("the build was interrupted"))
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(pickle.dumps((entry, self._share)))
            process.stdin.flush()
            built = pickle.load(process.stdout)
        except (OSError, EOFError, ValueError, pickle.UnpicklingError):  # it has ended, or was ended
            with self._lock:
                self._started.discard(process)
            end_process(process, PATIENCE)
            message = f"{entry.quantized}: the process that built it ended with code {process.returncode}"
            return Built(entry, "failed", error=ModelError(message, "Build with --jobs 1 to see what happens."))
        assert isinstance(built, Built)
        with self._lock:
            self._idle.append(process)
        return built

    def _take(self) -> subprocess.Popen[bytes] | None:
        """Return an idle process, or start one in a session of its own, which no interrupt from a terminal reaches."""
        with self._lock:
            if self._closed:
                return None
            if self._idle:
                return self._idle.pop()
            command = [sys.executable, "-c", START]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
            self._started.add(process)
            assert process.stdin is not None
            with suppress(OSError):  # what becomes of it shows when it is asked to build
                process.stdin.write(pickle.dumps(sys.path))
            return process

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._closed = True
            left = list(self._started)
        for process in left:
            process.terminate()
        for process in left:
            end_process(process, PATIENCE)


def end_process(process: subprocess.Popen[bytes], patience: float) -> None:
    """Wait some seconds for a process that is about to end, kill it if it does not, and close its pipes."""
    try:
        process.wait(patience)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):  # a task that it did not take
                pipe.close()


def work() -> None:
    """Build the models that stdin names, and write what became of each to stdout; pickled by `build_in_jobs`."""
    signal.signal(signal.SIGTERM, _end)
    with os.fdopen(os.dup(sys.stdout.fileno()), "wb") as answer:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what functions of the user print is talk
        while (task := _next_task()) is not None:
            entry, (share, memory) = task
            limit_processors(share)
            limit_memory(memory)
            pickle.dump(next(build([entry], force=True)), answer)
            answer.flush()


def _next_task() -> tuple[Entry, tuple[int, int | None]] | None:
    try:
        task: tuple[Entry, tuple[int, int | None]] = pickle.load(sys.stdin.buffer)
    except EOFError:
        return None
    return task


def _end(number: int, _frame: FrameType | None) -> None:
    """End by an exception, so that temporary files are removed."""
    raise SystemExit(128 + number)
