"""Say in a sentence what ended the process where no code of Python's can: a fault in onnxruntime, or a kill.

A copy of the process waits until it is gone. The copy is made before anything is loaded, so that it takes neither time
nor memory. It reads from Python's `faulthandler`, which writes at a fault, and tells by that which library was at work.
Only processes that are ours are watched, on systems that have `fork`. The copy removes temporary files of a process
that was killed.

Tests: `tests/cli/test_crash.py`.
"""

from __future__ import annotations

import faulthandler
import os
import re
import select
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from onnxq.leftovers import remove_left, watch_through

GOODBYE = b"\x00"  # what a process says that ends by itself
FAULT = re.compile(r"^Fatal Python error: (.+)$", re.MULTILINE)
FRAME = re.compile(r'^  File "(?P<file>[^"]*)", line \d+ in (?P<function>\S+)$', re.MULTILINE)
SESSIONS = "onnxruntime_inference_collection.py"  # the module of onnxruntime whose functions call native code
ANOTHER = "Try another version of onnxruntime, or export the model once more, one of float16 in float32."
SHORT = "If that was not on purpose, the system was short of memory: close other programs, or use a machine with more."
FIRST_FREE = 3  # number of a file that is none of the standard streams
IGNORED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT")  # that are for the process, not for the copy
PATIENCE = 3.0  # seconds that processes of a killed one get to end as well

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
    try:  # an interrupt may come as soon as there is a copy
        write = _start_copy(say)
        if write is not None:
            os.register_at_fork(after_in_child=_leave)  # a copy that does a task is not missed if it ends
            faulthandler.enable(write)
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
    (read, write), (names, name) = _pipe(), _pipe()
    _watched_by.append(write)
    try:
        process = os.fork()
    except OSError:  # too many processes
        _watched_by.clear()
        for end in (read, write, names, name):
            os.close(end)
        return None
    mine, other = ((write, name), (read, names)) if process else ((read, names), (write, name))
    for end in other:
        os.close(end)
    if process:
        watch_through(name)
        return write
    try:
        _watch(*mine, say)
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


def _watch(read: int, names: int, say: Say) -> None:
    """Read until the process is gone, holding nothing open that others wait for, and remove what it has left.

    Args:
        read: The end of a pipe that says how it went; only the process has the other one.
        names: The end of a pipe that names files and folders; its copies, and other processes of it, have the other.
        say: Says what has ended it.

    """
    os.setsid()  # a kill of all processes of the command leaves this one
    for name in IGNORED:
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1):
        os.dup2(nowhere, stream)
    told = {read: b"", names: b""}
    _read(told, [read, names], until=read)
    fault = told[read].replace(GOODBYE, b"").decode(errors="replace")
    if fault or GOODBYE not in told[read]:
        say(*crash(fault), fault)
    os.dup2(nowhere, 2)
    _read(told, [names], until=names, patience=PATIENCE)
    remove_left(told[names])


def _read(told: dict[int, bytes], pipes: list[int], *, until: int, patience: float | None = None) -> None:
    """Read from some pipes until one of them is closed, or for some seconds."""
    ends = select.poll()
    for pipe in pipes:
        ends.register(pipe, select.POLLIN)
    last = None if patience is None else time.monotonic() + patience
    while True:
        wait = None if last is None else 1000 * (last - time.monotonic())
        if wait is not None and wait <= 0:
            return
        for pipe, _ in ends.poll(wait):
            part = os.read(pipe, 1 << 16)
            told[pipe] += part
            if not part:
                ends.unregister(pipe)
                if pipe == until:
                    return


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
