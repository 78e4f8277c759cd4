"""External data files: found inside the model's folder only, mapped rather than read.

Tests: `tests/ir/test_tensor.py`.
"""

from __future__ import annotations

import difflib
import mmap
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from onnxq.errors import ModelError
from onnxq.ir.wire import Raw
from onnxq.text import shell_path

if TYPE_CHECKING:
    from hashlib import _Hash

HASH_BLOCK = 1 << 24  # bytes hashed at a time


def external_path(folder: Path | None, location: str, tensor: str) -> Path:
    """Resolve an external data path, refusing whatever is not a plain file inside the model's folder.

    Raises:
        ModelError: The path leaves the folder, by `..`, by a symbolic or a hard link, or is no readable plain file.

    """
    hint = "Use a model whose external data lies in its own folder."
    if folder is None or not location or "\0" in location:
        raise ModelError(f"tensor '{tensor}' has external data without a location it could be at", hint)
    if "://" in location:
        raise ModelError(
            f"tensor '{tensor}' has its data at {location}, and weights are read from files alone",
            f"Fetch it into the model's folder, and name it {location.rpartition('/')[2]!r} in the model.",
        )
    base = folder.resolve()
    path = (base / location).resolve()
    if os.path.isabs(location) or not path.is_relative_to(base):
        is_link = (base / location).is_symlink()  # caches of downloads are made of links
        said = f"{location} is a link to {path}" if is_link else location
        copy = f"Copy its folder without links, and give the copy: cp -RL {shell_path(folder)} copy."
        raise ModelError(f"tensor '{tensor}' points outside the model's folder: {said}", copy if is_link else hint)
    try:
        status = path.stat()
    except OSError as error:
        raise ModelError(
            f"tensor '{tensor}' needs the file {path}, which cannot be read ({error.strerror})",
            _misplaced(path, base) or "Put the file there: exporters write it together with the model.",
        ) from error
    if not stat.S_ISREG(status.st_mode):
        raise ModelError(f"tensor '{tensor}' needs {path}, which is no regular file", hint)
    if status.st_nlink > 1:
        raise ModelError(
            f"tensor '{tensor}' needs {path}, which is a hard link and may belong elsewhere",
            "Put a copy of the file in its place.",
        )
    return path


def _misplaced(path: Path, folder: Path) -> str:
    """Say where a missing file may be: in the model's folder, or under another name; empty where none is similar."""
    if (folder / path.name).is_file():
        return f"Move {folder / path.name} into {path.parent}: the model looks for it there."
    with suppress(OSError):
        others = [other.name for other in path.parent.iterdir() if other.suffix != ".onnx"]
        near = difflib.get_close_matches(path.name, others, n=1, cutoff=0.75)
        return f"If it is '{near[0]}' there, give it the name back that the model knows it by." if near else ""
    return ""


_MAPPED: dict[tuple[str, int, int, int], memoryview] = {}


def map_file(path: Path) -> memoryview:
    """Map a file, once for each version of it."""
    status = path.stat()
    key = (str(path), status.st_ino, status.st_mtime_ns, status.st_size)
    if key not in _MAPPED:
        with path.open("rb") as file:
            _MAPPED[key] = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    return _MAPPED[key]


def hash_released(digest: _Hash, content: Raw) -> None:
    """Hash bytes block by block, so that a mapped file never stands in memory whole."""
    view = memoryview(content)
    for start in range(0, len(view), HASH_BLOCK):
        block = view[start : start + HASH_BLOCK]
        digest.update(block)
        release(block)


def release(view: memoryview) -> None:
    """Drop a mapped file's pages under a view from memory; a later access reads them again.

    A file that was read through a mapping counts as memory of the process, all of it, until the system is short of
    memory. Views of anything but a mapped file, even through arrays, are left alone.
    """
    mapped: object = view.obj
    while isinstance(mapped, np.ndarray | memoryview):
        mapped = mapped.base if isinstance(mapped, np.ndarray) else mapped.obj
    if not isinstance(mapped, mmap.mmap) or not hasattr(mapped, "madvise") or view.nbytes < mmap.PAGESIZE:
        return
    base = np.frombuffer(mapped, np.uint8).ctypes.data
    start = np.frombuffer(view, np.uint8).ctypes.data - base
    first = start - start % mmap.PAGESIZE
    mapped.madvise(mmap.MADV_DONTNEED, first, start + view.nbytes - first)
