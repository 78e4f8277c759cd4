"""Enough YAML to read the small files that trainers write: keys, scalars, lists and one level of nesting.

PyYAML is no dependency, and what a file means must not hang on whether it is installed. Anything beyond is refused.

Tests: `tests/data/test_flat_yaml.py`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

from onnxq.errors import DataError

ENTRY = re.compile(r"(?P<indent> *)(?P<key>[^\s:#'\"\[{&*!|>-][^:#]*|'[^']*'|\"[^\"]*\"|-?\d+):(?: +(?P<value>.*))?")
ITEM = re.compile(r"(?P<indent> *)-(?: +(?P<value>.*))?")
BLOCKS = ("|", "|-", "|+", ">", ">-", ">+")
WORDS: dict[str, Any] = {"": None, "~": None, "null": None, "true": True, "false": False}


def read_yaml(text: str, label: str) -> dict[Any, Any]:
    """Read a mapping of keys to scalars, lists of scalars, or mappings of scalars.

    Args:
        text: Of the file.
        label: Names it in messages.

    Raises:
        DataError: It is nothing of the kind.

    """
    found: dict[Any, Any] = {}
    key: Any = None  # of the last line without an indent
    for number, line in _lines(text):
        item, entry = ITEM.fullmatch(line), ENTRY.fullmatch(line)
        value = found.get(key)
        if item is not None and key is not None and (value is None or isinstance(value, list)):
            found[key] = [*(value or []), _scalar(item["value"] or "", label, number)]
        elif entry is not None and not entry["indent"]:
            key = _scalar(entry["key"].strip(), label, number)
            found[key] = "" if _opens_block(entry) else _value(entry["value"] or "", label, number)
        elif entry is not None and key is not None and (value is None or isinstance(value, dict)):
            inner = _scalar(entry["key"].strip(), label, number)
            found[key] = {**(value or {}), inner: _value(entry["value"] or "", label, number)}
        else:
            raise _beyond(label, number)
    return found


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines that hold keys or items, with their numbers; texts in blocks, such as scripts, are left out."""
    in_block = False
    for number, raw in enumerate(text.splitlines(), 1):
        if in_block and (not raw.strip() or raw[:1] == " "):
            continue
        line = _bare(raw)
        in_block = _opens_block(ENTRY.fullmatch(line))
        if line.strip() not in ("", "---", "..."):
            yield number, line


def _opens_block(entry: re.Match[str] | None) -> bool:
    """Whether the lines behind a key are its text."""
    return entry is not None and not entry["indent"] and (entry["value"] or "").strip() in BLOCKS


def _bare(line: str) -> str:
    """Cut a comment off, and blanks at the end."""
    quote = ""
    for index, sign in enumerate(line):
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "'\"":
            quote = sign
        elif sign == "#" and (index == 0 or line[index - 1] in " \t"):
            return line[:index].rstrip()
    return line.rstrip()


def _value(text: str, label: str, number: int) -> Any:
    if text.startswith("[") and text.endswith("]"):
        inner = text[1:-1].strip()
        parts = re.findall(r"'[^']*'|\"[^\"]*\"|[^,]+", inner)
        return [_scalar(part.strip(), label, number) for part in parts]
    if text[:1] in "[{&*!|>" and text[:1]:
        raise _beyond(label, number)
    return _scalar(text, label, number)


def _scalar(text: str, label: str, number: int) -> Any:
    if text[:1] in ("'", '"'):
        try:
            return ast.literal_eval(text) if text[0] == '"' else text[1:-1].replace("''", "'")
        except (ValueError, SyntaxError) as error:
            raise _beyond(label, number) from error
    if text.lower() in WORDS:
        return WORDS[text.lower()]
    if re.fullmatch(r"[-+]?\d+", text):
        return int(text)
    if re.fullmatch(r"[-+]?(\d+\.\d*|\.\d+|\d+)([eE][-+]?\d+)?", text):
        return float(text)
    return text


def _beyond(label: str, number: int) -> DataError:
    return DataError(
        f"{label}, line {number}: only simple YAML is read (keys, lists and names)",
        "Give the folder of pictures, or a text file with a path in each line.",
    )
