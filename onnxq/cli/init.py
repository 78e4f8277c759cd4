"""`onnxq init`: a first project file, from the models and data that a folder holds.

Tests: `tests/cli/test_cli_init.py`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from onnxq.project.new_project import NewProject

Folder = Annotated[
    Path,
    typer.Argument(metavar="FOLDER", help="Folder with the models; the working folder by default.", show_default=False),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the file to stdout; nothing is written.")]
MOST_REFUSED = 3


def init(folder: Folder = Path(), dry_run: DryRun = False) -> None:
    """Write a first onnxq.toml for the models of a folder.

    Lists each float model with the data that it takes: files and folders near it with a fitting name, such as
    NAME_calib.npz, NAME/ or calibration.npz. Data are opened and checked against the model.

    An existing project file is never replaced.
    """
    from onnxq.cli.terminal import TerminalObserver
    from onnxq.progress import following
    from onnxq.project.file import FILE
    from onnxq.project.new_project import propose, write_project

    path = folder / FILE
    if not dry_run:
        _refuse_existing(folder)
    with TerminalObserver(f"looking below {folder}") as observer, following(observer):
        observer.step("examine")
        project = propose(folder)
    _tell(project)
    if dry_run:
        sys.stdout.write(project.to_toml())
        return
    write_project(project, path)
    _show(project, path)


def _refuse_existing(folder: Path) -> None:
    """Refuse a folder that has a project file, before anything is looked for."""
    from onnxq.cli.terminal import note
    from onnxq.errors import ProjectError
    from onnxq.project.file import FILE, PYPROJECT, find_project

    if (folder / FILE).exists() or (folder / FILE).is_symlink():
        raise ProjectError(
            f"{folder / FILE} exists already", "Add models to it by hand; --dry-run prints what would be written."
        )
    found = find_project(folder) if folder.is_dir() else None
    if found is None:
        return
    if found.resolve() == (folder / PYPROJECT).resolve():
        raise ProjectError(f"{found} has a table [tool.onnxq] already", "Add models to it by hand.")
    note(f"{found} is a project file, too: below {folder}, the new one counts")


def _tell(project: NewProject) -> None:
    """Name models that are left out, and data that do not fit."""
    from onnxq.cli.terminal import note

    for name, why in project.left_out:
        note(f"left out {name}: it {why}" if why.startswith("is ") else f"left out {name}: {why}")
    for model in project.models:
        if not model.data:
            for name, why in model.refused[:MOST_REFUSED]:
                note(f"{model.model} does not take {name}: {why}")


def _show(project: NewProject, path: Path) -> None:
    from rich.text import Text

    from onnxq.cli.tables import columns
    from onnxq.cli.terminal import note, show
    from onnxq.text import counted, printable, shell_path

    rows = [
        (printable(one.model), printable(", ".join(one.data)) or "none found", printable(", ".join(one.verify_data)))
        for one in project.models
    ]
    show(columns(("model", "calibrates with", "verifies on"), rows))
    place = "" if path.parent == Path() else f"cd {shell_path(path.parent)} && "
    show("", Text("next:", style="dim"), Text(f"  {place}onnxq quantize", style="dim"))
    note(f"wrote {path}: {counted(len(project.models), 'model')}")
