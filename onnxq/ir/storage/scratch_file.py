"""Scratch files: one without a name for arrays too large for memory, and a hidden folder for files of a run."""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from onnxq.errors import OutputError
from onnxq.ir.storage.temporary import temporary_folder

SPOOLED = 1 << 18  # bytes from which on an array goes to the file
EXTENT = 1 << 25  # bytes of the file that are mapped at once for arrays of up to an eighth: each map keeps a file open


class ScratchFile:
    """A file in a folder that goes away with the process, however that ends.

    Args:
        folder: Where there is room for it, such as the folder of the output.

    Raises:
        OutputError: No file can be made there.

    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            self._file = tempfile.TemporaryFile(dir=folder, prefix=".onnxq.", suffix=".tmp", buffering=0)  # noqa: SIM115
        except OSError as error:
            raise self._failed(error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file.close()

    def _write(self, array: np.ndarray) -> None:
        """Write the bytes of a contiguous array where the file stands."""
        view = array.reshape(-1).view(np.uint8).data
        while view:
            view = view[self._file.write(view) :]

    def _failed(self, error: OSError) -> OutputError:
        return OutputError(
            f"the folder {self.folder} cannot take a scratch file ({error.strerror})",
            "Choose another place with --output.",
        )


class Spool(ScratchFile):
    """A scratch file that grows; what is put there comes back mapped.

    Arrays stay valid after the spool is closed.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._extent: tuple[mmap.mmap, int] | None = None  # where it begins in the file
        self._used = 0  # bytes of it

    def keep(self, array: np.ndarray) -> np.ndarray:
        """Return an equal array, read-only and mapped from the file; a small or mapped one unchanged."""
        if array.nbytes < SPOOLED or array.dtype.hasobject or is_mapped(array):
            return array
        return self.fill([np.ascontiguousarray(array)], array.dtype, array.shape)

    def fill(self, blocks: Iterable[np.ndarray], dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray:
        """Write contiguous arrays one behind the other, and give them mapped as one array, read-only.

        Raises:
            OutputError: The disk is full.

        """
        count = math.prod(shape)
        size = count * dtype.itemsize
        try:
            mapped, start, place = self._place(size)
            os.lseek(self._file.fileno(), start + place, os.SEEK_SET)
            for block in blocks:
                self._write(block)
        except OSError as error:
            raise self._failed(error) from error
        return np.frombuffer(mapped, dtype, count, place).reshape(shape)

    def _place(self, size: int) -> tuple[mmap.mmap, int, int]:
        """Return a map with room for so many bytes, where it begins in the file, and where the room begins in it."""
        if size > EXTENT // 8:
            return *self._mapped(size), 0
        if self._extent is None or self._used + size > EXTENT:
            self._extent, self._used = self._mapped(EXTENT), 0
        place = self._used
        self._used += size + -size % mmap.ALLOCATIONGRANULARITY
        return *self._extent, place

    def _mapped(self, size: int) -> tuple[mmap.mmap, int]:
        """Make the file longer, and map that."""
        start = os.lseek(self._file.fileno(), 0, os.SEEK_END)
        start += -start % mmap.ALLOCATIONGRANULARITY
        os.ftruncate(self._file.fileno(), start + size)
        return mmap.mmap(self._file.fileno(), size, offset=start, access=mmap.ACCESS_READ), start


def is_mapped(array: np.ndarray) -> bool:
    """Whether an array shows a mapped file."""
    owner: object = array
    while isinstance(owner, np.ndarray | memoryview):
        owner = owner.base if isinstance(owner, np.ndarray) else owner.obj
    return isinstance(owner, mmap.mmap)


@contextmanager
def scratch_folder(output: Path) -> Iterator[Path]:
    """Yield a hidden folder next to an output, on the same disk; it is removed with all its files afterwards.

    Raises:
        OutputError: It cannot be made.

    """
    with ExitStack() as stack:
        folder = temporary_folder(f".{output.name}-", suffix=".tmp", parent=output.absolute().parent)
        try:
            made = stack.enter_context(folder)
        except OSError as error:
            raise OutputError(f"{output} cannot be written ({error.strerror})", "Choose another place.") from error
        yield made
