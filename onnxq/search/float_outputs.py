"""The float model's results for samples that variants are judged on, computed once for all searches.

Its tensors are, too, for variants of which a part is changed: they run from their first change on.

Tests: `tests/pipeline/test_amount_of_work.py`.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import numpy as np

from onnxq.data.samples import Sample
from onnxq.errors import ModelError
from onnxq.ir import Model, Value
from onnxq.ir.storage.scratch_file import Spool
from onnxq.runtime.memory import resident_bytes
from onnxq.runtime.ort_session import load_hint
from onnxq.runtime.session import (
    TOGETHER,
    InMemory,
    InSegments,
    Session,
    SessionError,
    open_session,
    run_session,
    run_side_by_side,
)
from onnxq.runtime.workers import run_in_order
from onnxq.targets.assumed_shapes import assumed_shape
from onnxq.verification.error_stats import Difference

NOT_RUN = "onnxruntime cannot run the float model: {}"
KEPT_BYTES, STREAMED_BYTES = 256 << 20, 128 << 20  # of float outputs, and of those of large models
INSIDE_BYTES = 128 << 20  # of tensors inside the float model
OPEN_BYTES = 128 << 20  # of weights, which a session holds once more, up to which it stays open
SampleKey = tuple[int, ...]  # of a sample: the identities of its arrays


class Computed(NamedTuple):
    """The float model's results for a sample, by name; the sample is kept, since it is found by its arrays."""

    sample: Sample
    outputs: dict[str, Any]

    @property
    def nbytes(self) -> int:
        """Bytes of the outputs that are arrays."""
        return sum(output.nbytes for output in self.outputs.values() if isinstance(output, np.ndarray))


class FloatOutputs:
    """Tensors of the float model, and those of samples that were run before; its session stays open unless it is large.

    Args:
        baseline: The float model, which must not change.
        names: The tensors.
        scratch: For a large model, which runs in segments, one sample after another: a folder for its outputs.

    Attributes:
        room: How many bytes of outputs are kept.
        bytes: About what a session and a run of it take in memory, once there was one; 0 where the system does not say.

    """

    def __init__(self, baseline: Model, names: list[str], scratch: Path | None = None) -> None:
        self._baseline, self._names, self._streamed = baseline, names, scratch is not None
        self._scratch = scratch
        self.room = STREAMED_BYTES if self._streamed else KEPT_BYTES
        self._known: dict[SampleKey, Computed] = {}
        self._kept, self._lock = 0, Lock()
        self._session: Session | None = None
        self.bytes = 0
        self._judged: dict[bytes, dict[SampleKey, list[Difference]]] = {}

    def judged(self, digest: bytes) -> dict[SampleKey, list[Difference]]:
        """Return how far a variant is off on samples that it was run on before, to be added to, by its digest."""
        return self._judged.setdefault(digest, {})

    def key(self, sample: Sample) -> SampleKey | None:
        """Return what a sample is found by; None where it is not kept, so that its arrays may give way to others."""
        key = _key(sample)
        return key if key in self._known else None

    def _open(self) -> Session:
        """Return the session, opened by the first sample that was not run before."""
        with self._lock:
            if self._session is None:
                values = self._baseline.graph.values
                taps = [values[name] for name in self._names if not values[name].is_output]
                source = (InSegments if self._streamed else InMemory)(self._baseline, taps)
                try:
                    self._session = open_session(source, threads=1, exact=True)
                except SessionError as error:
                    raise ModelError(NOT_RUN.format(error), load_hint(error)) from error
            return self._session

    def of(self, samples: Iterable[Sample]) -> Generator[Computed, None, None]:
        """Yield what the model makes of each sample, several at a time; close it where not all are needed.

        Raises:
            ModelError: The model does not load.
            SessionError: It does not run on a sample.

        """
        before = resident_bytes()
        try:
            for computed in self._together(samples) if self._streamed else run_in_order(self._run, samples):
                self.bytes = self.bytes or max(resident_bytes() - before, 0)
                key = _key(computed.sample)
                if key not in self._known and self._kept <= self.room:
                    self._known[key] = computed
                    self._kept += computed.nbytes + sum(array.nbytes for array in computed.sample.values())
                yield computed
        finally:
            if self._baseline.weight_bytes > OPEN_BYTES:
                self._session = None

    def _run(self, sample: Sample) -> Computed:
        known = self._known.get(_key(sample))
        if known is not None:
            return known
        return self._computed(sample, run_session(self._open(), self._names, sample))

    def _together(self, samples: Iterable[Sample]) -> Iterator[Computed]:
        """Yield the same for samples of a large model, each of whose segments is opened once for some of them."""
        left = iter(samples)
        while batch := list(islice(left, TOGETHER)):
            known = [self._known.get(_key(sample)) for sample in batch]
            new = [sample for sample, one in zip(batch, known, strict=True) if one is None]

            def kept(place: int, found: list[Any], new: Sequence[Sample] = new) -> Computed:
                return self._computed(new[place], found)

            with closing(run_side_by_side(self._open(), self._names, new, kept)) as runs:
                for one in known:
                    yield one or next(runs)

    def _computed(self, sample: Sample, found: Sequence[Any]) -> Computed:
        return Computed(sample, {name: self._kept_apart(array) for name, array in zip(self._names, found, strict=True)})

    def _kept_apart(self, array: Any) -> Any:
        if self._scratch is None or not isinstance(array, np.ndarray):
            return array
        with Spool(self._scratch) as spool:
            return spool.keep(array)


def _key(sample: Sample) -> SampleKey:
    return tuple(map(id, sample.values()))


class FloatTensors:
    """Tensors inside a float model for a few samples; the largest are left out where all take much memory.

    Args:
        model: The model, of types that are known. It must not change.
        samples: The samples, which are kept, since they are found by their arrays.
        shapes: Of values whose sizes the model leaves open.

    Raises:
        SessionError: The model does not load, or does not run on a sample.

    """

    def __init__(self, model: Model, samples: Sequence[Sample], shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.model, self._samples = model, samples
        values = _worth_keeping(model, shapes, INSIDE_BYTES // max(len(samples), 1))
        self.names = frozenset(value.name for value in values)
        self._arrays: dict[SampleKey, dict[str, Any]] = {}
        if not values:
            return
        names = [value.name for value in values]
        taps = [value for value in values if not value.is_output]
        session = open_session(InMemory(model, taps), threads=1, exact=True)
        runs = run_in_order(lambda sample: run_session(session, names, sample), samples)
        for sample, arrays in zip(samples, runs, strict=True):
            self._arrays[_key(sample)] = dict(zip(names, arrays, strict=True))

    def of(self, sample: Sample) -> Mapping[str, Any]:
        """Return the tensors of one of the samples by name, its inputs among them."""
        return {**sample, **self._arrays.get(_key(sample), {})}


def _worth_keeping(model: Model, shapes: Mapping[str, tuple[int, ...]], room: int) -> list[Value]:
    """Return the values of the main graph from which a part may begin, the smallest first, as far as there is room.

    A part may as well begin behind a value whose only reader has no other input.
    """
    found: list[tuple[int, str, Value]] = []
    for node in model.graph.nodes:
        for value in node.makes:
            if value.dtype is not None and any(len(use.node.inputs) > 1 for use in value.uses):
                shape = assumed_shape(value, shapes)
                size = math.prod(shape) if shape is not None else room
                found.append((size * np.dtype(np.float32).itemsize, value.name, value))
    kept: list[Value] = []
    for size, _, value in sorted(found, key=lambda one: one[:2]):
        room -= size
        if room < 0:
            break
        kept.append(value)
    return kept
