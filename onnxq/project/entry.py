"""The models of a repository, their options, and their thresholds.

Tests: `tests/project/test_project_file.py`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path

from onnxq.data.beside import files_beside
from onnxq.data.listed import listed_files
from onnxq.data.reading import Reading
from onnxq.data.remote import is_remote
from onnxq.data.user_function import CALLABLE
from onnxq.errors import ProjectError
from onnxq.missing import missing_model
from onnxq.pipeline.options import QuantizeOptions

EXTERNAL_SUFFIXES = ("", ".data", ".onnx_data", ".bin", ".weight", ".weights", ".pb")  # what exporters write
PART = re.compile(r"_\d+$")  # behind the suffix of further files of a model, as in `model.onnx_data_1`


@dataclass(frozen=True)
class Thresholds:
    """Limits of a quantized model; None where nothing is asked.

    Attributes:
        min_sqnr: Least signal-to-quantization-noise ratio of every output in dB.
        max_abs: Largest absolute difference of any element.
        min_agreement: Least percentage of equal decisions.
        min_cosine: Least cosine of the angle between every output and the float one.
        max_drop: How far the metric may fall.

    """

    min_sqnr: float | None = None
    max_abs: float | None = None
    min_agreement: float | None = None
    min_cosine: float | None = None
    max_drop: float | None = None

    def given(self) -> dict[str, float]:
        """Return the thresholds that were asked for, by the names that `Comparison.missed` takes."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True)
class Entry:
    """One model of a project.

    Attributes:
        root: The project's folder; the paths below start with it, data and recipe files are relative to it.
        source: The float model.
        quantized: The model that is made of it.
        options: What `onnxq quantize` is told; paths in it are relative to the project's folder.
        thresholds: What it has to reach.
        verify_data: What to measure all that on; the calibration data where there is none.
        ignore: Codes of findings that are switched off; see `onnxq.project.rules`.

    """

    root: Path
    source: Path
    quantized: Path
    options: QuantizeOptions = QuantizeOptions()
    thresholds: Thresholds = Thresholds()
    verify_data: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()

    def recipe_source(self) -> str:
        """Return the name of the recipe, or where its file is."""
        recipe = self.options.recipe
        return str(self.root / recipe) if recipe.endswith(".toml") else recipe

    def data_sources(self, data: tuple[str, ...]) -> list[str]:
        """Return data as `open_samples` takes them: paths start with the project's folder."""
        return [given if self.is_function(given) or is_remote(given) else str(self.root / given) for given in data]

    def tokenizer(self) -> Path | None:
        """Return where the tokenizer is that the project names."""
        named = self.options.tokenizer
        return None if named is None else self.root / named

    def reading(self) -> Reading:
        """Return how data that are no arrays become samples; paths start with the project's folder."""
        return replace(self.options.reading, tokenizer=self.tokenizer())

    def is_function(self, given: str) -> bool:
        """Whether data is named as `package.module:function`; a file of that name would win."""
        return CALLABLE.fullmatch(given) is not None and not (self.root / given).exists()

    def module_file(self, given: str) -> Path | None:
        """Find the file of `package.module:function` in the project's folder; None where it is installed elsewhere."""
        base = self.root.joinpath(*given.partition(":")[0].split("."))
        return next((path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()), None)

    def files(self) -> list[Path]:
        """Name every file and folder whose change makes a check of this model worth while."""
        found = [self.source, self.quantized]
        found += [Path(self.recipe_source())] if self.options.recipe.endswith(".toml") else []
        metric = [given for given in [self.options.metric] if given is not None and self.is_function(given)]
        for given in (*self.options.data, *self.verify_data, *metric):
            if is_remote(given):
                continue
            path = self.module_file(given) if self.is_function(given) else self.root / given
            found += [path, *listed_files(path)] if path is not None else []
        return [*found, *self.beside((*self.options.data, *self.verify_data))]

    def beside(self, data: Iterable[str]) -> list[Path]:
        """Name the files next to the model that some data are read with, such as its tokenizer."""
        paths = [self.root / given for given in data if not self.is_function(given) and not is_remote(given)]
        return files_beside(self.source, paths, self.tokenizer())


