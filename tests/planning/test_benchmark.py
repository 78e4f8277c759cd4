"""Kernel times of the very shapes of a model: measured, written, read, and what they decide."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers import build, floats, node

import onnxq.planning.benchmark
from onnxq.cli import main
from onnxq.errors import DataError, NothingToQuantize, OutputError
from onnxq.ir import load
from onnxq.pipeline.quantize import quantize
from onnxq.planning.benchmark import benchmark, kernel_pair, sample_shapes
from onnxq.planning.recipe import load_recipe
from onnxq.stages.kernel_timing import UNKNOWN, Timing
from onnxq.stages.prepare import prepare
from onnxq.targets.timings import Kernel, Timings, load_timings

CONV = Kernel("Conv", (1, 16, 16, 16), (32, 16, 3, 3), (1, 32, 16, 16), '{"pads": [1, 1, 1, 1]}')


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Build a Conv over pictures of open size and a product behind it."""
    weights = {"k": floats(32, 16, 3, 3) / 12, "w": floats(32, 64, seed=1) / 6}
    nodes = [node("Conv", "x k", "c", pads=[1] * 4), node("Relu", "c", "r"), node("GlobalAveragePool", "r", "p")]
    nodes += [node("Flatten", "p", "f"), node("MatMul", "f w", "y")]
    path = tmp_path / "m.onnx"
    path.write_bytes(build(nodes, {"x": [None, 16, None, None]}, ["y"], weights).SerializeToString())
    return path


def samples(side: int = 16) -> list[dict[str, np.ndarray]]:
    return [{"x": floats(1, 16, side, side, seed=index)} for index in range(4)]


def timings(conv: tuple[int, int], side: int = 16) -> Timings:
    kernel = replace(CONV, input=(1, 16, side, side), output=(1, 32, side, side))
    return Timings("1.0", {kernel: conv, Kernel("MatMul", (1, 32), (32, 64), (1, 64)): (5000, 8000)})


def written(path: Path, found: Timings) -> Path:
    path.write_text(json.dumps(found.as_dict()))
    return path


def schemes(report) -> dict[str, str | None]:
    return {n.op_type: n.scheme for n in report.nodes}


def test_times_of_both_kinds_are_measured():
    for kernel in (CONV, Kernel("MatMul", (4, 64), (64, 64), (4, 64)), Kernel("Gemm", (4, 64), (64, 64), (4, 64))):
        in_float, in_integers = kernel_pair(kernel)
        assert 0 < in_float < 1e9
        assert 0 < in_integers < 1e9
    assert kernel_pair(replace(CONV, weight=(32, 15, 3, 3))) is None


def test_a_model_is_measured_on_the_shapes_of_the_first_sample(model):
    prepared = prepare(load(model), "auto", with_data=True)
    shapes = sample_shapes(prepared.model, samples(24)[0])
    found = benchmark(prepared.model, load_recipe("auto"), with_data=True, shapes=shapes)
    assert {kernel.operator: kernel.input for kernel in found.kernels} == {"Conv": (1, 16, 24, 24), "MatMul": (1, 32)}
    guessed = benchmark(prepared.model, load_recipe("auto"), with_data=True, shapes={})
    assert {kernel.input for kernel in guessed.kernels if kernel.operator == "Conv"} == {(1, 16, 56, 56)}


def test_a_model_whose_shapes_are_all_known_needs_no_run(tmp_path):
    path = tmp_path / "m.onnx"
    onnx.save(build([node("MatMul", "x w", "y")], {"x": [1, 8]}, ["y"], {"w": floats(8, 4)}), path)
    prepared = prepare(load(path), "auto", with_data=True)
    assert sample_shapes(prepared.model, {"x": floats(1, 8)}) == {}


def test_no_kernel_is_begun_when_the_time_is_up(model, monkeypatch):
    prepared = prepare(load(model), "auto", with_data=True)
    monkeypatch.setattr(onnxq.planning.benchmark, "MOST_SECONDS", -1.0)
    assert not benchmark(prepared.model, load_recipe("auto"), with_data=True, shapes={}).kernels


def test_the_times_decide(model, tmp_path):
    found = {}
    for name, times in (("faster", (10_000_000, 10)), ("slower", (10, 10_000_000))):
        path = written(tmp_path / f"{name}.json", timings(times))
        timing = Timing(path=path)
        found[name] = quantize(model, output=tmp_path / f"{name}.onnx", samples=samples(), fast=True, timing=timing)
    assert schemes(found["faster"])["Conv"] == "static-int8"
    assert schemes(found["slower"])["Conv"] == "weight-int8"
    stamped = {entry.key: entry.value for entry in onnx.load(str(tmp_path / "slower.onnx")).metadata_props}
    assert json.loads(stamped["onnxq_timings"]) == found["slower"].as_dict()["timings"]
    assert found["slower"].as_dict()["timings"]["kernels"][0]["integer"] == 10_000_000


