"""Build the models of a project on an engine, a task each.

Tests: `tests/distributed/test_runs.py`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from onnxq.distributed.runs import TaskRun, failure
from onnxq.errors import DataError, OnnxqError
from onnxq.ir import load
from onnxq.project.build import build
from onnxq.project.entry import Entry
from onnxq.project.outcome import Built, up_to_date
from onnxq.project.provenance import gather


@dataclass(frozen=True)
class BuildTask:
    """A model to build.

    Attributes:
        entry: The model.
        wanted: SHA-256 of all that it is built from, and all options; from `gather`.
        folder: The working folder, which paths start in.

    """

    entry: Entry
    wanted: Mapping[str, Any]
    folder: str

    @property
    def name(self) -> str:
        """Name it in messages."""
        return str(self.entry.quantized)

    def run(self) -> Built:
        """Build it, if the files here are the same ones."""
        enter(self.folder)
        check_files(self.entry, self.wanted)
        return next(build([self.entry], force=True))


def enter(folder: str) -> None:
    """Change into the working folder of the run.

    Raises:
        DataError: It is not there.

    """
    try:
        os.chdir(folder)
    except OSError as error:
        raise DataError(f"{folder} cannot be entered ({error.strerror})", "Share it with the workers.") from error


def check_files(entry: Entry, wanted: Mapping[str, Any]) -> None:
    """Refuse files that are others here than where the run began.

    Raises:
        DataError: Names the model, the recipe or the data.

    """
    found = gather(entry, load(entry.source))
    if found["float"] != wanted["float"]:
        raise DataError(f"{entry.source} is another file here than where the run began", SAME_FILES)
    if found["recipe"] != wanted["recipe"]:
        raise DataError(f"recipe {entry.options.recipe} is another one here than where the run began", SAME_FILES)
    for key in ("data", "metric"):
        other = [given for given, digest in found[key].items() if wanted[key].get(given) != digest]
        if other:
            raise DataError(f"{other[0]} is another file here than where the run began", SAME_FILES)


SAME_FILES = "Copy it again, or share the folder; do not change it during a run."


def build_on(
    engine: str,
    entries: Sequence[Entry],
    *,
    force: bool = False,
    processors: int = 1,
    done: Callable[[Built], None] | None = None,
) -> list[Built]:
    """Build models on an engine; one that fails does not keep the others from being built.

    Args:
        engine: Name of the engine; see `onnxq.distributed.engines`.
        entries: The models; their files are in folders that all workers see.
        force: Build those that are up to date as well.
        processors: How many each build may use.
        done: Told what became of each model, in the order in which they end.

    Raises:
        EngineError: The engine is gone, or a worker must not be used.

    """
    found: dict[int, Built] = {}
    tasks: dict[int, BuildTask] = {}

    def note(at: int, built: Built) -> None:
        found[at] = built
        if done is not None:
            done(built)

    for at, entry in enumerate(entries):
        settled = None if force else up_to_date(entry)
        if settled is None:
            try:
                tasks[at] = BuildTask(entry, gather(entry, load(entry.source)), os.getcwd())
            except OnnxqError as error:
                settled = Built(entry, "failed", error=error)
        if settled is not None:
            note(at, settled)

    places = list(tasks)

    def ended(place: int, result: Any) -> None:
        at = places[place]
        error = failure(result)
        note(at, replace(result, entry=entries[at]) if error is None else Built(entries[at], "failed", error=error))

    if tasks:
        TaskRun(engine, list(tasks.values()), Path(entries[0].root), processors).results(ended)
    return [found[at] for at in range(len(entries))]
