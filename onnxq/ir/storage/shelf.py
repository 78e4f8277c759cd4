"""Arrays that come and go, kept in a scratch file whose places are used again.

Tests: `tests/ir/test_shelf.py`.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from onnxq.errors import OutputError
from onnxq.ir.storage.external import release
from onnxq.ir.storage.scratch_file import SPOOLED, is_mapped


class Shelf:
    """A file in a folder that goes away with the process; an array's place is free again once nothing refers to it.

    Arrays stay valid after the shelf is closed.

    Args:
        folder: Where there is room for it.

    Attributes:
        size: Bytes of the file.

    Raises:
        OutputError: No file can be made there.

    """

    def __init__(self, folder: Path) -> None:
        self._folder, self.size = folder, 0
        self._free: dict[int, list[int]] = {}  # places by their size: tensors of few sizes come again and again
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

    def keep(self, array: np.ndarray) -> np.ndarray:
        """Return an equal array, read-only and mapped from the file; a small one or a mapped one as it is.

        Raises:
            OutputError: The disk is full.

        """
        if array.nbytes < SPOOLED or array.dtype.hasobject or is_mapped(array):
            return array
        size = -(-array.nbytes // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        free = self._free.setdefault(size, [])
        place = free.pop() if free else self.size
        self.size = max(self.size, place + size)
        try:
            view = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
            os.lseek(self._file.fileno(), place, os.SEEK_SET)
            while view:
                view = view[self._file.write(view) :]
            if self.size > os.fstat(self._file.fileno()).st_size:
                os.ftruncate(self._file.fileno(), self.size)
            mapped = mmap.mmap(self._file.fileno(), size, offset=place, access=mmap.ACCESS_READ)
        except OSError as error:
            raise self._failed(error) from error
        weakref.finalize(mapped, free.append, place)
        return np.frombuffer(mapped, array.dtype, array.size).reshape(array.shape)

    def _failed(self, error: OSError) -> OutputError:
        return OutputError(
            f"the folder {self._folder} cannot take a scratch file ({error.strerror})",
            "Choose another place with --output.",
        )


def release_array(array: np.ndarray) -> None:
    """Release the pages of a mapped array, which may be transposed; any other array is left alone."""
    array = array if array.flags.c_contiguous else array.T
    if array.flags.c_contiguous and array.size and is_mapped(array):
        release(array.reshape(-1).view(np.uint8).data)
