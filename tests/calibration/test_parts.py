"""Statistics of parts of the samples: those of all samples, whoever measured them."""

from __future__ import annotations

import os
import pickle
import threading
from contextlib import contextmanager

import numpy as np
import pytest
from helpers import build, node, typed

from onnxq.calibration import calibrate as calibrate_module
from onnxq.calibration import parts
from onnxq.calibration.calibrate import calibrate
from onnxq.calibration.layer_moments import MeasuredLayers
from onnxq.calibration.parts import PARTS, calibrate_in_parts, calibrate_sets
from onnxq.calibration.second_moments import InputMoments
from onnxq.calibration.stats import basic_kinds
from onnxq.data.samples import input_specs, wrap_samples
from onnxq.errors import DataError
from onnxq.progress import Progress, following, unfollowed
from onnxq.runtime.ownership import own_process
from onnxq.targets import host

LAYERS = 6


@pytest.fixture(autouse=True)
def little_is_much(monkeypatch):
    monkeypatch.setattr(parts, "LEAST_RUNS", 1)


@pytest.fixture(scope="module")
def model():
    random = np.random.default_rng(3)
    nodes, weights = [], {}
    for at in range(LAYERS):
        weights[f"w{at}"] = (random.standard_normal((6, 6)) / 2).astype(np.float32)
        nodes += [node("MatMul", f"x{at} w{at}", f"h{at}"), node("Relu", f"h{at}", f"x{at + 1}")]
    return typed(build(nodes, {"x0": [1, "n", 6]}, [f"x{LAYERS}"], weights))


def samples(model, count):
    random = np.random.default_rng(count)
    made = [{"x0": random.standard_normal((1, 2 + at % 3, 6)).astype(np.float32)} for at in range(count)]
    return wrap_samples(made, input_specs(model))


def arrays(stats):
    return {
        (name, part.key, what): array
        for name, tensor in stats.tensors.items()
        for part in tensor
        for what, array in part.arrays().items()
    }


def measured(model, data, run=calibrate_in_parts, **settings):
    layers = MeasuredLayers(model.graph.nodes)
    values = [model.graph.values[f"x{at}"] for at in range(LAYERS + 1)]
    return run(model, values, data, kinds=layers.kinds, **settings)


@pytest.mark.parametrize("count", [4, 7, 30])
def test_parts_give_what_one_pass_over_all_samples_gives(model, count):
    whole, cut = (measured(model, samples(model, count), run) for run in (calibrate, calibrate_in_parts))
    assert cut.samples == whole.samples == count
    expected, found = arrays(whole), arrays(cut)
    assert found.keys() == expected.keys()
    for (name, key, what), array in expected.items():
        if key in ("extremes", "histogram", "sample_extremes"):
            np.testing.assert_array_equal(found[name, key, what], array, err_msg=f"{name} {key} {what}")
        else:
            np.testing.assert_allclose(found[name, key, what], array, rtol=1e-12, err_msg=f"{name} {key} {what}")


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="copies are made on Linux")
@pytest.mark.parametrize("moments", [0, PARTS[0][0] + 1])
def test_copies_give_the_same_bytes(model, monkeypatch, moments):
    data = samples(model, 40)
    alone = arrays(measured(model, data, moment_bytes=moments))
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1}, raising=False)
    monkeypatch.setattr(host, "_limit", None)
    monkeypatch.setattr(threading, "enumerate", lambda: [threading.main_thread()])
    monkeypatch.setattr(threading, "current_thread", threading.main_thread)
    with own_process():
        shared = arrays(measured(model, data, moment_bytes=moments))
    assert shared.keys() == alone.keys()
    for key, array in alone.items():
        np.testing.assert_array_equal(shared[key], array, err_msg=str(key))


@pytest.mark.parametrize("shared", [False, True])
def test_several_sets_are_measured_as_each_alone(model, monkeypatch, shared):
    values = [model.graph.values[f"x{at}"] for at in range(LAYERS + 1)]
    sets = [samples(model, count) for count in (30, 3, 8)]
    alone = [arrays(calibrate_in_parts(model, values, one)) for one in sets]
    if shared:
        monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1}, raising=False)
        monkeypatch.setattr(host, "_limit", None)
        monkeypatch.setattr(threading, "enumerate", lambda: [threading.main_thread()])
        monkeypatch.setattr(threading, "current_thread", threading.main_thread)
    with own_process():
        found = [arrays(one) for one in calibrate_sets(model, values, [(one, basic_kinds) for one in sets])]
    for expected, got in zip(alone, found, strict=True):
        assert got.keys() == expected.keys()
        for key, array in expected.items():
            np.testing.assert_array_equal(got[key], array, err_msg=str(key))


def test_parts_make_the_float_model_ready_once(model, monkeypatch):
    """A session of its own for each part took 0.1 s of MiniLM, thirty times."""
    made, before = [], calibrate_module.float_runs

    def counted(*given, **settings):
        made.append(before(*given, **settings))
        return made[-1]

    monkeypatch.setattr(calibrate_module, "float_runs", counted)
    for trial in (False, True):
        made.clear()
        assert measured(model, samples(model, 40), trial=trial).samples == 40
        assert len(made) == 1


def test_a_copy_can_return_statistics(model):
    stats = measured(model, samples(model, 4))
    again = pickle.loads(pickle.dumps(stats.tensors))
    assert InputMoments in again["x0"]


def test_moments_take_samples_in_turn_across_parts(model):
    whole, cut = (measured(model, samples(model, 9), run) for run in (calibrate, calibrate_in_parts))
    for one, two in zip(
        whole["x1"][InputMoments].layers.values(), cut["x1"][InputMoments].layers.values(), strict=True
    ):
        assert [half.rows for half in one.halves] == [half.rows for half in two.halves]


def test_progress_counts_samples(model):
    told = []
    measured(model, samples(model, 10), progress=lambda done, total: told.append((done, total)))
    assert told[0] == (0, 10)
    assert told[-1] == (10, 10)
    assert told == sorted(told)


def test_a_bad_sample_is_named_by_its_place(model):
    made = [{"x0": np.ones((1, 2, 6), np.float32)} for _ in range(8)]
    made[6]["x0"][0, 0, 0] = np.nan
    with pytest.raises(DataError, match=r"samples\[6\]"):
        measured(model, wrap_samples(made, input_specs(model)))


def test_progress_knows_that_parts_are_at_work_and_not_single_samples(model, monkeypatch):
    told = []

    class Told(Progress):
        @contextmanager
        def task(self, kind):
            with super().task(kind) as advance:
                yield lambda done, total: (told.append((done, total)), advance(done, total))

    def shared(function, tasks, *, done, task_bytes):
        found = []
        for task in tasks:
            with unfollowed():  # as in a copy
                found.append(function(task))
            done(len(found), len(tasks))
        return found

    monkeypatch.setattr(parts, "can_fork", lambda: True)
    monkeypatch.setattr(parts, "run_forked", shared)
    with following(Told()):
        measured(model, samples(model, 30))
    assert told == [(done, 4) for done in range(5)]
