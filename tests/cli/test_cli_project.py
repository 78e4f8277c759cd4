"""The commands on the models of a repository, as a new user meets them."""

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

MODEL = '[[models]]\nfloat = "{}"\ndata = ["digits_calibration.npz"]\nsamples = 4\nfast = true\n'
ALONE = ("-j", "1")  # in this process: others would import everything again
START = "`onnxq init` writes one for the models in this folder. Or: start with the two lines [[models]] and float"


def squeezed(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


@pytest.fixture
def project(folder: Path) -> Path:
    shutil.copy("digits_cnn.onnx", "second.onnx")
    Path("onnxq.toml").write_text(MODEL.format("digits_cnn.onnx") + MODEL.format("second.onnx"))
    return folder


def test_a_life(cli, project: Path) -> None:
    Path("onnxq.toml").write_text(Path("onnxq.toml").read_text().replace("fast = true\n", ""))  # which times nothing
    code, out, err = cli("check")
    assert code == 1
    assert out.splitlines() == [
        "digits_cnn.int8.onnx: does not exist; build it with `onnxq quantize` (missing)",
        "second.int8.onnx: does not exist; build it with `onnxq quantize` (missing)",
    ]
    assert err == "2 models checked: 2 findings\n"

    code, out, err = cli("quantize")
    assert code == 0
    summary, *warned = err.splitlines()
    assert re.fullmatch(r"2 built in .* s", summary)
    assert [line.partition(" (")[0] for line in warned if "(few-samples)" in line] == [
        f"warning: {name}.int8.onnx: ranges come from only 4 samples" for name in ("digits_cnn", "second")
    ]
    head, *rows = squeezed(out)
    assert head == "model result"
    first, second = sorted(rows)  # in the order in which they were done
    assert re.search(r" ms, (as fast|[\d.]+× (fast|slow)er); ", first)
    assert first.startswith("digits_cnn.int8.onnx built ")
    assert " kB, 3.6× smaller; " in first
    assert re.search(r" built [\d.]+ dB; .* s$", first)
    assert second.startswith("second.int8.onnx built ")

    code, out, err = cli("quantize")
    assert code == 0
    assert re.fullmatch(r"2 up to date in .* s\n", err)
    assert squeezed(out)[1:] == ["digits_cnn.int8.onnx up to date", "second.int8.onnx up to date"]
    assert cli("check") == (0, "", "2 models checked: all is well\n")

    code, out, err = cli("verify")
    assert code == 0
    assert re.fullmatch(r"2 passed in .* s\n", err)
    assert squeezed(out)[1].startswith("digits_cnn.int8.onnx passed ")
    assert squeezed(out)[1].endswith(" dB on the first 4 of 100 samples from digits_calibration.npz")

    np.savez("digits_calibration.npz", image=np.load("digits_calibration.npz")["image"][50:])
    Path("second.onnx").unlink()
    code, out, err = cli("quantize")
    assert code == 2  # one could not be done
    first, second = sorted(squeezed(out)[1:])  # in the order in which they were done: that of the file with one job
    assert first.startswith("digits_cnn.int8.onnx built ")
    assert second == "second.int8.onnx failed second.onnx does not exist"
    summary, *rest = err.splitlines()
    assert re.fullmatch(r"(1 failed, 1 built|1 built, 1 failed) in .* s", summary)
    assert rest[-2:] == ["error: 1 of 2 models failed", "hint: Check the path of the model."]


def test_figures_on_data_to_verify_on_are_shown(cli, project: Path) -> None:
    text = MODEL.format("digits_cnn.onnx") + 'verify-data = ["digits_calibration.npz"]\n'
    Path("onnxq.toml").write_text(text)
    assert re.search(r" dB, verified \d+\.\d dB; ", cli("quantize").out)
    (made,) = json.loads(cli("quantize", "-f", "--format", "json").out)["models"]
    assert made["report"]["comparison"]["samples"] == 4
    assert (made["verified"]["samples"], made["verified"]["data"]) == (100, "digits_calibration.npz")


def test_force_builds_everything(cli, project: Path) -> None:
    assert cli("quantize", *ALONE).code == 0
    assert [line.split()[1] for line in squeezed(cli("quantize", "-f", *ALONE).out)[1:]] == ["built", "built"]


def test_a_check_that_says_no_is_1(cli, project: Path) -> None:
    Path("onnxq.toml").write_text(MODEL.format("digits_cnn.onnx") + "thresholds = { max-abs = 1e-9 }\n")
    code, out, err = cli("quantize")
    assert code == 1
    assert "failed output 'logits' is off by up to " in squeezed(out)[1]
    assert "hint: Leave sensitive nodes float" in err
    assert not Path("digits_cnn.int8.onnx").exists()
    Path("onnxq.toml").write_text(MODEL.format("digits_cnn.onnx"))
    assert cli("quantize").code == 0
    Path("onnxq.toml").write_text(MODEL.format("digits_cnn.onnx") + "thresholds = { max-abs = 1e-9 }\n")
    code, out, err = cli("verify")
    assert code == 1
    assert "above 1e-09" in out
    assert re.match(r"1 failed in .* s\nerror: 1 of 1 models failed\n", err)
    code, out, _ = cli("check")
    assert code == 1
    assert "digits_cnn.int8.onnx: when it was built, output 'logits' is off by " in out


def test_a_model_that_is_no_model_any_more(cli, project: Path) -> None:
    assert cli("quantize", *ALONE).code == 0
    path = Path("digits_cnn.int8.onnx")
    path.write_bytes(path.read_bytes()[:1000])
    code, out, err = cli("verify")
    assert code == 2
    assert "failed is not a readable ONNX model: " in squeezed(out)[1]
    assert "onnxruntime" not in err


def test_json(cli, project: Path) -> None:
    Path("second.onnx").unlink()
    code, out, _ = cli("quantize", "--format", "json")
    result = json.loads(out)
    assert (code, result["schema"], result["project"]) == (2, 1, "onnxq.toml")
    first, second = result["models"]
    assert (first["float"], first["quantized"], first["state"], first["error"]) == (
        "digits_cnn.onnx", "digits_cnn.int8.onnx", "built", None,
    )  # fmt: skip
    assert first["report"]["comparison"]["samples"] == 4
    assert (second["state"], second["error"], second["report"]) == ("failed", "second.onnx does not exist", None)

    code, out, _ = cli("verify", "--format", "json")
    first, second = json.loads(out)["models"]
    assert (code, first["state"], second["state"]) == (1, "passed", "failed")
    assert first["comparison"]["data"] == "the first 4 of 100 samples from digits_calibration.npz"
    assert second == {
        "float": "second.onnx", "quantized": "second.int8.onnx", "state": "failed",
        "error": "second.int8.onnx does not exist", "comparison": None, "warnings": [],
    }  # fmt: skip

    code, out, _ = cli("check", "--format", "json")
    assert code == 1
    assert json.loads(out) == {
        "schema": 1,
        "passed": False,
        "models": 2,
        "ignored": 0,
        "findings": [
            {"path": "second.onnx", "rule": "missing", "message": "does not exist; the project file lists it"},
            {
                "path": "second.int8.onnx",
                "rule": "missing",
                "message": "does not exist; build it with `onnxq quantize`",
            },
        ],
    }


def test_warnings_name_keys_of_the_project_file(cli, project: Path) -> None:
    text = Path("onnxq.toml").read_text().replace("fast = true\n", 'fast = true\nexclude = ["nosuch"]\n', 1)
    Path("onnxq.toml").write_text(text)
    assert "no node matches 'exclude' nosuch (ignored-option)" in cli("quantize").err


def test_files_choose_models(cli, project: Path) -> None:
    Path("notes.txt").write_text("x")
    code, out, err = cli("check", "second.onnx", "notes.txt")
    assert (code, out.count("\n"), err) == (1, 1, "1 model checked: 1 finding\n")
    assert cli("check", "--ignore", "missing") == (0, "", "2 models checked: all is well, 2 ignored\n")
    code, out, err = cli("check", "--ignore", "mising")
    assert (code, out) == (2, "")
    assert err == "error: --ignore names an unknown finding 'mising'\nhint: Did you mean 'missing'?\n"
    assert cli("check", "notes.txt") == (0, "", "no model is concerned\n")
    Path("empty").mkdir()
    assert cli("check", "empty").err == "no model is concerned: empty is a folder, and models are named as files\n"
    assert cli("check", "second.int8.onnx").code == 1  # listed, but missing
    code, out, _ = cli("verify", "--project", "second.onnx", "notes.txt")
    assert (code, len(out.splitlines())) == (1, 2)
    assert cli("verify", "--project", "notes.txt") == (0, "", "no model of onnxq.toml is concerned\n")


@pytest.mark.parametrize("command", ["check", "verify --project"])
def test_a_file_that_is_not_there_is_named_with_what_was_meant(cli, project: Path, command: str) -> None:
    code, out, err = cli(*command.split(), "Second.onnx")
    assert (code, out) == (2, "")
    assert err == "error: Second.onnx does not exist\nhint: Did you mean 'second.onnx'?\n"


def test_check_needs_no_project_for_files(cli, folder: Path) -> None:
    assert cli("check", "digits_cnn.onnx") == (0, "", "1 model checked: all is well\n")
    Path("digits_cnn.onnx").write_bytes(Path("digits_cnn.onnx").read_bytes()[:9000])
    code, out, _ = cli("check", "digits_cnn.onnx")
    assert code == 1
    assert out.startswith("digits_cnn.onnx: is not a readable ONNX model: ")


def test_another_project_file(cli, project: Path) -> None:
    Path("onnxq.toml").rename("other.toml")
    assert cli("check").code == 2
    assert cli("check", "--config", "other.toml").code == 1
    assert cli("quantize", "--config", "other.toml", *ALONE).code == 0
    assert cli("verify", "--config", "other.toml").code == 0


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        ("quantize", "no model is given, and there is no onnxq.toml in this folder or above it", START),
        ("verify", "no model is given, and there is no onnxq.toml in this folder or above it", START),
        (
            "verify --project x.onnx",
            "there is no onnxq.toml in this folder or above it",
            "Without a project, leave out --project.",
        ),
        ("check", "there is no onnxq.toml in this folder or above it", START),
        ("check gone.onnx", "gone.onnx does not exist", "Check the path of the model."),
        ("check --config no.toml", "no.toml cannot be read (No such file or directory)", "Check the path of the"),
        ("quantize --dry-run", "--dry-run is about one MODEL, and none is named", "leave the option to the project"),
        ("quantize -d x.npz", "--data is about one MODEL, and none is named", "Name it"),
        ("verify --min-sqnr 3", "--min-sqnr is about one MODEL, and none is named", "Name it"),
        (
            "quantize digits_cnn.onnx --config x",
            "x cannot be read (No such file or directory)",
            "Check the path of the",
        ),
        ("verify digits_cnn.onnx --config x", "--config is about the models of a project", "Leave one of them out"),
        ("verify a.onnx b.onnx", "2 models are given", "--project"),
    ],
)
def test_what_a_fresh_folder_is_told(cli, folder: Path, arguments: str, message: str, hint: str) -> None:
    code, out, err = cli(*arguments.split())
    assert (code, out) == (2, "")
    first, second = err.splitlines()
    assert first.startswith(f"error: {message}")
    assert hint in second


