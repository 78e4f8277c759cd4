"""Several tasks at a time in copies of this process, where its threads would wait for each other.

Most steps on small tensors are Python, of which one thread of a process runs at a time. A copy that `fork` makes has
everything that this process has in memory, so that a task may be any function. Only what it returns is pickled.

Copies are made on Linux, and only of a process that is ours, as that of the command line is. Another program may hold
locks in threads, which no one would open in the copy. Elsewhere the same tasks are done one after another.

A task has one processor, as long as all processes have something to do. One that waits lends its processor to the
others: what they begin from then on, such as the next sample, may run in threads.

Tests: `tests/runtime/test_fork.py`.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import pickle
import select
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import IO, Any, NoReturn, TypeVar

import numpy as np

from onnxq.progress import REST, unfollowed, working
from onnxq.runtime.blas_threads import single_threaded_blas
from onnxq.runtime.interruption import SignalThread, forget_process, note_process
from onnxq.runtime.ort_session import LIBRARIES
from onnxq.runtime.ownership import is_own_process
from onnxq.runtime.workers import worker_count
from onnxq.targets.host import available_processors, is_lent, lent_processors, one_processor

T = TypeVar("T")
R = TypeVar("R")
Done = Callable[[int, int], None]  # how many tasks are done, and of how many

LOOK = 0.02  # seconds between two looks at how far the copies are
MOST_COPIES = 8  # at a time: each copies the memory that it writes to, and most steps have few tasks
PR_SET_PDEATHSIG = 1  # of <linux/prctl.h>
NUMBER = 4  # bytes of the number of a task
WORD, ALIGNED = 8, 64  # bytes of a length in a file of results, and what arrays in it are aligned to
MOST_TASKS = 4096 // NUMBER  # whose numbers a pipe takes at once on any Linux


def can_fork() -> bool:
    """Tell whether tasks would be shared with copies of this process: there are idle processors, and no other thread.

    A thread that only draws progress does no harm: its locks are those of the terminal, which copies leave alone. One
    that waits for interrupts holds none. A library of custom operators may have threads of its own.
    """
    return (
        is_own_process()
        and not is_lent()
        and not LIBRARIES
        and sys.platform == "linux"
        and available_processors() > 1
        and threading.current_thread() is threading.main_thread()
        and all(_is_harmless(thread) for thread in threading.enumerate())
    )


def _is_harmless(thread: threading.Thread) -> bool:
    draws = type(thread).__module__.partition(".")[0] == "rich"
    return thread is threading.main_thread() or draws or isinstance(thread, SignalThread)


def run_forked(
    function: Callable[[T], R], tasks: Sequence[T], *, done: Done | None = None, task_bytes: int = 0
) -> list[R]:
    """Do tasks and return what they give, in their order; they are begun in that order, so the longest come first.

    A process that is free takes the next task, this one too. Only the result of a task counts: its other effects stay
    in its copy. If a copy fails or is killed, this process does the task once more, and raises here what was raised
    there.

    Args:
        function: Does a task; with one processor where copies do others, and with those of processes that have nothing
            left to do.
        tasks: The tasks.
        done: Told how many are done.
        task_bytes: About what each takes in memory; see `worker_count`.

    """
    shared = len(tasks) <= MOST_TASKS and can_fork()
    count = min(worker_count(task_bytes), len(tasks), MOST_COPIES) if shared else 1
    if count <= 1:
        results = []
        for task in tasks:
            results.append(function(task))
            if done is not None:
                done(len(results), len(tasks))
        return results
    context = copy_context()  # in which the run is followed, unlike tasks

    def told(so_far: int, total: int) -> None:
        if done is not None:
            context.run(done, so_far, total)

    with single_threaded_blas(), one_processor(), unfollowed():
        return _Run(function, tasks, told, _Shares(count, count)).on(count)


@contextmanager
def in_copy(function: Callable[[], R], *, copies: bool = True, kind: str = REST) -> Iterator[Callable[[], R]]:
    """Let a copy of this process do something while this one goes on; yields what to call for its result.

    If there can be no copy, or it failed, that call does it. It has to be made inside.

    Args:
        function: What to do; in a copy with one processor, and with all once this process waits for it.
        copies: Whether a copy may do it: it reads nothing that this process reads in the meantime.
        kind: The kind of work that it is to wait for the copy; see `Progress.task`.

    """

    def there(file: int) -> None:
        lent = lent_processors(shares.each)
        with open(file, "wb", closefd=False) as written, lent, unfollowed(), single_threaded_blas():
            _write(written, 0, function())

    shared = copies and can_fork() and worker_count() > 1
    shares = _Shares(2, worker_count())
    copy = _start_copy(there) if shared else None
    if copy is None:
        yield function
        return

    def result() -> R:
        shares.lend(0)
        with suppress(ChildProcessError), working(kind):
            os.waitpid(copy.process, 0)
        found: dict[int, R] = _read(copy.file)
        return found[0] if found else function()

    try:
        yield result
    finally:
        copy.end()


@contextmanager
def ahead_in_copy(produce: Callable[[], Iterator[R]]) -> Iterator[Iterator[R]]:
    """Let a copy of this process produce one thing after another while this one uses them; yields them in order.

    If there can be no copy, each is produced here when it is asked for. If the copy fails, all are produced once more
    and those that came are left out. So an error is raised here, at its place.

    Args:
        produce: Begins to produce them: the same, in the same order, each time that it is called.

    """
    if not can_fork():
        yield produce()
        return
    received, sent = os.pipe()
    with open(received, "rb") as pipe:
        copy = _start_copy(partial(_send_all, produce, received, sent))
        os.close(sent)
        if copy is None:
            yield produce()
            return
        with single_threaded_blas(), one_processor():
            try:
                yield _received(pipe, produce)
            finally:
                copy.end()


def _send_all(produce: Callable[[], Iterator[Any]], received: int, sent: int, _: int) -> None:
    """Send what is produced, each as a tuple of one; an empty one says that this is all."""
    os.close(received)
    with open(sent, "wb") as pipe, single_threaded_blas(), one_processor(), unfollowed():
        for one in produce():
            pickle.dump((one,), pipe, pickle.HIGHEST_PROTOCOL)
            pipe.flush()
        pickle.dump((), pipe)


def _received(pipe: IO[bytes], produce: Callable[[], Iterator[R]]) -> Iterator[R]:
    count = 0
    with suppress(EOFError, pickle.UnpicklingError):  # it ended, perhaps while it wrote
        while found := pickle.load(pipe):
            count += 1
            yield found[0]
        return
    yield from islice(produce(), count, None)


class _Shares:
    """How many processors each of some processes may use: those that have nothing left to do lend theirs.

    Args:
        processes: How many there are.
        processors: How many they share.

    """

    def __init__(self, processes: int, processors: int) -> None:
        self._idle, self._processors = mmap.mmap(-1, processes), processors  # a byte for each of them

    def lend(self, number: int) -> None:
        """Leave the processor of one process to the others."""
        self._idle[number] = 1

    def each(self) -> int:
        """Return how many each of those at work may use at the moment."""
        idle = sum(self._idle[:])
        return max(self._processors // max(len(self._idle) - idle, 1), 1) if idle else 1


@dataclass
class _Run:
    """Some tasks that copies of this process share.

    Attributes:
        function: Does a task.
        tasks: The tasks.
        done: Told how many are done.
        shares: The processors of each process, this one first.
        results: Of the tasks, by their numbers.

    """

    function: Callable[[Any], Any]
    tasks: Sequence[Any]
    done: Done
    shares: _Shares
    results: dict[int, Any] = field(default_factory=dict)

    def on(self, count: int) -> list[Any]:
        """Share the tasks among so many processes."""
        numbers, put = os.pipe()
        os.write(put, b"".join(number.to_bytes(NUMBER, "little") for number in range(len(self.tasks))))
        os.close(put)
        copies: list[_Copy] = []
        with mmap.mmap(-1, len(self.tasks)) as marks:
            try:
                for number in range(1, count):
                    copy = _start_copy(partial(self._share, number, numbers, marks))
                    copies += [] if copy is None else [copy]
                self._help(numbers, marks)
                self.shares.lend(0)
                self._wait([copy.process for copy in copies], marks)
                for copy in copies:
                    self.results |= _read(copy.file)
            finally:
                os.close(numbers)
                for copy in copies:
                    copy.end()
        for number, task in enumerate(self.tasks):
            if number not in self.results:
                self.results[number] = self.function(task)
        return [self.results[number] for number in range(len(self.tasks))]

    def _help(self, numbers: int, marks: mmap.mmap) -> None:
        """Do tasks here as long as there are any; one that fails is done again once all others are."""
        while (number := _next(numbers)) is not None:
            try:
                with lent_processors(self.shares.each):
                    self.results[number] = self.function(self.tasks[number])
            except Exception:
                return
            marks[number] = 1
            self._tell(marks)

    def _wait(self, processes: list[int], marks: mmap.mmap) -> None:
        while processes:
            processes = [process for process in processes if not _has_ended(process)]
            self._tell(marks)
            if processes:
                _wait_for_one(processes)

    def _tell(self, marks: mmap.mmap) -> None:
        self.done(sum(marks[:]), len(self.tasks))

    def _share(self, place: int, numbers: int, marks: mmap.mmap, file: int) -> None:
        """Do tasks in a copy, which stands at a place among all processes, and write what they give."""
        with open(file, "wb", closefd=False) as written, lent_processors(self.shares.each):
            while (number := _next(numbers)) is not None:
                _write(written, number, self.function(self.tasks[number]))
                marks[number] = 1
        self.shares.lend(place)


def _next(numbers: int) -> int | None:
    """Take the number of the next task: a read from a pipe is one step, also if others read."""
    found = os.read(numbers, NUMBER)
    return int.from_bytes(found, "little") if found else None


@dataclass(frozen=True)
class _Copy:
    """A copy of this process.

    Attributes:
        process: Its id.
        file: The file in memory that it writes results to.

    """

    process: int
    file: int

    def end(self) -> None:
        """End it, after an error or an interrupt while it runs, and close its file."""
        with suppress(ChildProcessError, ProcessLookupError):
            if os.waitpid(self.process, os.WNOHANG)[0] == 0:
                os.kill(self.process, signal.SIGKILL)
                os.waitpid(self.process, 0)
        forget_process(self.process)
        os.close(self.file)


def _start_copy(function: Callable[[int], None]) -> _Copy | None:
    """Start a copy of this process that does something with a file in memory; None where the system refuses one."""
    try:
        file = os.memfd_create("onnxq-results")
    except OSError:
        return None
    try:
        copy = _Copy(_fork(partial(function, file)), file)
    except OSError:  # no memory, or too many processes
        os.close(file)
        return None
    note_process(copy.process)
    return copy


def _fork(function: Callable[[], None]) -> int:
    """Start a copy of this process that does something and ends; return its id."""
    with warnings.catch_warnings():
        # Python 3.12 and newer warn of threads, which `can_fork` has looked at; those of OpenBLAS expect a fork
        warnings.simplefilter("ignore", DeprecationWarning)
        first, process = os.getpid(), os.fork()
    if not process:
        _be_copy(partial(_until_killed, first, function))
    return process


def _until_killed(first: int, function: Callable[[], None]) -> None:
    """Do something in a copy, which Linux kills when the first process is gone."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() == first:  # it may be gone already
        function()


