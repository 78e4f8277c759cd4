"""Real processes: Ctrl-C at any time leaves nothing behind, and neither does a reader that goes away."""

import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from interrupted_import import drop_at_signal, fork_at_signal, load_at_signal
from onnx import TensorProto, helper, numpy_helper

from onnxq.cli import boundary

SLOW_DATA = """
import time
import numpy as np

def slow():
    for index in range(10_000):
        open("running", "w").close()
        time.sleep(0.01)
        yield {"image": np.zeros((1, 1, 8, 8), np.float32)}
"""
ENDLESS_DATA = """
import numpy as np

def samples():
    open("running", "w").close()
    return [{"image": np.ones((1, 8), np.float32), "go": np.array(True)}] * 2
"""
STEPS = re.compile(r"^(reading the model|planning|done)\b.* s\n", re.M)  # lines of a run on a busy machine
ONNXQ = [sys.executable, "-m", "onnxq"]


PATIENCE = 180  # seconds that a command may take on a busy machine


@pytest.fixture(autouse=True)
def heard_signals() -> Iterator[None]:
    """Let children hear what the tests may ignore and hand on: SIGINT as a background job, SIGHUP under nohup."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGHUP)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not path.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("arguments", "number", "code", "word"),
    [
        ("quantize digits_cnn.onnx -d slow:slow --report r.md", signal.SIGINT, 130, "interrupted\n"),
        ("calibrate digits_cnn.onnx -d slow:slow -o s.npz", signal.SIGINT, 130, "interrupted\n"),
        ("quantize digits_cnn.onnx -d slow:slow --report r.md", signal.SIGTERM, 143, "terminated\n"),
        ("calibrate digits_cnn.onnx -d slow:slow -o s.npz", signal.SIGHUP, 129, "terminal closed\n"),
    ],
)
def test_a_signal_during_calibration(folder: Path, arguments: str, number: int, code: int, word: str) -> None:
    (folder / "slow.py").write_text(SLOW_DATA)
    process = subprocess.Popen(
        [*ONNXQ, *arguments.split()], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder
    )
    wait_for(folder / "running", process)
    process.send_signal(number)
    out, err = process.communicate(timeout=PATIENCE)
    *steps, last = err.splitlines(keepends=True)
    assert (process.returncode, out, last) == (code, "", word)
    assert all(re.fullmatch(r"(reading|planning).*: .*\d s\n", line) for line in steps)  # of a busy machine
    left = {path.name for path in folder.iterdir()} - {"__pycache__"}
    assert left == {"slow.py", "running", "digits_cnn.onnx", "digits_calibration.npz"}


def test_what_a_project_shares_with_its_processes_goes_at_ctrl_c(folder: Path) -> None:
    (folder / "slow.py").write_text(SLOW_DATA)
    (folder / "copy.onnx").write_bytes((folder / "digits_cnn.onnx").read_bytes())
    entries = [f'[[models]]\nfloat = "{name}.onnx"\ndata = ["slow:slow"]\n' for name in ("digits_cnn", "copy")]
    (folder / "onnxq.toml").write_text("\n".join(entries))
    (folder / "tmp").mkdir()
    process = subprocess.Popen(
        [*ONNXQ, "quantize", "-j", "2"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=folder,
        env={**os.environ, "TMPDIR": str(folder / "tmp")},
    )
    wait_for(folder / "running", process)
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE) == 130
    deadline = time.monotonic() + 20
    while list((folder / "tmp").iterdir()):  # of a process that was killed: what watches the run takes it away
        assert time.monotonic() < deadline
        time.sleep(0.05)


def save_endless(path: Path) -> None:
    """Write a model with a Loop that does not end on what data give, and a weight behind it."""
    value = helper.make_tensor_value_info
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["still"]), helper.make_node("Tanh", ["x"], ["y"])],
        "body",
        [value("i", TensorProto.INT64, []), value("go", TensorProto.BOOL, []), value("x", TensorProto.FLOAT, [1, 8])],
        [value("still", TensorProto.BOOL, []), value("y", TensorProto.FLOAT, [1, 8])],
    )
    weight = numpy_helper.from_array(np.ones((8, 8), np.float32), "w")
    graph = helper.make_graph(
        [
            helper.make_node("Loop", ["", "go", "image"], ["y"], body=body),
            helper.make_node("MatMul", ["y", "w"], ["z"]),
        ],
        "endless",
        [value("image", TensorProto.FLOAT, [1, 8]), value("go", TensorProto.BOOL, [])],
        [value("z", TensorProto.FLOAT, [1, 8])],
        [weight],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


@pytest.mark.parametrize("command", ["verify", "plan", "quantize"])
def test_ctrl_c_in_a_run_that_does_not_end(folder: Path, command: str) -> None:
    """Python sees the signal only when onnxruntime comes back, which it would not."""
    save_endless(folder / "endless.onnx")
    (folder / "endless.py").write_text(ENDLESS_DATA)
    before = set(folder.iterdir())
    Path("tmp").mkdir()
    process = subprocess.Popen(
        [*ONNXQ, command, "endless.onnx", "-d", "endless:samples"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**os.environ, "TMPDIR": str(folder / "tmp")},
    )
    wait_for(folder / "running", process)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1.5)
    started = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, err.splitlines()[-1]) == (130, "interrupted")
    assert time.monotonic() - started < 5
    assert set(folder.iterdir()) - {folder / "__pycache__"} == {*before, folder / "tmp", folder / "running"}
    assert not list(Path("tmp").iterdir())


@pytest.mark.parametrize("delay", [0.1, 0.25, 0.4, 0.6, 0.9])
def test_ctrl_c_at_any_time(folder: Path, delay: float) -> None:
    process = subprocess.Popen(
        [*ONNXQ, "quantize", "digits_cnn.onnx", "-d", "digits_calibration.npz"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
    )
    time.sleep(delay)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE)
    left = {path.name for path in folder.iterdir()} - {"digits_cnn.onnx", "digits_calibration.npz"}
    if process.returncode == 130:
        assert err == "interrupted\n"
        assert not left - {"digits_cnn.int8.onnx"}  # complete, if it is there: it gets its name in one step
    elif process.returncode == 0:
        assert left == {"digits_cnn.int8.onnx"}
    else:  # the interpreter itself was still starting, which a busy machine takes its time for
        assert process.returncode in (1, -signal.SIGINT)
        assert "/cli/" not in err
        assert not left


AT_THE_FORK = """
import os, sys
fork = os.fork

