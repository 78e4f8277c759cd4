"""Arguments and options that several commands share; those of quantize are declared in `pipeline/options.py`.

Tests: `tests/cli/test_cli_target.py`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from functools import partial, wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any

import typer

from onnxq.cli.completion import metrics, recipes, targets
from onnxq.errors import OutputError, RecipeError
from onnxq.missing import is_missing, missing_data, missing_model
from onnxq.pipeline.options import READING, QuantizeOptions, declarations, parse_bytes
from onnxq.text import counted

WRITTEN = ("output", "report", "html", "timings")  # options of files that a run writes, or folders
SLASHES = tuple({"/", os.sep})
LEAST_MEMORY = 1_000_000  # bytes; less is a number without its unit
COMPLETIONS = {"recipe": recipes, "target": targets, "metric": metrics}


class Format(StrEnum):
    """How the product on stdout is written."""

    TEXT = "text"
    JSON = "json"


def declared(name: str, text: str | None = None, options: type[QuantizeOptions] = QuantizeOptions) -> Any:
    """Return the option of a command line that `QuantizeOptions` declares.

    Args:
        name: Of the field.
        text: What `--help` says, if not what is declared.
        options: Where it is declared.

    """
    one = declarations(options)[name]
    more: dict[str, Any] = {} if one.kind is bool else {"metavar": one.metavar, "min": one.least}
    if one.kind is not bool and not isinstance(one.default, str):
        more["show_default"] = False
    return typer.Option(
        one.flag,
        *filter(None, [one.short]),
        help=text or one.help,
        autocompletion=COMPLETIONS.get(name),
        **more,
    )


def takes_options(
    *names: str, texts: Mapping[str, str] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return what gives a command options of quantize where its function has one parameter, `options`.

    Args:
        names: Of the options; all of them by default.
        texts: What `--help` says of some, if not what is declared.

    """
    return partial(_spread, names=names, texts=texts or {})


def _spread(function: Callable[..., None], names: Sequence[str], texts: Mapping[str, str]) -> Callable[..., None]:
    given = signature(function, eval_str=True)
    kind: type[QuantizeOptions] = given.parameters["options"].annotation
    known = {name: one for name, one in declarations(kind).items() if name in names or not names}

    @wraps(function)
    def run(**arguments: Any) -> None:
        options = kind(**{name: one.parse(arguments.pop(name)) for name, one in known.items()})
        function(**arguments, options=options)

    parameters: list[Parameter] = []
    for parameter in given.parameters.values():
        if parameter.name != "options":
            parameters.append(parameter)
            continue
        parameters += [
            Parameter(
                name,
                Parameter.KEYWORD_ONLY,
                default=[] if one.many else one.default,
                annotation=Annotated[one.typed, declared(name, texts.get(name), kind)],
            )
            for name, one in known.items()
        ]
    parameters = [one.replace(kind=Parameter.KEYWORD_ONLY) for one in parameters]
    run.__annotations__ = {one.name: one.annotation for one in parameters} | {"return": None}
    run.__signature__ = given.replace(parameters=parameters)  # type: ignore[attr-defined]
    return run


def _refuse_one_dash(command: Any, arguments: Sequence[str]) -> None:
    """Refuse a long option behind one dash: `-output a` would mean `-o utput`, and `-force` would mean `-f -o rce`."""
    options = {name: one for one in command.params if one.param_type_name == "option" for name in one.opts}
    for before, word in zip(["", *arguments], arguments, strict=False):
        if word == "--":
            return
        of_value = before in options and not options[before].is_flag
        name = f"-{word.partition('=')[0]}"
        if word[:1] == "-" and word[1:2] != "-" and len(name) > len("--x") and name in options and not of_value:
            see = f"See `onnxq {command.name} --help`."
            raise RecipeError(f"'{word}' is no option", f"Write {name}. {see}")


