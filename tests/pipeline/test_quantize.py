"""The whole way on real models: quantized, checked, written, and as accurate as before."""

from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers import ALL, build, node, recipe_of, session

import onnxq
import onnxq.pipeline.quantize
import onnxq.pipeline.settling
from onnxq.errors import CheckFailed, DataError, InvalidResult, ModelError, NothingToQuantize, OutputError
from onnxq.pipeline.quantize import default_output, quantize
from onnxq.progress import Silent
from onnxq.runtime import blas_threads
from onnxq.search.budget import Budget

SAMPLES = Path(__file__).parents[2] / "sample_models"
MODELS = sorted(path.stem for path in SAMPLES.glob("digits_*.onnx") if not path.stem.endswith(".int8"))
CALIBRATION = SAMPLES / "digits_calibration.npz"


@cache
def accuracy(path: Path) -> float:
    """Top-1 accuracy in percent on the test images, one at a time."""
    model = session(path, ALL)
    data = np.load(SAMPLES / "digits_test.npz")
    right = [
        model.run(None, {"image": image[None]})[0].argmax() == label
        for image, label in zip(data["image"], data["_label"], strict=True)
    ]
    return 100.0 * float(np.mean(right))


@pytest.mark.parametrize("mode", ["static", "dynamic"])
@pytest.mark.parametrize("name", MODELS)
def test_sample_models_keep_their_accuracy(name: str, mode: str, tmp_path: Path) -> None:
    source, target = SAMPLES / f"{name}.onnx", tmp_path / "out.onnx"
    data = {"data": [CALIBRATION], "sample_limit": 48} if mode == "static" else {}
    report = quantize(source, output=target, **data)
    assert report.files == (target,)
    assert [path.name for path in tmp_path.iterdir()] == ["out.onnx"]
    onnx.checker.check_model(str(target), full_check=True)
    assert report.comparison is not None
    assert report.comparison.worst_sqnr > 20
    assert abs(accuracy(target) - accuracy(source)) <= 1.0


def test_what_made_it_is_recorded(tmp_path: Path) -> None:
    source, target = SAMPLES / "digits_cnn.onnx", tmp_path / "out.onnx"
    quantize(source, "static-int8", output=target, data=[CALIBRATION], fast=True)
    metadata = {entry.key: entry.value for entry in onnx.load(target).metadata_props}
    import hashlib

    assert metadata["onnxq_source_sha256"] == hashlib.sha256(source.read_bytes()).hexdigest()
    assert metadata["onnxq_version"] == onnxq.__version__
    assert 'name = "static-int8"' in metadata["onnxq_recipe"]


def test_a_static_recipe_without_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="static-int8") as refusal:
        quantize(SAMPLES / "digits_cnn.onnx", "static-int8", output=tmp_path / "out.onnx")
    assert "--data" in refusal.value.hint
    assert not list(tmp_path.iterdir())


def test_a_dry_run_writes_nothing_and_runs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnxq.pipeline.quantize, "quantize_prepared", None)
    report = quantize(SAMPLES / "digits_cnn.onnx", output=tmp_path / "out.onnx", data=[CALIBRATION], dry_run=True)
    assert report.output is None
    assert not list(tmp_path.iterdir())


def test_a_missed_budget_writes_nothing(tmp_path: Path) -> None:
    source, output = SAMPLES / "digits_cnn.onnx", tmp_path / "out.onnx"
    with pytest.raises(CheckFailed, match="90 dB asked for"):
        quantize(source, output=output, data=[CALIBRATION], sample_limit=16, budget=Budget(90))
    assert not list(tmp_path.iterdir())


def test_a_broken_result_is_never_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object) -> object:
        rewritten = original(*arguments)
        rewritten.opsets[""] = 999
        return rewritten

    original = onnxq.pipeline.settling.rewrite
    monkeypatch.setattr(onnxq.pipeline.settling, "rewrite", broken)
    old = tmp_path / "out.onnx"
    old.write_bytes(b"the old one")
    with pytest.raises(InvalidResult):
        quantize(SAMPLES / "digits_cnn.onnx", output=old, data=[CALIBRATION], force=True, fast=True)
    assert old.read_bytes() == b"the old one"
    assert [path.name for path in tmp_path.iterdir()] == ["out.onnx"]


def test_nothing_to_quantize_says_why(tmp_path: Path) -> None:
    with pytest.raises(NothingToQuantize, match="--exclude"):
        quantize(SAMPLES / "digits_cnn.onnx", output=tmp_path / "out.onnx", exclude=["*"])
    assert not list(tmp_path.iterdir())


def test_a_second_run_finds_nothing_to_quantize(tmp_path: Path) -> None:
    first = tmp_path / "first.onnx"
    quantize(SAMPLES / "digits_depthwise.onnx", "static-int8", output=first, data=[CALIBRATION], fast=True)
    with pytest.raises(NothingToQuantize):
        quantize(first, "static-int8", output=tmp_path / "second.onnx", data=[CALIBRATION])
    assert [path.name for path in tmp_path.iterdir()] == ["first.onnx"]


