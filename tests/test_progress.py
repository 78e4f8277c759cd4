"""The estimate of the time that a run still takes, and what observers are told."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from onnxq.pipeline.quantize import quantize
from onnxq.progress import STEPS, Progress, Work, expect, following, tried, working

SAMPLES = Path(__file__).parents[1] / "sample_models"


class Clock:
    """A clock that stands still until it is set."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Listener:
    """Remembers what it is told."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.told: list[tuple[str, int, int | None]] = []

    def step(self, name: str) -> None:
        self.steps.append(name)

    def progress(self, done: int, total: int | None) -> None:
        self.told.append((self.steps[-1], done, total))


def test_nothing_is_estimated_before_work_is_expected() -> None:
    progress = Progress(clock=Clock())
    assert progress.left is None
    assert progress.share == 0.0


def test_measured_work_prices_what_is_left_of_its_kind_and_of_others() -> None:
    clock = Clock()
    with following(Progress(clock=clock)) as progress:
        expect([Work("search", "judge", 1.0), Work("search", "judge", 1.0), Work("verify", "compare", 2.0)])
        assert progress.left == pytest.approx(4.0)
        progress.step("search")
        with working("judge"):
            clock.now = 3.0
        assert progress.left == pytest.approx(9.0, rel=0.3)
        assert progress.share == pytest.approx(0.25, rel=0.3)


def test_a_share_goes_on_slowly_where_more_is_left_than_was_expected() -> None:
    clock = Clock()
    progress = Progress(clock=clock)
    progress.expect([Work("search", "judge", 10.0)])
    progress.step("search")
    with progress.task("judge"):
        clock.now = 5.0
        assert progress.share == pytest.approx(0.5)
        progress.expect([Work("search", "judge", 30.0)])
        shares = []
        for _ in range(400):
            clock.now += 0.1
            shares.append(progress.share)
    assert all(0 < later - earlier < 0.01 for earlier, later in pairwise(shares) if later < 0.9)
    assert shares[-1] < 1


def test_what_goes_by_before_a_task_is_of_that_task() -> None:
    clock = Clock()
    with following(Progress(clock=clock)) as progress:
        expect([Work("rescale", "judge", 4.0), Work("verify", "compare", 2.0)])
        progress.step("rescale")
        clock.now = 1.0
        assert progress.left == pytest.approx(5.0)
        clock.now = 9.0
        assert progress.left == pytest.approx(2.0, rel=0.1)


def test_samples_of_a_trial_are_no_trials() -> None:
    listener = Listener()
    with following(Progress(listener, clock=Clock())) as progress:
        progress.step("rescale")
        progress.progress(64, 64)
        tried()
        progress.progress(32, 64)
        assert (progress.done, progress.total) == (1, None)
    assert listener.told == [("rescale", 1, None)]


def test_a_step_that_begins_ends_what_was_expected_of_those_before() -> None:
    with following(Progress(clock=Clock())) as progress:
        expect([Work("search", "judge", 5.0), Work("verify", "compare", 2.0)])
        progress.step("verify")
        assert progress.left == pytest.approx(2.0)


def test_work_that_may_not_come_counts_by_its_chance() -> None:
    with following(Progress(clock=Clock())) as progress:
        expect([Work("search", "judge", 4.0, 0.25), Work("search", "compare", 1.0)])
        assert progress.left == pytest.approx(2.0)


def test_work_for_poor_results_is_expected_once_they_are_known() -> None:
    for sqnr, left in ((30.0, 1.0), (15.0, 5.0)):
        progress = Progress(clock=Clock())
        progress.expect([Work("search", "judge", 4.0, 0.25, below=20.0), Work("verify", "compare", 1.0)])
        assert progress.left == pytest.approx(2.0)
        progress.judged(sqnr)
        assert progress.left == pytest.approx(left)


def test_the_speed_of_the_computer_is_learnt_before_the_prices_of_kinds() -> None:
    clock = Clock()
    progress = Progress(clock=clock)
    progress.expect([Work("search", "judge", 2.0), Work("verify", "compare", 8.0)])
    progress.step("search")
    with progress.task("judge"):
        clock.now += 6.0  # three times as slow
    assert progress.left is not None
    assert 8.0 * 2 < progress.left < 8.0 * 3


def test_parts_of_a_task_count_as_they_are_done() -> None:
    clock = Clock()
    with following(Progress(clock=clock)) as progress:
        expect([Work("verify", "compare", 10.0)])
        progress.step("verify")
        with working("compare") as advance:
            clock.now = 9.0
            advance(9, 10)
            assert progress.left == pytest.approx(1.0, rel=0.05)


def test_within_large_parts_the_clock_says_how_far_a_task_is() -> None:
    clock = Clock()
    with following(Progress(clock=clock)) as progress:
        expect([Work("calibrate", "measure", 10.0)])
        progress.step("calibrate")
        with working("measure") as advance:
            advance(0, 2)
            progress.progress(0, 40)
            for clock.now in (2.0, 5.0, 8.0):
                assert progress.left == pytest.approx(10.0 - clock.now, rel=0.05)


def test_a_task_that_takes_longer_than_expected_leaves_a_little() -> None:
    clock = Clock()
    with following(Progress(clock=clock)) as progress:
        expect([Work("round", "round", 1.0)])
        progress.step("round")
        with working("round"):
            clock.now = 50.0
            assert progress.left is not None
            assert 0 < progress.left < 1


def test_the_share_never_falls() -> None:
    clock = Clock()
    with following(Progress(clock=clock)) as progress:
        expect([Work("search", "judge", 1.0)])
        progress.step("search")
        clock.now = 1.0
        before = progress.share
        expect([Work("search", "judge", 100.0)])
        assert progress.share == before > 0


def test_work_outside_a_run_is_told_nobody() -> None:
    with working("judge") as advance:
        advance(1, 2)
    tried()
    expect([Work("search", "judge", 1.0)])


def test_an_observer_is_told_of_every_step_and_of_what_it_counts(tmp_path: Path) -> None:
    listener = Listener()
    data = SAMPLES / "digits_calibration.npz"
    quantize(SAMPLES / "digits_cnn.onnx", output=tmp_path / "q.onnx", data=data, sample_limit=16, observer=listener)
    assert [name for name in listener.steps if name not in STEPS] == []
    assert listener.steps[0] == "load"
    assert listener.steps[-1] == "save"
    silent = {name for name, words in STEPS.items() if not words.unit}
    assert {step for step, *_ in listener.told} & silent == set()
    assert ("calibrate", 16, 16) in listener.told
    assert ("verify", 16, 16) in listener.told
    assert any(step == "round" and done == total for step, done, total in listener.told)
    assert any(step == "trial" and total is None for step, _, total in listener.told)


def test_the_steps_take_all_the_time_of_a_run(tmp_path: Path) -> None:
    progress = Progress()
    quantize(SAMPLES / "digits_cnn.onnx", "dynamic-int8", output=tmp_path / "q.onnx", observer=progress)
    assert sum(seconds for _, seconds in progress.seconds()) <= progress.elapsed
    assert progress.share > 0.9
