"""Say in a sentence what ended the process where no code of Python's can: a fault in onnxruntime, or a kill.

A copy of the process waits until it is gone. The copy is made before anything is loaded, so that it takes neither time
nor memory. It reads from Python's `faulthandler`, which writes at a fault, and tells by that which library was at work.
Only processes that are ours are watched, on systems that have `fork`.

Tests: `tests/cli/test_crash.py`.
"""

from __future__ import annotations

import faulthandler
import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

GOODBYE = b"\x00"  # what a process says that ends by itself
FAULT = re.compile(r"^Fatal Python error: (.+)$", re.MULTILINE)
FRAME = re.compile(r'^  File "(?P<file>[^"]*)", line \d+ in (?P<function>\S+)$', re.MULTILINE)
SESSIONS = "onnxruntime_inference_collection.py"  # the module of onnxruntime whose functions call native code
ANOTHER = "Try another version of onnxruntime, or export the model once more, one of float16 in float32."
SHORT = "If that was not on purpose, the system was short of memory: close other programs, or use a machine with more."
FIRST_FREE = 3  # number of a file that is none of the standard streams
IGNORED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT")  # that a terminal sends to all processes of a command

Say = Callable[[str, str, str], None]
"""Takes a message, a hint and the text of a fault; that is empty where the process was killed."""


class Crash(NamedTuple):
    """Words for a process that ended in the middle.

    Attributes:
        message: What happened.
        hint: What to do.

    """

    message: str
    hint: str


@contextmanager
def watched(say: Say) -> Iterator[None]:
    """Have a copy of this process report if the process does not get to the end of this."""
    write = _start_copy(say)
    if write is None:
        yield
        return
    os.register_at_fork(after_in_child=_leave)  # a copy that does a task is not missed if it ends
    faulthandler.enable(write)
    try:
        yield
    finally:
        say_goodbye()


_watched_by: list[int] = []  # the pipe to the copy that watches


def say_goodbye() -> None:
    """Tell the copy that this process is about to end by itself, and need not be missed."""
    for pipe in _watched_by:
        with suppress(OSError):
            os.write(pipe, GOODBYE)


def _leave() -> None:
    """Be a copy that is not watched."""
    faulthandler.disable()
    while _watched_by:
        with suppress(OSError):
            os.close(_watched_by.pop())


def _start_copy(say: Say) -> int | None:
    """Start the copy that watches, and return the pipe that it reads; None where there can be none, or need not."""
    if not hasattr(os, "fork") or faulthandler.is_enabled():
        return None
    read, write = _pipe()
    try:
        process = os.fork()
    except OSError:  # too many processes
        os.close(read)
        os.close(write)
        return None
    if process:
        os.close(read)
        _watched_by.append(write)
        return write
    try:
        os.close(write)
        _watch(read, say)
    finally:
        os._exit(0)
    return None


def _pipe() -> tuple[int, int]:
    """Open a pipe whose numbers are none of stdin, stdout and stderr, which may be closed."""
    import fcntl  # of systems that have `fork`

    low = os.pipe()
    read, write = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, FIRST_FREE) for end in low)
    for end in low:
        os.close(end)
    return read, write


def _watch(read: int, say: Say) -> None:
    """Read until the process is gone, holding nothing open that others wait for."""
    for name in IGNORED:
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1):
        os.dup2(nowhere, stream)
    told = b""
    while part := os.read(read, 1 << 16):
        told += part
    fault = told.replace(GOODBYE, b"").decode(errors="replace")
    if fault or GOODBYE not in told:
        say(*crash(fault), fault)


def crash(fault: str) -> Crash:
    """Put what `faulthandler` wrote into words.

    Args:
        fault: Its text; empty where the process was killed, for which nothing is written.

    """
    if not fault:
        return Crash("the process was killed", SHORT)
    found = FAULT.search(fault)
    name = found[1].lower() if found else "a fault"
    called = next((frame["function"] for frame in FRAME.finditer(fault) if frame["file"].endswith(SESSIONS)), "")
    if called:
        doing = "ran" if called.startswith("run") else "loaded"
        return Crash(f"onnxruntime crashed while it {doing} the model ({name})", ANOTHER)
    return Crash(f"a library crashed ({name})", "")
