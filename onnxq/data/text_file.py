"""Text files, as people save them: UTF-8, with or without a mark at the start.

Tests: `tests/data/test_sentences.py`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from onnxq.data.unread.formats import WEB_PAGE, is_web_page
from onnxq.errors import DataError
from onnxq.ir.storage.lfs import pointer_error

UTF_16 = (b"\xff\xfe", b"\xfe\xff")


def read_text(path: Path) -> str:
    """Read a text file in UTF-8.

    Raises:
        DataError: It cannot be read, is no text, or is a web page or a pointer of git-lfs.

    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}", "Check its name and permissions.") from error
    pointer = pointer_error(raw[:512], str(path), DataError, "data")
    if pointer is not None:
        raise pointer
    if is_web_page(raw[:512]):
        raise DataError(f"{path} is a web page, whatever its name says", WEB_PAGE.hint)
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        hint = "It looks like UTF-16: save it as UTF-8." if raw[:2] in UTF_16 else "Save it as UTF-8."
        raise DataError(f"{path} is no text in UTF-8: byte {error.start} does not fit", hint) from error
    if "\0" in text:
        where = text.count("\n", 0, text.index("\0")) + 1
        raise DataError(f"{path}, line {where} has a zero byte: it is no text", "Save it as UTF-8.")
    return text


def read_lines(path: Path) -> list[str]:
    """Read the lines of a text file in UTF-8, without their ends.

    Raises:
        DataError: See `read_text`.

    """
    return [line.removesuffix("\r") for line in read_text(path).split("\n")]


def read_object(path: Path) -> dict[str, Any]:
    """Read an object of JSON that may tell about a model; a file that is missing, broken or something else is empty."""
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
