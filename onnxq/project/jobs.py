"""Build the models of a project in several processes at a time.

Each process has its share of the processors, so that onnxruntime and NumPy do not start more threads than there are.
The files do not depend on the number of jobs, nor on the order in which they end.

Tests: `tests/project/test_project_jobs.py`.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from concurrent.futures import Future, as_completed

from onnxq.data.remote import share_fetched
from onnxq.errors import ModelError
from onnxq.project.entry import Entry
from onnxq.project.outcome import Built, up_to_date
from onnxq.runtime.memory import memory_limit
from onnxq.runtime.processes import ProcessEnded, Processes

# Memory of a build: a constant, and a factor for each byte of the model's file; see `docs/benchmarks/time.md`
BUILD_BYTES, BYTES_PER_BYTE = 400 << 20, 8


def build_in_jobs(
    entries: Sequence[Entry], jobs: int, *, force: bool = False, done: Callable[[Built], None] | None = None
) -> list[Built]:
    """Build models in processes of their own; one that fails does not keep the others from being built.

    Args:
        entries: The models.
        jobs: How many to build at a time, fewer where `limit_memory` leaves room for fewer; those that are up to date
            take no process.
        force: Build those that are up to date as well.
        done: Told what became of each model, in the order in which they end.

    Returns:
        What became of each model, in the order of `entries`.

    """
    found: dict[int, Built] = {}

    def note(at: int, built: Built) -> None:
        found[at] = built
        if done is not None:
            done(built)

    def size(at: int) -> int:
        """Tell large models, which take longest: at the end, one of them would keep a single process busy."""
        source = entries[at].source
        return source.stat().st_size if source.is_file() else 0

    for at, entry in enumerate(entries):
        if not force and (settled := up_to_date(entry)) is not None:
            note(at, settled)
    stale = [at for at in range(len(entries)) if at not in found]
    jobs = _as_memory_allows(min(jobs, len(stale)), [entries[at] for at in stale])
    if stale:
        with Processes(jobs, variables=share_fetched()) as processes:
            running = {processes.submit(_build_one, entries[at]): at for at in sorted(stale, key=size, reverse=True)}
            for future in as_completed(running):
                note(running[future], _result(future, entries[running[future]]))
    return [found[at] for at in range(len(entries))]


def _as_memory_allows(jobs: int, entries: Sequence[Entry]) -> int:
    """Return how many of the largest models may be built at a time; one at least."""
    most = memory_limit()
    if most is not None:
        largest = max((entry.source.stat().st_size for entry in entries if entry.source.is_file()), default=0)
        jobs = min(jobs, most // (BUILD_BYTES + BYTES_PER_BYTE * largest))
    return max(jobs, 1)


def _build_one(entry: Entry) -> Built:
    """Build a model in a process of `Processes`."""
    from onnxq.project.build import build  # with all that quantizes, which the process that asks does without

    return next(build([entry], force=True))


def _result(future: Future[Built], entry: Entry) -> Built:
    """Return what became of a model, whose process may have died."""
    try:
        return future.result()
    except ProcessEnded as ended:
        if ended.code is None:
            return Built(entry, "failed", error=ModelError("the build was interrupted"))
        how = f"with code {ended.code}" if ended.code >= 0 else f"by a signal ({_name(-ended.code)})"
        message = f"{entry.quantized}: the process that built it ended {how}"
        return Built(entry, "failed", error=ModelError(message, "Build with --jobs 1 to see what happens."))


def _name(number: int) -> str:
    """Return words for a signal, such as `segmentation fault`."""
    return (signal.strsignal(number) or str(number)).lower()