def refusing_doubles(command: Any) -> Callable[..., list[str]]:
    """Return what parses the arguments of a command, and refuses an option of one value that is given twice.

    So it refuses a folder where a file is to be written: `Path` forgets a slash at the end.
    """
    parse = command.parse_args

    def run(context: Any, arguments: list[str]) -> list[str]:
        if not context.resilient_parsing:
            _refuse_one_dash(command, arguments)
            values, _, given = command.make_parser(context).parse_args(args=list(arguments))
            for parameter in given:
                once = parameter.param_type_name == "option" and not (parameter.multiple or parameter.is_flag)
                if once and given.count(parameter) > 1:
                    name = max(parameter.opts, key=len)
                    raise RecipeError(f"{name} is given {counted(given.count(parameter), 'time')}", "Give it once.")
                value = values.get(parameter.name)
                is_file = parameter.name in WRITTEN and parameter.metavar != "FOLDER"
                if is_file and isinstance(value, str) and value.endswith(SLASHES):
                    raise OutputError(f"{value} names a folder", "Give the name of the file to write.")
        parsed: list[str] = parse(context, arguments)
        return parsed

    return run


Model = Annotated[Path, typer.Argument(metavar="MODEL", help="The float model, an .onnx file.", show_default=False)]
# Options that decide about a plan, and what `--help` says of those that quantize takes for more
PLANNING = ("data", *READING, "stats", "recipe", "target", "exclude", "only", "samples", "timings", "custom_ops")
OF_PLANS = {"timings": "Kernel times that `quantize --benchmark` has written, to decide by."}
Force = Annotated[bool, typer.Option("--force", "-f", help="Replace files that exist already.")]
OutputFormat = Annotated[Format, typer.Option("--format", help="How to write the result to stdout.")]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="The project file; by default the nearest onnxq.toml, or pyproject.toml with [tool.onnxq].",
        show_default=False,
    ),
]
NoConfig = Annotated[bool, typer.Option("--no-config", help="Leave the project file out: only these options count.")]
Jobs = Annotated[
    int | None,
    typer.Option(
        "--jobs",
        "-j",
        metavar="N",
        min=1,
        help="Use at most so many processors, and build as many models of a project at a time; by default all.",
        show_default=False,
    ),
]
Memory = Annotated[
    str | None,
    typer.Option(
        "--memory",
        metavar="SIZE",
        help="Do fewer things at a time where they would take more memory than this, such as 4GB.",
        show_default=False,
    ),
]


ExecutorName = Annotated[
    str | None,
    typer.Option(
        "--executor",
        metavar="ENGINE",
        help="Do the work on dask://HOST:PORT, or on the executor that package.module:function returns.",
        show_default=False,
    ),
]


def refuse_missing(arguments: Mapping[str, Any]) -> None:
    """Refuse a model and data that are not there, before a command loads what would read them.

    Args:
        arguments: Of the command.

    Raises:
        ModelError: The model, or that of `--against`.
        DataError: The first source of `--data` without a colon: others are functions and addresses.

    """
    named = arguments.get("models") or []
    alone = named if len(named) == 1 and not arguments.get("project") else []  # a project may have yet to build it
    for path in (arguments.get("model"), *alone, arguments.get("against")):
        if path is not None and path.name != "-" and is_missing(path):
            raise missing_model(path)
    of_model = arguments.get("model") or named  # else they are refused as those of no model
    for source in (arguments.get("data") or ()) if of_model else ():
        if ":" not in source and source != "-" and is_missing(Path(source)):
            raise missing_data(source)


def use_runtime(libraries: Iterable[Path], most: int | None, memory: str | None) -> None:
    """Let onnxruntime know the libraries of `--custom-ops`, and keep to `--jobs` and `--memory`, if they are given."""
    use_custom_ops(libraries)
    if most is not None:
        from onnxq.targets.host import limit_processors

        limit_processors(most)
    if memory is not None:
        from onnxq.errors import RecipeError
        from onnxq.runtime.memory import limit_memory

        room = parse_bytes("--memory", memory)
        if room < LEAST_MEMORY:
            raise RecipeError(f"--memory {memory} is less than any run takes", "Write a unit, as in --memory 4GB.")
        limit_memory(room)


def use_custom_ops(libraries: Iterable[Path]) -> None:
    """Let onnxruntime know the operators of the libraries that `--custom-ops` names."""
    for library in libraries:
        from onnxq.runtime.custom_ops import register_custom_ops

        register_custom_ops(library)
