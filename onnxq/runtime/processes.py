"""Python processes of this machine that do one task after another, as an executor.

A process takes most of a second to import what it needs, so it is kept for the next task. It has its share of the
processors and of the memory. It ends with the executor, and soon after the process that started it was killed.

Tests: `tests/runtime/test_processes.py`.
"""

from __future__ import annotations

import atexit
import gc
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from types import FrameType
from typing import Any, BinaryIO, Literal, NamedTuple, TypeVar

from onnxq.errors import OnnxqError
from onnxq.leftovers import pipes_to_watcher, watch_through
from onnxq.runtime.delayed_signals import delay
from onnxq.runtime.interruption import PATIENCE_OF_TASK, end_on_signals, forget_process, note_process
from onnxq.runtime.memory import limit_memory, memory_limit
from onnxq.runtime.ownership import COLLECTED
from onnxq.targets.host import available_processors, limit_processors

R = TypeVar("R")
# The program of a process: it finds modules where this one does, and then its tasks
START = (
    f"import gc, os, pickle, sys; gc.set_threshold({COLLECTED}); tasks = os.fdopen(os.dup(0), 'rb'); "
    "sys.path[:] = pickle.load(tasks); from onnxq.runtime.processes import do_tasks; do_tasks(tasks)"
)
PATIENCE = 0.7  # seconds that a process gets to remove its temporary files; it ends by itself before
_told: list[Callable[[Any], None]] = []  # in a process that does tasks: how it tells the one that asked


class ProcessEnded(Exception):
    """A process ended, or was ended, before its task was done.

    Attributes:
        code: Its exit code; None where the executor has been shut down.

    """

    def __init__(self, code: int | None) -> None:
        super().__init__(f"the process ended with code {code}")
        self.code = code


class _Share(NamedTuple):
    processors: int
    memory: int | None
    watched_by: tuple[int, ...]

    def take(self) -> None:
        limit_processors(self.processors)
        limit_memory(self.memory)
        for pipe in self.watched_by:
            watch_through(pipe)


class _Said(NamedTuple):
    kind: Literal["told", "done", "failed"]
    value: Any


