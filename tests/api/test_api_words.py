"""Errors and warnings of the library in the words of those who call it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers import build, floats, node

import onnxq
from onnxq.api.words import in_python, speaks_python
from onnxq.errors import OnnxqError


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a product, `m.onnx`, and its data, `d.npz`."""
    monkeypatch.chdir(tmp_path)
    onnx.save(build([node("MatMul", "x w", "y")], {"x": ["n", 16]}, weights={"w": floats(16, 16)}), "m.onnx")
    np.savez("d.npz", x=floats(4, 16, seed=1))
    return tmp_path


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("Use --force to replace it.", "Use force=True to replace it."),
        ("Add --data.", "Add data=….",),
        ("Write for example --preprocess size=224.", 'Write for example reading=onnxq.Reading(preprocess="size=224").'),
        ("Say --preprocess layout=nchw,size=224.", 'Say reading=onnxq.Reading(preprocess="layout=nchw,size=224").'),
        (
            "Quantize with --target native --benchmark, or",
            'Quantize with target="native", timing=onnxq.Timing(benchmark=True), or',
        ),
        ("or -r weight-int8 for the size", 'or recipe="weight-int8" for the size'),
        ("Write `onnxq verify a.onnx --against b.onnx`.", 'Write `onnxq.verify("a.onnx", "b.onnx")`.'),
        ("python -m tf2onnx.convert --saved-model FOLDER", "python -m tf2onnx.convert --saved-model FOLDER"),
        ("`onnxq init` writes one", "`onnxq init` writes one"),
        ("See `onnxq data MODEL`.", "See `onnxq.examine(MODEL)`."),
        ("`onnxq plan OUTPUT --why-not fuse_gelu NODE`", '`onnxq.why_not(OUTPUT, "fuse_gelu", NODE)`'),
        ("no option in float32[-1, 3]", "no option in float32[-1, 3]"),
    ],
)  # fmt: skip
def test_options_become_keywords(text: str, written: str) -> None:
    assert in_python(text) == written


def test_a_keyword_of_the_function_needs_no_object() -> None:
    assert in_python("give --min-sqnr for less", {"min_sqnr"}) == "give min_sqnr=… for less"
    assert in_python("--min-sqnr is nan", {"min_sqnr"}, names=True) == "min_sqnr is nan"
    assert in_python("--max-drop needs a metric", names=True) == "max_drop needs a metric"


def test_errors_name_keywords(here: Path) -> None:
    Path("m.int8.onnx").touch()
    with pytest.raises(onnxq.OutputError) as caught:
        onnxq.quantize("m.onnx", "static-int8", data="d.npz")
    assert caught.value.hint == "Use force=True to replace it, or choose another place with output=…."
    with pytest.raises(onnxq.DataError) as missing:
        onnxq.quantize("m.onnx", "static-int8", force=True)
    assert missing.value.hint.startswith("Add data=…")
    with pytest.raises(onnxq.RecipeError, match="min_sqnr needs a float model to compare with") as alone:
        onnxq.verify("m.onnx", min_sqnr=20)
    assert (str(alone.value), alone.value.hint) == (alone.value.message, "Add against=FLOAT.")


def test_warnings_name_keywords(here: Path) -> None:
    seen = onnxq.examine("m.onnx", data="d.npz")
    assert seen.warnings
    report = onnxq.quantize("m.onnx", "static-int8", data="d.npz", fast=True)
    found = onnxq.verify("m.onnx", "m.int8.onnx", data="d.npz")
    assert "swapped-models" in {warning.code for warning in found.warnings}
    for warning in (*seen.warnings, *report.warnings, *found.warnings):
        assert "--" not in warning.remedy
        assert "`onnxq " not in warning.remedy


def test_what_a_function_gives_passes_as_it_is() -> None:
    @speaks_python
    def double(number: int) -> int:
        """Return twice as much."""
        return 2 * number

    assert (double(2), double.__name__, double.__doc__) == (4, "double", "Return twice as much.")


def test_an_error_keeps_its_kind() -> None:
    @speaks_python
    def fail() -> None:
        raise OnnxqError("--data is missing", "Add --data.")

    with pytest.raises(OnnxqError) as caught:
        fail()
    assert (str(caught.value), caught.value.message, caught.value.hint) == ("data is missing",) * 2 + ("Add data=….",)
