"""Threads for element-wise work: NumPy releases the GIL in its loops, so a second thread helps once data are large.

Tests: `tests/ops/test_quantized_properties.py`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache

from onnxq.targets.host import available_processors

MAX_THREADS = 4
"""Element-wise kernels are bound by memory; more threads than this gain nothing and cost buffers."""

THREAD_WORTH = 1 << 19
"""Elements below which waking a thread costs more than it saves (waking: about 50 µs; half a pass over 2**19: 80)."""


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=MAX_THREADS, thread_name_prefix="onnxq-kernel")


# Threads do not survive a fork: the child makes its own pool when it needs one.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)


def threads_available() -> int:
    """Return how many threads a kernel may use: the processors this process may run on, at most `MAX_THREADS`."""
    return min(available_processors(), MAX_THREADS)


def spread(task: Callable[[int, int], None], steps: int, elements: int) -> None:
    """Run `task(first, last)` over `range(steps)`, cut into one contiguous part per thread when that pays.

    Args:
        task: Does the steps `first` to `last - 1`; parts must not write to the same memory.
        steps: Number of steps.
        elements: Number of elements in all of them together.

    """
    workers = min(threads_available(), steps) if elements >= THREAD_WORTH else 1
    if workers <= 1:
        task(0, steps)
        return
    cuts = [steps * part // workers for part in range(workers + 1)]
    futures = [_pool().submit(task, cuts[part], cuts[part + 1]) for part in range(1, workers)]
    task(cuts[0], cuts[1])
    for future in futures:
        future.result()
