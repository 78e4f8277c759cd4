"""Copies of this process share tasks; results do not tell who did what."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import ClassVar

import numpy as np
import pytest

from onnxq.progress import Silent, Work, expect, following, tried
from onnxq.runtime.fork import ahead_in_copy, can_fork, in_copy, run_forked
from onnxq.runtime.ownership import own_process
from onnxq.search.sqnr_evaluator import _Trials
from onnxq.targets import host

linux = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="copies are made on Linux")


@pytest.fixture
def two(monkeypatch):
    """Two processors, in a process that has no other threads than those of the tests' runner."""
    monkeypatch.setattr(host, "_limit", None)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1}, raising=False)
    monkeypatch.setattr(threading, "enumerate", lambda: [threading.main_thread()])
    monkeypatch.setattr(threading, "current_thread", threading.main_thread)
    with own_process():
        yield


def squared(number):
    time.sleep(0.02)
    return os.getpid(), np.full((3, number + 1), number) ** 2


@linux
def test_tasks_are_shared_and_their_results_in_order(two):
    assert can_fork()
    found = run_forked(squared, range(12))
    assert len({process for process, _ in found}) == 2
    for number, (_, array) in enumerate(found):
        np.testing.assert_array_equal(array, np.full((3, number + 1), number) ** 2)
        array += 1  # results are ours to change


@linux
def test_without_tasks_nothing_is_started(two):
    assert run_forked(squared, []) == []


def test_large_arrays_come_back_as_they_were(two):
    def made(number):
        return os.getpid(), {"large": np.arange(200_000, dtype=np.float64) * number, "text": "ü", "none": None}

    for number, (_, result) in enumerate(run_forked(made, range(6))):
        np.testing.assert_array_equal(result["large"], np.arange(200_000, dtype=np.float64) * number)
        assert result["text"] == "ü"
        assert result["none"] is None


@linux
def test_it_says_how_many_are_done(two):
    told = []
    run_forked(squared, range(9), done=lambda done, total: told.append((done, total)))
    assert told[-1] == (9, 9)
    assert told == sorted(told)


@linux
def test_what_is_told_is_followed_and_tasks_are_not(two):
    class Listener(Silent):
        heard: ClassVar[list[int]] = []

        def progress(self, done, total):
            self.heard.append(done)

    def task(number):
        tried()
        return number

    with following(Listener()) as progress:
        progress.step("rescale")
        run_forked(task, range(5), done=_Trials().tell)
    assert Listener.heard == [1, 2, 3, 4, 5]


@linux
def test_an_error_in_a_copy_is_raised_here(two):
    here = os.getpid()

    def fails(number):
        time.sleep(0.02)
        if number == 1:
            raise ValueError(f"task {number} of {'the first' if os.getpid() == here else 'a copy'}")
        return number

    with pytest.raises(ValueError, match="task 1 of the first"):
        run_forked(fails, range(4))


@linux
def test_of_several_errors_the_first_task_tells(two):
    def fails(number):
        time.sleep(0.02 * (3 - number))
        raise ValueError(f"task {number}")

    with pytest.raises(ValueError, match="task 0"):
        run_forked(fails, range(3))


@linux
def test_what_a_killed_copy_had_to_do_is_done_here(two):
    here = os.getpid()

    def dies(number):
        time.sleep(0.02)
        if os.getpid() != here and number > 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return number

    assert run_forked(dies, range(8)) == list(range(8))


@linux
def test_an_interrupt_ends_all_copies(two, monkeypatch):
    here, fork, copies = os.getpid(), os.fork, []

    def counted():
        process = fork()
        copies.append(process)
        return process

    def waits(number):
        if os.getpid() != here:
            time.sleep(60)
        time.sleep(0.1)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fork", counted)
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_forked(waits, range(4))
    assert time.monotonic() - started < 10
    assert copies
    for process in copies:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


@linux
def test_what_a_task_changes_stays_in_its_copy(two):
    changed = []
    with in_copy(lambda: changed.append(1) or os.getpid()) as result:
        assert result() != os.getpid()
    assert not changed


@linux
def test_the_time_that_a_copy_is_waited_for_is_work_of_its_kind(two):
    with following(None) as progress:
        progress.step("trial")
        expect([Work("trial", "ranges", 1.0)])
        with in_copy(lambda: 3, kind="ranges") as result:
            assert result() == 3
    assert progress.left == 0


