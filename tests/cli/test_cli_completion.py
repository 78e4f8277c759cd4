"""Shell completion: what a shell gets for what was typed, and the script that asks."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from onnxq.cli import completion
from onnxq.cli.app import COMMANDS
from onnxq.planning.recipe import recipe_names
from onnxq.publish.conventions import CONVENTIONS
from onnxq.targets.tables import target_names

ONNXQ = [sys.executable, "-m", "onnxq"]
BASH, ZSH, FISH = (shutil.which(shell) for shell in ("bash", "zsh", "fish"))


def completed(cli, monkeypatch: pytest.MonkeyPatch, line: str) -> list[str]:
    """What bash is told for a line, its last word unfinished."""
    words = line.split(" ")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    monkeypatch.setenv(completion.VARIABLE, "complete_bash")
    result = cli()
    assert (result.code, result.err) == (0, "")
    return result.out.split()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("onnxq qu", ["quantize"]),
        ("onnxq ", [function.__name__ for function in COMMANDS]),
        ("onnxq quantize --re", ["--recipe", "--reduce-range", "--resume", "--report"]),
        ("onnxq quantize m.onnx -r ", recipe_names()),
        ("onnxq plan m.onnx --recipe weight", ["weight-int2", "weight-int4", "weight-int8"]),
        ("onnxq quantize m.onnx --target ", target_names()),
        ("onnxq calibrate m.onnx --target open", ["openvino"]),
        ("onnxq inspect m.onnx --format ", ["text", "json"]),
        ("onnxq recipes static", ["static-int8"]),
        ("onnxq verify q.onnx --metric top", ["top1", "top5"]),
        ("onnxq quantize m.onnx --metric per", ["perplexity"]),
        ("onnxq export m.onnx --for ", list(CONVENTIONS)),
        ("onnxq quantize model", []),  # files are the shell's
        ("onnxq quantize m.onnx -r nothing", []),
    ],
)
def test_what_was_typed_is_completed(cli, monkeypatch, line: str, expected: list[str]) -> None:
    found = completed(cli, monkeypatch, line)
    assert [name for name in found if name in expected] == expected
    assert set(found) == set(expected)


def test_nothing_is_completed_unless_a_shell_asks(cli) -> None:
    assert cli("recipes", "auto").out.startswith("name = ")


@pytest.mark.parametrize("shell", completion.SHELLS)
def test_every_shell_has_a_script(cli, monkeypatch: pytest.MonkeyPatch, shell: str) -> None:
    monkeypatch.setattr(completion, "_shell", lambda: shell)
    result = cli("--show-completion")
    assert result.code == 0
    assert "onnxq" in result.out
    assert completion.VARIABLE in result.out


@pytest.fixture
def search_path(tmp_path: Path) -> str:
    """A PATH with a program `onnxq` that runs this one."""
    program = tmp_path / "onnxq"
    program.write_text(f'#!/bin/sh\nexec {shlex.join(ONNXQ)} "$@"\n')
    program.chmod(0o755)
    return f"{tmp_path}:{os.environ['PATH']}"


@pytest.mark.skipif(BASH is None, reason="needs bash")
def test_bash_completes_with_the_script(search_path: str) -> None:
    assert BASH is not None
    environment = {**os.environ, "PATH": search_path, "SHELL": "/bin/bash"}
    script = 'eval "$(onnxq --show-completion)"; COMP_WORDS=(onnxq quantize m.onnx --target tens); COMP_CWORD=4; '
    script += '_onnxq_completion onnxq; echo "${COMPREPLY[@]}"; complete -p onnxq'
    done = subprocess.run([BASH, "-c", script], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.splitlines() == ["tensorrt", "complete -o default -F _onnxq_completion onnxq"]


@pytest.mark.skipif(ZSH is None, reason="needs zsh")
def test_zsh_completes_with_the_script(search_path: str) -> None:
    """The function of the script runs with the words of a line; zsh's own functions for it print what they get."""
    assert ZSH is not None
    environment = {**os.environ, "PATH": search_path, "SHELL": "/bin/zsh"}
    script = 'compdef() { echo "$@" }; _arguments() { echo "$@" }; _files() { echo files }; '
    script += 'eval "$(onnxq --show-completion)"; words=(onnxq quantize m.onnx --target tens); CURRENT=5; '
    script += "_onnxq_completion"
    done = subprocess.run([ZSH, "-f", "-c", script], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.splitlines()[0] == "_onnxq_completion onnxq"
    assert "tensorrt" in done.stdout
    assert "openvino" not in done.stdout


@pytest.mark.parametrize(
    ("shell", "script", "started_by"),
    [
        ("bash", ".bash_completions/onnxq.sh", ".bashrc"),
        ("zsh", ".zfunc/_onnxq", ".zshrc"),
        ("fish", ".config/fish/completions/onnxq.fish", None),
    ],
)
def test_it_is_installed_where_the_shell_looks(
    cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shell: str, script: str, started_by: str | None
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(completion, "_shell", lambda: shell)
    result = cli("--install-completion")
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith(f"completion for {shell} is installed in {tmp_path / script}")
    assert completion.VARIABLE in (tmp_path / script).read_text()
    if started_by is not None:
        assert (tmp_path / started_by).exists()
        cli("--install-completion")
        assert (tmp_path / started_by).read_text().count(str(tmp_path / script)) <= 1


def test_a_shell_that_is_not_known_is_told_so(cli, monkeypatch: pytest.MonkeyPatch) -> None:
    import shellingham

    def unknown() -> None:
        raise shellingham.ShellDetectionFailure

    monkeypatch.setattr(shellingham, "detect_shell", unknown)
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    result = cli("--show-completion")
    assert (result.code, result.out) == (2, "")
    assert "there is no completion for the shell tcsh" in result.err
    assert "Name one of bash, zsh, fish, powershell, pwsh, as in `onnxq --install-completion bash`." in result.err
    monkeypatch.delenv("SHELL")
    assert "a shell that is not known" in cli("--install-completion").err
    monkeypatch.setenv("SHELL", "/usr/bin/fish")
    assert cli("--show-completion").code == 0


def test_a_shell_may_be_named(cli) -> None:
    assert cli("--show-completion", "zsh").out.startswith("#compdef onnxq")
    assert cli("--show-completion", "fish").out.startswith("complete --command onnxq")
    assert "there is no completion for the shell tcsh" in cli("--install-completion", "tcsh").err


@pytest.mark.skipif(FISH is None, reason="needs fish")
def test_fish_completes_with_the_script(tmp_path: Path, search_path: str) -> None:
    assert FISH is not None
    environment = {**os.environ, "PATH": search_path, "HOME": str(tmp_path)}
    script = "onnxq --show-completion fish | source; complete -C 'onnxq quantize m.onnx --target tens'"
    done = subprocess.run([FISH, "-c", script], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.split() == ["tensorrt"]
