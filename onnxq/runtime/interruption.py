"""End this process within two seconds of an interrupt, even if a call of onnxruntime does not return.

Python handles a signal between two of its own instructions. The main thread may be inside a run of minutes, or of a
Loop that does not end. So a thread reads the numbers of signals from a pipe, to which the interpreter writes at once.
It has runs of onnxruntime stop before their next node: most end in that way. Whatever does not, such as one long
kernel or a model that is being loaded, is ended with the process.

Importing this must stay cheap.

Tests: `tests/runtime/test_interruption.py`, `tests/cli/test_cli_interrupt.py`.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Any

PATIENCE = 0.8  # seconds that the main thread gets to end the process, with all that there is to clean up
PATIENCE_OF_TASK = 0.4  # of a process that another one waits for
_runs: dict[int, Any] = {}  # options of the runs of onnxruntime that are under way
_processes: dict[int, None] = {}  # that this one has started, and that are of no use without it
_ending = False  # whether an interrupt has come, and the process is about to end


class InterruptibleRun:
    """Let an interrupt stop a run of onnxruntime before its next node.

    Args:
        options: Of the run, an `onnxruntime.RunOptions`.

    """

    __slots__ = ("options",)

    def __init__(self, options: Any) -> None:
        self.options = options

    def __enter__(self) -> None:
        _runs[id(self)] = self.options
        if _ending:
            self.options.terminate = True

    def __exit__(self, *_: object) -> None:
        del _runs[id(self)]


def note_process(number: int) -> None:
    """Have a process killed if this one has to end in the middle of a call."""
    _processes[number] = None


def forget_process(number: int) -> None:
    """Leave alone a process that has ended: its number may go to another."""
    _processes.pop(number, None)


class SignalThread(threading.Thread):
    """Waits for signals, and ends the process if the main thread does not.

    Args:
        numbers: Of signals that have a handler of Python's and are to end the process.
        say: Called with the number of one before the process ends without its main thread.
        patience: Seconds that the main thread gets.

    """

    def __init__(self, numbers: Collection[int], say: Callable[[int], object], patience: float) -> None:
        super().__init__(name="onnxq-interrupts", daemon=True)
        self._numbers, self._say, self._patience = set(numbers), say, patience
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)

    def start(self) -> None:
        """Begin to wait; in the main thread."""
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        super().start()

    def stop(self) -> None:
        """Wait for no more signals; in the main thread. If one has come, the process still has to end."""
        signal.set_wakeup_fd(-1)
        os.close(self._write)  # what the thread reads from ends

    def run(self) -> None:
        """Do what the class says."""
        while read := os.read(self._read, 1):
            if read[0] in self._numbers:
                _stop_runs()
                threading.Event().wait(self._patience)
                _end(read[0], self._say)
        os.close(self._read)


@contextmanager
def end_on_signals(
    numbers: Collection[int], say: Callable[[int], object] = lambda _: None, patience: float = PATIENCE
) -> Iterator[None]:
    """End this process soon after one of some signals that comes inside; see `SignalThread`.

    On Windows, whose signals come from no process, nothing is watched.
    """
    if os.name != "posix" or not numbers:
        yield
        return
    thread = SignalThread(numbers, say, patience)
    thread.start()
    try:
        yield
    finally:
        thread.stop()


def _stop_runs() -> None:
    global _ending  # a fact about the process
    _ending = True
    for options in list(_runs.values()):
        options.terminate = True


def _end(number: int, say: Callable[[int], object]) -> None:
    """End the process with the exit code that a shell reports for the signal."""
    from onnxq.ir.storage.temporary import remove_temporary

    for process in list(_processes):
        with suppress(OSError):
            os.kill(process, signal.SIGKILL)
    remove_temporary()
    say(number)
    os._exit(128 + number)
