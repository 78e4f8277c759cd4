"""Tell a process that watches this one which files and folders are to go with it, also if it is killed.

Copies of this process tell the same one, and so do processes that are given its pipe.

Importing this must stay cheap.

Tests: `tests/cli/test_crash.py`.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

COMES, GOES, END = b"+", b"-", b"\0"
MOST = 4096  # bytes that several processes write to one pipe without mixing them
_pipes: list[int] = []  # to the process that watches


def pipes_to_watcher() -> tuple[int, ...]:
    """Return the pipe by which a process that this one starts may tell the same watcher; none where there is none."""
    return tuple(_pipes)


def watch_through(pipe: int) -> None:
    """Tell all from now on to the process at the other end of a pipe."""
    os.set_blocking(pipe, False)  # whoever watches must hold nothing up
    _pipes[:] = [pipe]


def tell_watcher(path: Path, *, there: bool) -> None:
    """Say that something is about to be there which is to go with this process, or that it has gone or is kept."""
    said = (COMES if there else GOES) + os.fsencode(path.absolute()) + END
    for pipe in _pipes if len(said) <= MOST else ():
        with suppress(OSError):  # it is gone
            os.write(pipe, said)


def remove_left(told: bytes) -> None:
    """Remove what processes that are gone have left, by all that they told."""
    left: dict[bytes, None] = {}
    for said in told.split(END)[:-1]:
        if said.startswith(COMES):
            left[said[1:]] = None
        else:
            left.pop(said[1:], None)
    for path in left:
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path, ignore_errors=True)
        else:
            with suppress(OSError):
                os.unlink(path)
