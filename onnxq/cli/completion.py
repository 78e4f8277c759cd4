"""Shell completion of commands, options, recipes, targets, metrics and codes, and the script that asks for it.

typer writes the scripts and reads the shell's request. onnxq runs its command line in a way of its own, so this is
called from here. Files are completed by the shell itself, wherever nothing else is.

Tests: `tests/cli/test_cli_completion.py`.
"""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import Any

PROGRAM = "onnxq"
VARIABLE = "_ONNXQ_COMPLETE"  # what a script sets to ask
SHELLS = ("bash", "zsh", "fish", "powershell", "pwsh")
OPTIONS = ("--show-completion", "--install-completion")
_named: list[str] = []  # the shell that was named behind such an option


def answer(command: Any) -> bool:
    """Print what a shell asked for; False where none asked.

    Args:
        command: The command line.

    """
    if not os.environ.get(VARIABLE):
        return False
    _typer().completion_init()
    try:
        command._main_shell_completion({}, PROGRAM, VARIABLE)
    except SystemExit:  # it ends the process when it has answered
        return True
    return False


def without_shell(arguments: list[str]) -> list[str]:
    """Take the name of a shell behind an option for completion, which other programs want there."""
    _named.clear()
    match arguments:
        case [option, str(shell)] if option in OPTIONS:
            _named.append(shell)
            return [option]
    return arguments


def show(wanted: bool) -> None:
    """Print the script for the shell at hand, and exit."""
    if wanted:
        import typer

        script = _typer().get_completion_script(prog_name=PROGRAM, complete_var=VARIABLE, shell=_shell())
        typer.echo(script)
        raise typer.Exit


def install(wanted: bool) -> None:
    """Write the script where the shell at hand looks for it, and exit."""
    if wanted:
        import typer

        shell, path = _typer().install(shell=_shell(), prog_name=PROGRAM, complete_var=VARIABLE)
        typer.echo(f"completion for {shell} is installed in {path}; it takes effect in a new terminal")
        raise typer.Exit


def recipes(incomplete: str) -> list[str]:
    """List the recipes that begin so."""
    from onnxq.planning.recipe import recipe_names

    return [name for name in recipe_names() if name.startswith(incomplete)]


def metrics(incomplete: str) -> list[str]:
    """List the metrics that begin so; functions of the user are not known."""
    from onnxq.verification.metrics.by_name import METRICS

    return [name for name in METRICS if name.startswith(incomplete)]


def conventions(incomplete: str) -> list[str]:
    """List the conventions of `onnxq export --for` that begin so."""
    from onnxq.publish.conventions import CONVENTIONS

    return [name for name in CONVENTIONS if name.startswith(incomplete)]


def codes(incomplete: str) -> list[str]:
    """List the codes of findings that begin so."""
    from onnxq.project.rules import NAMES

    return [name for name in NAMES if name.startswith(incomplete)]


def targets(incomplete: str) -> list[str]:
    """List the targets that begin so."""
    from onnxq.targets.tables import target_names

    return [name for name in target_names() if name.startswith(incomplete)]


def _shell() -> str:
    """Return the shell that was named, the one that started this process, or else the one of the environment.

    Raises:
        OnnxqError: Neither is known, or it has no completion.

    """
    from onnxq.errors import OnnxqError

    shellingham = import_module("shellingham")
    try:
        name = _named[0] if _named else str(shellingham.detect_shell()[0])
    except (shellingham.ShellDetectionFailure, NotImplementedError, OSError):
        name = ""
    name = name if name in SHELLS or _named else Path(os.environ.get("SHELL", "")).name
    if name not in SHELLS:
        hint = f"Name one of {', '.join(SHELLS)}, as in `onnxq --install-completion bash`."
        raise OnnxqError(
            f"there is no completion for {f'the shell {name}' if name else 'a shell that is not known'}", hint
        )
    return name


def _typer() -> Any:
    return import_module("typer.completion")
