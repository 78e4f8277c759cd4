"""Tasks at a time: order, one processor each, no more than memory allows, and nothing left behind an error."""

from __future__ import annotations

import gc
import os
import platform
import subprocess
import sys
import threading
import time
import warnings
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import onnx
import pytest
from helpers import build, floats, node

import onnxq
from onnxq.ir import Model
from onnxq.progress import Progress, following, working
from onnxq.runtime import memory, workers
from onnxq.runtime.workers import run_in_order, worker_count
from onnxq.targets import host


@pytest.fixture(params=[1, 2, 3])
def processors(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(host.os, "sched_getaffinity", lambda _: set(range(request.param)), raising=False)
    return int(request.param)


def test_results_come_in_order_whichever_task_ends_first(processors: int) -> None:
    def late(number: int) -> int:
        time.sleep(0.02 if number % 3 == 0 else 0)
        return number

    assert list(run_in_order(late, range(10))) == list(range(10))


def test_so_many_run_at_a_time_and_each_has_one_processor(processors: int) -> None:
    running, most, lock = 0, 0, threading.Lock()

    def task(_: int) -> tuple[int, int, int]:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.01)
        with lock:
            running -= 1
        return host.available_processors(), host.processor_limit(), worker_count()

    assert set(run_in_order(task, range(9))) == {(1, 1, 1)}
    assert most <= processors
    assert host.available_processors() == processors  # here nothing has changed


def test_tasks_are_made_as_they_are_needed(processors: int) -> None:
    tasks = iter(range(100))
    results = run_in_order(lambda task: task, tasks)
    assert [next(results), next(results)] == [0, 1]
    assert next(tasks) <= processors + 2
    results.close()


def test_tasks_run_side_by_side_once_others_lend_their_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host.os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    monkeypatch.setattr(host, "_limit", None)
    lent, both = [1], threading.Barrier(2, timeout=10)

    def task(number: int) -> int:
        if number >= 2:
            both.wait()  # for a task that runs at the same time
        elif number == 1:
            lent[0] = 2
        return number

    with host.lent_processors(lambda: lent[0]):
        assert list(run_in_order(task, range(6))) == list(range(6))


def test_an_error_is_raised_in_place_of_the_result(processors: int) -> None:
    done: list[float] = []
    with pytest.raises(ZeroDivisionError):
        done.extend(run_in_order(lambda number: 1 / number, [4, 2, 0, 1]))
    assert done == [0.25, 0.5]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("onnxq-task")]


def test_the_error_state_of_numpy_goes_along(processors: int) -> None:
    with warnings.catch_warnings(), np.errstate(divide="ignore"):
        warnings.simplefilter("error")
        assert [float(x) for x in run_in_order(lambda x: np.float32(x) / np.float32(0), [1, 2])] == [np.inf, np.inf]


def test_memory_allows_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host.os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(workers, "room_left", lambda: 1000)
    assert [worker_count(), worker_count(100), worker_count(300), worker_count(999), worker_count(5000)] == [
        8, 8, 3, 1, 1,
    ]  # fmt: skip
    monkeypatch.setattr(workers, "room_left", lambda: None)
    assert worker_count(5000) == 8


def test_room_is_what_the_process_has_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "resident_bytes", lambda: 600)
    assert memory.room_left() is None
    monkeypatch.setattr(memory, "_limit", 1000)
    assert memory.room_left() == 400
    monkeypatch.setattr(memory, "_limit", 500)
    assert memory.room_left() == 0


def test_variants_are_collected_once_they_have_taken_some_room(monkeypatch: pytest.MonkeyPatch) -> None:
    heavy = SimpleNamespace(weight_bytes=memory.HEAVY)
    sizes, collected = iter([100, 110, 120, 131, 105, 110, 90, 95]), []
    monkeypatch.setattr(memory, "resident_bytes", lambda: next(sizes))
    monkeypatch.setattr(memory, "_collected", 0)
    monkeypatch.setattr(memory.gc, "collect", lambda: collected.append(None))
    counts = []
    for room in (30, 30, 30, 30, 30, 0):
        memory.collect_garbage(cast(Model, heavy), room=room)
        counts.append(len(collected))
    assert counts == [1, 1, 1, 2, 2, 3]
    assert memory._collected == 95


def test_tasks_leave_progress_to_the_thread_that_waits(processors: int) -> None:
    def task(number: int) -> int:
        with working("judge") as advance:
            advance(1, 1)
        return number

    with following(None) as progress:
        assert isinstance(progress, Progress)
        assert list(run_in_order(task, range(4))) == [0, 1, 2, 3]


def test_running_tasks_end_between_their_parts_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host.os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    parts: list[int] = []

    def task(number: int) -> int:
        if number == 0:
            time.sleep(0.05)
            raise KeyboardInterrupt
        for part in run_in_order(lambda part: time.sleep(0.02) or part, range(500)):
            parts.append(part)
        return number

    with pytest.raises(KeyboardInterrupt):
        list(run_in_order(task, [0, 1]))
    assert len(parts) < 400


def test_collections_pass_over_what_outlives_all_variants() -> None:
    class Cycle:
        def __init__(self) -> None:
            self.itself = self

    gc.unfreeze()  # the tests themselves
    before = Cycle()
    kept = weakref.ref(before)
    del before
    with memory.spared_from_collection():
        made = Cycle()
        variant = weakref.ref(made)
        del made
        gc.collect()
        seen = kept() is None, variant() is None
    assert seen == (False, True)
    assert gc.get_freeze_count() == 0
    gc.collect()
    assert kept() is None
    gc.freeze()


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="Linux lists the open files of a process")
def test_runs_without_end_leave_a_bounded_number_of_files_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "MOST_RUNS", 3)
    source = tmp_path / "product.onnx"
    onnx.save(build([node("MatMul", "x w", "y")], {"x": [2, 64]}, ["y"], {"w": floats(64, 64)}), source)
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3 * memory.MOST_RUNS):
        onnxq.quantize(source, "weight-int8", output=tmp_path / "out.onnx", fast=True, force=True)
    assert len(os.listdir("/proc/self/fd")) - before < 2 * memory.MOST_RUNS


ONE_HEAP = """
import threading
import numpy as np
from onnxq.runtime.memory import keep_freed_blocks, resident_bytes, trim_heap
from onnxq.runtime.ownership import own_process
with own_process():
    keep_freed_blocks()
before = resident_bytes()
def work():
    blocks = [np.ones(1 << 17) for _ in range(48)]  # 1 MB each
threads = [threading.Thread(target=work) for _ in range(3)]
for thread in threads: thread.start()
for thread in threads: thread.join()
trim_heap(1 << 30)
print((resident_bytes() - before) >> 20)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have heaps of other kinds")
def test_what_threads_have_freed_goes_back_to_the_system() -> None:
    """Heaps of their own kept up to 64 MB for each thread: 118 MB of a decoder's run."""
    left = subprocess.run([sys.executable, "-c", ONE_HEAP], capture_output=True, text=True, check=True).stdout
    assert int(left) < 16