def interrupted():
    process = fork()
    if process:
        raise KeyboardInterrupt
    return process

os.fork = interrupted
from onnxq.cli import main
sys.exit(main())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no copy that watches")
def test_ctrl_c_while_the_copy_that_watches_starts(folder: Path) -> None:
    """The copy took it for a kill by the system, and said so behind the word that there was an interrupt."""
    command = [sys.executable, "-c", AT_THE_FORK, "inspect", "digits_cnn.onnx"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=PATIENCE)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


EARLY = """
import sys

class Interrupted:
    def find_spec(self, name, *_):
        if name == "onnxq.cli.crash":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupted())
from onnxq.cli import main
sys.exit(main())
"""


def test_ctrl_c_before_it_is_watched_for() -> None:
    done = subprocess.run([sys.executable, "-c", EARLY, "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


@pytest.mark.parametrize(
    ("reach", "reached"), [(load_at_signal, "loaded"), (fork_at_signal, "forked"), (drop_at_signal, "dropped")]
)
def test_no_interrupt_comes_where_it_does_harm(reach: Callable[[int, list[str]], None], reached: str) -> None:
    """An exception would abort the process in an extension that is being loaded, and be lost in some callbacks."""
    done: list[str] = []
    interrupts = boundary._Interrupts()
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt), interrupts.watched(to_the_end=False):
        reach(signal.SIGINT, done)
    assert (done, interrupts.seen) == ([reached], signal.SIGINT)
    assert time.monotonic() - started < 5  # not after what the main thread waits for


def test_ctrl_c_on_a_terminal_clears_the_progress(folder: Path) -> None:
    (folder / "slow.py").write_text(SLOW_DATA)
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*ONNXQ, "quantize", "digits_cnn.onnx", "-d", "slow:slow"],
        stdout=theirs,
        stderr=theirs,
        cwd=folder,
        text=True,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "80"},
    )
    os.close(theirs)
    wait_for(folder / "running", process)
    shown = b""
    while not re.search(b"looking at the samples|trying scales of channels|calibrating", shown):
        shown += os.read(ours, 4096)
    process.send_signal(signal.SIGINT)
    while True:
        try:
            chunk = os.read(ours, 4096)
        except OSError:  # Linux reports the closed terminal so
            break
        if not chunk:
            break
        shown += chunk
    assert process.wait(PATIENCE) == 130
    text = shown.decode()
    assert text.endswith("interrupted\r\n")
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")  # the cursor is back


