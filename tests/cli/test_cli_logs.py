"""No escape code in a log, whatever the environment says; colours on a terminal alone."""

from __future__ import annotations

import errno
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from onnxq.cli.terminal import FILE_WIDTH, note

COMMANDS = ("inspect m.onnx", "quantize m.onnx -f -d d.npz --fast", "quantize nowhere.onnx", "--help")
VARIABLES = ["FORCE_COLOR", "TTY_COMPATIBLE", "CLICOLOR_FORCE"]


@pytest.mark.parametrize(
    ("command", "variables"),
    [*((command, VARIABLES) for command in COMMANDS), *(("--help", [one]) for one in VARIABLES)],
)
def test_no_escape_code_goes_into_a_log_whatever_the_environment_says(
    here: Path, command: str, variables: list[str]
) -> None:
    environment = {**os.environ, **dict.fromkeys(variables, "1"), "TERM": "xterm-256color"}
    done = subprocess.run([sys.executable, "-m", "onnxq", *command.split()], capture_output=True, env=environment)
    assert b"\x1b" not in done.stdout + done.stderr
    assert done.stdout or done.stderr
    assert max(len(line) for line in (done.stdout + done.stderr).splitlines()) <= FILE_WIDTH


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_a_terminal_has_colours_and_none_with_no_color(here: Path) -> None:
    import pty

    def shown(**extra: str) -> bytes:
        mine, theirs = pty.openpty()
        environment = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR")}
        environment |= {"TERM": "xterm-256color", **extra}
        process = subprocess.Popen(
            [sys.executable, "-m", "onnxq", "inspect", "m.onnx"], stdout=theirs, stderr=theirs, env=environment
        )
        os.close(theirs)
        said = b""
        while True:
            try:
                part = os.read(mine, 65536)
            except OSError:
                break
            if not part:
                break
            said += part
        process.wait()
        os.close(mine)
        return said

    assert b"\x1b[1m" in shown()
    assert b"\x1b[32m" not in shown(NO_COLOR="1")


@pytest.mark.parametrize(("given", "kept"), [({}, "1"), ({"ORT_DISABLE_TELEMETRY": "0"}, "0")])
def test_onnxruntime_tells_nobody_about_runs(given: dict[str, str], kept: str) -> None:
    code = "import os, onnxq; print(os.environ['ORT_DISABLE_TELEMETRY'])"
    environment = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"} | given
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert run.stdout == f"{kept}\n"


def test_a_log_on_a_full_disk_is_no_reason_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(self.number, "")

        number = errno.ENOSPC

    monkeypatch.setattr(sys, "stderr", Full())
    note("calibrating: 1.0 s")
    Full.number = errno.EIO
    with pytest.raises(OSError):
        note("calibrating: 1.0 s")
