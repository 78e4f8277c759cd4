"""One BLAS thread while the evaluator runs.

OpenBLAS wakes all its threads for products far too small to gain from them, and they wait for each other in a busy
loop. On a busy machine a product of 0.7 ms then takes up to 70 ms. Measured on two busy cores: a convolutional network
in 5.0 s instead of 0.15 s. NumPy has no switch for it, so the functions of the library it ships with are called
directly, as threadpoolctl does. A NumPy on another BLAS keeps that one's threads.

Tests: `tests/evaluator/test_evaluate.py`.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np

# Folders of the wheels' libraries on Linux and Windows, and on macOS; names of the functions.
FOLDERS = ("../numpy.libs", ".dylibs")
NAMES = ("scipy_openblas_{}_num_threads64_", "scipy_openblas_{}_num_threads", "openblas_{}_num_threads64_")


@cache
def _switch() -> tuple[Callable[[], int], Callable[[int], None]] | None:
    """Find the functions that read and set the number of threads; None for another BLAS."""
    root = Path(np.__file__).parent
    for folder in FOLDERS:
        for path in sorted((root / folder).glob("*openblas*")):
            library = ctypes.CDLL(str(path.resolve()))
            for name in NAMES:
                if hasattr(library, name.format("get")):
                    return getattr(library, name.format("get")), getattr(library, name.format("set"))
    return None


_lock = threading.Lock()
_users = 0
_before = 1


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Keep BLAS to the calling thread; the last of several callers at a time restores what there was."""
    global _users, _before
    switch = _switch()
    if switch is None:
        yield
        return
    get, put = switch
    with _lock:
        if _users == 0:
            _before = get()
            put(1)
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                put(_before)
