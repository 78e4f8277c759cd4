"""Take whole files for samples, where the model runs on all rows of a file and not on one.

A model that looks at an image and its mirror images may reshape to `[4, -1]`. In a folder of such files each is one
sample, though its rows look like samples.

Tests: `tests/data/test_whole_files.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from onnxq.data.npz import Source
from onnxq.data.reading import ModelFacts
from onnxq.data.validation import InputSpec, conform
from onnxq.errors import OnnxqError
from onnxq.runtime.session import InMemory, Session, SessionError, open_session, run_session

FEWEST = 2  # files: one alone is more likely all samples of a user


def whole_where_rows_fail(sources: list[Source], inputs: Sequence[InputSpec], facts: ModelFacts) -> list[Source]:
    """Take each source for one sample where only that runs, and rows for samples otherwise."""
    if len(sources) < FEWEST or facts.model is None or not facts.model.residency.quick:
        return sources
    given = [source.whole for source in sources]
    files = [whole() for whole in given if whole is not None]
    if len(files) < len(sources):
        return sources
    try:
        session = open_session(InMemory(facts.model))
        if _runs(session, sources[0], inputs) or not _runs(session, files[0], inputs):
            return sources
    except (OnnxqError, SessionError):  # a run later tells the user
        return sources
    note = f"the model does not run on one row of {files[0].label}: each file is one sample"
    return [replace(files[0], notes=(*files[0].notes, note)), *files[1:]]


def _runs(session: Session, source: Source, inputs: Sequence[InputSpec]) -> bool:
    first: Mapping[str, Any] = next(iter(source.read()))
    try:
        run_session(session, None, conform(first, inputs, source.label))
    except SessionError:
        return False
    return True
