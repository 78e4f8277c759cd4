"""Files and folders that are to go with this process, also if it has to end in the middle of a call.

Their owners remove them. An interrupted process that waits for a call that does not return ends without them. The
files and folders named here are removed then.

Tests: `tests/ir/test_temporary.py`.
"""

from __future__ import annotations

import atexit
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from onnxq.leftovers import tell_watcher

PREFIX = "onnxq-"
_named: dict[Path, None] = {}


@contextmanager
def named_temporary(*paths: Path) -> Iterator[None]:
    """Name files and folders that go when this process ends inside; their owner removes or renames them."""
    for path in paths:
        _name(path)
    try:
        yield
    finally:
        for path in paths:
            _named.pop(path, None)
            tell_watcher(path, there=False)


def _name(path: Path) -> None:
    _named[path] = None
    tell_watcher(path, there=True)


def temporary_path(path: Path) -> Path:
    """Return the name that a file has until it is whole."""
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


@contextmanager
def temporary_file(path: Path) -> Iterator[Path]:
    """Yield the name under which a file is written; the owner renames it once it is whole, or it goes."""
    temporary = temporary_path(path)
    with named_temporary(temporary):
        try:
            yield temporary
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def temporary_folder(prefix: str = PREFIX, *, suffix: str = "", parent: Path | None = None) -> Iterator[Path]:
    """Yield a new folder, which is removed with all its files.

    Args:
        prefix: What its name begins with.
        suffix: What its name ends with.
        parent: Where to make it; the system's folder for temporary files by default.

    Raises:
        OSError: It cannot be made.

    """
    folder = Path(tempfile.mkdtemp(suffix, prefix, parent))
    with named_temporary(folder):
        try:
            yield folder
        finally:
            for _ in range(3):  # a worker process that is just ending may add a file
                shutil.rmtree(folder, ignore_errors=True)


def folder_of_process(prefix: str = PREFIX) -> Path:
    """Return the name of a new folder for temporary files, which goes when this process ends; nothing makes it yet."""
    folder = Path(tempfile.gettempdir()) / f"{prefix}{secrets.token_hex(8)}"
    _name(folder)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def remove_temporary() -> None:
    """Remove all that is named now, as far as that is possible; for the thread that ends the process."""
    for path in list(_named):
        shutil.rmtree(path, ignore_errors=True)
        with suppress(OSError):
            path.unlink()