def test_ctrl_c_leaves_what_is_complete_and_nothing_else(project: Path) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        Path("slow.py").write_text(
            "import time\nimport numpy as np\ndef slow():\n    for _ in range(1000):\n"
            "        open('running', 'w').close()\n        time.sleep(0.01)\n"
            "        yield {'image': np.zeros((1, 1, 8, 8), np.float32)}\n"
        )
        text = MODEL.format("digits_cnn.onnx") + '[[models]]\nfloat = "second.onnx"\ndata = ["slow:slow"]\n'
        Path("onnxq.toml").write_text(text)
        process = subprocess.Popen(
            [sys.executable, "-m", "onnxq", "quantize", "-j", "1"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        while not Path("running").exists():
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)  # or this takes the processor that the other needs
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        signal.signal(signal.SIGINT, before)
    assert process.returncode == 130
    assert [line.split()[:2] for line in out.splitlines()] == [["model", "result"], ["digits_cnn.int8.onnx", "built"]]
    named = r"built: digits_cnn\.int8\.onnx\nnot built: second\.int8\.onnx\n"
    assert re.fullmatch(named + r"1 built in .* s\ninterrupted\n", err)
    left = {path.name for path in project.iterdir()} - {"__pycache__", "running", "slow.py", "onnxq.toml"}
    assert left == {"digits_cnn.onnx", "digits_cnn.int8.onnx", "second.onnx", "digits_calibration.npz"}
    checked = subprocess.run([sys.executable, "-m", "onnxq", "check"], capture_output=True, text=True, check=False)
    assert checked.stdout == "second.int8.onnx: does not exist; build it with `onnxq quantize` (missing)\n"
