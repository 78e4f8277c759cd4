import hashlib
import json
import math
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from helpers import build as build_proto
from helpers import floats, graph, node
from hypothesis import given
from hypothesis import strategies as st

from onnxq.errors import CheckFailed, DataError, ModelError
from onnxq.ir import load
from onnxq.project.build import build, measure_entry
from onnxq.project.check import check
from onnxq.project.file import load_project
from onnxq.project.outcome import Built
from onnxq.project.provenance import INPUTS, MEASURED, gather, record, recorded_comparison
from onnxq.targets.host import host_family, processor_name
from onnxq.verification.families import FamilyFigures
from onnxq.verification.records import Comparison, MetricComparison, OutputComparison
from onnxq.version import __version__

FLOAT, QUANTIZED, DATA = Path("models/cnn.onnx"), Path("models/cnn.int8.onnx"), Path("data/calibration.npz")


def built(*, force: bool = False) -> list[Built]:
    return list(build(load_project().entries, force=force))


def add(text: str) -> None:
    Path("onnxq.toml").write_text(Path("onnxq.toml").read_text() + text)


def not_fast() -> str:
    """Let the project try variants, too, and return its text."""
    text = Path("onnxq.toml").read_text().replace("fast = true\n", "")
    Path("onnxq.toml").write_text(text)
    return text


def test_the_record_says_what_it_was_made_of(repo: Path) -> None:
    props = {entry.key: entry.value for entry in onnx.load(QUANTIZED).metadata_props}
    inputs = json.loads(props[INPUTS])
    assert inputs.pop("content")
    assert len(inputs.pop("recipe")) == 64
    assert inputs == {
        "onnxq": __version__,
        "float": {"model": hashlib.sha256(FLOAT.read_bytes()).hexdigest()},
        "data": {"data/calibration.npz": hashlib.sha256(DATA.read_bytes()).hexdigest()},
        "metric": {},
        "options": {
            "samples": 8,
            "preprocess": [],
            "text-key": [],
            "max-length": None,
            "state": [],
            "bits": None,
            "block": None,
            "exclude": [],
            "only": [],
            "external-data": False,
            "fast": True,
            "reduce-range": False,
            "kv-cache": None,
            "max-size": 100_000,
            "min-sqnr": 20.0,
            "max-drop": None,
        },
    }
    (logits,) = json.loads(props[MEASURED])["outputs"]
    assert logits["name"] == "logits"
    assert logits["sqnr"] > 20
    assert json.loads(props[MEASURED])["onnxruntime"] == onnxruntime.__version__


def test_a_record_names_the_processor_only_where_figures_depend_on_it() -> None:
    compared = Comparison((), 1)
    same = [FamilyFigures("cpu-avx2", 40.0), FamilyFigures("cpu-vnni", 40.0, here=True)]
    entry = json.loads(record({}, {}, compared, same)[MEASURED])
    assert set(entry) == {"samples", "outputs", "metric", "onnxruntime"}
    harmless = [FamilyFigures("cpu-avx2", 40.0, saturates=True), same[1]]
    assert set(json.loads(record({}, {}, compared, harmless)[MEASURED])) == set(entry)
    differing = [FamilyFigures("cpu-avx2", 30.0, saturates=True), same[1]]
    entry = json.loads(record({}, {}, compared, differing)[MEASURED])
    assert (entry["processor"], entry["family"]) == (processor_name(), host_family())


@given(st.floats(1, 99), st.floats(1e-9, 1e6))
def test_a_record_keeps_to_limits_that_were_met_and_hides_last_bits(sqnr: float, error: float) -> None:
    def recorded(sqnr: float, error: float) -> dict[str, Any]:
        output = OutputComparison("y", "float32", 9, False, sqnr, error, 0.999, 100.0)
        metric = MetricComparison("perplexity", 4.58251 + sqnr * 1e-9, 4.58621 + error * 1e-13, lower_is_better=True)
        made = json.loads(record({}, {}, Comparison((output,), 1, metric=metric))[MEASURED])
        return {**made["outputs"][0], **made["metric"]}

    found = recorded(sqnr, error)
    assert sqnr - 1e-7 <= found["sqnr"] <= sqnr + 0.01
    assert 0.99 * error <= found["max_abs"] <= error * (1 + 1e-6)
    again = recorded(found["sqnr"] - 1e-8, found["max_abs"] * (1 - 1e-9))
    assert again == found