def test_a_reader_that_goes_away(folder: Path) -> None:
    read, write = os.pipe()
    process = subprocess.Popen(
        [*ONNXQ, "plan", "digits_cnn.onnx"], stdout=write, stderr=subprocess.PIPE, text=True, cwd=folder
    )
    os.close(write)
    os.close(read)
    _, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, STEPS.sub("", err)) == (141, "")


@pytest.mark.parametrize("command", ["quantize digits_cnn.onnx --fast -v", "quantize gone.onnx"])
def test_a_reader_of_messages_that_goes_away_changes_nothing_else(folder: Path, command: str) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([*ONNXQ, *command.split()], stdout=subprocess.PIPE, stderr=write, text=True, cwd=folder)
    os.close(write)
    assert (done.returncode, (folder / "digits_cnn.int8.onnx").exists()) == ((2, False), (0, True))["-v" in command]
    assert ("next" in done.stdout) == ("-v" in command)


def test_no_color_and_no_terminal_mean_plain_text(folder: Path) -> None:
    plain = {**os.environ, "FORCE_COLOR": "", "NO_COLOR": "1"}
    done = subprocess.run([*ONNXQ, "plan", "digits_cnn.onnx"], capture_output=True, text=True, cwd=folder, env=plain)
    assert done.returncode == 0
    assert "\x1b" not in done.stdout + done.stderr
    assert STEPS.sub("", done.stderr) == ""


def test_an_encoding_without_our_signs(folder: Path) -> None:
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [*ONNXQ, "quantize", "digits_cnn.onnx", "--dry-run"], capture_output=True, cwd=folder, env=ascii_only
    )
    assert (done.returncode, STEPS.sub("", done.stderr.decode())) == (0, "")


@pytest.mark.skipif(sys.platform != "linux", reason="file names are bytes on Linux alone")
def test_file_names_in_the_c_locale_are_readable(folder: Path) -> None:
    bare = {**os.environ, "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    bare = {key: value for key, value in bare.items() if key not in ("PYTHONIOENCODING", "LANG")}
    os.rename("digits_cnn.onnx", "größe.onnx".encode())
    command = [
        *ONNXQ,
        "quantize",
        "größe.onnx".encode(),
        "-r",
        "weight-int8",
        "--fast",
        "--report",
        "größe.html".encode(),
    ]
    done = subprocess.run(command, capture_output=True, cwd=folder, env=bare)
    assert done.returncode == 0
    assert done.stdout.startswith(b"gr\\xf6\\xdfe.onnx -> gr\\xf6\\xdfe.int8.onnx   recipe weight-int8\n")
    assert b"udc" not in done.stdout + done.stderr
    assert {"größe.int8.onnx", "größe.html"} <= {path.name for path in folder.iterdir()}
    assert "<title>größe.onnx, quantized" in Path("größe.html").read_text("utf-8")
