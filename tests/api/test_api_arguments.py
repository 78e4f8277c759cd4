"""Arguments of another kind than they should be: each is named, with what fits, before anything is done."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers import build, floats, node

import onnxq

SAMPLES = [{"x": floats(1, 8, seed=seed)} for seed in range(20)]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    onnx.save(build([node("MatMul", "x w", "y")], {"x": ["n", 8]}, weights={"w": floats(8, 8)}), "m.onnx")
    onnx.save(build([node("MatMul", "z w", "y")], {"z": ["n", 8]}, weights={"w": floats(8, 8)}), "other.onnx")
    return tmp_path


@pytest.mark.parametrize(
    ("keywords", "message", "hint"),
    [
        ({"recipe": 8}, "recipe cannot be 8", '"auto"'),
        ({"recipe": None}, "recipe cannot be None", '"auto"'),
        ({"output": 5}, "output cannot be 5", "path"),
        ({"target": 3}, "target cannot be 3", '"cpu"'),
        ({"exclude": 3}, "exclude cannot be 3", "globs"),
        ({"only": {"Conv": 1}}, "only cannot be a dict", "globs"),
        ({"budget": {"min_sqnr": 30}}, "budget cannot be a dict", "onnxq.Budget(min_sqnr=40)"),
        ({"reading": {"preprocess": "size=32"}}, "reading cannot be a dict", "onnxq.Reading("),
        ({"timing": True}, "timing cannot be True", "onnxq.Timing("),
        ({"sample_limit": 2.5}, "sample_limit cannot be 2.5", "whole number"),
        ({"fast": "no"}, "fast cannot be a str", "Give True or False."),
        ({"external_data": 1}, "external_data cannot be 1", "Give True or False."),
        ({"observer": print}, "observer cannot be a builtin_function_or_method", "step(name)"),
    ],
)
def test_quantize_names_what_does_not_fit(keywords: dict[str, Any], message: str, hint: str) -> None:
    with pytest.raises(onnxq.OnnxqError) as caught:
        onnxq.quantize("m.onnx", **keywords)
    assert caught.value.message == message
    assert hint in caught.value.hint
    assert [path.name for path in Path().iterdir() if path.suffix != ".onnx"] == []


@pytest.mark.parametrize(
    ("limits", "message", "hint"),
    [
        ({"min_agreement": 300}, "min_agreement is 300, and has to be a percentage from 0 to 100", "min_agreement=99."),
        ({"min_agreement": 0.5}, "min_agreement is 0.5, and has to be a percentage, not a share", "min_agreement=50."),
        ({"min_cosine": 2.0}, "min_cosine is 2, and has to be from -1 to 1", "min_cosine=0.99."),
    ],
)
def test_verify_names_limits_that_nothing_could_meet(limits: dict[str, Any], message: str, hint: str) -> None:
    with pytest.raises(onnxq.RecipeError) as caught:
        onnxq.verify("m.onnx", "m.onnx", samples=SAMPLES, **limits)
    assert caught.value.message.startswith(message)
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("calibration_data", "write samples=…"),
        ("overwrite", "write force=…"),
        ("min_sqnr", "write budget=onnxq.Budget(min_sqnr=…)"),
        ("benchmark", "write timing=onnxq.Timing(benchmark=True)"),
        ("exclud", "Did you mean 'exclude'?"),
    ],
)
def test_a_keyword_that_is_not_there_is_named_with_what_was_meant(name: str, meant: str) -> None:
    keywords: dict[str, Any] = {name: 1}
    with pytest.raises(TypeError) as caught:
        onnxq.quantize("m.onnx", **keywords)
    assert str(caught.value) == f"quantize() got an unexpected keyword argument '{name}': {meant}"
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'qqqqqqqq'$"):
        onnxq.verify("m.onnx", qqqqqqqq=1)  # type: ignore[call-arg]


def test_one_output_may_be_named_alone() -> None:
    assert list(onnxq.evaluate("m.onnx", {"x": SAMPLES[0]["x"]}, outputs="y")) == ["y"]
    with pytest.raises(onnxq.DataError, match="long"):
        onnxq.evaluate("m.onnx", {"x": SAMPLES[0]["x"]}, outputs="long")


def test_other_functions_do_so_too() -> None:
    with pytest.raises(onnxq.OnnxqError, match="feeds cannot be a list"):
        onnxq.evaluate("m.onnx", [np.zeros((1, 8))])  # type: ignore[arg-type]
    with pytest.raises(onnxq.OnnxqError, match="report cannot be None"):
        onnxq.write_report(None, "r.html")  # type: ignore[arg-type]
    with pytest.raises(onnxq.OnnxqError, match="min_sqnr cannot be a str"):
        onnxq.verify("m.onnx", "m.onnx", samples=SAMPLES, min_sqnr="30")  # type: ignore[arg-type]
    with pytest.raises(onnxq.OnnxqError, match="pattern cannot be None"):
        onnxq.explain("m.onnx", None)  # type: ignore[arg-type]
    with pytest.raises(onnxq.OnnxqError, match="samples is a list, not open samples"):
        onnxq.measure_metric(lambda outputs, labels: 1.0, "m.onnx", SAMPLES)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="unexpected keyword argument 'calibration'"):
        onnxq.quantize("m.onnx", calibration=SAMPLES)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("call", "message", "hint"),
    [
        (lambda: onnxq.check("gone.onnx"), "gone.onnx does not exist", "Check the path"),
        (lambda: onnxq.check(3), "files cannot be 3", "a list of paths"),
        (lambda: onnxq.build(jobs=0), "jobs cannot be 0", "at least 1"),
        (lambda: onnxq.check(project=3), "project cannot be 3", "path"),
        (lambda: onnxq.load(np.zeros(3)), "path cannot be an array", "path"),
        (lambda: onnxq.save(onnx.load("m.onnx"), "n.onnx"), "model cannot be a ModelProto", "what onnxq.load returns"),
        (lambda: onnxq.save(onnxq.load("m.onnx"), 3), "path cannot be 3", "path"),
        (lambda: onnxq.open_samples("d.npz", "m.onnx"), "inputs cannot be a str", "onnxq.input_specs(model)"),
        (lambda: onnxq.compare("m.onnx", "m.onnx", "d.npz"), "samples cannot be a str", "onnxq.open_samples("),
        (lambda: onnxq.compare("m.onnx", "m.onnx", SAMPLES[0]), "samples cannot be a dict", "a list of"),
        (lambda: onnxq.compare("m.onnx", "m.onnx", [1]), "samples gives an int for a sample", "{'INPUT': array}"),
        (lambda: onnxq.load_recipe(3), "source cannot be 3", "a name or a path"),
        (
            lambda: onnxq.calibrate("m.onnx", "s.npz", samples=SAMPLES, shard="1/2"),
            "shard cannot be a str",
            "Shard(1, 2)",
        ),
        (
            lambda: onnxq.calibrate("m.onnx", "s.npz", samples=SAMPLES, shard=onnxq.Shard("1", 2)),
            "shard cannot be a Shard",
            "Shard(1, 2)",
        ),
        (lambda: onnxq.merge("1.stats", "s.npz"), "shards cannot be a str", "a list of files"),
        (
            lambda: onnxq.in_blocks(5),
            "bits cannot be 5: onnxruntime multiplies by no such weights",
            "one of 2, 3, 4, 8",
        ),
        (lambda: onnxq.in_blocks(4.0), "bits cannot be 4.0", "one of 2, 3, 4, 8"),
        (lambda: onnxq.in_blocks("4"), "bits cannot be '4'", "one of 2, 3, 4, 8"),
        (lambda: onnxq.in_blocks(4, 33), "block cannot be 33", "one of 16, 32"),
        (lambda: onnxq.compare_layers("m.onnx", "m.onnx", SAMPLES[0]), "samples cannot be a dict", "a list of"),
    ],
)
def test_no_function_ends_in_an_error_of_its_inside(call: Callable[[], object], message: str, hint: str) -> None:
    with pytest.raises(onnxq.OnnxqError) as caught:
        call()
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_a_traceback_has_the_hint() -> None:
    with pytest.raises(onnxq.OnnxqError) as caught:
        onnxq.quantize("gone.onnx")
    said = traceback.format_exception(caught.value)[-2:]
    assert said == ["onnxq.errors.ModelError: gone.onnx does not exist\n", f"hint: {caught.value.hint}\n"]


def test_samples_belong_to_their_model() -> None:
    np.savez("d.npz", z=np.concatenate([one["x"] for one in SAMPLES]))
    opened = onnxq.open_samples("d.npz", onnxq.input_specs("other.onnx"))
    with pytest.raises(onnxq.DataError, match="for a model with the inputs z, and this one has x"):
        onnxq.quantize("m.onnx", "static-int8", samples=opened)
    with pytest.raises(onnxq.DataError, match="samples holds none"):
        onnxq.quantize("m.onnx", "static-int8", samples=[])
    with pytest.raises(onnxq.DataError, match="samples holds none"):
        onnxq.calibrate("m.onnx", samples=[], recipe="static-int8")
