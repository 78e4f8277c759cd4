"""The entry of one model that is named on the command line, and what the options there change of it.

Tests: `tests/project/test_project_one_model.py`.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from onnxq.data.beside import makes_bytes
from onnxq.data.remote import is_remote
from onnxq.data.user_function import CALLABLE
from onnxq.errors import ProjectError
from onnxq.pipeline.options import QuantizeOptions, declarations
from onnxq.project.entry import Entry, Project, Thresholds, refuse_contradictions

BLOCKS = ("bits", "block")  # options that choose a recipe
PLACES = ("recipe", "tokenizer", "data", "custom_ops")  # options that name files, which a project has by its folder


def find_entry(project: Project, model: Path, output: Path | None = None) -> Entry | None:
    """Find what a project says about a float model.

    Args:
        project: The project.
        model: The float model, as it is seen from the working folder.
        output: Where the result is to go, which chooses where a model has several entries; None if it is not given.

    Returns:
        The entry; None where the project has none for the model.

    Raises:
        ProjectError: There are several, and `output` belongs to none of them.

    """
    found = [entry for entry in project.entries if _same(entry.source, model)]
    if len(found) > 1:
        places = [str(entry.quantized) for entry in found]
        found = [entry for entry in found if output is not None and _same(entry.quantized, output)]
        if not found:
            raise ProjectError(
                f"{project.path} lists {model} {len(places)} times, as {' and '.join(places)}",
                f"Name one of them with --output, as in --output {places[0]}.",
            )
    return found[0] if found else None


def override(entry: Entry, options: QuantizeOptions, given: Collection[str]) -> Entry:
    """Return an entry with options of the command line in place of its own.

    Args:
        entry: Of the project.
        options: Of the command line; paths in it are seen from the working folder.
        given: Names of those options that were given.

    Raises:
        ProjectError: One of them needs another one.

    """
    changed: dict[str, Any] = {name: getattr(options, name) for name in given}
    for name in PLACES:
        if name in changed:
            changed[name] = _moved(entry.root, name, changed[name])
    if "recipe" in changed:  # an entry's `bits` would choose another one
        changed = dict.fromkeys(BLOCKS) | changed
    elif changed.get("bits") is not None:
        changed["recipe"] = QuantizeOptions.recipe
    limits = {one.name for one in fields(Thresholds)}
    thresholds = replace(entry.thresholds, **{name: value for name, value in changed.items() if name in limits})
    found = replace(entry, options=replace(entry.options, **changed), thresholds=thresholds)
    refuse_contradictions(found, str(entry.source))
    return found


def flags(names: Collection[str]) -> list[str]:
    """Return the spellings of options on the command line, in the order of `--help`."""
    return [one.flag for name, one in declarations().items() if name in names]


def _moved(root: Path, name: str, value: Any) -> Any:
    """Return the value of an option whose paths, seen from the working folder, are to be seen from the project's."""
    if isinstance(value, tuple):
        return tuple(_moved(root, name, one) for one in value)
    if value is None or (name == "recipe" and not value.endswith(".toml")):
        return value
    path = Path(value)
    if name == "tokenizer" and makes_bytes(path):
        return value
    if is_remote(str(value)) or (CALLABLE.fullmatch(str(value)) and not path.exists()):
        return value
    if not path.is_absolute():
        path = Path(os.path.relpath(os.path.join(os.path.realpath(path.parent), path.name), os.path.realpath(root)))
    return path.as_posix() if isinstance(value, str) else path


def _same(one: Path, other: Path) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)
