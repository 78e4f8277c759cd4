"""Project files: `onnxq.toml`, or `[tool.onnxq]` in `pyproject.toml`. An unknown key is an error.

Tests: `tests/project/test_project_file.py`.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from onnxq.errors import ProjectError
from onnxq.pipeline.options import Declaration, QuantizeOptions, declarations
from onnxq.project.entry import Entry, Project, Thresholds, refuse_contradictions
from onnxq.project.rules import check_codes
from onnxq.text import UNITS, did_you_mean, parse_size
from onnxq.verification.output_records import wrong_limit

FILE, PYPROJECT = "onnxq.toml", "pyproject.toml"
ELSEWHERE = {  # names that other files of settings have for the same
    **dict.fromkeys(("model", "source", "input", "path", "file"), "float"),
    **dict.fromkeys(("output", "out", "int8"), "quantized"),
    **dict.fromkeys(("calibration", "calibration-data", "calib", "dataset", "inputs"), "data"),
    **dict.fromkeys(("validation-data", "test-data", "eval-data"), "verify-data"),
}
START = 'Start with the two lines [[models]] and float = "PATH.onnx".'


def find_project(start: Path | None = None) -> Path | None:
    """Look for a project file in a folder and all those above it.

    Args:
        start: Where to begin; the working folder by default.

    Returns:
        The nearest `onnxq.toml`, or `pyproject.toml` with a table `[tool.onnxq]`, relative to the working folder.

    Raises:
        ProjectError: A `pyproject.toml` on the way is no TOML.

    """
    folder = Path(start or Path.cwd()).absolute()
    for candidate in (folder, *folder.parents):
        for path in (candidate / FILE, candidate / PYPROJECT):
            if path.is_file() and (path.name == FILE or "onnxq" in _tool(_read(path), path)):
                return Path(os.path.relpath(path))
    return None


def how_to_start() -> str:
    """Say how to come by a project file where there is none."""
    if Path(FILE).is_dir():
        return f"The folder {FILE} is in its place: give that another name."
    return f"`onnxq init` writes one for the models in this folder. Or: {START[0].lower()}{START[1:]}"


def load_project(path: Path | None = None) -> Project:
    """Read a project file.

    Args:
        path: The file; by default the one that `find_project` finds.

    Raises:
        ProjectError: There is none, or it does not parse, or it has an unknown key or a wrong value.

    """
    if path is None:
        path = find_project()
        if path is None:
            raise ProjectError(f"there is no {FILE} in this folder or above it", how_to_start())
    table = _read(path)
    if path.name == PYPROJECT:
        table = _tool(table, path).get("onnxq", {})
        if not isinstance(table, dict):
            raise ProjectError(f"{path}: 'onnxq' must be a table", "Write [[tool.onnxq.models]].")
    return parse_project(table, path)


def parse_project(table: Mapping[str, Any], path: Path) -> Project:
    """Read a project from the table of its file, which `path` names in messages and whose folder paths start from."""
    reader = _Reader(str(path))
    models, defaults = table.get("models", []), table.get("defaults", {})
    reader.refuse_unknown(table, ("models", "defaults"), "")
    if not isinstance(models, list) or not all(isinstance(model, dict) for model in models):
        raise ProjectError(f"{path}: 'models' must be a list of tables", "Write each model under a [[models]] line.")
    if not isinstance(defaults, dict):
        raise ProjectError(f"{path}: 'defaults' must be a table", "Write it under a [defaults] line.")
    if not models:
        raise ProjectError(f"{path} lists no models", START)
    reader.refuse_unknown(defaults, [key for key in KEYS if key not in ("float", "quantized")], "defaults")
    entries = tuple(reader.entry(path.parent, _joined(defaults, model)) for model in models)
    made: dict[str, Entry] = {}
    for entry in entries:
        other = made.setdefault(os.path.realpath(entry.quantized), entry)
        if other is not entry and other.source == entry.source:
            raise ProjectError(f"{path} lists {entry.source} twice", "Remove one, or give it another 'quantized'.")
        if other is not entry:
            raise ProjectError(
                f"{path}: {other.source} and {entry.source} both become {entry.quantized}",
                "Give one of them another place with 'quantized'.",
            )
    for entry in entries:
        if os.path.realpath(entry.source) in made:
            raise ProjectError(f"{path}: {entry.source} is both float and quantized model", "Give two files.")
    return Project(path, entries)


TWICE = "Cannot overwrite a value"  # what tomllib says of a key that the table has already


def _read(path: Path) -> dict[str, Any]:
    try:
        content = path.read_text("utf-8-sig")
    except OSError as error:
        reason = error.strerror or error
        raise ProjectError(f"{path} cannot be read ({reason})", "Check the path of the project file.") from error
    except UnicodeDecodeError as error:
        raise ProjectError(
            f"{path} is no text in UTF-8: byte {error.start} does not fit", "Save it as UTF-8."
        ) from error
    try:
        return tomllib.loads(content)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        hint = "Write / between the folders of a path, not \\." if "\\" in str(error) else START
        unquoted = "Invalid value" in str(error) or "Illegal character '\\n'" in str(error)
        hint = 'Write text between double quotes: "m.onnx".' if unquoted else hint
        hint = (
            "A key stands there twice: remove one, or begin the next model with [[models]]."
            if TWICE in str(error)
            else hint
        )
        hint = "It has the marks of a merge conflict: resolve it." if "\n<<<<<<< " in f"\n{content}" else hint
        raise ProjectError(f"{path} is not valid TOML: {error}", hint) from error


def _tool(table: Mapping[str, Any], path: Path) -> Mapping[str, Any]:
    tool = table.get("tool", {})
    if not isinstance(tool, dict):
        raise ProjectError(f"{path}: 'tool' must be a table", "Write [[tool.onnxq.models]].")
    return tool


def _joined(defaults: Mapping[str, Any], model: Mapping[str, Any]) -> dict[str, Any]:
    joined = {**defaults, **model}
    both = [table["thresholds"] for table in (defaults, model) if isinstance(table.get("thresholds"), dict)]
    if len(both) == 2:
        joined["thresholds"] = {**both[0], **both[1]}
    return joined


class _Reader:
    """Reads the values of a project file; `label` names the file in messages."""

    def __init__(self, label: str) -> None:
        self.label = label

    def entry(self, root: Path, table: Mapping[str, Any]) -> Entry:
        source = table.get("float")
        if source is not None and not isinstance(source, str):
            raise self.wrong("'float' of a model", "a string", 'float = "PATH.onnx"')
        if source is not None:
            self.printed("'float' of a model", source)
        if not source:
            self.refuse_unknown(table, tuple(KEYS), "a model")
            raise ProjectError(f"{self.label}: a model has no 'float'", 'Add the line float = "PATH.onnx" to it.')
        self.refuse_unknown(table, tuple(KEYS), source)
        self.refuse_pattern(root, "'float'", source)
        values = {
            name: read(self, f"{source}: '{key}'", table[key]) for key, (name, read) in KEYS.items() if key in table
        }
        quantized = values.pop("quantized", source.removesuffix(".onnx") + ".int8.onnx")
        self.refuse_pattern(root, f"{source}: 'quantized'", quantized)
        thresholds = values.pop("thresholds", Thresholds())
        verify_data, ignore = values.pop("verify_data", ()), values.pop("ignore", ())
        del values["source"]
        for name, one in declarations().items():
            place, _, key = (one.toml or "").rpartition(".")
            if place == "thresholds":
                values[name] = getattr(thresholds, key.replace("-", "_"))
        options = QuantizeOptions(**values)
        entry = Entry(root, root / source, root / quantized, options, thresholds, verify_data, ignore)
        refuse_contradictions(entry, f"{self.label}: {source}")
        return entry

    def refuse_pattern(self, root: Path, what: str, given: str) -> None:
        if any(sign in given for sign in "*?") and not (root / given).exists():
            hint = "Write an entry for each model; `onnxq init` writes them for a folder."
            raise ProjectError(f"{self.label}: {what} is the pattern {given}, and an entry is about one model", hint)

    def refuse_unknown(self, table: Mapping[str, Any], known: Sequence[str], where: str) -> None:
        for key in table:
            if key not in known:
                elsewhere = {name: meant for name, meant in ELSEWHERE.items() if meant in known}
                hint = did_you_mean(key, known, cutoff=0.6, elsewhere=elsewhere) or f"Known keys: {', '.join(known)}."
                dashed = key.replace("_", "-")
                if dashed in {field.name.replace("_", "-") for field in fields(Thresholds)} and "thresholds" in known:
                    number = table[key] if type(table[key]) in (int, float) else "NUMBER"
                    hint = f"Write it as a threshold: thresholds = {{ {dashed} = {number} }}."
                elif key in KEYS and "min-sqnr" in known:
                    hint = f"Write it outside of the thresholds: {key} = {json.dumps(table[key])}."
                elif key in KEYS and "models" in known:
                    hint = "Write it under [[models]] for one model, or under [defaults] for all."
                owner = f"{self.label}: {where}" if where else self.label
                raise ProjectError(f"{owner} has an unknown key '{key}'", hint)

    def wrong(self, what: str, wanted: str, example: str) -> ProjectError:
        return ProjectError(f"{self.label}: {what} must be {wanted}", f"Write for example {example}.")

    def text(self, what: str, value: Any) -> str:
        if not isinstance(value, str) or not value:
            raise self.wrong(what, "a string", '"auto"')
        return self.printed(what, value)

    def printed(self, what: str, value: str) -> str:
        """Refuse what a backslash of Windows has become between double quotes."""
        if any(ord(sign) < 32 for sign in value):
            hint = "A backslash between double quotes has a meaning of its own: write / between folders."
            raise ProjectError(f"{self.label}: {what} holds a control character", hint)
        return value

    def texts(self, what: str, value: Any) -> tuple[str, ...]:
        if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
            raise self.wrong(what, "a list of strings", f'["{value if isinstance(value, str) else "…"}"]')
        return tuple(self.printed(what, item) for item in value)

    def codes(self, what: str, value: Any) -> tuple[str, ...]:
        found = self.texts(what, value)
        check_codes(found, f"{self.label}: {what}")
        return found

    def count(self, what: str, value: Any) -> int:
        if type(value) is not int or value < 1:
            raise self.wrong(what, "a whole number above 0", "64")
        return value

    def count_or_word(self, word: str, what: str, value: Any) -> int | str:
        if value == word:
            return word
        if type(value) is not int or value < 1:
            raise self.wrong(what, f'a whole number above 0 or "{word}"', "4")
        return value

    def flag(self, what: str, value: Any) -> bool:
        if not isinstance(value, bool):
            raise self.wrong(what, "true or false", "true")
        return value

    def size(self, what: str, value: Any) -> int:
        if type(value) is int and value > 0:
            return value
        found = parse_size(value) if isinstance(value, str) else None
        if found is None:
            raise self.wrong(what, f"a number of bytes, or one with a unit ({', '.join(UNITS)})", '"10 MB"')
        return found

    def thresholds(self, what: str, value: Any) -> Thresholds:
        if not isinstance(value, dict):
            raise self.wrong(what, "a table", "thresholds = { min-sqnr = 30.0 }")
        names = {field.name.replace("_", "-"): field.name for field in fields(Thresholds)}
        self.refuse_unknown(value, tuple(names), what)
        for key, number in value.items():
            if isinstance(number, bool) or not isinstance(number, int | float):
                raise self.wrong(f"{what}, '{key}'", "a number", f"{key} = 30.0")
            if wrong := wrong_limit(names[key], number):
                raise self.wrong(f"{what}, '{key}'", wrong[0], f"{key} = {wrong[1]:g}")
        return Thresholds(**{names[key]: float(number) for key, number in value.items()})


def _reader(one: Declaration) -> Callable[[_Reader, str, Any], Any]:
    """Return what reads the value of an option."""
    if one.many:
        return lambda reader, what, value: tuple(one.kind(item) for item in reader.texts(what, value))
    known: dict[type, Callable[[_Reader, str, Any], Any]] = {str: _Reader.text, int: _Reader.count, bool: _Reader.flag}
    if one.word is not None:
        word = one.word
        return lambda reader, what, value: reader.count_or_word(word, what, value)
    known[Path] = lambda reader, what, value: Path(reader.text(what, value))
    return _Reader.size if one.size else known[one.kind]


KEYS: dict[str, tuple[str, Callable[[_Reader, str, Any], Any]]] = {
    "float": ("source", _Reader.text),
    "quantized": ("quantized", _Reader.text),
    **{one.toml: (name, _reader(one)) for name, one in declarations().items() if one.toml and "." not in one.toml},
    "thresholds": ("thresholds", _Reader.thresholds),
    "verify-data": ("verify_data", _Reader.texts),
    "ignore": ("ignore", _Reader.codes),
}