def test_data_to_verify_with_that_are_missing_are_named_before_any_work(repo: Path, monkeypatch) -> None:
    add('verify-data = ["data/nope.npz"]\n')
    monkeypatch.setattr("onnxq.project.build.quantize", lambda *args, **keywords: pytest.fail("it was built"))
    (failed,) = built(force=True)
    assert failed.error is not None
    assert failed.error.message.endswith(
        "nope.npz does not exist; the project file lists it to verify models/cnn.int8.onnx"
    )


def test_what_is_up_to_date_is_left_alone(repo: Path) -> None:
    before = QUANTIZED.stat().st_mtime_ns, QUANTIZED.stat().st_ino
    assert [(b.state, b.report) for b in built()] == [("up to date", None)]
    assert (QUANTIZED.stat().st_mtime_ns, QUANTIZED.stat().st_ino) == before


def test_building_again_gives_the_same_bytes(repo: Path) -> None:
    before = QUANTIZED.read_bytes()
    (done,) = built(force=True)
    assert done.state == "built"
    assert done.report is not None
    assert done.report.output == QUANTIZED
    assert QUANTIZED.read_bytes() == before


@pytest.mark.parametrize("spoil", ["missing", "damaged", "stale"])
def test_what_is_not_is_built(repo: Path, spoil: str) -> None:
    if spoil == "missing":
        QUANTIZED.unlink()
    elif spoil == "damaged":
        QUANTIZED.write_bytes(QUANTIZED.read_bytes()[:5000])
    else:
        np.savez(DATA, image=np.load(DATA)["image"][8:])
    assert check(load_project()).findings
    assert [b.state for b in built()] == ["built"]
    assert not check(load_project()).findings


