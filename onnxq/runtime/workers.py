"""Several tasks at a time in this process, in threads: NumPy and onnxruntime leave the interpreter to others.

Results are taken in the order of the tasks: they depend neither on how many run at a time nor on which ends first. A
task has one processor: BLAS, onnxruntime and our own kernels start no further threads in it.

Tests: `tests/runtime/test_workers.py`, `tests/pipeline/test_jobs_same_bytes.py`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import CancelledError, Executor, Future, ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from threading import Event
from typing import Any, TypeVar

from onnxq.progress import unfollowed
from onnxq.runtime.blas_threads import single_threaded_blas
from onnxq.runtime.memory import room_left
from onnxq.targets.host import available_processors, one_processor

MOST = 64  # tasks at a time
T = TypeVar("T")
R = TypeVar("R")
# Set when the tasks that this thread is one of are given up, after an error or an interrupt
_given_up: ContextVar[Event | None] = ContextVar("onnxq_given_up", default=None)


def worker_count(task_bytes: int = 0) -> int:
    """Return how many tasks to run at a time: one for each processor, as far as memory is left; 1 inside a task.

    Args:
        task_bytes: About what a task takes in memory; 0 where that does not count.

    """
    count, room = min(available_processors(), MOST), room_left()
    if room is None or not task_bytes:
        return count
    return max(min(count, room // task_bytes), 1)


def run_in_order(function: Callable[[T], R], tasks: Iterable[T], *, task_bytes: int = 0) -> Generator[R, None, None]:
    """Do tasks, several at a time, and yield what they give in their order.

    Tasks are taken as they are needed, by the thread that asks: no more are begun than run, and one more. An error
    of a task is raised in place of its result; tasks behind it may have been begun by then.

    Args:
        function: Does a task. It runs in threads, so it must not change what others read.
        tasks: The tasks.
        task_bytes: About what each takes in memory; see `worker_count`.

    """
    tasks = iter(tasks)
    while (count := worker_count(task_bytes)) == 1:  # until other processes lend theirs
        _stop_if_given_up()
        try:
            task = next(tasks)
        except StopIteration:
            return
        with one_processor():
            result = function(task)
        yield result
    with ThreadPoolExecutor(count, thread_name_prefix="onnxq-task") as pool, single_threaded_blas():
        yield from run_on(pool, count, function, tasks)


def run_on(executor: Executor, most: int, function: Callable[[T], R], tasks: Iterable[T]) -> Iterator[R]:
    """Do tasks on an executor of threads, so many at a time and one more waiting; see `run_in_order`."""
    waiting: deque[Future[R]] = deque()
    given_up = Event()

    def begin(task: T) -> R:
        _given_up.set(given_up)
        _stop_if_given_up()
        return function(task)

    try:
        for task in tasks:
            waiting.append(submit_alone(executor, begin, task))
            if len(waiting) > most:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        given_up.set()
        for future in waiting:
            future.cancel()


def _stop_if_given_up() -> None:
    """End a task between two of its parts: after an interrupt, running ones would keep the process for seconds."""
    given_up = _given_up.get()
    if given_up is not None and given_up.is_set():
        raise CancelledError


def submit_alone(executor: Executor, function: Callable[..., R], *arguments: Any) -> Future[R]:
    """Submit a task that has one processor, to an executor of threads; NumPy's error state goes with it."""
    return executor.submit(copy_context().run, run_alone, function, *arguments)


def run_alone(function: Callable[..., R], *arguments: Any) -> R:
    """Do a task with one processor, in this thread."""
    with one_processor(), unfollowed():
        return function(*arguments)
