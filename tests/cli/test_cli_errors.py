"""Whatever goes wrong: a sentence and a hint on stderr, the right exit code, nothing on stdout, no file left behind."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxq.cli.boundary as boundary
from onnxq.errors import InvalidResult
from onnxq.pipeline import in_memory
from onnxq.pipeline import quantize as pipeline
from onnxq.progress import STEPS

SAMPLES = Path(__file__).parents[2] / "sample_models"
ONNXQ = [sys.executable, "-m", "onnxq", "recipes", "auto"]
CASES = {
    "missing file": ("quantize nothere.onnx", "nothere.onnx does not exist"),
    "missing file, plan": ("plan nothere.onnx", "nothere.onnx does not exist"),
    "missing file, inspect": ("inspect nothere.onnx", "nothere.onnx does not exist"),
    "missing file, verify": ("verify nothere.onnx", "nothere.onnx does not exist"),
    "missing float model": ("verify digits_cnn.onnx --against nothere.onnx", "nothere.onnx does not exist"),
    "truncated": ("quantize truncated.onnx", "truncated.onnx is not a readable ONNX model"),
    "empty": ("quantize empty.onnx", "empty.onnx is empty"),
    "text": ("quantize text.onnx", "text.onnx is not a readable ONNX model"),
    "directory": ("quantize folder.md", "folder.md is a folder"),
    "this directory": ("quantize .", ". is a folder"),
    "unknown recipe": ("quantize digits_cnn.onnx -r atuo", "no recipe named 'atuo'"),
    "recipe file missing": ("quantize digits_cnn.onnx -r mine.toml", "mine.toml cannot be read"),
    "data missing": ("quantize digits_cnn.onnx -d nothere.npz", "nothere.npz does not exist"),
    "data empty": ("quantize digits_cnn.onnx -d empty.npz", "empty.npz"),
    "data with no samples": ("quantize digits_cnn.onnx -d none.npz", "no samples in none.npz"),
    "data for another model": ("quantize digits_cnn.onnx -d other.npz", "has 'picture', which is no input"),
    "samples without data": ("quantize digits_cnn.onnx --samples 3", "no data is given"),
    "output exists": ("quantize digits_cnn.onnx -o text.onnx", "text.onnx exists already"),
    "output is a folder": ("quantize digits_cnn.onnx -o .", "is a folder"),
    "output folder missing": ("quantize digits_cnn.onnx -o no/where.onnx", "folder no does not exist"),
    "output is the input": ("quantize digits_cnn.onnx -o digits_cnn.onnx -f", "is the model that is to be read"),
    "output is the data": (
        "quantize digits_cnn.onnx -d digits_calibration.npz -o digits_calibration.npz -f",
        "digits_calibration.npz is a file that is to be read",
    ),
    "statistics over the model": (
        "calibrate digits_cnn.onnx -d digits_calibration.npz -o digits_cnn.onnx -f",
        "digits_cnn.onnx is a file that is to be read",
    ),
    "statistics over the data": (
        "calibrate digits_cnn.onnx -d digits_calibration.npz -o digits_calibration.npz -f",
        "digits_calibration.npz is a file that is to be read",
    ),
    "statistics over the recipe": (
        "calibrate digits_cnn.onnx -d digits_calibration.npz -r latin.toml -o latin.toml -f",
        "latin.toml is a file that is to be read",
    ),
    "output is no file": ("quantize digits_cnn.onnx -o pipe.md -f", "pipe.md is no regular file"),
    "report is no file": ("quantize digits_cnn.onnx --report pipe.md -f", "pipe.md is no regular file"),
    "report is read": (
        "quantize digits_cnn.onnx --report old.json --tokenizer old.json -f",
        "old.json is a file that is to be read",
    ),
    "report is the output": ("quantize digits_cnn.onnx -o a.json --report a.json", "a.json is asked for twice"),
    "LFS pointer": ("quantize pointer.onnx", "pointer.onnx is a Git LFS pointer, not the model itself"),
    "LFS pointer as data": ("quantize digits_cnn.onnx -d pointer.npz", "pointer.npz is a Git LFS pointer"),
    "recipe in another encoding": ("quantize digits_cnn.onnx -r latin.toml", "latin.toml is no text in UTF-8"),
    "metric without data": ("quantize digits_cnn.onnx --metric os:getcwd --max-drop 1", "a metric needs data"),
    "report of an odd kind": ("quantize digits_cnn.onnx --report r.txt", "a report cannot be written as '.txt'"),
    "report exists": ("quantize digits_cnn.onnx --report old.json", "old.json exists already"),
    "report is a folder": ("quantize digits_cnn.onnx --report folder.md", "folder.md is a folder"),
    "report without folder": ("quantize digits_cnn.onnx --report no/r.md", "folder no does not exist"),
    "stats missing": ("quantize digits_cnn.onnx --stats s.npz", "s.npz does not exist"),
    "stats are none": ("quantize digits_cnn.onnx --stats digits_calibration.npz", "holds no statistics"),
    "stats exist": ("calibrate digits_cnn.onnx -d digits_calibration.npz -o other.npz", "other.npz exists already"),
    "threshold without float": ("verify digits_cnn.onnx --max-abs 1", "--max-abs needs a float model"),
    "no such recipe": ("recipes nothing", "no recipe named 'nothing'"),
    "no argument": ("plan", "missing argument 'MODEL'"),
    "no model and no project": ("quantize", "no model is given, and there is no onnxq.toml in this folder or above it"),
    "unknown command": ("quantise digits_cnn.onnx", "no such command 'quantise'"),
    "unknown option": ("quantize digits_cnn.onnx --mni-sqnr 3", "no such option: --mni-sqnr"),
    "no number": ("quantize digits_cnn.onnx --min-sqnr high", "invalid value for '--min-sqnr'"),
    "no finite number": ("quantize digits_cnn.onnx --min-sqnr nan", "min-sqnr is nan, not a finite number"),
    "no samples wanted": ("quantize digits_cnn.onnx --samples 0", "invalid value for '--samples'"),
    "unknown format": ("plan digits_cnn.onnx --format yaml", "invalid value for '--format': 'yaml' is not one of"),
    "too many arguments": ("inspect digits_cnn.onnx another.onnx", "another.onnx"),
    "calibrate without data": ("calibrate digits_cnn.onnx -o s.npz", "no data is given"),
}


def files(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


@pytest.fixture
def mess(folder: Path) -> Path:
    model = (folder / "digits_cnn.onnx").read_bytes()
    (folder / "truncated.onnx").write_bytes(model[: len(model) // 2])
    (folder / "empty.onnx").touch()
    (folder / "text.onnx").write_text("This is not a model.")
    (folder / "empty.npz").touch()
    (folder / "old.json").write_text("{}")
    (folder / "folder.md").mkdir()
    (folder / "latin.toml").write_bytes('description = "für alle"'.encode("latin-1"))
    os.mkfifo(folder / "pipe.md")
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
    for name in ("pointer.onnx", "pointer.npz"):
        (folder / name).write_text(pointer)
    np.savez(folder / "none.npz", image=np.zeros((0, 1, 8, 8), np.float32))
    np.savez(folder / "other.npz", picture=np.zeros((2, 1, 8, 8), np.float32))
    return folder


@pytest.mark.parametrize("case", CASES)
def test_what_cannot_be_done_is_said_in_a_sentence(cli, mess: Path, case: str) -> None:
    arguments, sentence = CASES[case]
    before = files(mess)
    result = cli(*arguments.split())
    assert result.code == 2
    assert result.out == ""
    assert sentence in result.err
    lines = result.err.splitlines()
    assert [line.partition(": ")[0] for line in lines] == ["error", "hint"]
    assert files(mess) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_to(cli, folder: Path) -> None:
    sealed = folder / "sealed"
    sealed.mkdir(mode=0o500)
    result = cli("quantize", "digits_cnn.onnx", "-o", sealed / "m.onnx")
    assert (result.code, "cannot be written to" in result.err) == (2, True)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder that takes no files from anybody")
def test_a_disk_that_refuses(cli, folder: Path) -> None:
    result = cli("quantize", "digits_cnn.onnx", "-o", "/proc/m.onnx")
    assert (result.code, "/proc/m.onnx cannot be written" in result.err) == (2, True)


def test_a_folder_that_vanishes_meanwhile(cli, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "out").mkdir()
    compare = in_memory.compare

    def and_remove(*args: object, **options: object) -> object:
        (folder / "out").rmdir()
        return compare(*args, **options)

    monkeypatch.setattr(in_memory, "compare", and_remove)
    result = cli("quantize", "digits_cnn.onnx", "-o", "out/m.onnx")
    assert result.code == 2
    assert "the folder out does not exist" in result.err


def test_nothing_to_quantize_is_a_check_that_failed(cli, folder: Path) -> None:
    before = files(folder)
    result = cli("quantize", "digits_cnn.onnx", "--only", "NoSuchOperator")
    assert result.code == 1
    assert "no node of digits_cnn.onnx can be quantized: --only leaves it float (12)" in result.err
    assert "hint: No node matches --only NoSuchOperator" in result.err
    assert files(folder) == before


def test_a_missed_budget_is_a_check_that_failed(cli, folder: Path) -> None:
    before = files(folder)
    result = cli("quantize", "digits_cnn.onnx", "--min-sqnr", 200, "--report", "r.json")
    assert result.code == 1
    assert "200 dB" in result.err
    assert files(folder) == before


def test_a_model_that_onnxruntime_does_not_know(cli, folder: Path) -> None:
    model = onnx.load("digits_cnn.onnx")
    model.graph.node[-1].domain = "acme"
    model.opset_import.add(domain="acme", version=1)
    onnx.save(model, "acme.onnx")
    before = files(folder)
    result = cli("quantize", "acme.onnx", "-d", "digits_calibration.npz")
    assert result.code == 2
    assert "acme" in result.err
    assert files(folder) == before


def breaking(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def broken(*args: object, **options: object) -> None:
        raise error

    monkeypatch.setattr(pipeline, "quantize", broken)


def test_a_bug_of_ours_has_a_log(cli, folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    breaking(monkeypatch, ZeroDivisionError("division by zero\nsecond line"))
    result = cli("quantize", "digits_cnn.onnx", "-x", "a b")
    assert result.code == 3
    first, second = result.err.splitlines()
    assert first == "error: onnxq hit a bug: ZeroDivisionError: division by zero"
    log = Path(second.removeprefix("hint: Please report it with "))
    content = log.read_text()
    assert "command: onnxq quantize digits_cnn.onnx -x 'a b'" in content
    assert "Traceback" in content
    assert f"onnx: {onnx.__version__}" in content
    assert "Traceback" not in result.err


def test_an_invalid_result_is_a_bug_of_ours(cli, folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    breaking(monkeypatch, InvalidResult("it does not load", "Look at it."))
    result = cli("quantize", "digits_cnn.onnx")
    assert result.code == 3
    assert [line.partition(": ")[0] for line in result.err.splitlines()] == ["error", "hint", "hint"]
    assert len(list(tmp_path.glob("onnxq-*.log"))) == 1


def test_a_bug_without_a_place_for_its_log(cli, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/nowhere")
    breaking(monkeypatch, ZeroDivisionError())
    result = cli("quantize", "digits_cnn.onnx")
    assert result.code == 3
    assert "a log could not be written" in result.err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a file that is always full")
def test_a_stdout_that_takes_nothing() -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(ONNXQ, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert done.stderr.splitlines()[0] == "error: a file or stdout cannot be read or written (No space left on device)"
    assert "Exception ignored" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a file that is always full")
def test_a_stderr_that_takes_nothing() -> None:
    with open("/dev/full", "wb") as full:
        assert subprocess.run([*ONNXQ[:-1], "nothing"], stderr=full, stdout=subprocess.PIPE).returncode == 2


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_a_closed_stdout_or_stderr_does_no_harm(tmp_path: Path, closed: str) -> None:
    model, output = SAMPLES / "digits_cnn.onnx", tmp_path / "q.onnx"
    command = [*ONNXQ[:-2], "quantize", str(model), "--recipe", "weight-int8", "--fast", "-o", str(output)]
    subprocess.run(f"{shlex.join(command)} {closed}", shell=True, check=True, capture_output=True)
    onnx.checker.check_model(output)


@pytest.mark.parametrize("package", ["typer", "onnx"])
def test_a_package_that_is_not_installed_is_named(folder: Path, package: str) -> None:
    program = f"import sys; sys.modules[{package!r}] = None; from onnxq.cli import main; sys.exit(main())"
    arguments = [sys.executable, "-c", program, "inspect", "digits_cnn.onnx"]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    first, second = done.stderr.splitlines()
    assert first == f"error: the package {package} is not installed for {sys.executable}"
    assert second.endswith("-m pip install onnxq")


def test_an_error_of_the_system_is_no_bug(cli, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    breaking(monkeypatch, FileNotFoundError(2, "No such file or directory", "gone.onnx"))
    result = cli("quantize", "digits_cnn.onnx")
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("error: gone.onnx cannot be read or written (No such file or directory)\nhint: ")


def test_too_little_memory(cli, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    breaking(monkeypatch, MemoryError())
    result = cli("quantize", "digits_cnn.onnx")
    assert result.code == 2
    assert "not enough memory" in result.err


def test_ctrl_c_says_so(cli, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    breaking(monkeypatch, KeyboardInterrupt())
    assert cli("quantize", "digits_cnn.onnx") == (130, "", "interrupted\n")


def test_ctrl_c_that_an_extension_turned_into_an_error(cli, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object, **options: object) -> None:
        try:
            signal.raise_signal(signal.SIGINT)  # in this thread: what os.kill sends may be seen to by another, later
        except KeyboardInterrupt:
            raise ImportError("initialization failed") from None

    monkeypatch.setattr(pipeline, "quantize", broken)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
    try:
        assert cli("quantize", "digits_cnn.onnx") == (130, "", "interrupted\n")
    finally:
        signal.signal(signal.SIGINT, before)


def test_what_could_steer_a_terminal_is_escaped(cli, folder: Path) -> None:
    result = cli("quantize", "\x1b[31mred\n.onnx")
    assert result.code == 2
    assert "\x1b" not in result.err
    assert "\\x1b[31mred .onnx does not exist" in result.err


def test_a_path_that_is_not_text(cli, folder: Path) -> None:
    result = cli("quantize", os.fsdecode(b"\xff.onnx"))
    assert result.code == 2
    assert "does not exist" in result.err


def test_a_file_whose_name_is_not_text(cli, folder: Path) -> None:
    """Its bytes can be read; onnx and onnxruntime take no such path."""
    name = os.fsdecode(b"\xff.onnx")
    Path("digits_cnn.onnx").rename(name)
    assert cli("quantize", name, "--report", "r.md", "--recipe", "weight-int8").code == 0
    assert "Written to `\\xff.int8.onnx`" in Path("r.md").read_text(encoding="utf-8")
    output = os.fsdecode(b"\xff.int8.onnx")
    assert cli("inspect", output).code == 0
    result = cli("verify", output)
    assert (result.code, result.out) == (2, "")
    assert "opens no file whose path is not UTF-8" in result.err


@pytest.mark.parametrize(
    "command", ["quantize digits_cnn.onnx -o new.onnx", "verify digits_cnn.onnx", "data digits_cnn.onnx"]
)
def test_what_a_user_prints_is_no_product(cli, folder: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    Path("chatty.py").write_text(
        "import numpy as np\nprint('imported')\n"
        "def samples():\n    print('called')\n    return [{'image': np.ones((1, 1, 8, 8), np.float32)}]\n"
    )
    monkeypatch.delitem(sys.modules, "chatty", raising=False)
    result = cli(*command.split(), "-d", "chatty:samples", "--format", "json")
    assert json.loads(result.out)["schema"] == 1
    assert result.err.splitlines()[:2] == ["imported", "called"]


def test_the_step_at_work_is_named_in_words() -> None:
    """Every step that the code announces."""
    package = Path(boundary.__file__).parents[1]
    told = {step for file in package.rglob("*.py") for step in re.findall(r'\.step\("([\w-]+)"\)', file.read_text())}
    assert told == set(STEPS)


WARNING = """
import warnings
import numpy as np

def samples():
    warnings.warn("of the user's code", RuntimeWarning)
    warnings.warn_explicit("of the product's code", RuntimeWarning, "some.py", 1, module="onnxq.ir.some")
    return [{"image": np.ones((4, 1, 8, 8), np.float32)}]
"""


@pytest.mark.parametrize("asked", [False, True])
def test_warnings_about_the_code_of_onnxq_do_not_reach_a_user(tmp_path: Path, asked: bool) -> None:
    (tmp_path / "mine.py").write_text(WARNING)
    asking = {"PYTHONWARNINGS": "default"} if asked else {}
    model = str(SAMPLES / "digits_cnn.onnx")
    command = [*ONNXQ[:-2], "quantize", model, "-d", "mine:samples", "--fast", "-o", str(tmp_path / "q.onnx")]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONWARNINGS"} | asking
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0
    assert "of the user's code" in done.stderr
    assert ("of the product's code" in done.stderr) is asked
