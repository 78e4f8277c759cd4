"""Release memory of discarded graphs and of the C library, and limit the memory of a run.

Tests: `tests/runtime/test_workers.py`.
"""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np

from onnxq.ir import Model
from onnxq.runtime.ownership import is_own_process

LARGEST_KEPT = (32 << 20) - (16 << 10)  # bytes of the largest block that glibc can keep
ARENA_MAX = -8  # of mallopt: how many heaps there may be
HEAVY = 8 << 20  # bytes from which on copies of weights, and other memory, are not left lying about
FOR_VARIANTS = 32 << 20  # bytes of graphs and small constants of variants that wait to be collected
STATM = Path("/proc/self/statm")  # where Linux says how many pages a process has in memory
MOST_RUNS = 128  # whose models, and the files that these are mapped from, may wait to be collected
_limit: int | None = None
_runs = 0
_collected = 0  # bytes in memory after the last collection; 0 before it


def limit_memory(size: int | None) -> None:
    """Let this process run no more tasks at a time than fit into so many bytes; None for any number."""
    global _limit  # a fact about the process, as its memory is
    _limit = size


def memory_limit() -> int | None:
    """Return what `limit_memory` was told last; None where there is no limit."""
    return _limit


def resident_bytes() -> int:
    """Return the bytes that this process has in memory; 0 where the system does not say."""
    try:
        return int(STATM.read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def room_left() -> int | None:
    """Return how many bytes are left of what this process may take, 0 at least; None where there is no limit."""
    return None if _limit is None else max(_limit - resident_bytes(), 0)


def collect_garbage(model: Model, *, room: int = 0) -> None:
    """Free the variants of a model that were tried: their nodes and values form cycles, which also hold new weights.

    While the collector is off, this has to be called. For a small model they are not worth the time.

    Args:
        model: The model.
        room: How many bytes this process may have taken since the last time before it is worth the time again.

    """
    global _collected  # a fact about the process
    if model.weight_bytes < HEAVY or (_collected and 0 <= resident_bytes() - _collected < room):
        return
    gc.collect()
    trim_heap(model.weight_bytes)
    _collected = resident_bytes()


def trim_heap(freed: int) -> None:
    """Hand freed bytes back to the system where the C library keeps them; not if they are few.

    glibc keeps blocks of up to 32 MB in heaps of each thread, such as weights of sessions and second moments. They lie
    idle there while something else takes more.
    """
    trim = _of_c_library("malloc_trim")
    if trim is not None and freed >= HEAVY:
        trim(0)


def keep_freed_blocks() -> None:
    """Let the C library keep blocks of up to 32 MB for the next array, until `trim_heap`.

    glibc maps each block that is larger than all that it has seen freed, and hands it back at once. The system then
    clears its pages again, in a sixth of the time of a search for codes. In a process that is ours, threads share one
    heap, as far as they have none of their own yet. From the end of those, up to 64 MB each, `trim_heap` takes nothing.
    """
    settle = _of_c_library("mallopt") if is_own_process() else None
    if settle is not None:
        settle(ARENA_MAX, 1)
    np.empty(LARGEST_KEPT, np.uint8)


@cache
def _of_c_library(name: str) -> Callable[..., int] | None:
    try:
        found: Callable[..., int] | None = getattr(ctypes.CDLL(None), name, None)
    except (OSError, TypeError):  # Windows has no such library
        return None
    return found


@contextmanager
def spared_from_collection() -> Iterator[None]:
    """Let collections pass over what there is now: a float model and its plan outlive all variants of it.

    A collection that visits them takes a tenth of a second, and each variant of a large model wants one.
    """
    if gc.get_freeze_count():  # another part of the program wants it to stay so
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextmanager
def gc_disabled() -> Iterator[None]:
    """Switch the cyclic collector off: a graph is all alive, and scanning it over and over costs quadratic time.

    Models of earlier runs count as old, and the collector hardly ever visits old objects by itself. After some runs it
    is told to. Else a program that quantizes thousands of models would run out of open files.
    """
    global _runs  # a fact about the process
    _runs += 1
    if not _runs % MOST_RUNS:
        gc.collect()
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
