"""List pictures: of a folder, of folders of classes, of a list of paths, of a data file of ultralytics.

Tests: `tests/data/test_picture_files.py`.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from onnxq.data.beside import ARRAY_SUFFIXES, OTHER_PICTURES, PICTURE_SUFFIXES
from onnxq.data.pictures.flat_yaml import read_yaml
from onnxq.data.readers import natural_order
from onnxq.data.text_file import read_lines
from onnxq.errors import DataError
from onnxq.text import counted, join_words

ARRAYS = (*ARRAY_SUFFIXES, ".pb")
SPLITS = ("train", "training", "val", "valid", "validation", "test", "testing")
# A folder of pictures, and one next to it with what a model is to find in them
INPUTS = ("images", "image", "imgs", "img", "photos", "pictures", "jpegimages")
TARGETS = ("masks", "mask", "labels", "annotations", "gt", "groundtruth", "ground_truth", "segmentationclass")
IGNORED = ("thumbs.db", "desktop.ini")
MOST_KINDS = 4
CONVERT = "Convert them to .jpg or .png."


@dataclass(frozen=True)
class Pictures:
    """Pictures that were found.

    Attributes:
        label: Names where they are from.
        rows: The files of each sample: one, or one for each input that takes a picture.
        classes: The class of each sample, by its folder or the number behind its path; None where there are none.
        names: Names of the classes in their order, where folders are classes.
        notes: What was left out, in sentences.

    """

    label: str
    rows: tuple[tuple[Path, ...], ...]
    classes: tuple[int, ...] | None = None
    names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def is_picture(path: Path) -> bool:
    """Whether the name of a file is that of a picture that can be read."""
    return path.suffix.lower() in PICTURE_SUFFIXES


def holds_pictures(folder: Path) -> bool:
    """Whether there are pictures in a folder or below it, also of kinds that are not read."""
    return any(path.suffix.lower() in (*PICTURE_SUFFIXES, *OTHER_PICTURES) for path in walk_files(folder))


def read_folder_of_pictures(folder: Path) -> Pictures:
    """List a folder: pictures in it, or a folder for each class.

    Samples of classes take turns, so that the first few are of all classes.

    Raises:
        DataError: It holds arrays as well, parts of a data set, or only pictures that are not read.

    """
    found = sorted((path for path in folder.iterdir() if path.name[0] != "."), key=natural_order)
    direct = [path for path in found if is_picture(path) and not path.is_dir()]
    found = [path for path in found if not leads_back(path, folder)]
    below = {path: pictures for path in found if path.is_dir() and (pictures := _pictures(path))}
    notes = _left_out(folder, [path for path in walk_files(folder) if not is_picture(path)])
    one = len(below) == 1 and not next(iter(below)).name.isdecimal()  # such as `images`: no class
    if direct or one:
        files = direct + [file for pictures in below.values() for file in pictures]
        if direct and len(below) > 1:
            notes = (*notes, f"{folder}: pictures lie in it and in folders of it, which are no classes then")
        return Pictures(str(folder), tuple((file,) for file in files), notes=notes)
    parts = [path.name for path in below if path.name.lower() in SPLITS]
    if parts:
        raise DataError(f"{folder} holds parts of a data set: {join_words(parts)}", f"Give one: {folder / parts[0]}.")
    inputs = [path for path in below if path.name.lower() in INPUTS]
    targets = [path.name for path in below if path.name.lower() in TARGETS]
    if inputs and targets:
        said = f"{folder} holds pictures, and others of what is in them: {join_words([inputs[0].name, *targets])}"
        raise DataError(said, f"Give the pictures: {inputs[0]}.")
    if not below:
        kinds = Counter(path.suffix.lower() for path in walk_files(folder) if path.suffix.lower() in OTHER_PICTURES)
        amounts = join_words([f"{count} {kind}" for kind, count in kinds.most_common(MOST_KINDS)])
        raise DataError(f"{folder} holds pictures that are not read: {amounts}", CONVERT)
    turns = zip_longest(*([(index, file) for file in files] for index, files in enumerate(below.values())))
    taken = [pair for turn in turns for pair in turn if pair is not None]
    classes, names = tuple(index for index, _ in taken), tuple(path.name for path in below)
    return Pictures(str(folder), tuple((file,) for _, file in taken), classes, names, notes)


def read_list_of_pictures(path: Path, inputs: int) -> Pictures:
    """Read a text file with the path of a picture in each line, or of one for each input with blanks between them.

    Paths are relative to the file's folder. A whole number behind them is the class.

    Raises:
        DataError: A line is something else, or names a file that is not there.

    """
    rows: list[tuple[Path, ...]] = []
    classes: list[int] = []
    for number, line in enumerate(read_lines(path), 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        files, label = _row(line.strip(), path.parent, inputs, where)
        rows.append(files)
        classes += [] if label is None else [label]
        if classes and len(classes) != len(rows):
            raise DataError(
                f"{where}: some lines have a class behind the path, and some have none", "Give all or none."
            )
    if not rows:
        raise DataError(f"{path} names no pictures", "Write the path of a picture in each line.")
    return Pictures(str(path), tuple(rows), tuple(classes) if classes else None)


def _row(line: str, folder: Path, inputs: int, where: str) -> tuple[tuple[Path, ...], int | None]:
    if inputs == 1 and (whole := below(folder, line)).is_file():  # a path with blanks in it
        return (whole,), None
    words = line.split()
    label = int(words.pop()) if len(words) > inputs and words[-1].isdecimal() else None
    if inputs == 1 and len(words) > 1:
        words = [line.removesuffix(f" {label}").rstrip() if label is not None else line]
    if len(words) != inputs:
        hint = f"The model takes {counted(inputs, 'picture')}: write so many paths in each line, with blanks between."
        raise DataError(f"{where} has {counted(len(words), 'path')}", hint)
    files = tuple(below(folder, word) for word in words)
    for file in files:
        if not file.exists():
            raise DataError(f"{where}: {file} does not exist", _missing_hint(line, folder))
        if file.is_dir():
            raise DataError(f"{where}: {file} is a folder", "Name pictures, or give the folder itself.")
    return files, label


def _missing_hint(line: str, folder: Path) -> str:
    """Say what a line may be that names no picture."""
    words = line.split()
    if "\\" in line and below(folder, words[0].replace("\\", "/")).is_file():
        return "Write / between the folders of a path, not \\."
    if len(words) > 1 and below(folder, words[0]).is_file():
        return "The class behind a path is a whole number."
    if not any(suffix in line.lower() for suffix in (*PICTURE_SUFFIXES, *OTHER_PICTURES)):
        return "The model takes pictures, so that a text file has the path of one in each line."
    return "Paths are relative to the folder of the list."


def below(folder: Path, name: str) -> Path:
    """Return the path that a list in a folder means."""
    return Path(os.path.normpath(folder / name)) if not Path(name).is_absolute() else Path(name)


def read_data_yaml(path: Path) -> Pictures:
    """Read the data file of ultralytics: its `val` part, as ultralytics itself calibrates, else `train` or `test`.

    Raises:
        DataError: It is no such file, or what it names is not there.

    """
    table = read_yaml("\n".join(read_lines(path)), str(path))
    part = next((name for name in ("val", "train", "test") if table.get(name)), None)
    if part is None:
        raise DataError(f"{path} names no pictures: it has neither 'val' nor 'train'", "Give the folder of pictures.")
    root = below(path.parent, str(table["path"])) if table.get("path") else path.parent
    places = table[part] if isinstance(table[part], list) else [table[part]]
    found = [_part(root, str(place), path, part) for place in places]
    rows = tuple(row for pictures in found for row in pictures.rows)
    notes = tuple(note for pictures in found for note in pictures.notes)
    return Pictures(f"{path} ({part})", rows, notes=notes)


def _part(root: Path, place: str, path: Path, part: str) -> Pictures:
    where = below(root, place)
    if where.is_dir():
        pictures = _pictures(where)
        if not pictures:
            raise DataError(f"{path}: {where}, its '{part}', holds no pictures", "Check the paths in it.")
        return Pictures(str(where), tuple((file,) for file in pictures))
    if where.is_file():
        return read_list_of_pictures(where, 1)
    hint = "Check 'path' in it: it is relative to the folder of the file."
    raise DataError(f"{path}: {where}, its '{part}', does not exist", hint)


def leads_back(path: Path, folder: Path) -> bool:
    """Whether a link leads to the folder that it is in, or to one above: its files are there already."""
    return path.is_symlink() and path.is_dir() and folder.resolve().is_relative_to(path.resolve())


def walk_files(folder: Path) -> Iterator[Path]:
    """Yield all files below a folder, in natural order; hidden ones are none.

    Raises:
        DataError: A folder below it cannot be read.

    """
    for place, folders, files in os.walk(folder, onerror=_refuse_folder):
        folders[:] = sorted((name for name in folders if name[0] != "."), key=lambda name: natural_order(Path(name)))
        names = [name for name in files if name[0] != "." and name.lower() not in IGNORED]
        yield from (Path(place, name) for name in sorted(names, key=lambda name: natural_order(Path(name))))


def _refuse_folder(error: OSError) -> None:
    raise DataError(f"{error.filename} cannot be read ({error.strerror})", "Check its permissions.") from error


def _pictures(folder: Path) -> list[Path]:
    return [path for path in walk_files(folder) if is_picture(path)]


def _left_out(folder: Path, others: Sequence[Path]) -> tuple[str, ...]:
    """Say which files are no samples.

    Raises:
        DataError: Some are samples of another kind.

    """
    arrays = [path for path in others if path.suffix.lower() in ARRAYS]
    if arrays:
        first = arrays[0].relative_to(folder)
        raise DataError(f"{folder} holds pictures and arrays ({first})", "Put them into folders of their own.")
    kinds = Counter[Any](path.suffix.lower() or "without a suffix" for path in others)
    if not kinds:
        return ()
    amounts = join_words([f"{count} {kind}" for kind, count in kinds.most_common(MOST_KINDS)])
    more = f" and {len(kinds) - MOST_KINDS} other kinds" if len(kinds) > MOST_KINDS else ""
    unread = any(kind in OTHER_PICTURES for kind in kinds)
    return (f"{folder}: {amounts}{more} left out" + (f". {CONVERT}" if unread else ""),)
