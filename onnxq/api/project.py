"""The models of a project file, built and checked.

Tests: `tests/api/test_api_examples.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from onnxq.errors import RecipeError
from onnxq.progress import Observer, Silent
from onnxq.project.build import build as build_entries
from onnxq.project.check import Checked
from onnxq.project.check import check as check_project
from onnxq.project.entry import Entry, refuse_missing
from onnxq.project.file import find_project, load_project
from onnxq.project.jobs import build_in_jobs
from onnxq.project.outcome import Built
from onnxq.project.settings import refuse_settings
from onnxq.text import as_list


def check(files: str | Path | Sequence[str | Path] = (), *, project: str | Path | None = None) -> Checked:
    """Find models of a project that are missing, damaged, stale, too large or below a threshold; nothing is run.

    Args:
        files: Only the models that these files belong to. Models outside the project have to be well formed.
        project: The project file; by default the one in this folder or above it.

    Returns:
        How many models were looked at, and what is wrong with them.

    Raises:
        ProjectError: The project file is wrong, or there is none and no files are given.
        ModelError: One of the files does not exist.

    Examples:
        >>> import onnxq
        >>> onnxq.check("model.onnx").findings
        ()

    """
    given = [Path(file) for file in as_list(files)]
    found = _path(project) or find_project()
    listed = load_project(found) if found is not None or not given else None
    refuse_missing(listed, given)
    return check_project(listed, given)


def build(
    project: str | Path | None = None, *, force: bool = False, jobs: int = 1, observer: Observer | None = None
) -> tuple[Built, ...]:
    r"""Build the models of a project that are out of date; one that fails does not keep the others from being built.

    Args:
        project: The project file; by default the one in this folder or above it.
        force: Build those that are up to date as well.
        jobs: How many to build at a time, each in a process of its own.
        observer: Told about each step; with several jobs, how many models are done.

    Returns:
        What became of each model, in the order of the file.

    Raises:
        ProjectError: The project file is missing or wrong.
        RecipeError: There are no jobs.

    Examples:
        >>> import onnxq, pathlib
        >>> text = '[[models]]\nfloat = "model.onnx"\ndata = ["calibration.npz"]\n'
        >>> _ = pathlib.Path("onnxq.toml").write_text(text)
        >>> [built.state for built in onnxq.build()]
        ['built']
        >>> [built.state for built in onnxq.build()]
        ['up to date']

    """
    if jobs < 1:
        raise RecipeError(f"jobs cannot be {jobs}", "Give at least 1.")
    found = load_project(_path(project))
    refuse_settings(found)
    entries = found.entries
    if jobs > 1:
        return tuple(_in_jobs(entries, jobs, observer or Silent(), force=force))
    return tuple(build_entries(entries, force=force, observer=observer))


def _in_jobs(entries: Sequence[Entry], jobs: int, observer: Observer, *, force: bool) -> list[Built]:
    done: list[Built] = []

    def ended(built: Built) -> None:
        done.append(built)
        observer.progress(len(done), len(entries))

    observer.step("build")
    observer.progress(0, len(entries))
    return build_in_jobs(entries, jobs, force=force, done=ended)


def _path(project: str | Path | None) -> Path | None:
    return None if project is None else Path(project)
