"""Run the float model for its tensors, with sums in float64, so that all processors give the same.

The evaluator runs what it has kernels for. onnxruntime runs large models, whose weights stay in their files, and models
with operators that only it knows. It runs them in float32, whose last bit differs between processors. Its optimisations
are the basic ones then: constants are folded, while fused approximations stay out.

Tests: `tests/calibration/test_calibrate.py`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np

from onnxq.data.validation import Sample
from onnxq.errors import DataError, ModelError
from onnxq.evaluator import Evaluator, Taps, wide_evaluator
from onnxq.ir import Model, Value
from onnxq.runtime.ort_session import load_hint
from onnxq.runtime.session import Session, SessionError, open_session, run_session
from onnxq.runtime.workers import run_alone, submit_alone, worker_count

MOST_THREADS = 8
# Bytes of a tensor below which NumPy hardly lets go of the interpreter: threads would wait for each other. Two of them
# took 2.7 s to measure what one does in 1.8, tensors of 16 to 256 kB. Intel Sapphire Rapids, 25 November 2026.
WORTH = 1 << 20
MOST_BYTES = 256 << 20  # of the tensors of all samples that are run at a time
UNPREPARED = "Check that the sample is prepared as the model expects: sizes, token ids, masks."


class FloatRuns:
    """A float model made ready to give values of samples.

    Args:
        model: The model.
        taps: Values of the main graph to give.
        looks: What to call with values inside bodies, each time that one is computed.
        threads: Threads for onnxruntime; 0 lets it choose.

    """

    def __init__(self, model: Model, taps: Sequence[Value], looks: Taps, threads: int) -> None:
        self._model, self._taps, self._looks, self._threads = model, taps, looks, threads
        self._session: Session | None = None

    @property
    def most(self) -> int:
        """How many samples may run at a time; one where bodies are looked into, and where weights stay in files."""
        if self._looks or not self._model.residency.quick:
            return 1
        return min(self._threads or worker_count(), MOST_THREADS)

    def run(self, index: int, sample: Sample) -> list[Any]:
        """Return the values of a sample, in the order of the taps.

        Raises:
            DataError: It makes the model fail.
            ModelError: The model cannot be run.

        """
        try:
            return run_session(self._open(), [value.name for value in self._taps], sample)
        except SessionError as error:
            raise run_failed(self._model, index, sample, error) from error

    def _open(self) -> Session:
        """Open a session that gives the values as outputs, too."""
        if self._session is None:
            listed = {value.name for value in self._model.graph.outputs}
            extra = [value for value in self._taps if value.name not in listed]
            try:
                threads = 1 if self._model.residency.quick else self._threads  # samples run at a time instead
                self._session = open_session(
                    self._model, optimize="basic", threads=threads, reuse_shapes=False, taps=extra, keep=True
                )
            except SessionError as error:
                raise ModelError(f"onnxruntime cannot load {self._model.name}: {error}", load_hint(error)) from error
        return self._session


class _Native(FloatRuns):
    """In onnxruntime; the evaluator shows what is inside bodies, for onnxruntime cannot."""

    def __init__(self, model: Model, taps: Sequence[Value], looks: Taps, threads: int) -> None:
        super().__init__(model, taps, looks, threads)
        self._inside = Evaluator(model) if looks else None
        if taps:
            self._open()

    def run(self, index: int, sample: Sample) -> list[Any]:
        results = super().run(index, sample) if self._taps else []
        if self._inside is not None:
            self._inside.run(sample, [], self._looks)
        return results


class _Wide(FloatRuns):
    """In the evaluator, with sums and functions in float64."""

    def __init__(self, evaluator: Evaluator, model: Model, taps: Sequence[Value], looks: Taps, threads: int) -> None:
        super().__init__(model, taps, looks, threads)
        self._evaluator = evaluator

    def run(self, index: int, sample: Sample) -> list[Any]:
        found: dict[str, Any] = {}

        def keep(name: str, array: Any) -> None:
            found[name] = array

        taps: dict[str | Value, Callable[[Any], None]] = {value: partial(keep, value.name) for value in self._taps}
        try:
            self._evaluator.run(sample, [], taps | dict(self._looks))
        except (ModelError, DataError):
            # onnxruntime's message about the sample is better known; and it may have more cases of an operator
            if self._looks:
                super().run(index, sample)
                raise
            return super().run(index, sample)
        return [found.pop(value.name) for value in self._taps]


def float_runs(model: Model, taps: Sequence[Value], looks: Taps, threads: int = 0, *, trial: bool = False) -> FloatRuns:
    """Make a float model ready to give values: in float64, or in onnxruntime where the evaluator lacks a kernel.

    Args:
        model: The float model.
        taps: Values of the main graph to give.
        looks: What to call with values inside bodies, each time that one is computed.
        threads: Most samples that run at a time, and threads for onnxruntime; 0 for as many as there are processors.
        trial: Whether the last bits do not matter, so that onnxruntime runs what it can, in a fraction of the time.

    Raises:
        ModelError: It cannot be run.

    """
    evaluator = wide_evaluator(model, [*taps, *looks]) if looks or not trial else None
    return _Native(model, taps, looks, threads) if evaluator is None else _Wide(evaluator, model, taps, looks, threads)


def run_samples(
    runs: FloatRuns | None, samples: Iterable[tuple[int, Sample]]
) -> Iterator[tuple[int, Sample, list[Any]]]:
    """Run samples, some at a time, and give their numbers, the samples and their values in order.

    The first one runs alone, to see what memory its values take. Nothing runs without `runs`.
    """
    if runs is None:
        yield from ((index, sample, []) for index, sample in samples)
        return
    samples = iter(samples)
    while (limit := runs.most) == 1:  # no thread has to be woken for each sample, until other processes lend theirs
        try:
            index, sample = next(samples)
        except StopIteration:
            return
        yield index, sample, run_alone(runs.run, index, sample)
    most = 1
    waiting: deque[tuple[int, Sample, Future[list[Any]]]] = deque()
    with ThreadPoolExecutor(limit) as pool:
        for index, sample in samples:
            waiting.append((index, sample, submit_alone(pool, runs.run, index, sample)))
            if len(waiting) >= most:
                number, first, future = waiting.popleft()
                results = future.result()
                taken = sum(array.nbytes for array in results if isinstance(array, np.ndarray))
                if most == 1 and limit > 1 and taken >= WORTH * len(results):
                    most = max(min(worker_count(taken) + 1, limit + 1, MOST_BYTES // max(taken, 1)), 1)
                yield number, first, results
        while waiting:
            number, first, future = waiting.popleft()
            yield number, first, future.result()


def run_failed(model: Model, index: int, sample: Sample, error: SessionError) -> DataError:
    """Return the error of a sample on which the float model does not run."""
    shapes = ", ".join(f"'{name}' {array.dtype.name}{list(array.shape)}" for name, array in sample.items())
    return DataError(f"onnxruntime cannot run {model.name} on sample {index}, input {shapes}: {error}", UNPREPARED)
