"""A first project file: the models below a folder, each with the data that it can be run on.

Tests: `tests/project/test_project_new.py`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from onnxq.data.samples import Samples
from onnxq.errors import OnnxqError, ProjectError
from onnxq.ir import Model, infer_types, load
from onnxq.project.find_data import Fit, ProjectFiles, find, fit, role
from onnxq.stages.files import is_own_output, open_data
from onnxq.verification.ort_graph import quantized_already

MOST_TRIES = 6  # data that are opened for a model
ENOUGH = 200  # samples that a calibration reads
NO_TEXT = "has a name that is no UTF-8"
STRANGE = 3  # data named after something else, which only the one model of a folder may have
HEAD = """\
# The models of this folder. `onnxq quantize` builds them, `onnxq check` says which are out of date.
"""
NO_DATA = '# no data found that fit: add data = ["FILE"], or ranges are found at run time'
LIMITS = "# thresholds = { min-sqnr = 30.0 }  # dB; a build that misses it writes nothing"


@dataclass(frozen=True)
class Proposal:
    """Entry that a project file is going to have for a model.

    Attributes:
        model: The float model; this path and those of data are relative to the project's folder.
        data: To calibrate with.
        verify_data: To verify on.
        samples: How many samples to read; None for all.
        refused: Data with a fitting name that the model does not take, each with the reason.

    """

    model: str
    data: tuple[str, ...] = ()
    verify_data: tuple[str, ...] = ()
    samples: int | None = None
    refused: tuple[tuple[str, str], ...] = ()

    def to_toml(self) -> str:
        """Return the table of the model."""
        lines = ["[[models]]", f"float = {_quoted(self.model)}"]
        lines.append(f"data = {_listed(self.data)}" if self.data else NO_DATA)
        if self.samples is not None:
            lines.append(f"samples = {self.samples}")
        if self.verify_data:
            lines.append(f"verify-data = {_listed(self.verify_data)}")
        return "\n".join([*lines, LIMITS]) + "\n"


@dataclass(frozen=True)
class NewProject:
    """A project file that is not written yet.

    Attributes:
        models: In the order of the file.
        left_out: Models that are not listed, each with the reason.

    """

    models: tuple[Proposal, ...]
    left_out: tuple[tuple[str, str], ...] = ()

    def to_toml(self) -> str:
        """Return the whole file."""
        return "\n".join([HEAD, *(model.to_toml() for model in self.models)])


def propose(root: Path) -> NewProject:
    """Look for models below a folder, and for data that each of them takes.

    Args:
        root: The folder that the project file is going to lie in.

    Raises:
        ProjectError: There is no folder, or no float model in it.

    """
    if not root.is_dir():
        raise ProjectError(f"{root} is no folder", "Give the folder that holds the models.")
    if root.resolve() == Path(root.resolve().anchor):
        raise ProjectError(f"{root} is the whole disk", "Give the folder that holds the models.")
    found = find(root)
    left_out: list[tuple[str, str]] = []
    taken: list[tuple[Path, Model]] = []
    for path in found.models:
        if not _is_text(path):
            left_out.append((_relative(path, root), NO_TEXT))
            continue
        try:
            model = load(path)
            infer_types(model)
            before = quantized_already(model)
        except OnnxqError as error:
            why = error.message.removeprefix(f"{path} ").removeprefix(f"{path}: ")
            left_out.append((_relative(path, root), why))
            continue
        if is_own_output(model) or before:
            left_out.append((_relative(path, root), "is quantized already"))
        else:
            taken.append((path, model))
    if not taken:
        raise ProjectError(f"there is no float model below {root}{_why(left_out)}", "Put an .onnx file there.")
    alone = len(taken) == 1
    return NewProject(tuple(_proposal(path, model, found, root, alone=alone) for path, model in taken), tuple(left_out))


def write_project(project: NewProject, path: Path) -> None:
    """Write a project file where none is.

    Raises:
        ProjectError: There is one, or it cannot be written.

    """
    created = False
    try:
        with path.open("x", encoding="utf-8", newline="\n") as file:
            created = True
            file.write(project.to_toml())
    except FileExistsError as error:
        hint = "Add models to it by hand; --dry-run prints what would be written."
        raise ProjectError(f"{path} exists already", hint) from error
    except OSError as error:
        if created:
            path.unlink(missing_ok=True)
        hint = "Check the folder's permissions, and that the disk has room."
        raise ProjectError(f"{path} cannot be written ({error.strerror})", hint) from error


def _why(left_out: Sequence[tuple[str, str]]) -> str:
    return f": {left_out[0][0]} {left_out[0][1]}" if left_out else ""


def _proposal(path: Path, model: Model, found: ProjectFiles, root: Path, *, alone: bool) -> Proposal:
    refused: list[tuple[str, str]] = []
    by_fit: dict[Fit, list[Path]] = {}
    for data in found.data:
        fitness = fit(path, data, root)
        if fitness.strangeness < STRANGE or alone:
            by_fit.setdefault(fitness, []).append(data)
    groups = [by_fit[fitness] for fitness in sorted(by_fit)]
    calibrating, count = _first_fitting(model, [_with_role(group, root, "calibrate", "") for group in groups], refused)
    verifying, _ = _first_fitting(model, [_with_role(group, root, "verify") for group in groups], refused)
    return Proposal(
        _relative(path, root),
        tuple(_relative(data, root) for data in calibrating),
        tuple(_relative(data, root) for data in verifying),
        ENOUGH if count is not None and count > ENOUGH else None,
        tuple((_relative(Path(name), root), why) for name, why in refused),
    )


def _with_role(paths: Iterable[Path], root: Path, *roles: str) -> list[Path]:
    return [path for path in paths if role(path, root) in roles]


def _first_fitting(
    model: Model, groups: Iterable[list[Path]], refused: list[tuple[str, str]]
) -> tuple[list[Path], int | None]:
    """Return the data of the first group that a model takes, and how many samples they hold if that is known.

    Integers that become floats are only taken where a group has nothing else: they may be pictures without their scale.
    """
    tries = 0
    for group in groups:
        fitting: list[tuple[Path, Samples]] = []
        for path in group:
            tries += 1
            if tries > MOST_TRIES:
                break
            if not _is_text(path):
                refused.append((str(path), NO_TEXT))
                continue
            try:
                samples = open_data(model, [path], None, None, passes=1)
                assert samples is not None
                next(iter(samples))
            except OnnxqError as error:
                refused.append((str(path), error.message))
                continue
            fitting.append((path, samples))
        if fitting:
            taken = [one for one in fitting if not any(dtype.kind in "iub" for dtype in one[1].converted.values())]
            counts = [samples.count for _, samples in taken or fitting]
            known = sum(count for count in counts if count is not None)
            return [path for path, _ in taken or fitting], None if None in counts else known
    return [], None


def _is_text(path: Path) -> bool:
    """Whether a path can stand in a project file, which is UTF-8."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return False
    return True


def _relative(path: Path, root: Path) -> str:
    return Path(os.path.relpath(path, root)).as_posix()


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _listed(items: Iterable[str]) -> str:
    return f"[{', '.join(map(_quoted, items))}]"