class Processes(Executor):
    """Run functions of modules in processes that are kept; none starts before it has a task.

    Args:
        count: How many tasks to do at a time.
        sharers: How many processes share the processors and the memory of this one; by default `count`.
        hear: Called with what tasks `tell`, in threads of this executor.
        variables: What the environment of the processes has besides that of this one.

    """

    def __init__(
        self,
        count: int,
        *,
        sharers: int = 0,
        hear: Callable[[Any], None] | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        sharers = sharers or count
        most = memory_limit()
        memory = most and max(most // sharers, 1)
        self._share = _Share(max(available_processors() // sharers, 1), memory, pipes_to_watcher())
        self._hear = hear
        self._environment = {**os.environ, **(variables or {})}
        self._lock = threading.Lock()
        self._started: set[subprocess.Popen[bytes]] = set()
        self._idle: list[subprocess.Popen[bytes]] = []
        self._closed = False
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="onnxq-process")

    def submit(self, fn: Callable[..., R], /, *arguments: Any, **named: Any) -> Future[R]:
        """Do a task in a process that is idle, or in a new one.

        The future raises what the function raises if that is an OnnxqError, else ProcessEnded: the process ends then.
        """
        return self._pool.submit(self._do, pickle.dumps((fn, arguments, named)))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End all processes, those with a task as well unless `wait`."""
        if wait and not cancel_futures:
            self._pool.shutdown()
        with self._lock:
            self._closed = True
            left = list(self._started)
        for process in left:
            process.terminate()
        end = time.monotonic() + PATIENCE
        for process in left:
            end_process(process, max(end - time.monotonic(), 0))
        self._pool.shutdown(wait=wait, cancel_futures=True)

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.shutdown(wait=error is None, cancel_futures=error is not None)

    def _do(self, task: bytes) -> Any:
        process = self._take()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(task)
            process.stdin.flush()
            while (said := _read(process.stdout)).kind == "told":
                if self._hear is not None:
                    self._hear(said.value)
        except (OSError, ValueError):  # it has ended, or was ended
            with self._lock:
                self._started.discard(process)
            end_process(process, PATIENCE)
            raise ProcessEnded(process.returncode) from None
        with self._lock:
            self._idle.append(process)
        if said.kind == "failed":
            raise said.value
        return said.value

    def _take(self) -> subprocess.Popen[bytes]:
        """Return an idle process, or start one in a session of its own, which no interrupt from a terminal reaches."""
        with self._lock:
            if self._closed:
                raise ProcessEnded(None)
            if self._idle:
                return self._idle.pop()
            command = [sys.executable, "-c", START]
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,
                env=self._environment,
                pass_fds=self._share.watched_by,
            )
            self._started.add(process)
            note_process(process.pid)
            assert process.stdin is not None
            with suppress(OSError):  # what becomes of it shows when it is asked to work
                process.stdin.write(pickle.dumps(sys.path) + pickle.dumps(self._share))
            return process


def _read(stdout: Any) -> _Said:
    """Return what a process says next.

    Raises:
        ValueError: It has ended.

    """
    try:
        return _Said(*pickle.load(stdout))
    except (EOFError, pickle.UnpicklingError, AttributeError) as error:
        raise ValueError("it has ended") from error


def end_process(process: subprocess.Popen[bytes], patience: float) -> None:
    """Wait some seconds for a process that is about to end, kill it if it does not, and close its pipes."""
    try:
        process.wait(patience)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    forget_process(process.pid)
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):  # a task that it did not take
                pipe.close()


def tell(value: Any) -> None:
    """Tell the process that asked for the task at hand; nothing where the task runs in that process."""
    for say in _told:
        say(value)


def do_tasks(stdin: BinaryIO) -> None:
    """Do the tasks that a copy of stdin gives, and write what becomes of each to stdout; `Processes` reads it.

    It is a copy, for the end of the interpreter waits for who reads `sys.stdin`.
    """
    signal.signal(signal.SIGTERM, _end)
    atexit.register(gc.freeze)  # see `onnxq/cli/boundary.py`
    pickle.load(stdin).take()
    tasks: queue.SimpleQueue[tuple[Any, ...] | None] = queue.SimpleQueue()
    busy = threading.Event()
    threading.Thread(target=_receive, args=(stdin, tasks, busy), daemon=True).start()
    with (
        end_on_signals([signal.SIGTERM], patience=PATIENCE_OF_TASK),
        os.fdopen(os.dup(sys.stdout.fileno()), "wb") as answer,
    ):
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what functions of the user print is talk

        def say(kind: str, value: Any) -> None:
            answer.write(pickle.dumps((kind, value)))
            answer.flush()

        _told.append(lambda value: say("told", value))
        while (task := tasks.get()) is not None:
            function, arguments, named = task
            try:
                kind, value = "done", function(*arguments, **named)
            except OnnxqError as error:
                kind, value = "failed", error
            busy.clear()
            say(kind, value)


def _receive(stdin: BinaryIO, tasks: queue.SimpleQueue[tuple[Any, ...] | None], busy: threading.Event) -> None:
    """Take tasks in; end this process where its parent is gone, in the middle of a task as well."""
    while True:
        try:
            task = pickle.load(stdin)
        except (EOFError, OSError, pickle.UnpicklingError):  # the last one in the middle of a task
            break
        busy.set()
        tasks.put(task)
    tasks.put(None)
    if busy.is_set():
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(PATIENCE)
        os._exit(1)


def _end(number: int, frame: FrameType | None) -> None:
    """End by an exception, so that temporary files are removed."""
    if not delay(number, frame):
        raise SystemExit(128 + number)
