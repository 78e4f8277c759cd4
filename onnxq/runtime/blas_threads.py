"""One thread for the matrix products of NumPy's own BLAS.

With more, OpenBLAS gives other last bits on another number of processors. Its waiting threads also take the processor
from onnxruntime's: calibration was ten times slower on two busy cores. It wakes them for products far too small to gain
from them. On two busy cores, the evaluator ran a convolutional network in 5.0 s instead of 0.15 s. Several layers or
samples run at a time instead.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from threading import Lock

import numpy as np

PREFIXES, SUFFIXES = ("scipy_openblas", "openblas"), ("64_", "", "_64_")
_lock = Lock()
_state = {"inside": 0, "before": 1}


@contextmanager
def single_threaded_blas() -> Iterator[None]:
    """Let OpenBLAS use one thread, in the whole process, until the last of those who asked for it is done.

    It changes nothing where NumPy was built with another BLAS: results may then differ in the last bits.
    """
    get, put = _openblas() or (lambda: 1, lambda count: None)
    with _lock:
        if not _state["inside"]:
            _state["before"] = get()
            put(1)
        _state["inside"] += 1
    try:
        yield
    finally:
        with _lock:
            _state["inside"] -= 1
            if not _state["inside"]:
                put(_state["before"])


@cache
def _openblas() -> tuple[Callable[[], int], Callable[[int], None]] | None:
    """Find the functions of the OpenBLAS that NumPy's wheels bring; the library is loaded already."""
    package = Path(np.__file__).parent
    for folder in (package.parent / "numpy.libs", package / ".dylibs"):
        for path in sorted(folder.glob("*openblas*")):
            library = ctypes.CDLL(str(path))
            for prefix in PREFIXES:
                for suffix in SUFFIXES:
                    get = getattr(library, f"{prefix}_get_num_threads{suffix}", None)
                    put = getattr(library, f"{prefix}_set_num_threads{suffix}", None)
                    if get is not None and put is not None:
                        put.restype = None
                        return get, put
    return None