def test_the_working_folder_does_not_matter(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(repo / "models")
    assert [b.state for b in built()] == ["up to date"]
    before = (repo / QUANTIZED).read_bytes()
    assert [b.state for b in built(force=True)] == ["built"]
    assert (repo / QUANTIZED).read_bytes() == before


def test_a_repository_that_moved_is_up_to_date(repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(repo, tmp_path / "elsewhere")
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert [b.state for b in built()] == ["up to date"]


def test_one_that_fails_does_not_stop_the_others(repo: Path) -> None:
    QUANTIZED.unlink()
    text = Path("onnxq.toml").read_text()
    Path("onnxq.toml").write_text('[[models]]\nfloat = "gone.onnx"\n' + text + '[[models]]\nfloat = "none.onnx"\n')
    assert [b.state for b in built()] == ["failed", "built", "failed"]
    first, _, _ = built()
    assert isinstance(first.error, ModelError)
    assert "gone.onnx does not exist" in first.error.message


def test_a_threshold_that_is_missed_keeps_the_old_model(repo: Path) -> None:
    text = Path("onnxq.toml").read_text()
    before = QUANTIZED.read_bytes()
    Path("onnxq.toml").write_text(text.replace("min-sqnr = 20.0", "min-sqnr = 90.0"))
    for force in (False, True):
        (done,) = built(force=force)
        assert isinstance(done.error, CheckFailed)
        assert "90 dB asked for" in done.error.message
        assert QUANTIZED.read_bytes() == before


def test_a_model_that_would_be_too_large_is_not_written(repo: Path) -> None:
    QUANTIZED.unlink()
    text = Path("onnxq.toml").read_text()
    Path("onnxq.toml").write_text(text.replace("100 kB", "20 kB"))
    (done,) = built()
    assert isinstance(done.error, CheckFailed)
    assert "20,000" in done.error.message
    assert not QUANTIZED.exists()


def test_the_limit_is_met_to_the_byte(repo: Path) -> None:
    text = not_fast()
    assert [b.state for b in built()] == ["built"]
    size = QUANTIZED.stat().st_size
    size -= len("100000") - len(str(size))  # the limit is part of the record
    Path("onnxq.toml").write_text(text.replace('"100 kB"', str(size)))
    assert [b.state for b in built()] == ["built"]
    assert QUANTIZED.stat().st_size == size
    Path("onnxq.toml").write_text(text.replace('"100 kB"', str(size - 1)))
    assert [b.state for b in built()] == ["built"]
    assert QUANTIZED.stat().st_size < size  # without corrected biases, or with weights of 4 bit: the record has to fit


def test_a_fast_build_tries_nothing(repo: Path) -> None:
    fast, before = Path("onnxq.toml").read_text(), QUANTIZED.read_bytes()
    not_fast()
    assert [b.state for b in built()] == ["built"]
    assert QUANTIZED.read_bytes() != before
    Path("onnxq.toml").write_text(fast)
    (done,) = built()
    assert done.state == "built"
    assert done.report is not None
    assert done.report.comparison is not None
    assert done.report.comparison.latency is None
    assert QUANTIZED.read_bytes() == before


def test_thresholds_are_measured_on_other_data_if_there_are_any(repo: Path) -> None:
    images = np.load(DATA)["image"]
    np.savez("data/test.npz", image=np.full_like(images[:4], 1000))  # far beyond the calibrated range
    add('verify-data = ["data/test.npz"]\n')
    assert [b.state for b in built()] == ["up to date"]  # what it is measured on is no part of it
    (entry,) = load_project().entries
    assert measure_entry(entry, QUANTIZED)[0].worst_sqnr < 20
    (done,) = built(force=True)
    assert isinstance(done.error, CheckFailed)
    assert "below the 20 dB asked for" in done.error.message


def test_a_model_without_data_is_dynamic(repo: Path) -> None:
    Path("onnxq.toml").write_text('[[models]]\nfloat = "models/cnn.onnx"\nthresholds = { min-sqnr = 10 }\n')
    (done,) = built()
    assert done.state == "built", done.error
    (entry,) = load_project().entries
    comparison, data = measure_entry(entry, QUANTIZED)
    assert (comparison.samples, data) == (8, "8 samples from random numbers (seed 0)")
    assert check(load_project()).findings == ()


def write_odd_model() -> None:
    """Write a model with an operator that nobody knows."""
    nodes = [node("MatMul", "x w", "a"), node("Odd", "a", "b", domain="strange"), node("MatMul", "b w", "y")]
    made = graph(nodes, {"x": [4, 64]}, [], {"w": floats(64, 64)})
    made.output.append(onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [4, 64]))
    imports = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("strange", 1)]
    Path("odd.onnx").write_bytes(onnx.helper.make_model(made, opset_imports=imports, ir_version=8).SerializeToString())


def test_a_metric_that_is_no_number_is_recorded_as_json(repo: Path) -> None:
    lost = Comparison((), 1, metric=MetricComparison("perplexity", 12.5, math.inf, lower_is_better=True))
    model = load(QUANTIZED)
    text = record({}, {}, lost)[MEASURED]
    assert json.loads(text, parse_constant=pytest.fail)["metric"]["quantized_value"] is None
    model.metadata[MEASURED] = text
    found = recorded_comparison(model)
    assert found is not None
    assert found.missed(max_drop=1) == ["perplexity went from 12.5 to nan: no drop can be told"]


def test_a_model_that_cannot_be_run_here(repo: Path) -> None:
    write_odd_model()
    project = Path("onnxq.toml")
    project.write_text('[[models]]\nfloat = "odd.onnx"\n')
    (done,) = built()
    assert done.state == "built", done.error
    assert check(load_project()).findings == ()
    project.write_text('[[models]]\nfloat = "odd.onnx"\nthresholds = { max-abs = 3 }\n')
    (done,) = built(force=True)
    assert isinstance(done.error, CheckFailed)
    assert "odd.int8.onnx cannot be run here, so its thresholds are unknown" in done.error.message
    project.write_text('[[models]]\nfloat = "odd.onnx"\ncustom-ops = ["gone.so"]\n')
    (done,) = built(force=True)
    assert isinstance(done.error, ModelError)
    assert "the library of custom operators gone.so does not exist" in done.error.message


