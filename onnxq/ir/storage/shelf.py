"""Temporary arrays in a scratch file whose places are used again.

Tests: `tests/ir/test_shelf.py`.
"""

from __future__ import annotations

import mmap
import os
import weakref
from collections import deque
from pathlib import Path

import numpy as np

from onnxq.ir.storage.external import release
from onnxq.ir.storage.scratch_file import ScratchFile, is_mapped

LEAST = 1 << 16  # bytes of an array below which a place in the file would cost more than it frees
SHELVED = 1 << 20  # bytes of an array from which on it always goes to the file
# Bytes of all arrays of less than SHELVED that stay in memory: a file takes a tenth of a pass's time
IN_MEMORY = 1 << 27


class Shelf(ScratchFile):
    """A scratch file in which an array's place is free again once nothing refers to it.

    Arrays stay valid after the shelf is closed.

    Attributes:
        size: Bytes of the file.

    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.size = 0
        self._in_memory = 0  # bytes of arrays that are small
        self._forgotten = deque[int]()  # bytes of those that are gone: threads drop arrays, too
        self._free: dict[int, list[int]] = {}  # places by their size: tensors of few sizes come again and again

    def keep(self, array: np.ndarray) -> np.ndarray:
        """Return an equal array, read-only and mapped from the file; a mapped one as it is, and small ones up to a sum.

        Raises:
            OutputError: The disk is full.

        """
        if array.nbytes < min(LEAST, SHELVED) or array.dtype.hasobject or is_mapped(array):
            return array
        while self._forgotten:
            self._in_memory -= self._forgotten.popleft()
        if array.nbytes < SHELVED and self._in_memory + array.nbytes <= IN_MEMORY:
            self._in_memory += array.nbytes
            weakref.finalize(array, self._forgotten.append, array.nbytes)
            return array
        size = -(-array.nbytes // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        free = self._free.setdefault(size, [])
        place = free.pop() if free else self.size
        self.size = max(self.size, place + size)
        try:
            os.lseek(self._file.fileno(), place, os.SEEK_SET)
            self._write(np.ascontiguousarray(array))
            if self.size > os.fstat(self._file.fileno()).st_size:
                os.ftruncate(self._file.fileno(), self.size)
            mapped = mmap.mmap(self._file.fileno(), size, offset=place, access=mmap.ACCESS_READ)
        except OSError as error:
            raise self._failed(error) from error
        weakref.finalize(mapped, free.append, place)
        return np.frombuffer(mapped, array.dtype, array.size).reshape(array.shape)


def release_array(array: np.ndarray) -> None:
    """Release the pages of a mapped array, which may be transposed; any other array is left alone."""
    array = array if array.flags.c_contiguous else array.T
    if array.flags.c_contiguous and array.size and is_mapped(array):
        release(array.reshape(-1).view(np.uint8).data)