def _be_copy(function: Callable[[], None]) -> NoReturn:
    """Do something and end at once: whatever else this process would do at its end is for the first one to do."""
    code = 1
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        function()
        code = 0
    except BaseException:  # the first process does the task again, and raises what it raises
        pass
    finally:
        os._exit(code)


def _wait_for_one(processes: Sequence[int]) -> None:
    """Wait until one of some copies ends, `LOOK` at most."""
    with ExitStack() as stack:
        ends = select.poll()
        try:
            for process in processes:
                file = os.pidfd_open(process)
                stack.callback(os.close, file)
                ends.register(file, select.POLLIN)
        except (AttributeError, OSError):  # Linux before 5.3
            time.sleep(LOOK)
            return
        ends.poll(LOOK * 1000)


def _has_ended(process: int) -> bool:
    try:
        return os.waitpid(process, os.WNOHANG)[0] == process
    except ChildProcessError:
        return True


def _write(file: IO[bytes], number: int, result: Any) -> None:
    """Write what a task gave: lengths, its pickle, and the arrays in it as they lie in memory."""
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps((number, result), 5, buffer_callback=buffers.append)
    views = [memoryview(data), *(buffer.raw() for buffer in buffers)]
    file.write(np.array([len(views), *(view.nbytes for view in views)], np.int64).tobytes())
    for view in views:
        file.write(bytes(-file.tell() % ALIGNED))
        file.write(view)
    file.flush()


def _read(file: int) -> dict[int, Any]:
    """Read the results that a copy has written; arrays stay in the file's memory, and are not copied."""
    found: dict[int, Any] = {}
    size, at = os.fstat(file).st_size, 0
    if not size:
        return found
    memory = memoryview(mmap.mmap(file, size, access=mmap.ACCESS_COPY))
    while at + WORD <= size:
        count = int.from_bytes(memory[at : at + WORD], sys.byteorder)
        lengths = np.frombuffer(memory[at + WORD :][: count * WORD], np.int64)
        at += WORD + count * WORD
        parts = []
        for length in lengths.tolist():
            at += -at % ALIGNED
            parts.append(memory[at : at + length])
            at += length
        if len(lengths) < count or at > size:  # it ended while it wrote
            break
        number, result = pickle.loads(parts[0], buffers=parts[1:])
        found[number] = result
    return found
