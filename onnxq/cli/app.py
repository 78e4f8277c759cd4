"""The commands, put together. Importing this must stay cheap: onnx, onnxruntime and NumPy wait inside the commands.

Tests: `tests/cli/test_cli_help.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from inspect import Parameter, signature
from typing import Annotated, Any

import typer

from onnxq.cli.calibrate import calibrate
from onnxq.cli.check import check
from onnxq.cli.completion import install, show
from onnxq.cli.data import data
from onnxq.cli.explain import explain
from onnxq.cli.export import export
from onnxq.cli.init import init
from onnxq.cli.inspect import inspect
from onnxq.cli.merge import merge
from onnxq.cli.options import refuse_missing, refusing_doubles
from onnxq.cli.plan import plan
from onnxq.cli.quantize import quantize
from onnxq.cli.recipes import recipes
from onnxq.cli.terminal import Voice, note, speak
from onnxq.cli.verify import verify
from onnxq.errors import RecipeError

COMMANDS = (quantize, init, data, plan, explain, calibrate, merge, verify, check, inspect, export, recipes)
Quiet = Annotated[
    bool,
    typer.Option(
        "--quiet", "-q", help="Say nothing but warnings and errors; print no tables, only what --format json asks for."
    ),
]
Verbose = Annotated[
    bool,
    typer.Option("--verbose", "-v", help="Say on stderr what runs where, and leave a line for each step."),
]
EPILOG = "Exit codes: 0 fine, 1 the check said no, 2 bad model, data or arguments, 3 a bug of onnxq, 130 interrupted."


@cache
def command() -> Any:
    """Build the command line, once."""
    app = typer.Typer(
        name="onnxq",
        help="Quantize ONNX models: valid, verified, smaller and faster, with a reason for every node.",
        epilog=EPILOG,
        add_completion=False,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    for function in COMMANDS:
        app.command()(_with_voice(function))
    built: Any = typer.main.get_command(app)
    for one in built.commands.values():
        one.parse_args = refusing_doubles(one)
    for parameter in (p for one in built.commands.values() for p in one.params if p.param_type_name == "argument"):
        parameter.display_type_rich = _no_type
    return built


def _with_voice(function: Callable[..., None]) -> Callable[..., None]:
    """Return a command with the options that every command has: how much it reports apart from its product."""

    @wraps(function)
    def run(*arguments: Any, quiet: bool = False, verbose: bool = False, **options: Any) -> None:
        if quiet and verbose:
            raise RecipeError("--quiet and --verbose are opposites", "Leave one of them out.")
        speak(Voice.QUIET if quiet else Voice.VERBOSE if verbose else Voice.USUAL)
        if verbose:
            note(surroundings())
        refuse_missing(options)
        function(*arguments, **options)

    given = signature(function, eval_str=True)
    more = {"quiet": Quiet, "verbose": Verbose}
    added = [Parameter(name, Parameter.KEYWORD_ONLY, default=False, annotation=kind) for name, kind in more.items()]
    run.__annotations__ = {name: one.annotation for name, one in given.parameters.items()} | more | {"return": None}
    run.__signature__ = given.replace(parameters=[*given.parameters.values(), *added])  # type: ignore[attr-defined]
    return run


def surroundings() -> str:
    """Say what runs where, in one line."""
    import platform

    from onnxq.targets.host import processor_words
    from onnxq.version import __version__, installed_version

    system = f"Python {platform.python_version()} on {processor_words()}"
    return f"onnxq {__version__}, onnxruntime {installed_version('onnxruntime')}, {system}"


def _no_type(ctx: object) -> None:
    """Keep typer from showing how an argument is called in Python, as in `FILES <list[Path]>`."""


def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
    show_completion: Annotated[
        bool,
        typer.Option(
            "--show-completion", help="Print a completion script for this shell.", callback=show, is_eager=True
        ),
    ] = False,
    install_completion: Annotated[
        bool,
        typer.Option(
            "--install-completion", help="Install completion for this shell.", callback=install, is_eager=True
        ),
    ] = False,
) -> None:
    """Options that stand before a command."""


def _print_version(wanted: bool) -> None:
    if wanted:
        from onnxq.version import __version__

        typer.echo(f"onnxq {__version__}")
        raise typer.Exit
