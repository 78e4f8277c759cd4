"""`onnxq quantize MODEL` inside a project."""

import json
import re
from pathlib import Path

import pytest

from onnxq.project.check import check
from onnxq.project.file import load_project

ENTRY = '[[models]]\nfloat = "digits_cnn.onnx"\ndata = ["digits_calibration.npz"]\nsamples = 4\nfast = true\n'


@pytest.fixture
def project(folder: Path) -> Path:
    Path("onnxq.toml").write_text(ENTRY)
    return folder


def findings() -> list[str]:
    return [finding.message for finding in check(load_project()).findings]


def test_the_entry_counts(cli, project: Path) -> None:
    code, out, err = cli("quantize", "digits_cnn.onnx")
    assert code == 0
    assert err.splitlines()[0] == "digits_cnn.onnx: as onnxq.toml lists it"
    assert "the first 4 of 100 samples" in out  # a fast run
    assert out.splitlines()[-1] == "  onnxq verify --project digits_cnn.int8.onnx"
    assert findings() == []
    made = Path("digits_cnn.int8.onnx").stat().st_mtime_ns
    assert cli("quantize", "digits_cnn.onnx") == (
        0, "", "digits_cnn.onnx: as onnxq.toml lists it\ndigits_cnn.int8.onnx is up to date; --force builds it again\n",
    )  # fmt: skip
    assert Path("digits_cnn.int8.onnx").stat().st_mtime_ns == made
    Path("onnxq.toml").write_text(ENTRY.replace("= 4", "= 5"))
    assert cli("quantize", "digits_cnn.onnx").code == 0  # out of date, so it is replaced
    assert findings() == []


def test_options_of_the_command_line_win(cli, project: Path) -> None:
    code, _, err = cli("quantize", "digits_cnn.onnx", "--samples", "6")
    assert code == 0
    assert err.startswith("digits_cnn.onnx: as onnxq.toml lists it, but for --samples\n")
    assert findings() == ["is out of date: 'samples' was 6 when it was built, and is 4"]
    code, _, err = cli("quantize", "digits_cnn.onnx", "--samples", "7")
    assert code == 2
    assert "error: digits_cnn.int8.onnx exists already\n" in err
    code, out, err = cli("quantize", "digits_cnn.onnx", "-o", "other.onnx")
    assert code == 0
    assert err.startswith("digits_cnn.onnx: as onnxq.toml lists it, but for --output\n")
    assert "onnxq verify other.onnx --against digits_cnn.onnx -d digits_calibration.npz" in out


def test_what_no_project_file_holds_makes_a_model_stale(cli, project: Path) -> None:
    assert cli("quantize", "digits_cnn.onnx", "--benchmark").code == 0
    assert findings() == ["is out of date: it was built with --benchmark, which no project file holds"]


def test_from_another_folder(cli, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "sub").mkdir()
    monkeypatch.chdir(project / "sub")
    code, out, err = cli("quantize", "../digits_cnn.onnx", "-d", "../digits_calibration.npz", "-f")
    assert code == 0
    assert err.startswith("../digits_cnn.onnx: as ../onnxq.toml lists it, but for --data\n")
    assert "-d ../digits_calibration.npz" in out
    assert findings() == []


def test_a_model_that_is_not_listed_is_built_plainly(cli, project: Path) -> None:
    Path("other.onnx").write_bytes(Path("digits_cnn.onnx").read_bytes())
    code, out, err = cli("quantize", "other.onnx", "--fast")
    assert code == 0
    assert err.startswith("onnxq.toml does not list other.onnx: only the options given here count\n")
    assert "onnxq verify other.int8.onnx --against other.onnx\n" in out


def test_no_config_leaves_the_project_out(cli, project: Path) -> None:
    Path("onnxq.toml").write_text("not TOML")
    code, _, err = cli("quantize", "digits_cnn.onnx", "--fast")
    assert code == 2
    assert err.startswith("error: onnxq.toml is not valid TOML")
    code, out, err = cli("quantize", "digits_cnn.onnx", "--fast", "--no-config")
    assert code == 0
    assert "onnxq.toml" not in err
    assert out.endswith("--against digits_cnn.onnx\n")  # no data
    code, _, err = cli("quantize", "digits_cnn.onnx", "--no-config", "--config", "onnxq.toml")
    assert code == 2
    assert err.startswith("error: --config and --no-config contradict each other\nhint: ")
    assert "--no-config is about one MODEL" in cli("quantize", "--no-config").err


def test_a_threshold_of_the_entry_refuses_the_result(cli, project: Path) -> None:
    Path("onnxq.toml").write_text(ENTRY + "thresholds = { max-abs = 1e-9 }\n")
    code, out, err = cli("quantize", "digits_cnn.onnx")
    assert (code, out) == (1, "")
    assert re.search(r"error: digits_cnn\.int8\.onnx: output 'logits' is off by up to .*\nhint: ", err)
    assert not Path("digits_cnn.int8.onnx").exists()


def test_data_to_verify_on_are_told(cli, project: Path) -> None:
    Path("onnxq.toml").write_text(ENTRY + 'verify-data = ["digits_calibration.npz"]\n')
    err = cli("quantize", "digits_cnn.onnx").err
    assert re.search(r"^verified on digits_calibration\.npz: [\d.]+ dB, 100 samples$", err, re.MULTILINE)


def test_a_plan_and_json_need_no_build_that_is_due(cli, project: Path) -> None:
    code, out, _ = cli("quantize", "digits_cnn.onnx", "--dry-run")
    assert (code, Path("digits_cnn.int8.onnx").exists()) == (0, False)
    assert "static-int8" in out
    assert cli("quantize", "digits_cnn.onnx").code == 0
    code, out, _ = cli("quantize", "digits_cnn.onnx", "--format", "json")
    made = json.loads(out)
    assert (code, made["output"]["path"]) == (0, "digits_cnn.int8.onnx")
    assert made["command"] == "onnxq quantize digits_cnn.onnx"
