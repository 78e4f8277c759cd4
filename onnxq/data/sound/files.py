"""List recordings: of a folder, of folders of classes, of a list of paths.

Tests: `tests/data/test_sound_files.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from onnxq.data.beside import OTHER_SOUNDS, SOUND_SUFFIXES
from onnxq.data.pictures.files import SPLITS, below, leads_back, walk_files
from onnxq.data.readers import natural_order
from onnxq.data.text_file import read_lines
from onnxq.errors import DataError
from onnxq.text import join_words

CONVERT = "Convert them to .wav or .flac."


@dataclass(frozen=True)
class Sounds:
    """Recordings that were found.

    Attributes:
        label: Names where they are from.
        files: The recordings.
        classes: The class of each, by its folder or the number behind its path; None where there are none.
        names: Names of the classes in their order, where folders are classes.
        notes: What was left out, in sentences.

    """

    label: str
    files: tuple[Path, ...]
    classes: tuple[int, ...] | None = None
    names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def is_sound(path: Path) -> bool:
    """Whether the name of a file is that of a recording that can be read."""
    return path.suffix.lower() in SOUND_SUFFIXES


def holds_sounds(folder: Path) -> bool:
    """Whether there are recordings in a folder or below it, also of kinds that are not read."""
    return any(path.suffix.lower() in (*SOUND_SUFFIXES, *OTHER_SOUNDS) for path in walk_files(folder))


def read_one_sound(path: Path) -> Sounds:
    """Take one recording."""
    return Sounds(str(path), (path,))


def read_folder_of_sounds(folder: Path) -> Sounds:
    """List a folder: recordings in it, or a folder for each class; classes take turns.

    Raises:
        DataError: It holds parts of a data set, or only recordings that are not read.

    """
    found = sorted((path for path in folder.iterdir() if path.name[0] != "."), key=natural_order)
    found = [path for path in found if not leads_back(path, folder)]
    direct = [path for path in found if is_sound(path) and not path.is_dir()]
    inside = {path: files for path in found if path.is_dir() and (files := _sounds(path))}
    others = [path for path in walk_files(folder) if not is_sound(path)]
    notes = _left_out(folder, others)
    if not direct and not inside:
        kinds = Counter(path.suffix.lower() for path in others if path.suffix.lower() in OTHER_SOUNDS)
        amounts = join_words([f"{count} {kind}" for kind, count in kinds.most_common(4)])
        raise DataError(f"{folder} holds recordings that are not read: {amounts}", CONVERT)
    if direct or len(inside) == 1:
        files = direct + [file for one in inside.values() for file in one]
        return Sounds(str(folder), tuple(files), notes=notes)
    parts = [path.name for path in inside if path.name.lower() in SPLITS]
    if parts:
        raise DataError(f"{folder} holds parts of a data set: {join_words(parts)}", f"Give one: {folder / parts[0]}.")
    turns = zip_longest(*([(index, file) for file in files] for index, files in enumerate(inside.values())))
    taken = [pair for turn in turns for pair in turn if pair is not None]
    names = tuple(path.name for path in inside)
    return Sounds(str(folder), tuple(file for _, file in taken), tuple(index for index, _ in taken), names, notes)


def names_sounds(path: Path) -> bool:
    """Whether the first line of a text file names a recording."""
    first = next((line.strip() for line in read_lines(path) if line.strip()), "")
    return any(suffix in first.lower() for suffix in (*SOUND_SUFFIXES, *OTHER_SOUNDS))


def read_list_of_sounds(path: Path) -> Sounds:
    """Read a text file with the path of a recording in each line; a whole number behind it is the class.

    Paths are relative to the file's folder.

    Raises:
        DataError: A line names a file that is not there, or only some have a class.

    """
    files: list[Path] = []
    classes: list[int] = []
    for number, line in enumerate(read_lines(path), 1):
        text = line.strip()
        if not text:
            continue
        where = f"{path}, line {number}"
        head, _, last = text.rpartition(" ")
        if head and last.isdecimal() and not below(path.parent, text).is_file():
            text = head.strip()
            classes.append(int(last))
        file = below(path.parent, text)
        if not file.is_file():
            raise DataError(f"{where}: {file} does not exist", "Paths are relative to the folder of the list.")
        files.append(file)
        if classes and len(classes) != len(files):
            raise DataError(f"{where}: only some lines have a class behind the path", "Give all or none.")
    if not files:
        raise DataError(f"{path} names no recordings", "Write the path of a recording in each line.")
    return Sounds(str(path), tuple(files), tuple(classes) if classes else None)


def _sounds(folder: Path) -> list[Path]:
    return [path for path in walk_files(folder) if is_sound(path)]


def _left_out(folder: Path, others: Sequence[Path]) -> tuple[str, ...]:
    """Say which files are no samples."""
    kinds = Counter(path.suffix.lower() or "without a suffix" for path in others)
    if not kinds:
        return ()
    amounts = join_words([f"{count} {kind}" for kind, count in kinds.most_common(4)])
    unread = any(kind in OTHER_SOUNDS for kind in kinds)
    return (f"{folder}: {amounts} left out" + (f". {CONVERT}" if unread else ""),)
