"""Errors in the words of Python: hints name keywords and functions, where those of the command line name options.

The library writes `--force` and `` `onnxq plan` ``, as most people read it. A program that calls it reads `force=True`
and `onnxq.plan`.

Tests: `tests/api/test_api_words.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace
from functools import wraps
from inspect import signature
from typing import Any, ParamSpec, TypeVar, cast

from onnxq.api.arguments import refuse_arguments
from onnxq.api.verify import Verification
from onnxq.data.examine import Examination
from onnxq.errors import OnnxqError
from onnxq.pipeline.options import declarations
from onnxq.project.outcome import Built
from onnxq.report import Report
from onnxq.text import did_you_mean
from onnxq.verification.records import Comparison

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
# Options of other commands than `quantize`, of which the function has a keyword of that name
OTHERS = {
    "--output": "output=",
    "--against": "against=",
    "--force": "force=True",
    "--sensitivity": "sensitivity=True",
    "--no-layers": "layers=False",
    "--layers": "layers=True",
    "--min-agreement": "min_agreement=",
    "--max-abs": "max_abs=",
    "--min-cosine": "min_cosine=",
    "--shard": "shard=",
    "--jobs": "jobs=",
    "--custom-ops": "onnxq.register_custom_ops",
    "--bits": "bits",
    "--block": "block",
    "-r": "recipe=",
    "-d": "data=",
}
# Commands whose function has another name; `init` has none
FUNCTIONS = {"data": "examine", "recipes": "load_recipe"}
# Keywords of other tools
ELSEWHERE = {
    **dict.fromkeys(("calibration_data", "dataset", "calibration_dataset", "inputs", "images", "arrays"), "samples"),
    **dict.fromkeys(("calibration_data_reader", "data_reader", "dataloader", "calibration_loader"), "samples"),
    **dict.fromkeys(("overwrite", "replace"), "force"),
    **dict.fromkeys(("output_path", "save_path", "model_output", "out", "destination"), "output"),
    **dict.fromkeys(("nodes_to_exclude", "ignored_scope", "skip", "ignore"), "exclude"),
    **dict.fromkeys(("op_types_to_quantize", "nodes_to_quantize", "include"), "only"),
    **dict.fromkeys(("subset_size", "num_samples", "samples_limit", "limit"), "sample_limit"),
    **dict.fromkeys(("device", "provider", "platform", "target_device"), "target"),
    **dict.fromkeys(("callback", "progress", "on_progress"), "observer"),
    **dict.fromkeys(("float_model", "reference", "original"), "against"),
}
GROUPS = {"budget": "Budget", "timing": "Timing", "reading": "Reading"}
# An option, and its value where what follows can be nothing else: a number, a pair, capitals or a known word
VALUE = r"\d[\w.]*|native\b|auto\b|[\w.]+=[^\s:;)]*|[A-Z]{2,}\b|(?:weight|static|dynamic)-\w+"
OPTION = re.compile(rf"(?<![\w-])(--?[a-z][a-z-]*)(?:[ =]({VALUE}))?")
COMMAND = re.compile(r"`onnxq (\w+)([^`]*)`")


def in_python(text: str, own: Collection[str] = (), *, names: bool = False) -> str:
    """Write a sentence for those who call a function.

    Args:
        text: A message or a hint; what it names no option of stays as it is.
        own: Keywords of the function that is called; others of `quantize` are named with their object.
        names: Whether an option without a value is to be its bare name, as in a message: `data` for `data=…`.

    Examples:
        >>> in_python("Use --force to replace it, or see `onnxq plan`.")
        'Use force=True to replace it, or see `onnxq.plan`.'
        >>> in_python("Give --min-sqnr 20.")
        'Give budget=onnxq.Budget(min_sqnr=20).'

    """
    return OPTION.sub(lambda found: _keyword(found, own, names), COMMAND.sub(_function, text))


def speaks_python(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Return a function whose errors and warnings are written for those who call it."""
    declared = signature(function)
    own = frozenset(declared.parameters)
    defaults = {name: one.default for name, one in declared.parameters.items()}
    annotations = {name: one.annotation for name, one in declared.parameters.items()}

    def worded(text: str) -> str:
        return in_python(text, own)

    @wraps(function)
    def called(*args: Parameters.args, **keywords: Parameters.kwargs) -> Result:
        try:
            _refuse_keywords(function.__name__, keywords, own)
            with suppress(TypeError):  # Python itself says which argument is missing, or one too many
                refuse_arguments(declared.bind(*args, **keywords).arguments, defaults, annotations)
            result = function(*args, **keywords)
        except OnnxqError as error:
            error.message, error.hint = in_python(error.message, own, names=True), worded(error.hint)
            error.args = (error.message, *error.args[1:])
            if error.hint:
                error.add_note(f"hint: {error.hint}")  # below the message of a traceback
            raise
        return _worded(result, worded)

    return called


