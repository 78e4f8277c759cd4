"""Files that appear whole or not at all, without leftovers.

Tests: `tests/ir/test_save.py`.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from onnxq.ir.storage.external import release
from onnxq.ir.storage.temporary import temporary_file
from onnxq.ir.wire import Chunk, Pending

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

RELEASED = 1 << 16  # bytes of a chunk from which on its pages are released
WRITE_BLOCK = 1 << 24  # bytes written at a time, so that a mapped weight never stands in memory whole


def write_together(files: dict[Path, Sequence[Chunk]]) -> None:
    """Write next to the targets, flush to disk, rename, the last file last.

    A single file replaces the old one in one step. The last of several files refers to the others. Its old version is
    removed before they change, so it is never found with foreign data. Leftovers of a killed run are removed.

    Raises:
        OSError: Something cannot be written; the folder is as it was then, unless renaming failed halfway.

    """
    for path in files:
        clean_up(path)
    with contextlib.ExitStack() as stack:
        temporary = {path: stack.enter_context(temporary_file(path)) for path in files}
        for path, chunks in files.items():
            with temporary[path].open("wb") as file:
                lock(file)
                for chunk in chunks:
                    _write_chunk(file, chunk)
                file.flush()
                os.fsync(file.fileno())
        if len(files) > 1:
            list(files)[-1].unlink(missing_ok=True)
        for path, written in temporary.items():
            written.replace(path)


def _write_chunk(file: BinaryIO, chunk: Chunk) -> None:
    raw = chunk.get() if isinstance(chunk, Pending) else chunk
    if len(raw) < RELEASED:
        file.write(raw)
        return
    view = memoryview(raw)
    for start in range(0, len(view), WRITE_BLOCK):
        block = view[start : start + WRITE_BLOCK]
        file.write(block)
        release(block)


def clean_up(path: Path) -> None:
    """Remove temporary files for `path` whose process was killed; one of a process that lives stays."""
    if fcntl is None:
        return
    name = re.compile(re.escape(f".{path.name}.") + r"(\d+)\.tmp")
    for entry in os.listdir(path.parent):
        match = name.fullmatch(entry)
        if match is None or _is_alive(int(match[1])):
            continue
        with contextlib.suppress(OSError), (path.parent / entry).open("rb+") as file:  # what is in use is locked
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            (path.parent / entry).unlink()


def lock(file: BinaryIO) -> None:
    """Show others, also in other containers, that a file is in use; where the file system knows no locks, nothing."""
    if fcntl is not None:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        pass
    return True