METRIC = """
def highest(outputs, labels):
    return sum(float(logits.max()) for logits in outputs["logits"]) / len(outputs["logits"])
"""

FALLING = """
import itertools

calls = itertools.count()

def falling(outputs, labels):  # the float model is measured first
    return -float(next(calls))
"""


def test_a_metric_is_measured_recorded_and_held_to_its_limit(repo: Path) -> None:
    Path("project_metric.py").write_text(METRIC)
    add('metric = "project_metric:highest"\n')
    assert [f.message for f in check(load_project()).findings] == [
        "is out of date: its metric was none when it was built"
    ]
    text = Path("onnxq.toml").read_text().replace("min-agreement = 90", "max-drop = 0.5")
    Path("onnxq.toml").write_text(text)
    assert [b.state for b in built()] == ["built"]
    assert check(load_project()).findings == ()
    (entry,) = load_project().entries
    recorded = recorded_comparison(load(QUANTIZED))
    assert recorded is not None
    measured = measure_entry(entry, QUANTIZED)[0].metric
    assert recorded.metric is not None
    assert measured is not None
    values = (measured.float_value, measured.quantized_value)
    assert (recorded.metric.float_value, recorded.metric.quantized_value) == pytest.approx(values, rel=1e-4)
    assert abs(recorded.metric.drop) < 0.5
    Path("project_metric.py").write_text(METRIC.replace("max()", "min()"))
    (finding,) = check(load_project()).findings
    assert finding.message == "is out of date: its metric project_metric:highest has changed since it was built"
    Path("falling_metric.py").write_text(FALLING)
    Path("onnxq.toml").write_text(text.replace("project_metric:highest", "falling_metric:falling"))
    (done,) = built()
    assert isinstance(done.error, CheckFailed)
    assert "falling_metric:falling falls from" in done.error.message


def test_labels_in_the_data_to_verify_on_are_enough_for_a_metric(repo: Path) -> None:
    """The search asked for them in the calibration data as well, which need none, and the build failed."""
    source = "def right(outputs, labels):\n    return float(labels['_label'][0].size == len(outputs['logits']))\n"
    Path("labelled_metric.py").write_text(source)
    with np.load("data/calibration.npz") as calibration:
        np.savez("data/test.npz", image=calibration["image"][:6], _label=np.arange(6))
    text = Path("onnxq.toml").read_text().replace("min-agreement = 90", "max-drop = 0.5")
    Path("onnxq.toml").write_text(text + 'metric = "labelled_metric:right"\nverify-data = ["data/test.npz"]\n')
    (done,) = built()
    assert done.state == "built", done.error
    recorded = recorded_comparison(load(QUANTIZED))
    assert recorded is not None
    assert recorded.metric is not None
    assert (recorded.metric.float_value, recorded.metric.drop) == (1.0, 0.0)


COUNTED = """
def highest(outputs, labels):
    with open("calls.txt", "a") as file:
        file.write("called\\n")
    return max(float(logits.max()) for logits in outputs["logits"])
"""


@pytest.mark.parametrize(
    ("options", "calls"),
    [
        ("", 5),  # the float model first, both models for the budget, both again for what is written
        ("fast = true\n", 7),  # and once more on all samples, since a fast run compares on a few
        ('verify-data = ["data/test.npz"]\n', 7),
    ],
)
def test_a_metric_is_not_measured_again_on_the_same_data(repo: Path, options: str, calls: int) -> None:
    np.savez("data/test.npz", image=np.load(DATA)["image"][:4])
    Path("counted_metric.py").write_text(COUNTED)
    text = not_fast().replace("min-agreement = 90", "max-drop = 100")
    Path("onnxq.toml").write_text(f'{text}metric = "counted_metric:highest"\n{options}')
    (done,) = built()
    assert done.state == "built", done.error
    assert Path("calls.txt").read_text().count("called") == calls
    recorded = recorded_comparison(load(QUANTIZED))
    assert recorded is not None
    assert recorded.samples == (4 if "verify" in options else 8)