def _refuse_keywords(function: str, keywords: Collection[str], own: Collection[str]) -> None:
    """Refuse a keyword that a function does not have, and say which it may be.

    Raises:
        TypeError: There is one.

    """
    for name in keywords:
        if name not in own:
            option = f"--{name.replace('_', '-')}"
            written = in_python(f"{option} …", own).removesuffix(" …")
            meant = "" if written == option else f"write {written}"
            other = ELSEWHERE.get(name)
            meant = meant or (f"write {other}=…" if other in own else did_you_mean(name, own, cutoff=0.6))
            raise TypeError(f"{function}() got an unexpected keyword argument '{name}'{': ' * bool(meant)}{meant}")


def _worded(result: Result, worded: Callable[[str], str]) -> Result:
    """Return a result whose warnings name keywords."""
    made: Any = result
    if isinstance(made, Report):
        return cast("Result", replace(made, wording=in_python))
    if isinstance(made, Built) and made.report is not None:
        return cast("Result", replace(made, report=_worded(made.report, worded)))
    if type(made) is tuple:
        return cast("Result", tuple(_worded(one, worded) for one in made))
    if isinstance(made, Comparison | Examination | Verification):
        lines = tuple(replace(line, remedy=worded(line.remedy)) for line in made.warnings)
        return cast("Result", replace(made, warnings=lines))
    return result


def _function(found: re.Match[str]) -> str:
    name, rest = found.groups()
    if name == "init":
        return found[0]
    arguments = [word for word in rest.split() if not word.startswith("--")]
    called = f"onnxq.{'why_not' if '--why-not' in rest.split() else FUNCTIONS.get(name, name)}"
    return f"`{called}({', '.join(map(_argument, arguments))})`" if arguments else f"`{called}`"


def _argument(word: str) -> str:
    return word if word.isupper() else f'"{word}"'


def _keyword(found: re.Match[str], own: Collection[str], names: bool) -> str:
    option, value = found.groups()
    stop = value[-1] if value and value[-1] in ".," else ""
    value = value.removesuffix(stop) if value else None
    between = "," if found.string[found.end() :].startswith(" --") else ""
    written = _argument_of(option, value, own)
    if written is None:
        return found[0]
    if names and value is None:
        return re.sub(r"=(?:…|True|False)$", "", written.rpartition("(")[2].removesuffix(")"))
    return written + stop + between


def _argument_of(option: str, value: str | None, own: Collection[str]) -> str | None:
    """Write an option as an argument of a call; None where Python has none."""
    known = {one.flag: one for one in declarations().values()}
    if option in OTHERS:
        name = OTHERS[option]
        return f"{name}{_written(value)}" if name.endswith("=") else name + _behind(value)
    one = known.get(option)
    if one is None or not one.keyword:
        return None
    group, _, field = one.keyword.rpartition(".")
    flag = one.kind is bool
    written = f"{field}=True" if flag else f"{field}={_written(value)}"
    called = f"{group}=onnxq.{GROUPS[group]}({written})" if group in GROUPS and field not in own else written
    return called + (_behind(value) if flag else "")


def _behind(value: str | None) -> str:
    return "" if value is None else f" {value}"


def _written(value: str | None) -> str:
    """Write a value as Python has it."""
    if value is None:
        return "…"
    number = re.fullmatch(r"\d+(?:\.\d+)?", value) is not None
    return value if number or value.isupper() else f'"{value}"'
