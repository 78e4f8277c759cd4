"""Sentences in text files: a line each, a JSON object in each line, or a table with a column of text."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from onnxq.data.text_file import read_lines, read_text
from onnxq.errors import DataError
from onnxq.text import counted, did_you_mean, join_words, shell_path

TABLES, OTHERS = {".csv": ",", ".tsv": "\t"}, ";\t"
USUAL = ("text", "sentence", "content", "question", "query", "prompt", "input", "document", "review", "body")
MOST_NAMES, NAME_WORDS = 8, 2


@dataclass(frozen=True)
class Sentences:
    """Sentences of a file.

    Attributes:
        label: Names the file.
        rows: The texts of each sample: one, or a pair that the tokenizer joins.
        numbers: By name, a number for each row, such as its label or score; integers or floats.
        words: By name, a word for each row, such as the name of its class.
        pairs: For each row, which line of the file it belongs to, if a line gives several rows; None otherwise.
        notes: What was left out, in sentences.
        doubt: What looks wrong about the names of columns; empty where nothing does.

    """

    label: str
    rows: tuple[tuple[str, ...], ...]
    numbers: Mapping[str, np.ndarray] = field(default_factory=dict)
    words: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    pairs: tuple[int, ...] | None = None
    notes: tuple[str, ...] = ()
    doubt: str = ""


def read_sentences(path: Path, keys: Sequence[str] = ()) -> Sentences:
    """Read a file of sentences.

    Args:
        path: A `.txt`, `.jsonl`, `.csv` or `.tsv` file.
        keys: Columns or keys that hold the text; `a,b` for a pair. Several give several rows for each line.

    Raises:
        DataError: The file is broken, has no column of text, or holds no sentence.

    """
    if path.suffix.lower() == ".txt":
        if keys:
            raise DataError(f"{path} has a sentence in each line, and no columns", "Leave out --text-key.")
        lines = [(number, {"": line}) for number, line in enumerate(read_lines(path), 1) if line.strip()]
        return _made(path, lines, [("",)])
    records = list(_objects(path) if path.suffix.lower() == ".jsonl" else _table(path))
    if not records:
        raise DataError(f"{path} holds no sentences", "Write one in each line.")
    wanted = [tuple(part.strip() for part in key.split(",")) for key in keys] or [(_usual(path, records),)]
    for name in dict.fromkeys(name for group in wanted for name in group):
        _check_column(path, records, name)
    doubt = "" if keys or path.suffix.lower() == ".jsonl" else _headless(path, records[0][1], wanted[0][0])
    return replace(_made(path, records, wanted), doubt=doubt)


Record = tuple[int, dict[str, Any]]


def _objects(path: Path) -> Iterator[Record]:
    """Yield the objects of a file with JSON in each line, with the numbers of their lines."""
    for number, line in enumerate(read_lines(path), 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            found = json.loads(line)
        except (ValueError, RecursionError) as error:
            if line.strip() == "[":
                raise _whole_list(path) from error
            raise DataError(f"{where} is not JSON: {error}", "Write an object in each line.") from error
        if isinstance(found, list) and found and isinstance(found[0], dict):
            raise _whole_list(path)
        if not isinstance(found, dict):
            kind = "a list" if isinstance(found, list) else f"'{str(found)[:20]}'"
            raise DataError(f"{where} is {kind}, not an object", 'Write {"text": "…"} in each line.')
        yield number, found


def _whole_list(path: Path) -> DataError:
    code = "import json, sys; [print(json.dumps(one)) for one in json.load(sys.stdin)]"
    hint = f'Write an object in each line: python -c "{code}" < {shell_path(path)} > lines.jsonl, and give that.'
    return DataError(f"{path} is one list of JSON, not lines with an object each", hint)


def _table(path: Path) -> Iterator[Record]:
    """Yield the rows of a table by the names of its columns, with the numbers of their lines."""
    text, delimiter = read_text(path), TABLES[path.suffix.lower()]
    first = text.partition("\n")[0]
    if delimiter not in first:  # spreadsheets write a semicolon where a comma belongs to numbers, or a tab
        delimiter = next((sign for sign in OTHERS if sign in first), delimiter)
    csv.field_size_limit(max(csv.field_size_limit(), len(text)))  # a document may be longer than 131,072 characters
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    head: list[str] = []
    try:
        for cells in lines:
            where = f"{path}, line {lines.line_num}"
            if not any(cell.strip() for cell in cells):
                continue
            if not head:
                head = [cell.strip() for cell in cells]
                _check_head(head, where)
                continue
            if len(cells) != len(head):
                hint = "Put a field that has the separator in it into quotes."
                raise DataError(f"{where} has {counted(len(cells), 'field')}, and the first line {len(head)}", hint)
            yield lines.line_num, dict(zip(head, cells, strict=True))
    except csv.Error as error:
        where = f"{path}, line {lines.line_num}"
        raise DataError(f"{where} is no row of a table: {error}", "Check the quotes in it.") from error


def _check_head(head: Sequence[str], where: str) -> None:
    twice = next((name for name in head if head.count(name) > 1), None)
    if twice is not None:
        raise DataError(f"{where} names the column '{twice}' twice", "Give each column a name of its own.")
    if "" in head:
        raise DataError(f"{where} has a column without a name", "The first line has the names of the columns.")


def _usual(path: Path, records: Sequence[Record]) -> str:
    """Choose the column of text, where the name or the content tells."""
    names = list(dict.fromkeys(name for _, record in records for name in record))
    texts = [name for name in names if _is_text(records, name)]
    lowered = {name.lower(): name for name in reversed(texts)}
    found = next((lowered[name] for name in USUAL if name in lowered), None)
    if found is not None:
        return found
    if len(texts) == 1:
        return texts[0]
    shown = join_words([f"'{name}'" for name in names[:MOST_NAMES]])
    usual = next((name for name in names if name.lower() in USUAL), None)
    if usual is not None:
        _check_column(path, records, usual)  # names the line that has no text there
    if not texts:
        is_json = path.suffix.lower() == ".jsonl"
        hint = 'Write {"text": "…"} in each line.' if is_json else "Its first line names the columns."
        raise DataError(f"{path} has no column of text: it has {shown}", hint)
    raise DataError(f"{path} has several columns of text: {shown}", f"Choose one: --text-key {texts[0]}.")


def _headless(path: Path, record: Mapping[str, Any], text: str) -> str:
    """Say that the first line of a table seems to be a row: a name is a sentence, or a number."""
    numbers = [_numbers([name]) is not None for name in record]
    if len(text.split()) > NAME_WORDS or (any(numbers) and not all(numbers)):
        return f"the first line of {path} was taken for names of columns: '{text[:40]}'"
    return ""


def _is_text(records: Sequence[Record], name: str) -> bool:
    values = [record.get(name) for _, record in records]
    return all(isinstance(value, str) for value in values) and _numbers([str(value) for value in values]) is None


def _check_column(path: Path, records: Sequence[Record], name: str) -> None:
    if not any(name in record for _, record in records):
        names = list(dict.fromkeys(name for _, record in records for name in record))
        hint = did_you_mean(name, names) or f"It has {join_words([repr(one) for one in names[:MOST_NAMES]])}."
        raise DataError(f"{path} has no column '{name}'", hint)
    for number, record in records:
        if not isinstance(record.get(name), str):
            value = record.get(name)
            has = "no" if value is None else f"{type(value).__name__} as"
            raise DataError(f"{path}, line {number} has {has} '{name}', and text is needed", "Correct the line.")


def _made(path: Path, records: Iterable[Record], wanted: Sequence[tuple[str, ...]]) -> Sentences:
    """Collect the texts, and what else the records say about them."""
    records = list(records)
    used: list[Record] = []
    rows: list[tuple[str, ...]] = []
    for number, record in records:
        texts = [tuple(record[name] for name in group) for group in wanted]
        if not all(text.strip() for group in texts for text in group):
            continue
        for text in (text for group in texts for text in group):
            _check_text(text, f"{path}, line {number}")
        rows += texts
        used.append((number, record))
    if not rows:
        raise DataError(f"{path} holds no sentences", "Write one in each line.")
    left = len(records) - len(used)
    notes = (f"{path}: {counted(left, 'line')} without text left out",) if left else ()
    several = len(wanted)
    numbers, words = _labels(used, {name for group in wanted for name in group})
    repeated = {name: np.repeat(array, several) for name, array in numbers.items()}
    spread = {name: tuple(one for one in found for _ in wanted) for name, found in words.items()}
    pairs = tuple(index for index in range(len(used)) for _ in wanted) if several > 1 else None
    return Sentences(str(path), tuple(rows), repeated, spread, pairs, notes)


def _check_text(text: str, where: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise DataError(f"{where} has half a character (a lone surrogate)", "Correct the line.") from None


def _labels(records: Sequence[Record], texts: set[str]) -> tuple[dict[str, np.ndarray], dict[str, tuple[str, ...]]]:
    """Return the numbers and the words that stand next to the texts, by column."""
    numbers: dict[str, np.ndarray] = {}
    words: dict[str, tuple[str, ...]] = {}
    for name in dict.fromkeys(name for _, record in records for name in record):
        if name in texts:
            continue
        values = [record.get(name) for _, record in records]
        if not all(isinstance(value, str | int | float) for value in values):
            continue
        found = _numbers([str(int(value)) if isinstance(value, bool) else str(value) for value in values])
        if found is not None:
            numbers[name] = found
        elif all(isinstance(value, str) for value in values):
            words[name] = tuple(str(value) for value in values)
    return numbers, words


def _numbers(texts: Sequence[str]) -> np.ndarray | None:
    """Read numbers: integers where all are; None where one is none."""
    for read, dtype in ((int, np.int64), (float, np.float64)):
        found = _read(texts, read, np.dtype(dtype))
        if found is not None:
            return found if np.isfinite(found).all() else None
    return None


def _read(texts: Sequence[str], read: Callable[[str], float], dtype: np.dtype[Any]) -> np.ndarray | None:
    try:
        return np.array([read(text) for text in texts], dtype)
    except (ValueError, OverflowError):
        return None