@linux
def test_a_copy_that_fails_is_replaced_by_this_process(two):
    here = os.getpid()

    def only_here():
        if os.getpid() != here:
            os.kill(os.getpid(), signal.SIGKILL)
        return "done"

    with in_copy(only_here) as result:
        assert result() == "done"


@linux
@pytest.mark.parametrize("refused", ["fork", "memfd_create"])
def test_a_system_that_refuses_copies_is_no_error(two, monkeypatch, refused):
    def refuses(*_):
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(os, refused, refuses)
    assert {process for process, _ in run_forked(squared, range(3))} == {os.getpid()}
    with in_copy(os.getpid) as result:
        assert result() == os.getpid()
    with ahead_in_copy(lambda: iter([os.getpid()])) as produced:
        assert list(produced) == [os.getpid()]


@linux
def test_what_a_copy_produces_comes_in_order(two):
    with ahead_in_copy(lambda: ((os.getpid(), np.full(30_000, number)) for number in range(9))) as produced:
        found = list(produced)
    assert len({process for process, _ in found} - {os.getpid()}) == 1
    assert [array.tolist() for _, array in found] == [[number] * 30_000 for number in range(9)]


@linux
@pytest.mark.parametrize("last", [0, 5])
def test_what_a_copy_did_not_produce_is_produced_here(two, last):
    here = os.getpid()

    def produce():
        for number in range(9):
            if os.getpid() != here and number == last:
                os.kill(os.getpid(), signal.SIGKILL)
            yield number

    with ahead_in_copy(produce) as produced:
        assert list(produced) == list(range(9))


@linux
def test_an_error_of_what_is_produced_is_raised_at_its_place(two):
    def produce():
        yield 1
        raise ValueError("no second one")

    with ahead_in_copy(produce) as produced:
        assert next(produced) == 1
        with pytest.raises(ValueError, match="no second one"):
            next(produced)


@linux
def test_a_copy_ends_when_no_more_is_asked_for(two):
    with ahead_in_copy(lambda: ((os.getpid(), bytes(1 << 20)) for _ in range(100))) as produced:
        process, _ = next(produced)
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


@linux
def test_a_copy_starts_none_of_its_own(two):
    def inner(number):
        return can_fork()

    with in_copy(can_fork) as result:
        assert result() is False
    assert run_forked(inner, range(2)) == [False, False]


@pytest.mark.parametrize("reason", ["foreign", "thread", "one processor"])
def test_without_copies_the_same_is_done_here(two, monkeypatch, reason):
    if reason == "foreign":
        monkeypatch.setattr("onnxq.runtime.fork.is_own_process", lambda: False)
    elif reason == "thread":
        monkeypatch.setattr(threading, "enumerate", lambda: [threading.main_thread(), threading.Thread()])
    else:
        monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0}, raising=False)
    assert not can_fork()
    assert {process for process, _ in run_forked(squared, range(3))} == {os.getpid()}
    with in_copy(os.getpid) as result:
        assert result() == os.getpid()
    with ahead_in_copy(lambda: iter([os.getpid()])) as produced:
        assert list(produced) == [os.getpid()]
    left = 1 if reason == "one processor" else 2  # for threads
    assert run_forked(lambda _: host.available_processors(), range(2)) == [left, left]
    with in_copy(host.available_processors) as result:
        assert result() == left


@linux
@pytest.mark.parametrize("first", [True, False])
def test_a_process_without_tasks_lends_its_processor(two, first):
    """The process that takes longer, the first one or a copy of it, has both when the other is done."""
    here, begun = os.getpid(), time.monotonic()

    def left(waits):
        found, is_first = [host.available_processors()], os.getpid() == here
        time.sleep(0.1)
        while is_first == waits and found[-1] == 1 and time.monotonic() < begun + 10:
            found.append(host.available_processors())
        return is_first, found[0], found[-1]

    assert sorted(run_forked(left, [first] * 2)) == [(False, 1, 1 if first else 2), (True, 1, 2 if first else 1)]
    with in_copy(lambda: left(False)) as result:
        time.sleep(0.1)
        assert result() == (False, 1, 2)
