"""Warnings of commands: on stderr at the end, in JSON and reports, and none where all is well."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

SAMPLES = Path(__file__).parents[2] / "sample_models"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model that expects 0 to 1 in a folder with its own data, `wrong.npz` with 0 to 255, and small mistakes."""
    monkeypatch.chdir(tmp_path)
    for name in ("digits_cnn.onnx", "digits_calibration.npz"):
        shutil.copy(SAMPLES / name, tmp_path)
    images = np.load("digits_calibration.npz")["image"]
    np.savez("wrong.npz", image=images * np.float32(255))
    np.savez("bytes.npz", image=np.rint(images * 255).astype(np.uint8))
    np.savez("one.npz", image=images[:1])
    np.savez("equal.npz", image=np.repeat(images[:1], 100, axis=0))
    np.savez("zeros.npz", image=np.zeros_like(images[:64]))
    return tmp_path


def codes(err: str) -> set[str]:
    """The codes of the warnings."""
    lines = [line for line in err.splitlines() if line.startswith("warning: ")]
    return {code for line in lines for code in re.findall(r"\(([a-z-]+)\)\. [A-Z]", line)}


def test_right_data_give_no_warning_and_a_line_for_each_input(cli, folder: Path) -> None:
    code, out, err = cli("quantize", "digits_cnn.onnx", "-d", "digits_calibration.npz", "--fast")
    assert code == 0
    assert codes(err) == set()
    head = next(index for index, line in enumerate(out.splitlines()) if line.split()[:2] == ["input", "type"])
    assert out.splitlines()[head + 1].split()[0] == "image"
    assert out.splitlines()[head + 1].split()[-3:-1] == ["0", "1"]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ("one.npz", {"few-samples"}),
        ("equal.npz", {"equal-samples"}),
        ("zeros.npz", {"constant-samples"}),
        ("wrong.npz", {"wrong-normalization"}),
        ("bytes.npz", {"dtype-converted", "wrong-normalization"}),
    ],
)
def test_quantize_names_each_mistake(cli, folder: Path, data: str, expected: set[str]) -> None:
    code, _, err = cli("quantize", "digits_cnn.onnx", "-d", data, "--fast")
    assert code == 0
    assert codes(err) - {"low-sqnr"} == expected


def test_verify_says_that_a_model_was_calibrated_on_other_values(cli, folder: Path) -> None:
    cli("quantize", "digits_cnn.onnx", "-d", "wrong.npz", "--fast", "-o", "q.onnx")
    code, out, err = cli("verify", "q.onnx", "--against", "digits_cnn.onnx", "-d", "digits_calibration.npz")
    assert "narrow-range" in codes(err)
    assert "image" in out
    cli("quantize", "digits_cnn.onnx", "-d", "digits_calibration.npz", "--fast", "-o", "r.onnx")
    code, out, err = cli("verify", "r.onnx", "--against", "digits_cnn.onnx", "-d", "wrong.npz")
    assert {"beyond-calibration", "wrong-normalization"} <= codes(err)
    assert cli("verify", "r.onnx", "-d", "wrong.npz").err.count("(beyond-calibration)") == 1
    assert codes(cli("verify", "r.onnx", "-d", "digits_calibration.npz").err) == set()
    assert code in (0, 1)


def test_verify_below_10_db_fails_without_thresholds(cli, folder: Path) -> None:
    images = np.load("digits_calibration.npz")["image"]
    np.savez("small.npz", image=images / np.float32(3000))
    cli("quantize", "digits_cnn.onnx", "-d", "small.npz", "--fast", "-o", "q.onnx")
    against = ("verify", "q.onnx", "--against", "digits_cnn.onnx", "-d", "digits_calibration.npz")
    code, _, err = cli(*against)
    assert code == 1
    assert "low-sqnr" in codes(err)
    assert "hint: Without thresholds, 10 dB are asked for: give --min-sqnr for less." in err
    assert cli(*against, "--min-sqnr", -50).code == 0


def test_warnings_are_in_json_and_in_every_report(cli, folder: Path) -> None:
    run = ("quantize", "digits_cnn.onnx", "-d", "one.npz", "--fast", "-f")
    _, out, err = cli(*run, "--format", "json", "--report", "r.json")
    found = json.loads(out)
    assert "few-samples" in [warning["code"] for warning in found["warnings"]]
    assert set(found["warnings"][0]) == {"code", "message", "remedy"}
    assert found["inputs"][0]["name"] == "image"
    assert found["inputs"][0]["values"]["greatest"] == 1.0
    assert json.loads(Path("r.json").read_text())["inputs"] == found["inputs"]
    assert "few-samples" in err
    cli(*run, "--report", "r.md")
    markdown = Path("r.md").read_text()
    assert "> **warning:** ranges come from only 1 sample (few-samples)." in markdown
    assert "| input | type | least | greatest | mean |" in markdown
    cli(*run, "--report", "r.html")
    page = Path("r.html").read_text()
    assert '<ul id="warnings">' in page
    assert "<code>few-samples</code>" in page
    assert '<h2 id="inputs">' in page
    verified = cli(
        "verify", "digits_cnn.int8.onnx", "--against", "digits_cnn.onnx", "-d", "equal.npz", "--format", "json"
    )
    assert "equal-samples" in [warning["code"] for warning in json.loads(verified.out)["warnings"]]


def test_quiet_keeps_warnings_and_no_escape_code_is_written(cli, folder: Path, monkeypatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    code, out, err = cli("quantize", "-q", "digits_cnn.onnx", "-d", "one.npz", "--fast")
    assert (code, out) == (0, "")
    assert "few-samples" in codes(err)
    assert "\x1b" not in err


def test_a_project_names_the_model_that_a_warning_is_about(cli, folder: Path) -> None:
    Path("onnxq.toml").write_text(
        '[[models]]\nfloat = "digits_cnn.onnx"\ndata = ["one.npz"]\nverify-data = ["wrong.npz"]\nfast = true\n'
    )
    _, _, err = cli("quantize")
    assert "warning: digits_cnn.int8.onnx: ranges come from only 1 sample (few-samples)." in err
    assert "warning: digits_cnn.int8.onnx: " in err
    assert "beyond-calibration" in codes(err)
    _, _, err = cli("verify")
    assert "beyond-calibration" in codes(err)


def test_what_is_wrong_with_samples_is_said_with_an_error_too(cli, folder: Path) -> None:
    code, out, err = cli("quantize", "digits_cnn.onnx", "-d", "one.npz", "--fast", "--min-sqnr", "200")
    assert (code, out) == (1, "")
    assert codes(err) == {"few-samples"}
    assert err.index("warning: ranges come from only 1 sample") < err.index("error: ")
