"""Processes that are kept: they do tasks, tell of them, fail by name, and none is left behind."""

from __future__ import annotations

import operator
import os
import pickle
import signal
import subprocess
import sys
import time
from concurrent.futures import CancelledError
from pathlib import Path

import pytest

from onnxq.errors import DataError
from onnxq.runtime import processes
from onnxq.runtime.processes import ProcessEnded, Processes
from onnxq.targets import host


def test_a_process_does_one_task_after_another() -> None:
    with Processes(1) as pool:
        first, second = pool.submit(os.getpid), pool.submit(os.getpid)
        assert pool.submit(operator.add, 2, 3).result() == 5
    assert first.result() == second.result() != os.getpid()
    with pytest.raises(ProcessLookupError):
        os.kill(first.result(), 0)


def test_what_a_task_tells_is_heard() -> None:
    heard: list[object] = []
    with Processes(1, hear=heard.append) as pool:
        pool.submit(processes.tell, (3, "samples")).result()
    processes.tell("nobody listens in this process")
    assert heard == [(3, "samples")]


def test_a_process_has_its_share_of_the_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "available_processors", lambda: 4)
    with Processes(1, sharers=2) as pool:
        assert pool.submit(host.processor_limit).result() == 2


def test_an_error_of_ours_comes_back_with_its_hint() -> None:
    with Processes(1) as pool:
        failing = pool.submit(fail_task)
        with pytest.raises(DataError, match="no such sample") as error:
            failing.result()
        assert error.value.hint == "Count again."
        assert pool.submit(operator.add, 1, 1).result() == 2


def test_a_process_that_ends_is_named_by_its_code_and_replaced() -> None:
    with Processes(1) as pool:
        killed = pool.submit(os._exit, 7)
        with pytest.raises(ProcessEnded) as error:
            killed.result()
        assert error.value.code == 7
        assert pool.submit(operator.add, 1, 1).result() == 2


def test_an_interrupt_ends_the_task_at_work_and_drops_the_rest() -> None:
    pool = Processes(1)
    working, waiting = pool.submit(time.sleep, 60), pool.submit(time.sleep, 60)
    started = time.monotonic()
    while not working.running() and time.monotonic() < started + 30:
        time.sleep(0.01)
    pool.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    with pytest.raises(ProcessEnded):
        working.result(timeout=30)
    with pytest.raises((CancelledError, ProcessEnded)):
        waiting.result(timeout=30)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for a process under /proc")
def test_a_task_ends_when_its_run_is_killed() -> None:
    code = (
        "import os, time; from onnxq.runtime.processes import Processes; pool = Processes(1)\n"
        "print(pool.submit(os.getpid).result(), flush=True); pool.submit(time.sleep, 60).result()"
    )
    run = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert run.stdout is not None
    worker = int(run.stdout.readline())
    time.sleep(0.2)
    run.send_signal(signal.SIGKILL)
    run.wait()
    run.stdout.close()
    ends = time.monotonic() + 30
    stat = Path(f"/proc/{worker}/stat")
    while _alive(stat) and time.monotonic() < ends:
        time.sleep(0.05)
    assert not _alive(stat)


def test_a_process_ends_with_a_run_that_is_killed_while_it_gives_a_task() -> None:
    command = [sys.executable, "-c", processes.START]
    worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)
    assert worker.stdin is not None
    given = [pickle.dumps(one) for one in (sys.path, processes._Share(1, None, ()), (time.sleep, (60,), {}))]
    worker.stdin.write(b"".join(given)[:-5])
    worker.stdin.close()
    try:
        assert worker.wait(timeout=30) == 0
    finally:
        worker.kill()
        worker.wait()


def _alive(stat: Path) -> bool:
    try:
        return stat.read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def fail_task() -> None:
    """Fail as a task does; other processes import it by name."""
    raise DataError("no such sample", "Count again.")
