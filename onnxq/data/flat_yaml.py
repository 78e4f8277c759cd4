"""Enough YAML to read the small files that trainers write: keys, scalars, lists and one level of nesting.

PyYAML is no dependency, and what a file means must not hang on whether it is installed. Anything beyond is refused.

Tests: `tests/data/test_flat_yaml.py`.
"""

from __future__ import annotations

import ast
import re
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
    key: Any = None
    block = False  # whether the lines of a text follow, as of a script that fetches the pictures
    for number, raw in enumerate(text.splitlines(), 1):
        if block and (not raw.strip() or raw[:1] == " "):
            continue
        block, line = False, _bare(raw)
        if not line.strip() or line.strip() in ("---", "..."):
            continue
        item, entry = ITEM.fullmatch(line), ENTRY.fullmatch(line)
        if (item is not None and key is not None and found[key] in (None, [])) or _is_list(found, key, item):
            assert item is not None
            found[key] = [*(found[key] or []), _scalar(item["value"] or "", label, number)]
        elif entry is not None and not entry["indent"]:
            key = _scalar(entry["key"].strip(), label, number)
            block = (entry["value"] or "").strip() in BLOCKS
            found[key] = "" if block else _value(entry["value"] or "", label, number)
        elif entry is not None and key is not None and (found[key] is None or isinstance(found[key], dict)):
            inner = _scalar(entry["key"].strip(), label, number)
            found[key] = {**(found[key] or {}), inner: _value(entry["value"] or "", label, number)}
        else:
            raise _beyond(label, number)
    return found


def _is_list(found: dict[Any, Any], key: Any, item: object) -> bool:
    return item is not None and key is not None and isinstance(found.get(key), list)


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
