"""What a run says on stderr while it is at work: a line for each step in a log, a bar on a terminal, or nothing."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from cli_support import Cli
from rich.console import Console

from onnxq.cli import terminal
from onnxq.cli.app import surroundings
from onnxq.cli.progress_bar import Bar, words
from onnxq.cli.terminal import TerminalObserver
from onnxq.progress import Work, expect, following

RUN = [sys.executable, "-m", "onnxq", "quantize", "m.onnx", "-d", "d.npz", "--fast"]


def test_a_log_has_a_line_for_each_step_of_a_long_run_and_the_time_in_all(
    here: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal, "PATIENCE", 0.0)
    lines = cli("quantize", "m.onnx", "-d", "d.npz").err.splitlines()
    assert any(line.startswith("calibrating: 8 samples, ") for line in lines)
    assert any(line.startswith("comparing with the float model: 8 samples, ") for line in lines)
    assert lines[-1].startswith("done in ")


def test_a_log_holds_no_escape_codes_whatever_the_environment_says(here: Path) -> None:
    asked = dict.fromkeys(("FORCE_COLOR", "CLICOLOR_FORCE", "TTY_INTERACTIVE", "TTY_COMPATIBLE"), "1")
    done = subprocess.run(RUN, capture_output=True, env=os.environ | asked, check=True)
    assert b"\x1b" not in done.stdout + done.stderr
    assert b"\r" not in done.stdout + done.stderr


def test_a_short_run_leaves_no_lines(here: Path, cli: Cli) -> None:
    assert cli("quantize", "m.onnx", "-d", "d.npz").err == ""


def test_quiet_says_nothing(here: Path, cli: Cli) -> None:
    assert cli("quantize", "-q", "m.onnx", "-d", "d.npz") == (0, "", "")
    assert cli("quantize", "--quiet", "m.onnx", "-d", "d.npz", "--force", "--format", "json").out.startswith("{")


def test_quiet_still_says_what_is_wrong(here: Path, cli: Cli) -> None:
    result = cli("quantize", "-q", "gone.onnx")
    assert (result.code, result.out, result.err.startswith("error: gone.onnx does not exist")) == (2, "", True)


def test_verbose_says_what_runs_where(here: Path, cli: Cli) -> None:
    first = cli("plan", "-v", "m.onnx").err.splitlines()[0]
    assert first.startswith("onnxq ")
    assert "onnxruntime " in first


def test_verbose_takes_another_package_of_onnxruntime(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = metadata.version

    def version(name: str) -> str:
        if name == "onnxruntime":
            raise metadata.PackageNotFoundError(name)
        return "1.99.0" if name == "onnxruntime-gpu" else installed(name)

    monkeypatch.setattr(metadata, "version", version)
    assert "onnxruntime 1.99.0, " in surroundings()


def test_quiet_and_verbose_are_refused_together(here: Path, cli: Cli) -> None:
    assert "--quiet and --verbose are opposites" in cli("plan", "-q", "-v", "m.onnx").err


@pytest.mark.parametrize("command", ["quantize -d d.npz --fast", "data -d d.npz", "plan", "verify", "explain"])
def test_the_bar_is_there_before_anything_heavy_is_imported(here: Path, command: str) -> None:
    name, *options = command.split()
    arguments = [name, "m.onnx", *(["product"] if name == "explain" else []), *options]
    code = (
        "import sys; from onnxq.cli import progress_bar, terminal; terminal._is_terminal = lambda stream: True\n"
        "class Bar(progress_bar.Bar):\n"
        "    def start(self): print('numpy' in sys.modules, file=sys.stderr); super().start()\n"
        "progress_bar.Bar = Bar; from onnxq.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, env=os.environ | {"TERM": "xterm"}
    )
    assert (done.returncode, done.stderr.splitlines()[0]) == (0, "False")


def test_the_time_in_front_of_a_run_counts() -> None:
    with TerminalObserver() as observer:
        observer._opened = (observer._opened or 0.0) - 100
        with following(observer):
            assert observer.elapsed >= 100
        with following(observer):
            assert observer.elapsed < 100


def test_the_bar_says_that_it_starts_before_there_is_a_step() -> None:
    assert words(TerminalObserver()) == "starting"


@pytest.mark.parametrize("width", [40, 60, 80, 160])
def test_the_bar_is_one_line_on_any_terminal(width: int) -> None:
    observer = TerminalObserver()
    console = Console(file=io.StringIO(), force_terminal=True, width=width)
    with following(observer):
        expect([Work("verify", "compare", 10.0)])
        observer.step("verify")
        observer.progress(3, 8)
        with console.capture() as capture:
            console.print(Bar(observer, console))
    (line,) = capture.get().splitlines()
    assert "comparing" in line
    assert " %" in line
    assert "left" in line


def test_a_run_that_is_stopped_leaves_the_cursor() -> None:
    written = io.StringIO()
    bar = Bar(TerminalObserver(), Console(file=written, force_terminal=True, width=80))
    bar.start()
    drawn = written.getvalue()
    bar.stop()
    assert "\x1b[?25l" in drawn
    assert drawn.rfind("\x1b[?25h") > drawn.rfind("\x1b[?25l")
