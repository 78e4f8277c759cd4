"""Check the types of arguments of public functions before any work.

Tests: `tests/api/test_api_arguments.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from numbers import Real
from os import PathLike
from typing import Any, NamedTuple

import numpy as np

from onnxq.data.advice import named_type
from onnxq.data.reading import Reading
from onnxq.data.validation import InputSpec
from onnxq.errors import RecipeError
from onnxq.ir import Model
from onnxq.planning.recipe import Recipe
from onnxq.report import Report
from onnxq.search.budget import Budget
from onnxq.stages.kernel_timing import Timing


class ArgumentType(NamedTuple):
    """The values that fit an argument.

    Attributes:
        fits: Whether a value is of the kind.
        hint: An example, as a sentence.

    """

    fits: Callable[[Any], bool]
    hint: str


def _is_names(value: object) -> bool:
    return isinstance(value, str) or (
        isinstance(value, Iterable) and not isinstance(value, Mapping) and all(isinstance(one, str) for one in value)
    )


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _is_path(value: object) -> bool:
    return isinstance(value, str | PathLike)


def _is_paths(value: object) -> bool:
    return _is_path(value) or (isinstance(value, Iterable) and all(_is_path(one) for one in value))


def _is_shard(value: object) -> bool:
    return all(_is_count(getattr(value, name, None)) for name in ("number", "count"))


def _is_inputs(value: object) -> bool:
    return (
        isinstance(value, Iterable) and not isinstance(value, str) and all(isinstance(one, InputSpec) for one in value)
    )


def _is_observer(value: object) -> bool:
    return all(callable(getattr(value, name, None)) for name in ("step", "progress"))


NUMBER = ArgumentType(_is_number, "Give a number, such as 30.")
YES_OR_NO = ArgumentType(lambda value: isinstance(value, bool | np.bool_), "Give True or False.")
OBSERVER = "Give an object with the methods step(name) and progress(done, total): see onnxq.Observer."
EXPECTED: dict[str, ArgumentType] = {
    "recipe": ArgumentType(lambda value: _is_path(value) or isinstance(value, Recipe), 'Give a name, such as "auto".'),
    "output": ArgumentType(_is_path, "Give the path of the file to write."),
    "target": ArgumentType(lambda value: isinstance(value, str), 'Give a name, such as "cpu".'),
    "exclude": ArgumentType(_is_names, 'Give globs of node names or operators, such as ["head*"].'),
    "only": ArgumentType(_is_names, 'Give globs of node names or operators, such as ["Conv"].'),
    "budget": ArgumentType(lambda value: isinstance(value, Budget), "Write for example onnxq.Budget(min_sqnr=40)."),
    "reading": ArgumentType(lambda value: isinstance(value, Reading), 'Write onnxq.Reading(preprocess="size=224").'),
    "timing": ArgumentType(lambda value: isinstance(value, Timing), "Write onnxq.Timing(benchmark=True)."),
    "sample_limit": ArgumentType(_is_count, "Give a whole number, such as 64."),
    "shard": ArgumentType(_is_shard, "Write for example onnxq.Shard(1, 2)."),
    "shards": ArgumentType(
        lambda value: not isinstance(value, str) and _is_paths(value), 'Give a list of files, such as ["1.stats"].'
    ),
    "jobs": ArgumentType(_is_count, "Give a whole number, such as 2."),
    **dict.fromkeys(("min_sqnr", "max_abs", "min_agreement", "min_cosine", "max_drop"), NUMBER),
    **dict.fromkeys(("layers", "external_data"), YES_OR_NO),
    "observer": ArgumentType(_is_observer, OBSERVER),
    "feeds": ArgumentType(lambda value: isinstance(value, Mapping), "Give {'INPUT': array}."),
    "pattern": ArgumentType(lambda value: isinstance(value, str), "Give the name of a node, or a glob of names."),
    **dict.fromkeys(("path", "folder", "project"), ArgumentType(_is_path, "Give a path.")),
    "files": ArgumentType(_is_paths, "Give a path, or a list of paths."),
    "report": ArgumentType(lambda value: isinstance(value, Report), "Give what onnxq.quantize or onnxq.plan returns."),
}
# By how a parameter is annotated: names such as `samples` stand for other things elsewhere
ANNOTATED: dict[str, ArgumentType] = {
    "str | Path": ArgumentType(_is_path, "Give a name or a path."),
    "Model": ArgumentType(lambda value: isinstance(value, Model), "Give what onnxq.load returns."),
    "Sequence[InputSpec]": ArgumentType(_is_inputs, "Give onnxq.input_specs(model)."),
    "Iterable[Mapping[str, np.ndarray]]": ArgumentType(
        lambda value: isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping | np.ndarray),
        "Give a list of {'INPUT': array}, or onnxq.open_samples(files, onnxq.input_specs(model)).",
    ),
}


def refuse_arguments(given: Mapping[str, Any], defaults: Mapping[str, Any], annotations: Mapping[str, Any]) -> None:
    """Refuse an argument of another kind.

    Args:
        given: What a function is called with, by parameter.
        defaults: Of the parameters; a value that is the default fits.
        annotations: Of the parameters, as they are written.

    Raises:
        RecipeError: Names the argument, what was given, and what fits.

    """
    for name, value in given.items():
        expected = EXPECTED.get(name) or ANNOTATED.get(annotations.get(name, ""))
        if isinstance(defaults.get(name), bool):
            expected = YES_OR_NO
        if expected is None or value is defaults.get(name) or expected.fits(value):
            continue
        raise RecipeError(f"{name} cannot be {_spelled(value)}", expected.hint)


def _spelled(value: object) -> str:
    """Write what was given: a number by itself, anything else by its type."""
    return repr(value) if isinstance(value, int | float) else named_type(value)
