"""The pictures and recordings that a list of paths names: a text file, or the data file of ultralytics.

Tests: `tests/data/test_listed.py`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from onnxq.data.beside import LIST_SUFFIXES, PICTURE_SUFFIXES, SOUND_SUFFIXES
from onnxq.errors import DataError


def listed_files(path: Path) -> Sequence[Path]:
    """Return the files that a list names, in its order; none where the file is no list of files that are there.

    Args:
        path: Any file.

    """
    if path.suffix.lower() not in LIST_SUFFIXES or not path.is_file():
        return ()
    from onnxq.data.pictures.files import read_data_yaml  # they import onnx, which a check without lists does not need
    from onnxq.data.text_file import read_lines

    try:
        if path.suffix.lower() == ".txt":
            return tuple(_of_lines(path.parent, read_lines(path)))
        return tuple(file for row in read_data_yaml(path).rows for file in row)
    except DataError:  # another text, or a list that reading it will refuse
        return ()


def _of_lines(folder: Path, lines: Sequence[str]) -> Iterator[Path]:
    """Yield the files of each line, as far as lines name files: a path, several, or either with a class behind it."""
    for line in filter(None, map(str.strip, lines)):
        head, _, last = line.rpartition(" ")
        ways = [line], line.split(), *(([head.strip()], head.split()) if last.isdecimal() else ())
        found = next((way for way in ways if all(_is_there(folder / name) for name in way)), None)
        if found is None:
            return
        yield from (Path(os.path.normpath(folder / name)) for name in found)


def _is_there(file: Path) -> bool:
    return file.suffix.lower() in (*PICTURE_SUFFIXES, *SOUND_SUFFIXES) and file.is_file()
