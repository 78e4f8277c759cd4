"""Hazards by version of onnxruntime, as `verify`, `inspect`, `explain` and `quantize` tell them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.helpers import build, floats, node

RECIPE = 'name = "mine"\nscheme = "weight-int8"\nform = "{}"\nblock_size = {}\naccuracy_level = {}\n'
SENTENCE = "becomes MatMulNBits, which rounds its input to 8 bit"


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model of one product and data for it."""
    monkeypatch.chdir(tmp_path)
    proto = build([node("MatMul", "x w", "y", name="product")], {"x": ["n", 64]}, weights={"w": floats(64, 64)})
    onnx.save(proto, "m.onnx")
    np.savez("d.npz", x=floats(8, 64, seed=1))
    return tmp_path


def quantize(cli, form: str, block: int = 0, level: int = 0) -> dict:
    Path("r.toml").write_text(RECIPE.format(form, block, level))
    result = cli("quantize", "m.onnx", "-r", "r.toml", "-d", "d.npz", "-o", "q.onnx", "-f", "--format", "json")
    assert result.code == 0, result.err
    return json.loads(result.out)


def test_a_report_says_which_onnxruntime_is_needed(cli, small: Path) -> None:
    assert quantize(cli, "cast-mul")["min_onnxruntime"] == {"x86-64": "1.12", "arm64": "1.12"}
    assert quantize(cli, "matmulnbits", 32, 4)["min_onnxruntime"] == {"x86-64": "1.22", "arm64": "1.23"}
    planned = json.loads(cli("plan", "m.onnx", "-r", "r.toml", "--format", "json").out)
    assert planned["min_onnxruntime"] is None


def test_the_notes_say_what_the_onnxruntime_installed_does_and_nothing_of_others(cli, small: Path) -> None:
    assert SENTENCE in " ".join(quantize(cli, "qdq")["notes"])
    assert not [note for note in quantize(cli, "cast-mul")["notes"] if "onnxruntime" in note]
    notes = quantize(cli, "matmulnbits", 32, 4)["notes"]
    assert not [note for note in notes if "MatMulNBits" in note]
    assert "dequantizes its whole weight in every run" in " ".join(quantize(cli, "matmulnbits", 32, 1)["notes"])


@pytest.mark.parametrize("command", [("verify", "q.onnx"), ("inspect", "q.onnx")])
def test_verify_and_inspect_name_them_in_words(cli, small: Path, command: tuple[str, ...]) -> None:
    quantize(cli, "qdq")
    out = cli(*command).out
    assert (
        f"onnxruntime 1.25 and newer, as here: a product whose weight stands behind DequantizeLinear {SENTENCE}" in out
    )
    assert "(product). Set the session option session.qdq_matmulnbits_accuracy_level to 1" in out
    quantize(cli, "cast-mul")
    assert "onnxruntime 1" not in cli(*command).out


def test_verify_against_names_those_of_other_versions(cli, small: Path) -> None:
    quantize(cli, "matmulnbits", 32, 4)
    out = cli("verify", "q.onnx", "--against", "m.onnx", "-d", "d.npz").out
    assert "onnxruntime 1.21 and older: MatMulNBits of 8 bits keeps the model from loading" in out


@pytest.mark.parametrize(
    "command", [("verify", "q.onnx"), ("verify", "q.onnx", "--against", "m.onnx"), ("inspect", "q.onnx")]
)
def test_json_has_all_of_them(cli, small: Path, command: tuple[str, ...]) -> None:
    quantize(cli, "qdq")
    made = json.loads(cli(*command, "--format", "json").out)
    (first,) = made["hazards"]
    assert set(first) == {
        *("id", "effect", "since", "until", "processors", "sentence", "remedy", "source", "here", "nodes")
    }
    assert (first["id"], first["here"], first["nodes"]) == ("weight-only-input-8-bit", True, ["product"])
    assert made["min_onnxruntime"] == {"x86-64": "1.12", "arm64": "1.12"}
    float_model = json.loads(cli("inspect", "m.onnx", "--format", "json").out)
    assert (float_model["hazards"], float_model["min_onnxruntime"]) == (None, None)


def test_explain_names_them_before_anything_is_written(cli, small: Path) -> None:
    Path("r.toml").write_text(RECIPE.format("qdq", 0, 0))
    assert f"onnxruntime 1.25 and newer: a product whose weight stands behind DequantizeLinear {SENTENCE}" in " ".join(
        cli("explain", "m.onnx", "product", "-r", "r.toml").out.split()
    )
    (one,) = json.loads(cli("explain", "m.onnx", "product", "-r", "r.toml", "--format", "json").out)["nodes"]
    assert [hazard["id"] for hazard in one["hazards"]] == ["weight-only-input-8-bit"]
    Path("r.toml").write_text(RECIPE.format("matmulnbits", 32, 4))
    (one,) = json.loads(cli("explain", "m.onnx", "product", "-r", "r.toml", "--format", "json").out)["nodes"]
    assert "nbits-8-unknown" in [hazard["id"] for hazard in one["hazards"]]
    Path("r.toml").write_text(RECIPE.format("cast-mul", 0, 0))
    (one,) = json.loads(cli("explain", "m.onnx", "product", "-r", "r.toml", "--format", "json").out)["nodes"]
    assert one["hazards"] == []


def test_explain_names_none_for_a_gemm_that_is_left(cli, small: Path) -> None:
    nodes = [node("Gemm", "x w", "y", name="product", transB=1)]
    onnx.save(build(nodes, {"x": ["n", 64]}, weights={"w": floats(64, 64)}), "m.onnx")
    Path("r.toml").write_text(RECIPE.format("qdq", 0, 0))
    (one,) = json.loads(cli("explain", "m.onnx", "product", "-r", "r.toml", "--format", "json").out)["nodes"]
    assert one["hazards"] == []