def test_functions_are_found_from_the_project_and_the_path_gets_the_working_folder_at_its_end(
    repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    Path("given_samples.py").write_text("import numpy as np\ndef give():\n    return np.load\n")
    Path("onnxq.toml").write_text('[[models]]\nfloat = "models/cnn.onnx"\ndata = ["given_samples:give"]\n')
    monkeypatch.chdir(repo / "data")
    before = list(sys.path)
    monkeypatch.setattr(sys, "path", list(before))
    (done,) = built()
    assert isinstance(done.error, DataError)  # it was imported, and gives no samples
    assert sys.path == [*before, str(repo / "data")]  # for what a function imports when it is called
    assert "given_samples" in done.error.message


def test_nothing_is_left_in_the_folder(repo: Path) -> None:
    built(force=True)
    assert sorted(os.listdir("models")) == ["cnn.int8.onnx", "cnn.onnx"]


@pytest.mark.skipif(os.name != "posix", reason="names of files are Unicode elsewhere")
def test_files_of_a_folder_may_have_names_that_are_no_utf_8(repo: Path) -> None:
    os.mkdir("data/all")
    shutil.copy(DATA, "data/all")
    try:
        shutil.copy(DATA, b"data/all/caf\xe9.npz".decode("utf-8", "surrogateescape"))
    except OSError:
        pytest.skip("the file system takes UTF-8 alone")
    project = Path("onnxq.toml")
    project.write_text(project.read_text().replace("data/calibration.npz", "data/all"))
    (entry,) = load_project().entries
    hashed = gather(entry, load(FLOAT))["data"]["data/all"]
    os.remove(b"data/all/caf\xe9.npz")
    assert hashed != gather(entry, load(FLOAT))["data"]["data/all"]


def test_a_pattern_of_data_is_told_what_it_matches(repo: Path) -> None:
    project = Path("onnxq.toml")
    project.write_text(project.read_text().replace("data/calibration.npz", "data/*.npz"))
    (done,) = built()
    assert done.error is not None
    assert done.error.message == "data are named without patterns, and data/*.npz matches 1 file"
    assert done.error.hint == "Give the folder data, or name each file."


def test_a_path_with_a_tilde_is_told_that_shells_replace_it(repo: Path) -> None:
    project = Path("onnxq.toml")
    project.write_text(project.read_text().replace("data/calibration.npz", "~/calibration.npz"))
    (done,) = built()
    assert done.error is not None
    assert done.error.message == "~/calibration.npz cannot be read (No such file or directory)"
    assert done.error.hint == "Write a path without ~: only shells replace it."


CALIB = """
import numpy as np


def samples():
    for seed in range(20):
        yield {{"x": np.full((1, 8), {most}, np.float32) * np.linspace(-1, 1 + seed, 8, dtype=np.float32)}}
"""


def test_a_function_is_that_of_the_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("calib_of.py").write_text(CALIB.format(most=7.0))  # not the project's, though here
    found = []
    for name, most in (("one", 1.0), ("two", 100.0)):
        Path(name).mkdir()
        model = build_proto([node("MatMul", "x w", "y")], {"x": ["n", 8]}, weights={"w": floats(8, 8)})
        onnx.save(model, f"{name}/m.onnx")
        Path(name, "calib_of.py").write_text(CALIB.format(most=most))
        text = '[[models]]\nfloat = "m.onnx"\ndata = ["calib_of:samples"]\nrecipe = "static-int8"\nfast = true\n'
        Path(name, "onnxq.toml").write_text(text)
        (done,) = build(load_project(Path(name, "onnxq.toml")).entries)
        assert done.report is not None, done.error
        assert done.report.inputs[0].values is not None
        found.append(done.report.inputs[0].values.greatest)
    assert found == [20.0, 2000.0]