def test_plan_and_explanation_decide_by_the_same_times(model, tmp_path, capsys):
    data = tmp_path / "data.npz"
    np.savez(data, x=np.concatenate([sample["x"] for sample in samples()]))
    for times, scheme in (((10_000_000, 10), "static-int8"), ((10, 10_000_000), "weight-int8")):
        path = written(tmp_path / "times.json", timings(times))
        assert main(["plan", str(model), "--data", str(data), "--timings", str(path), "--format", "json"]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert {n["op_type"]: n["scheme"] for n in shown["nodes"]}["Conv"] == scheme
        assert shown["timings"] is not None
        assert main(["explain", str(model), "c", "-d", str(data), "--timings", str(path), "--format", "json"]) == 0
        (node,) = json.loads(capsys.readouterr().out)["nodes"]
        assert node["scheme"] == scheme
        assert (node["times"]["in_float"], node["times"]["in_integers"]) == tuple(time / 1000 for time in times)
        assert node["times"]["guessed"] is False
        made = quantize(model, output=tmp_path / "q.onnx", data=[data], timing=Timing(path=path), force=True)
        assert schemes(made)["Conv"] == scheme


def test_times_of_other_shapes_decide_nothing(model, tmp_path):
    usual = quantize(model, output=tmp_path / "usual.onnx", samples=samples(), fast=True)
    path = written(tmp_path / "t.json", timings((10, 10_000_000), side=20))
    other = quantize(model, output=tmp_path / "o.onnx", samples=samples(), fast=True, timing=Timing(path=path))
    assert schemes(other) == schemes(usual)
    assert usual.as_dict()["timings"] is None
    assert UNKNOWN not in other.notes, "the product is among them"


def test_times_that_decide_nothing_are_not_passed_over_in_silence(model, tmp_path):
    path = written(tmp_path / "t.json", replace(timings((1, 1)), kernels={replace(CONV, input=(1, 1)): (1, 1)}))
    report = quantize(model, output=tmp_path / "q.onnx", samples=samples(), fast=True, timing=Timing(path=path))
    assert UNKNOWN in report.notes
    for recipe in ("static-int8", "weight-int8"):
        with pytest.raises(DataError, match=f"recipe {recipe} leaves nothing to auto"):
            quantize(model, recipe, output=tmp_path / "r.onnx", samples=samples(), timing=Timing(path=path))
    with pytest.raises(NothingToQuantize, match=r"--exclude \* leaves it float"):
        quantize(model, output=tmp_path / "r.onnx", samples=samples(), timing=Timing(path=path), exclude=["*"])


def test_what_a_benchmark_writes_gives_the_same_bytes(model, tmp_path):
    path = tmp_path / "t.json"
    first = Timing(benchmark=True, path=path)
    quantize(model, output=tmp_path / "a.onnx", samples=samples(), timing=first)
    assert [kernel.operator for kernel in load_timings(path).kernels] == ["Conv", "MatMul"]
    quantize(model, output=tmp_path / "b.onnx", samples=samples(), timing=Timing(path=path))
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()
    with pytest.raises(OutputError, match=r"t\.json exists already"):
        quantize(model, output=tmp_path / "c.onnx", samples=samples(), timing=first)


def test_times_are_never_written_over_what_is_read_or_the_model(model, tmp_path):
    """They were: a calibration file, a recipe and the float model itself were lost to `--force`."""
    data, recipe, output = tmp_path / "c.npz", tmp_path / "r.toml", tmp_path / "q.onnx"
    np.savez(data, x=np.stack([sample["x"] for sample in samples()]))
    recipe.write_text('scheme = "auto"')
    before = {path: path.read_bytes() for path in (data, recipe, model)}
    for path in (data, recipe, model, output, tmp_path / "q.onnx.data"):
        with pytest.raises(OutputError, match=r"is a file that is to be read|is where the model goes") as refusal:
            quantize(model, recipe, output=output, data=[data], timing=Timing(True, path, force=True), force=True)
        assert refusal.value.hint == "Choose another place with --timings."
    assert {path: path.read_bytes() for path in before} == before
    assert not output.exists()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"format": 2}, "format 2"),
        ({"onnxq": "0.0.0"}, "were written by onnxq 0.0.0"),
        ({"scale": 0}, "are damaged: 0 is no number above 0"),
        ({"scale": True}, "are damaged"),
        ({"kernels": [{"operator": "Conv"}]}, "are damaged: a kernel has the keys"),
        ({"kernels": [None]}, "are damaged"),
        ({"kernels": 3}, "are damaged"),
    ],
)
def test_timings_of_another_kind_are_refused(tmp_path, change, sentence):
    path = tmp_path / "t.json"
    path.write_text(json.dumps(timings((1, 1)).as_dict() | change))
    with pytest.raises(DataError, match=sentence):
        load_timings(path)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "are no JSON"),
        (9999 * "[", "are no JSON"),
        ("[]", "no timings"),
        ("{}", "no timings"),
        ("\udc94", "are no text"),
    ],
)
def test_what_is_no_timings_is_refused(tmp_path, text, sentence):
    path = tmp_path / "t.json"
    path.write_text(text, "utf-8", "surrogateescape")
    with pytest.raises(DataError, match=sentence):
        load_timings(path)
    with pytest.raises(DataError, match="cannot be read"):
        load_timings(tmp_path / "missing.json")


def test_a_written_value_is_checked(tmp_path):
    made = timings((1, 1)).as_dict()
    made["kernels"][0]["float"] = -1
    path = tmp_path / "t.json"
    path.write_text(json.dumps(made))
    with pytest.raises(DataError, match="-1 is no whole number"):
        load_timings(path)
    assert load_timings(written(path, timings((7, 9)))) == timings((7, 9))


def test_other_runtimes_have_no_kernel_times(model, tmp_path):
    recipe = load_recipe("auto").for_target("generic")
    with pytest.raises(DataError, match="kernel times say nothing about the target generic"):
        quantize(model, recipe, output=tmp_path / "q.onnx", samples=samples(), timing=Timing(benchmark=True))
