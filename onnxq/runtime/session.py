"""Open onnxruntime sessions over bytes, a file, or a loaded model with its weights in files.

Tests: `tests/runtime/test_in_memory.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import onnx
import onnxruntime as ort

from onnxq.ir import Model, ModelInput, Value, encode_proto, load, parse
from onnxq.runtime.blocked_layout import BLOCKED_LAYOUT
from onnxq.runtime.in_memory import EncodedModel, InMemory, encode, open_encoded
from onnxq.runtime.interruption import InterruptibleRun
from onnxq.runtime.memory import HEAVY
from onnxq.runtime.ort_session import FATAL, ORT_ERRORS, Optimization, SessionError, Settings, load_native, reason
from onnxq.runtime.segmented import InSegments, StreamedSession
from onnxq.runtime.workers import run_in_order

__all__ = [
    "InMemory",
    "InSegments",
    "ModelSource",
    "Session",
    "SessionError",
    "open_session",
    "reason",
    "run_alike",
    "run_session",
    "runs_in_segments",
    "source_model",
]

ModelSource = bytes | ModelInput | InMemory | InSegments
Result = TypeVar("Result")
TOGETHER = 4  # samples of a model in segments that each segment is opened for
MOST_KEPT = 3  # sessions, each of which holds the weights once more
_kept: ContextVar[dict[tuple[bytes, Settings], Session] | None] = ContextVar("onnxq_kept_sessions", default=None)


class Session(Protocol):
    """The interface of all sessions."""

    def get_inputs(self) -> Sequence[Any]:
        """Describe the inputs: `name`, `type`, `shape`."""

    def get_outputs(self) -> Sequence[Any]:
        """Describe the outputs."""

    def run(self, outputs: Sequence[str] | None, feeds: Mapping[str, Any], run_options: Any = None) -> list[Any]:
        """Run once and give the named outputs, all for None."""


def open_session(
    model: ModelSource | EncodedModel,
    *,
    optimize: Optimization = "all",
    threads: int = 0,
    reuse_shapes: bool = True,
    taps: Sequence[Value] = (),
    exact: bool = False,
    keep: bool = False,
) -> Session:
    """Load a model.

    Args:
        model: Its bytes, its path, a ModelProto, or the loaded model. A large one is run in segments, its weights left
            in their files: it must not change as long as the session is in use. `InSegments` has any size run so.
            `InMemory` and `EncodedModel` have onnxruntime hold any size.
        optimize: Level of graph optimisation.
        threads: Threads for one operator; 0 lets onnxruntime choose.
        reuse_shapes: Keep a memory plan for every combination of input shapes seen. It saves allocations when shapes
            repeat, and grows without bound when they do not.
        taps: Of a loaded model: values of the main graph that runs can give besides the outputs.
        exact: Compute products of integers exactly, on processors that saturate, too, and float Convs in an order that
            no vector decides: to judge a model, not to time it.
        keep: Take the session of an equal model that was opened so before, inside `sessions_kept`; not if it is heavy.

    Raises:
        SessionError: onnxruntime cannot load it.
        ModelError: The model cannot be read.

    """
    settings = Settings(optimize, threads, reuse_shapes, without=(BLOCKED_LAYOUT,) if exact else (), exact=exact)
    if isinstance(model, str | Path):
        read = load(model)
        model = model if read.residency.copies else read
    if isinstance(model, onnx.ModelProto):
        model = parse(encode_proto(model))
    if isinstance(model, Model):
        model = InMemory(model, taps) if model.residency.copies else InSegments(model, taps)
    if isinstance(model, InSegments):
        return StreamedSession(model.model, settings, model.taps, checked=model.checked)
    if isinstance(model, InMemory):
        light = model.model.weight_bytes < HEAVY
        model = encode(model)
        if keep and light:
            return _kept_session(model, settings)
    session: Session
    if isinstance(model, EncodedModel):
        session = open_encoded(model, settings)
    else:
        session = load_native(model if isinstance(model, bytes) else str(model), settings)
    return session


def runs_in_segments(source: ModelSource) -> bool:
    """Whether `open_session` runs a model in segments because it is large.

    Raises:
        ModelError: The model cannot be read.

    """
    if isinstance(source, bytes | InMemory | InSegments):
        return isinstance(source, InSegments)
    return not source_model(source).residency.copies


def run_alike(source: ModelSource, float_model: ModelSource) -> ModelSource:
    """Return a quantized model as it is to be run: in segments if its float model is.

    Raises:
        ModelError: One of the models cannot be read.

    """
    if isinstance(source, InMemory) or not runs_in_segments(float_model):
        return source
    return InSegments(source_model(source))


def source_model(source: ModelSource) -> Model:
    """Return the model that a source holds: the very one where it is loaded, which its owner goes on with.

    Raises:
        ModelError: The model cannot be read.

    """
    if isinstance(source, InMemory | InSegments):
        return source.model
    if isinstance(source, Model):
        return source
    if isinstance(source, onnx.ModelProto):
        return parse(encode_proto(source))
    return parse(source) if isinstance(source, bytes) else load(source)


@contextmanager
def sessions_kept() -> Iterator[None]:
    """Keep the last few sessions that are opened inside with `keep`: loading takes longer than several runs do."""
    token = _kept.set({})
    try:
        yield
    finally:
        _kept.reset(token)


def _kept_session(model: EncodedModel, settings: Settings) -> Session:
    kept = _kept.get()
    key = model.digest, settings
    if kept is None:
        kept = {}
    session: Session = kept.pop(key) if key in kept else open_encoded(model, settings)
    kept[key] = session  # the last one
    for oldest in list(kept)[:-MOST_KEPT]:
        del kept[oldest]
    return session


def run_side_by_side(
    session: Session,
    outputs: Sequence[str],
    several: Sequence[Mapping[str, np.ndarray]],
    use: Callable[[int, list[Any]], Result],
    *,
    task_bytes: int = 0,
) -> Generator[Result, None, None]:
    """Run several samples, some at a time, and yield what `use` makes of the named outputs of each, in order.

    Args:
        session: What runs them. One that runs in segments opens each segment once for `TOGETHER` samples.
        outputs: Names.
        several: The inputs of each sample.
        use: Given the place of a sample and its outputs, which then leave memory; in a thread.
        task_bytes: About what a run of the whole model takes; see `run_in_order`.

    Raises:
        SessionError: onnxruntime cannot run it on these inputs.

    """
    if isinstance(session, StreamedSession):
        for start in range(0, len(several), TOGETHER):

            def used(place: int, got: list[Any], start: int = start) -> Result:
                return use(start + place, got)

            yield from session.run_side_by_side(outputs, several[start : start + TOGETHER], run_session, used)
        return

    def run(place: int) -> Result:
        return use(place, run_session(session, outputs, several[place]))

    yield from run_in_order(run, range(len(several)), task_bytes=task_bytes)


def run_session(session: Session, outputs: Sequence[str] | None, feeds: Mapping[str, np.ndarray]) -> list[Any]:
    """Run once and give the named outputs (all of them for None).

    Raises:
        SessionError: onnxruntime cannot run it on these inputs.

    """
    options = ort.RunOptions()
    options.log_severity_level = FATAL
    try:
        with InterruptibleRun(options):
            return list(session.run(None if outputs is None else list(outputs), dict(feeds), options))
    except ORT_ERRORS as error:
        raise SessionError(reason(error)) from error
