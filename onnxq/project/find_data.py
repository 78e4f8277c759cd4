"""The models and data below a folder, and which data belong to which model by their names.

Tests: `tests/project/test_project_find_data.py`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from onnxq.data.beside import ARRAY_SUFFIXES, PICTURE_SUFFIXES, SOUND_SUFFIXES

RECORDED = (*PICTURE_SUFFIXES, *SOUND_SUFFIXES)
SENTENCES = (".jsonl",)  # a .txt or .csv may be anything
SKIPPED = frozenset({"node_modules", "__pycache__", "site-packages", "build", "dist"})
FILES_OF_A_MODEL = (".int8.onnx",)

Role = Literal["calibrate", "verify", ""]
ROLES: dict[str, Role] = {
    **dict.fromkeys(("calib", "calibration", "calibrate", "cal", "calibset", "train", "training"), "calibrate"),
    **dict.fromkeys(("eval", "evaluation", "test", "testing", "val", "valid", "validation", "verify"), "verify"),
}
KINDS = "image images img photos pictures sentences texts text audio sounds recordings wav wavs arrays"
PLACES = "data dataset datasets sample samples input inputs set model models onnx assets resources"
GENERAL = frozenset(f"{KINDS} {PLACES}".split())  # words that say nothing about which model

TEST_SET = "test_data_set_"
SHORTEST = 4  # letters of a part of a name that tells models apart


@dataclass(frozen=True)
class ProjectFiles:
    """Models and data below a folder.

    Attributes:
        models: Files whose names end in `.onnx`, in alphabetical order; results of onnxq are left out.
        data: Files and folders that may be data, in alphabetical order.

    """

    models: tuple[Path, ...]
    data: tuple[Path, ...]


@dataclass(frozen=True, order=True)
class Fit:
    """How well data belong to a model, by their names and kinds; less is better.

    Arrays are named and shaped like the inputs of one model. Pictures, recordings and sentences are made to fit any, so
    that arrays come first unless the others are named after the model.

    Attributes:
        is_strange: Whether the name is not that of the model, and no part of it.
        is_prepared: Whether samples are made of files that hold no arrays.
        strangeness: 0 named after the model, 1 after a part of its name, 2 after nothing, 3 after something else.
        distance: How many folders lie between both.
        is_unnamed: Whether the name does not say that they are for calibration.

    """

    is_strange: bool
    is_prepared: bool
    strangeness: int
    distance: int
    is_unnamed: bool


def find(root: Path) -> ProjectFiles:
    """List the models and the data below a folder, without those of hidden folders, environments and caches."""
    models: list[Path] = []
    data: list[Path] = []
    for folder, files in _walk(root):
        names = [folder / name for name in files]
        models += [path for path in names if path.suffix == ".onnx" and not path.name.endswith(FILES_OF_A_MODEL)]
        data += [path for path in names if path.suffix.lower() in (*ARRAY_SUFFIXES, *SENTENCES)]
        if folder != root and _is_data(files):
            data.append(folder)
    return ProjectFiles(tuple(sorted(models)), tuple(sorted(_without_parts(data))))


def role(path: Path, root: Path) -> Role:
    """Return what data are for, by their name or else by that of a folder they are in."""
    for name in _names(path, root):
        found = [ROLES[word] for word in _words(name) if word in ROLES]
        if found:
            return found[-1]
    return ""


def fit(model: Path, data: Path, root: Path) -> Fit:
    """Return how well data belong to a model.

    Args:
        model: The model.
        data: A file or folder below `root`.
        root: Where the search began.

    """
    wanted = _words(model.stem)
    strangeness = 2
    for name in _names(data, root):
        words = [word for word in _words(name) if word not in ROLES and word not in GENERAL and not word.isdecimal()]
        if words:
            strangeness = _strangeness(words, wanted)
            break
    shared = os.path.commonpath([os.path.abspath(model.parent), os.path.abspath(data.parent)])
    distance = sum(len(Path(os.path.relpath(path.parent, shared)).parts) for path in (model, data))
    return Fit(strangeness > 1, _is_prepared(data), strangeness, distance, role(data, root) != "calibrate")


def _strangeness(words: list[str], wanted: list[str]) -> int:
    plain = [word for word in wanted if not word.isdecimal() and word not in ROLES and word not in GENERAL]
    if words in (plain, wanted):
        return 0
    part, whole = "".join(words), "".join(plain)
    begins = words == plain[: len(words)] or plain == words[: len(plain)]
    return 1 if begins or (len(part) >= SHORTEST and part in whole) else 3


def _names(path: Path, root: Path) -> list[str]:
    """Return the name of a file without its suffix, and the names of the folders that it is in, nearest first."""
    inside = Path(os.path.relpath(path, root))
    own = inside.name if path.is_dir() else inside.stem
    return [own, *(folder.name for folder in inside.parents if folder.name not in ("", ".."))]


def _words(name: str) -> list[str]:
    plain = name.lower().replace(TEST_SET, "data_")  # ONNX calls any samples so
    return [word for word in re.split(r"[^a-z0-9]+", plain) if word]


def _walk(root: Path) -> Iterator[tuple[Path, list[str]]]:
    """Yield folders with the names of their files, links to folders not followed."""
    for place, folders, files in os.walk(root):
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".")
            and name not in SKIPPED
            and not os.path.exists(os.path.join(place, name, "pyvenv.cfg"))
        )
        yield Path(place), sorted(name for name in files if not name.startswith("."))


def _is_data(files: list[str]) -> bool:
    """Whether the files of a folder are samples together: pictures, recordings, ONNX test data or many arrays."""
    suffixes = [Path(name).suffix.lower() for name in files]
    if ".onnx" in suffixes:
        return False
    arrays = [name for name, suffix in zip(files, suffixes, strict=True) if suffix in ARRAY_SUFFIXES]
    together = len(arrays) > 1 and not any(word in ROLES for name in arrays for word in _words(name))
    return together or any(suffix in RECORDED for suffix in suffixes) or "input_0.pb" in files


def _is_prepared(path: Path) -> bool:
    """Whether samples have to be made of what a file or folder holds."""
    if not path.is_dir():
        return path.suffix.lower() in SENTENCES
    return any(Path(name).suffix.lower() in RECORDED for _, files in _walk(path) for name in files)


def _without_parts(data: list[Path]) -> list[Path]:
    """Take the folder above for folders that stand for classes or test data sets, and leave out what lies in them."""
    folders = [path for path in data if path.is_dir()]
    above: dict[Path, list[Path]] = {}
    for path in folders:
        above.setdefault(path.parent, []).append(path)
    wholes = {
        parent
        for parent, parts in above.items()
        if len(parts) > 1 and not any(role(part, parent) for part in parts) and _holds_nothing_else(parent, parts)
    }
    kept = [path for path in data if path.parent not in wholes]
    return [*kept, *(whole for whole in wholes if whole not in kept)]


def _holds_nothing_else(folder: Path, parts: list[Path]) -> bool:
    inside = [path for path in folder.iterdir() if not path.name.startswith(".")]
    return {path.name for path in inside if path.is_dir()} == {part.name for part in parts} and not any(
        path.suffix == ".onnx" for path in inside
    )