@dataclass(frozen=True)
class Project:
    """The models of a repository.

    Attributes:
        path: The project file.
        entries: Its models, in the order of the file.

    """

    path: Path
    entries: tuple[Entry, ...]

    @cached_property
    def folders(self) -> dict[Path, list[Entry]]:
        """The models that lie in each folder: their external data lie there or below, under any name."""
        found: dict[Path, list[Entry]] = {}
        for entry in self.entries:
            for path in dict.fromkeys(Path(os.path.realpath(file.parent)) for file in (entry.source, entry.quantized)):
                found.setdefault(path, []).append(entry)
        return found

    @cached_property
    def owners(self) -> dict[Path, list[Entry]]:
        """The models that each file or folder belongs to, by its real path."""
        found: dict[Path, list[Entry]] = {Path(os.path.realpath(self.path)): list(self.entries)}
        for entry in self.entries:
            for path in dict.fromkeys(Path(os.path.realpath(file)) for file in entry.files()):
                found.setdefault(path, []).append(entry)
        return found

    def touched(self, file: Path) -> list[Entry]:
        """Return the models that a file belongs to: as model, recipe or data, in a folder of data, or as project file.

        A file that may hold external data counts as that of every model in its folder or above. A folder, such as a
        submodule of git, counts for all that is in it.
        """
        real = Path(os.path.realpath(file))
        found = [entry for path in (real, *real.parents) for entry in self.owners.get(path, ())]
        if real.is_dir():
            found += [entry for path, its in self.owners.items() if path.is_relative_to(real) for entry in its]
        elif PART.sub("", file.suffix) in EXTERNAL_SUFFIXES:
            found += [entry for folder in real.parents for entry in self.folders.get(folder, ())]
        return list(dict.fromkeys(found))


def refuse_contradictions(entry: Entry, owner: str) -> None:
    """Refuse options of a model that need another one.

    Raises:
        ProjectError: Names what is missing, and the owner of both.

    """
    needs = (
        ("samples", entry.options.samples, "data", entry.options.data),
        ("max-drop", entry.options.max_drop, "metric", entry.options.metric),
        ("metric", entry.options.metric, "verify-data", entry.verify_data or entry.options.data),
    )
    for key, value, other, needed in needs:
        if value is not None and not needed:
            raise ProjectError(f"{owner} has '{key}', but no '{other}'", f"Add '{other}' to it.")


def refuse_missing(project: Project | None, files: Iterable[Path]) -> None:
    """Refuse files that are not there and belong to no model of the project.

    Raises:
        ModelError: Names the first, and a model that was meant perhaps.

    """
    for file in files:
        if not file.exists() and not (project and project.touched(file)):
            raise missing_model(file)


def select(project: Project | None, files: Iterable[Path]) -> tuple[list[Entry], list[Path]]:
    """Return the models of a project that files belong to, and the models among the files that belong to none.

    A model or data that belongs to no entry may have been renamed, and only the new name is known. Then the models of
    the project that miss a file are given as well.
    """
    files = list(files)
    if project is not None and not files:
        return list(project.entries), []
    known = project.entries if project is not None else ()
    entries: dict[Entry, None] = {}
    others: dict[Path, None] = {}
    strange = False
    for file in files:
        touched = project.touched(file) if project is not None else []
        entries |= dict.fromkeys(touched)
        strange |= not touched and file.suffix in (".onnx", ".npz", ".npy")
        if not touched and file.suffix == ".onnx":
            others[file] = None
    if strange:
        entries |= {entry: None for entry in known if not all(path.exists() for path in entry.files())}
    return [entry for entry in known if entry in entries], list(others)
