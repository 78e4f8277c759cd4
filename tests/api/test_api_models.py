"""Every function takes a model as a path, as a ModelProto and loaded, and says the same of it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers import build, floats, node

import onnxq


def proto() -> onnx.ModelProto:
    nodes = [node("MatMul", "x w", "h", name="first"), node("Relu", "h", "r"), node("MatMul", "r v", "y", name="last")]
    weights = {"w": floats(64, 64) / 8, "v": floats(64, 64, seed=2) / 8}
    return build(nodes, {"x": ["n", 64]}, weights=weights)


SAMPLES = [{"x": floats(4, 64, seed=seed)} for seed in range(20)]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    onnx.save(proto(), "m.onnx")
    return tmp_path


@pytest.fixture(scope="module")
def report() -> onnxq.Report:
    return onnxq.quantize(proto(), "static-int8", samples=SAMPLES, fast=True)


def test_a_proto_gives_a_proto_and_no_file(here: Path) -> None:
    report = onnxq.quantize(proto(), "static-int8", samples=SAMPLES, fast=True)
    assert [path.name for path in here.iterdir()] == ["m.onnx"]
    assert (report.output, report.files) == (None, ())
    assert report.output_bytes == len(report.model.SerializeToString())
    assert report.source_bytes == len(proto().SerializeToString())
    assert "QuantizeLinear" in {each.op_type for each in report.model.graph.node}
    assert report.as_dict()["source"]["path"] == "the model"


@pytest.mark.parametrize("given", ["path", "proto", "loaded"])
def test_the_result_does_not_depend_on_how_a_model_is_given(here: Path, given: str, report: onnxq.Report) -> None:
    source: Any = {"path": "m.onnx", "proto": proto(), "loaded": onnxq.load("m.onnx")}[given]
    made = onnxq.quantize(source, "static-int8", samples=SAMPLES, fast=True, output="q.onnx")
    assert made.output == Path("q.onnx")
    assert made.model.graph == report.model.graph == onnx.load("q.onnx").graph


def test_a_report_outlives_the_file_that_it_is_about(here: Path) -> None:
    report = onnxq.quantize("m.onnx", "static-int8", samples=SAMPLES, fast=True, output="q.onnx")
    size = Path("q.onnx").stat().st_size
    Path("q.onnx").unlink()
    assert report.output_bytes == report.as_dict()["output"]["bytes"] == size


def test_times_go_where_a_name_says_and_again_with_force(here: Path) -> None:
    timing = onnxq.Timing(benchmark=True, path="t.json")  # type: ignore[arg-type]
    onnxq.quantize("m.onnx", samples=SAMPLES, fast=True, timing=timing)
    onnxq.quantize("m.onnx", samples=SAMPLES, fast=True, timing=timing, force=True)
    with pytest.raises(onnxq.OutputError, match=r"t\.json exists already"):
        onnxq.quantize("m.onnx", samples=SAMPLES, fast=True, timing=timing, output="other.onnx")


def test_settings_about_files_are_refused_where_samples_are_given(here: Path) -> None:
    with pytest.raises(onnxq.DataError, match="state says how data are read, but samples are given as they are"):
        onnxq.quantize("m.onnx", samples=SAMPLES, reading=onnxq.Reading(state="y=x"))


def test_a_loaded_model_stays_as_it_is(here: Path) -> None:
    loaded = onnxq.load("m.onnx")
    onnxq.quantize(loaded, "static-int8", samples=SAMPLES, fast=True)
    onnxq.plan(loaded)
    assert loaded.serialize() == Path("m.onnx").read_bytes()


def test_looking_functions_take_protos(here: Path, report: onnxq.Report) -> None:
    assert onnxq.inspect(proto()).operators == onnxq.inspect("m.onnx").operators
    assert onnxq.inspect(proto()).file_bytes == onnxq.inspect("m.onnx").file_bytes
    assert onnxq.plan(proto()).counts() == onnxq.plan("m.onnx").counts()
    assert [one.node.name for one in onnxq.explain(proto(), "first")] == ["first"]
    assert not onnxq.why_not(proto(), "fold_add_into_conv", "first").applies
    assert [spec.name for spec in onnxq.input_specs(proto())] == ["x"]
    assert onnxq.examine(proto(), samples=SAMPLES).samples == 80
    assert onnxq.prepare(proto(), with_data=True).plan.decisions
    assert onnxq.read_fusion(report.model).kernels
    stats = onnxq.calibrate(proto(), samples=SAMPLES, recipe="static-int8")
    assert stats is not None
    assert onnxq.quantize(proto(), "static-int8", stats=stats, fast=True).counts()["static-int8"] >= 2


def test_comparing_functions_take_protos(report: onnxq.Report) -> None:
    quantized = report.model
    assert onnxq.compare(proto(), quantized, SAMPLES).worst_sqnr > 20
    assert len(onnxq.compare_layers(proto(), quantized, SAMPLES)) == 3
    found = onnxq.verify(quantized, proto(), samples=SAMPLES)
    assert (found.passed, str(found.model), str(found.against)) == (True, "the model", "the model")
    assert found.comparison is not None
    assert found.comparison.layers
    assert found.runtime.fusion.kernels
    alone = onnxq.verify(quantized, samples=SAMPLES)
    assert alone.passed
    assert alone.engines is not None


def test_thresholds_are_missed_without_an_exception(report: onnxq.Report) -> None:
    found = onnxq.verify(report.model, proto(), samples=SAMPLES, min_sqnr=200, layers=False)
    assert not found.passed
    assert "dB" in found.missed[0]
    assert found.comparison is not None
    assert not found.comparison.layers


def spread(outputs: dict[str, list[Any]], labels: dict[str, list[np.ndarray]]) -> float:
    """A metric: the mean size of the outputs."""
    return float(np.abs(np.concatenate(outputs["y"])).mean())


def test_a_metric_is_a_function() -> None:
    name = f"{__name__}:spread"
    budget = onnxq.Budget(metric=spread, max_drop=1.0)
    report = onnxq.quantize(proto(), "static-int8", samples=SAMPLES, budget=budget)
    assert report.comparison is not None
    assert report.comparison.metric is not None
    assert (report.comparison.metric.name, report.as_dict()["comparison"]["metric"]["name"]) == (name, name)
    found = onnxq.verify(report.model, proto(), samples=SAMPLES, metric=spread, max_drop=1.0, layers=False)
    assert found.comparison is not None
    assert found.comparison.metric is not None
    assert math.isclose(found.comparison.metric.quantized_value, report.comparison.metric.quantized_value, rel_tol=0.01)


def test_a_metric_without_a_limit_is_measured(here: Path) -> None:
    made = onnxq.export("m.onnx", "sherpa", "out", data=_saved(), metric=spread)
    assert [file.metric is not None for file in made.files] == [False, True]


def _saved() -> str:
    np.savez("d.npz", x=floats(16, 64, seed=1))
    return "d.npz"


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(onnxq.ModelError, match="holds no graph"):
        onnxq.quantize(onnx.ModelProto())
    with pytest.raises(onnxq.OutputError) as caught:
        onnxq.quantize(proto(), external_data=True)
    assert caught.value.hint == "Give an output."
    with pytest.raises(onnxq.OutputError, match="nothing was quantized"):
        _ = onnxq.quantize(proto(), dry_run=True).model
    with pytest.raises(onnxq.ModelError, match="a model is a path, a ModelProto or loaded, and int is given"):
        onnxq.quantize(3)  # type: ignore[arg-type]
    with pytest.raises(onnxq.ModelError) as refused:
        onnxq.quantize(b"bytes of a model")  # type: ignore[arg-type]
    assert refused.value.hint == "Give its path, or onnx.load_from_string(bytes)."
    with pytest.raises(onnxq.DataError, match="data names files, and an array is given"):
        onnxq.quantize(proto(), data=np.zeros((2, 4)))  # type: ignore[arg-type]
    with pytest.raises(onnxq.DataError, match=r"input '\w+' has rank .*, the array gives rank 1 \[2\]"):
        onnxq.evaluate(proto(), {name: np.zeros(2, np.float32) for name in SAMPLES[0]})
    with pytest.raises(onnxq.DataError, match="not a function"):
        onnxq.quantize(proto(), samples=SAMPLES, budget=onnxq.Budget(metric=3, max_drop=1.0))  # type: ignore[arg-type]


def test_progress_of_a_project_in_jobs_counts_models(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(here)
    told: list[tuple[int, int | None]] = []

    class Follows:
        def step(self, name: str) -> None:
            assert name == "build"

        def progress(self, done: int, total: int | None) -> None:
            told.append((done, total))

    entries = "".join(f'[[models]]\nfloat = "{name}.onnx"\n' for name in ("one", "two"))  # neither is there
    (here / "onnxq.toml").write_text(entries)
    assert [built.state for built in onnxq.build(jobs=2, observer=Follows())] == ["failed", "failed"]
    assert told == [(0, 2), (1, 2), (2, 2)]


def test_progress_is_followed_from_python() -> None:
    steps: list[str] = []

    class Follows:
        def step(self, name: str) -> None:
            steps.append(name)

        def progress(self, done: int, total: int | None) -> None:
            assert total is None or done <= total

    onnxq.verify(proto(), observer=Follows())
    assert steps == ["load", "examine", "run"]
    assert set(steps) <= set(onnxq.STEPS)
