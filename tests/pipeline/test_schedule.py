"""The work that a run is expected to do."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import onnx
import pytest
from decoders import optimum_decoder

import onnxq
from onnxq.data.generated_text import generated_text
from onnxq.data.samples import Samples, input_specs, wrap_samples
from onnxq.ir import load
from onnxq.pipeline.schedule import Schedule, _calls
from onnxq.progress import STEPS, Progress, Work
from onnxq.search.budget import LAST_GOAL, Budget
from onnxq.search.held_out import HoldoutSplit
from onnxq.stages.files import open_data
from onnxq.stages.prepare import prepare

SAMPLES = Path(__file__).parents[2] / "sample_models"


def expected(limit: int = 100, *, fast: bool = False, budget: Budget | None = None, known: bool = False) -> list[Work]:
    """List the expected work for a small network."""
    prepared = prepare(load(SAMPLES / "digits_cnn.onnx"), with_data=True, fast=fast)
    data: Samples | None = open_data(prepared.model, [SAMPLES / "digits_calibration.npz"], None, limit)
    assert data is not None
    split = HoldoutSplit(prepared.model, data, 1e4)
    asked = budget or Budget()
    return list(Schedule(prepared, split, asked, with_data=True, with_stats=known, detailed=False).work())


def seconds(work: list[Work], step: str) -> float:
    return sum(one.seconds * one.chance for one in work if one.step == step)


def test_the_steps_come_in_the_order_of_a_run() -> None:
    steps = list(dict.fromkeys(work.step for work in expected()))
    order = ["rescale", "trial", "calibrate", "round", "search", "cross-validate", "correct", "verify", "families"]
    assert steps == order
    assert set(steps) <= STEPS.keys()


def test_calibration_takes_as_long_as_there_are_samples() -> None:
    assert seconds(expected(80), "calibrate") == pytest.approx(2 * seconds(expected(40), "calibrate"))


def test_more_of_the_model_takes_longer_to_evaluate(monkeypatch: pytest.MonkeyPatch) -> None:
    before = expected()
    monkeypatch.setattr("onnxq.pipeline.schedule._windows", lambda node, shapes: 1 << 20)
    assert seconds(expected(), "calibrate") > seconds(before, "calibrate")
    assert seconds(expected(), "trial") == seconds(before, "trial")  # onnxruntime copies no windows


def test_each_step_of_a_recurrent_node_is_a_call() -> None:
    model = load(SAMPLES / "digits_lstm.onnx")
    lstm = next(node for node in model.graph.nodes if node.op_type == "LSTM")
    read = lstm.inputs[0]
    assert read is not None
    directions = 2 if lstm.attribute("direction", "forward") == "bidirectional" else 1
    assert _calls(lstm, {read.name: (40, 1, 8)}) == 40 * directions


def test_statistics_that_are_there_leave_no_calibration() -> None:
    steps = {work.step for work in expected(known=True)}
    assert steps.isdisjoint({"rescale", "trial", "calibrate", "cross-validate"})


def test_copies_of_the_process_share_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = expected()
    monkeypatch.setattr("onnxq.pipeline.schedule.can_fork", lambda: True)
    monkeypatch.setattr("onnxq.pipeline.schedule.worker_count", lambda task_bytes: 2)
    shared = expected()
    for step in ("rescale", "calibrate", "round"):
        assert seconds(shared, step) == pytest.approx(seconds(alone, step) / 1.8)
    biases = [[one.seconds for one in found if one.kind == "biases"] for found in (alone, shared)]
    assert biases[1] == pytest.approx([one / 1.8 for one in biases[0]])  # a copy runs the float model ahead
    trial, together = seconds(alone, "trial"), seconds(shared, "trial")
    assert 0.49 * trial < together < trial  # ranges are tried beside codes, each by one process
    assert [one for one in shared if one.kind == "latency"] == [one for one in alone if one.kind == "latency"]


def test_a_fast_run_tries_nothing() -> None:
    steps = {work.step for work in expected(fast=True)}
    assert steps.isdisjoint({"rescale", "trial", "cross-validate", "correct"})


def test_a_budget_makes_the_search_longer() -> None:
    assert seconds(expected(budget=Budget(min_sqnr=40.0)), "search") > seconds(expected(), "search")


def test_the_poorer_a_result_the_more_is_expected_to_be_tried() -> None:
    limits = [work.below for work in expected() if work.kind == "judge" and work.below is not None]
    trials = [sum(limit > sqnr for limit in limits) for sqnr in (10, 20, 25, 28, 30)]
    assert trials == sorted(trials, reverse=True)
    assert trials[0] >= trials[2] > trials[4] == 0


def test_codes_are_expected_to_be_chosen_again_only_where_a_goal_is_missed() -> None:
    again = [work for work in expected() if (work.step, work.kind) == ("search", "round")]
    assert [work.below for work in again] == [LAST_GOAL]
    assert 0 < again[0].seconds < seconds(expected(), "round")


def test_a_half_that_codes_were_chosen_on_is_not_fitted_again() -> None:
    kinds = [work.kind for work in expected() if work.step == "cross-validate"]
    assert "round" not in kinds


def test_a_decoder_is_expected_to_go_on_with_texts(tmp_path: Path) -> None:
    onnx.save(optimum_decoder(), tmp_path / "m.onnx")
    prepared = prepare(load(tmp_path / "m.onnx"), with_data=True)
    texts = wrap_samples(generated_text(prepared.model)[:6], input_specs(prepared.model))
    split = HoldoutSplit(prepared.model, texts, 1e4)
    work = Schedule(prepared, split, Budget(), with_data=True, with_stats=False, detailed=False).work()
    assert {one.kind for one in work if one.step == "decoding"} == {"latency", "greedy"}


def test_a_plan_that_only_stores_weights_is_expected_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("onnxq.search.trials.small_savings.SMALL", 1e9)
    monkeypatch.setattr("onnxq.search.trials.small_savings.FAR", 1e9)
    told: list[list[Work]] = []

    class Told(Progress):
        def expect(self, work: Iterable[Work]) -> None:
            told.append(list(work))
            super().expect(told[-1])

    data = SAMPLES / "digits_calibration.npz"
    onnxq.quantize(SAMPLES / "digits_cnn.onnx", output=tmp_path / "q.onnx", data=data, observer=Told())
    before, after = told
    assert seconds(after, "trial") < seconds(before, "trial")
