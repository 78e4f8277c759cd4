"""Second moments that are measured segment by segment are those of a whole run, and serve one segment at a time."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
from helpers import build, floats, node
from test_jobs import correlated, measured

from onnxq.calibration.calibrate import calibrate
from onnxq.calibration.im2col import Unfolding
from onnxq.calibration.layer_moments import MeasuredLayers
from onnxq.calibration.stats import Stats
from onnxq.errors import DataError
from onnxq.ir import Model, infer_types, parse
from onnxq.ir.storage.scratch_file import Spool
from onnxq.ir.storage.shelf import Shelf
from onnxq.rounding import gptq, jobs
from onnxq.rounding.by_segments import moments_by_segments
from onnxq.rounding.jobs import RoundingJob, WeightRows, solve_all, solve_in_parts
from onnxq.runtime import segmented
from onnxq.runtime.ort_session import Settings
from onnxq.runtime.segmented import StreamedSession
from onnxq.runtime.session import run_session

GRID = np.float32(0.25)  # sums of such numbers are exact in float32


def tower(count: int = 5) -> Model:
    """Layers one behind the other; two of each read the same."""
    nodes, weights, x = [], {}, "x"
    for at in range(count):
        for name in ("a", "b"):
            weights[f"{name}{at}"] = np.rint(floats(16, 16, seed=2 * at + (name == "b")) * 4) * GRID
            nodes.append(node("MatMul", f"{x} {name}{at}", f"{name}{at}y"))
        nodes += [node("Add", f"a{at}y b{at}y", f"s{at}"), node("Clip", f"s{at} low high", f"x{at}")]
        x = f"x{at}"
    weights |= {"low": np.float32(-1), "high": np.float32(1)}
    nodes.append(node("Identity", x, "y"))
    model = parse(build(nodes, {"x": ["N", 16]}, ["y"], weights).SerializeToString())
    infer_types(model)
    return model


@pytest.fixture
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let segments be of two layers."""
    monkeypatch.setattr(segmented, "SEGMENT", 4096)
    monkeypatch.setattr(segmented, "BESIDE", 256)


def test_moments_are_those_of_a_whole_run(small_segments, tmp_path):
    model, samples = tower(), [{"x": np.rint(floats(12, 16, seed=seed) * 4) * GRID} for seed in range(6)]
    nodes = [one for one in model.graph.nodes if one.op_type == "MatMul"]
    layers = MeasuredLayers(nodes)
    whole = calibrate(model, layers.values, samples, kinds=layers.kinds)
    seen = []
    with Spool(tmp_path) as spool:
        parts = list(moments_by_segments(model, nodes, dict(enumerate(samples)), spool))
    for some, measuring, stats in parts:
        seen += some
        for one in some:
            found, expected = measuring.moments(stats, one), layers.moments(whole, one)
            assert found is not None
            assert expected is not None
            for half, other in zip(found.halves, expected.halves, strict=True):
                assert half.rows == other.rows
                assert np.array_equal(half.sums()[0], other.sums()[0])
    assert seen == nodes
    assert len(parts) > 2, "H of all layers would be in memory together"


def test_moments_of_a_segment_go_without_a_collection(small_segments, tmp_path):
    """A run switches collections off: what holds itself would stay, H of all layers together."""
    model, samples = tower(), [{"x": floats(12, 16)}]
    nodes = [one for one in model.graph.nodes if one.op_type == "MatMul"]
    alive: list[weakref.ref[Stats]] = []
    gc.disable()
    try:
        with Spool(tmp_path) as spool:
            for *_, stats in moments_by_segments(model, nodes, dict(enumerate(samples)), spool):
                alive.append(weakref.ref(stats))
                del stats
        assert len(alive) > 2
        assert sum(one() is not None for one in alive) <= 1
    finally:
        gc.enable()


def test_samples_that_advance_together_give_what_each_gives_alone(small_segments, tmp_path):
    model, samples = tower(), [{"x": floats(3, 16, seed=seed)} for seed in range(4)]
    session = StreamedSession(model, Settings("basic"))
    expected, found = [session.run(["y"], sample)[0] for sample in samples], []

    def look(nodes, values):
        if "y" in values:
            found.append(values["y"])

    with Shelf(tmp_path) as shelf:
        passed = [len(nodes) for nodes in session.run_together(samples, lambda place: run_session, shelf.keep, look)]
    assert sum(passed) == len(model.graph.nodes)
    assert len(passed) > 2
    for one, other in zip(expected, found, strict=True):
        assert np.array_equal(one, other)


def test_a_sample_that_does_not_run_is_named(small_segments, tmp_path):
    model, samples = tower(), {3: {"x": floats(3, 16)}, 7: {"x": floats(3, 15)}}
    with Spool(tmp_path) as spool, pytest.raises(DataError, match="on sample 7, input 'x'"):
        list(moments_by_segments(model, model.graph.nodes[:2], samples, spool))


@pytest.mark.parametrize("axes", [(0,), (1,)])
def test_a_large_weight_gets_the_same_codes_some_channels_at_a_time(axes, monkeypatch):
    x, weight = correlated(3), floats(48, 24, seed=5) if axes == (0,) else floats(24, 48, seed=5)
    job = RoundingJob(WeightRows(weight, axes), measured(x, Unfolding(48)))
    monkeypatch.setattr(gptq, "in_order", lambda _: (1e-2,))  # each part decides how far H is trusted
    whole = solve_all({"": job})[""]
    monkeypatch.setattr(jobs, "TOGETHER", weight.nbytes // 3)
    monkeypatch.setattr(jobs, "FEWEST", 1)
    parts = dict(solve_in_parts({"": job}))[""]
    assert np.array_equal(whole.scales, parts.scales)
    assert np.array_equal(whole.codes, parts.codes)
    assert parts.method == "output error"