def test_the_input_is_never_the_output(tmp_path: Path) -> None:
    source = tmp_path / "m.onnx"
    source.write_bytes((SAMPLES / "digits_cnn.onnx").read_bytes())
    for force in (True, False):
        with pytest.raises(OutputError, match="is the model that is to be read"):
            quantize(source, output=source, force=force)


def test_an_output_in_the_way_is_kept(tmp_path: Path) -> None:
    target = tmp_path / "out.onnx"
    target.write_text("mine")
    with pytest.raises(OutputError, match="exists already"):
        quantize(SAMPLES / "digits_cnn.onnx", output=target)
    assert target.read_text() == "mine"


def test_python_samples_of_any_shape(tmp_path: Path) -> None:
    images = np.load(CALIBRATION)["image"]
    batches = [{"image": images[:3]}, {"image": images[3:4]}, {"image": images[4:20]}]
    report = quantize(SAMPLES / "digits_attention.onnx", output=tmp_path / "out.onnx", samples=batches, fast=True)
    assert report.comparison is not None
    assert report.comparison.samples == 3


@pytest.mark.parametrize("content", [b"", b"not a model", b"\x08\x07\x3a\xff\x01truncated"])
def test_what_is_no_model_is_refused(content: bytes, tmp_path: Path) -> None:
    source = tmp_path / "m.onnx"
    source.write_bytes(content)
    with pytest.raises(ModelError):
        quantize(source)
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]


def test_the_default_output_stands_beside_the_model() -> None:
    assert default_output(Path("a/b.onnx")) == Path("a/b.int8.onnx")
    assert default_output(Path("a/b.v1.2")) == Path("a/b.v1.2.int8.onnx")


def test_a_result_that_gives_infinity_is_not_written(tmp_path: Path) -> None:
    """Two weights that differ by less than a step: their difference vanishes, and its logarithm with it."""
    weight = np.array([[98.9], [-98.85], [100.0]], np.float32)
    nodes = [node("MatMul", "x w", "h"), node("Log", "h", "y")]
    (tmp_path / "m.onnx").write_bytes(build(nodes, {"x": [1, 3]}, weights={"w": weight}).SerializeToString())
    samples = [{"x": np.array([[1, 1, 0]], np.float32)}] * 2
    recipe = recipe_of("static-int8", rounding="nearest")
    with pytest.raises(CheckFailed, match="'y' holds NaN or infinity 2 times, in the float model never"):
        quantize(tmp_path / "m.onnx", recipe, samples=samples)
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]


def test_made_up_samples_that_the_model_refuses_ask_for_data(tmp_path: Path) -> None:
    nodes = [node("MatMul", "x w", "h"), node("Reshape", "h shape", "y")]
    weights = {"w": np.ones((32, 32), np.float32), "shape": np.array([5, 32])}
    (tmp_path / "m.onnx").write_bytes(build(nodes, {"x": ["n", 32]}, weights=weights).SerializeToString())
    with pytest.raises(DataError, match=r"cannot run the float model on sample 0 \(x \[1, 32\]\)") as refusal:
        quantize(tmp_path / "m.onnx")
    assert "give --data" in refusal.value.hint
    with pytest.raises(DataError) as refusal:
        quantize(tmp_path / "m.onnx", "dynamic-int8", samples=[{"x": np.ones((1, 32), np.float32)}])
    assert "sizes that do not go together" in refusal.value.hint
    report = quantize(tmp_path / "m.onnx", samples=[{"x": np.ones((5, 32), np.float32)}])
    assert report.output is not None


def test_products_of_numpy_take_one_thread(tmp_path: Path) -> None:
    """A second thread waits longer than it works where another program has the processor: 40 % more for a BERT."""
    found: list[int] = []
    threads = blas_threads._openblas()
    if threads is None:
        pytest.skip("NumPy was built with another BLAS")
    get, put = threads

    class Watch(Silent):
        def step(self, name: str) -> None:
            found.append(get())

    before = get()
    put(2)
    try:
        source = SAMPLES / "digits_cnn.onnx"
        quantize(source, output=tmp_path / "out.onnx", data=[CALIBRATION], fast=True, observer=Watch())
        assert set(found) == {1}
        assert get() == 2
    finally:
        put(before)


def test_a_single_name_needs_no_list(tmp_path: Path) -> None:
    """A string is a sequence of letters, each of which would be a glob or a file."""
    source = SAMPLES / "digits_cnn.onnx"
    report = quantize(source, output=tmp_path / "o.onnx", data=CALIBRATION, exclude="Gemm", fast=True)
    assert report.reasons()["--exclude Gemm leaves it float"] == 2
    assert not [warning for warning in report.warnings if warning.code == "ignored-option"]
    listed = quantize(source, output=tmp_path / "p.onnx", data=[CALIBRATION], exclude=["Gemm"], fast=True)
    assert (tmp_path / "o.onnx").read_bytes() == (tmp_path / "p.onnx").read_bytes()
    assert listed.reasons() == report.reasons()
