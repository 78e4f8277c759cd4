"""Do tasks on an engine: once each, again after a worker died, and none after the end of the run.

Tests: `tests/distributed/test_runs.py`.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Executor, Future, as_completed
from pathlib import Path
from typing import Any, Protocol

from onnxq.distributed.engines import started
from onnxq.distributed.lease import Lease
from onnxq.distributed.worker import Answer, installed, perform
from onnxq.errors import EngineError, OnnxqError

TRIES = 3
SHARE = "Workers need the same folders under the same paths: share them, and start workers that see them."
SAME = "Install the same versions where workers run: bytes depend on them."


class Task(Protocol):
    """Work that fits a message: paths and digests, no arrays."""

    @property
    def name(self) -> str:
        """Name it in messages."""
        ...

    def run(self) -> Any:
        """Do it, and return what fits a message as well."""
        ...


class TaskRun:
    """Tasks and what is known of them.

    Args:
        engine: Name of the engine; see `onnxq.distributed.engines`.
        tasks: The tasks.
        folder: A folder that all workers see, for the lease.
        processors: How many each task may use.

    """

    def __init__(self, engine: str, tasks: Sequence[Task], folder: Path, processors: int = 1) -> None:
        self._engine, self._tasks, self._folder, self._processors = engine, tasks, folder, processors
        self._tries = [0] * len(tasks)

    def results(self, done: Callable[[int, Any], None]) -> None:
        """Do all tasks.

        Args:
            done: Given the place of a task, and what it gave or the OnnxqError that it failed with; in the order in
                which tasks end.

        Raises:
            EngineError: The engine is gone, or a worker must not be used.

        """
        waiting = dict.fromkeys(range(len(self._tasks)))
        while waiting:
            # A dead worker does not say which task killed it: a task that failed twice is tried alone
            alone = [at for at in waiting if self._tries[at] >= TRIES - 1]
            with started(self._engine) as executor, Lease(self._folder) as lease:  # the lease goes first
                self._round(executor, lease, alone[:1] or list(waiting), waiting, done)

    def _round(
        self,
        executor: Executor,
        lease: Lease,
        chosen: Sequence[int],
        waiting: dict[int, None],
        done: Callable[[int, Any], None],
    ) -> None:
        futures: dict[Future[Answer], int] = {}
        broken: list[tuple[int, str]] = []
        for at in chosen:
            task = pickle.dumps(self._tasks[at])
            try:
                futures[executor.submit(perform, installed(), str(lease.path), self._processors, task)] = at
            except Exception as error:  # each engine has its own; a broken one takes nothing more
                broken.append((at, _words(error)))
                break
        for future in as_completed(futures):
            at = futures[future]
            try:
                answer = future.result()
            except (Exception, CancelledError) as error:
                broken.append((at, _words(error)))
                continue
            if answer.kind == "refused":
                raise EngineError(answer.value, SHARE if "does not see" in answer.value else SAME)
            if answer.kind in ("died", "stopped"):
                broken.append((at, answer.value))
                continue
            del waiting[at]
            done(at, answer.value)
        for at, words in broken:
            self._tries[at] += 1
            if self._tries[at] >= TRIES:
                waiting.pop(at, None)
                done(at, EngineError(f"{self._tasks[at].name} failed {TRIES} times: {words}", "See the worker's log."))


def _words(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def failure(found: Any) -> OnnxqError | None:
    """Return the error that a task failed with; None where it did not."""
    return found if isinstance(found, OnnxqError) else None
