"""When memory is given back: graphs that were tried, and what the C library keeps of what was freed.

Tests: `tests/pipeline/test_offload.py`.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

from onnxq.ir import Model

HEAVY = 8 << 20  # bytes from which on copies of weights, and other memory, are not left lying about


def collect_garbage(model: Model) -> None:
    """Let go of variants of a model that were tried: nodes and values hold each other, and new weights with them.

    While the collector is off, somebody has to. Of a small model they are not worth the time.
    """
    if model.weight_bytes >= HEAVY:
        gc.collect()
        trim_heap(model.weight_bytes)


def trim_heap(freed: int) -> None:
    """Hand freed bytes back to the system where the C library keeps them; not if they are few.

    glibc keeps blocks of up to 32 MB, such as weights of sessions and second moments, in heaps of each thread, where
    they lie idle while something else takes more.
    """
    trim = _trim()
    if trim is not None and freed >= HEAVY:
        trim(0)


@cache
def _trim() -> Callable[[int], int] | None:
    try:
        found: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
    except (OSError, TypeError):  # Windows has no such library
        return None
    return found


@contextmanager
def gc_disabled() -> Iterator[None]:
    """Switch the cyclic collector off: a graph is all alive, and scanning it over and over costs quadratic time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
