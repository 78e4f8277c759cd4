"""One pass of the float model over the samples, measuring the tensors that will be quantized."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from onnxq.errors import DataError, ModelError
from onnxq.quant.collecting import give_back
from onnxq.quant.sample_checks import Sample, conform
from onnxq.quant.samples import Samples, input_specs
from onnxq.quant.session import InMemory, Session, SessionError, is_large, open_session, run_session
from onnxq.quant.stats import Kinds, Stats, basic_kinds

if TYPE_CHECKING:
    from onnxq.ir import Model, Value

MOST_THREADS = 8  # that measure tensors, each of which unfolds some
Progress = Callable[[int, int | None], None]
Look = Callable[[Any], None]
# Makes ready to run a model on one sample at a time, looking at values of its bodies each time one is computed.
BodyRunner = Callable[["Model", Mapping["str | Value", Look]], Callable[[Sample], object]]


def calibrate(
    model: Model,
    values: Sequence[Value],
    samples: Iterable[Mapping[str, np.ndarray]],
    *,
    progress: Progress | None = None,
    threads: int = 0,
    kinds: Kinds = basic_kinds,
    bodies: BodyRunner | None = None,
) -> Stats:
    """Measure values of the float model over all samples.

    onnxruntime runs the model with its basic optimisations: constants are folded, which changes no value that is asked
    for, while fused approximations that depend on the processor stay out, so that ranges are the same everywhere. One
    sample is in memory at a time, with its tapped values.

    Args:
        model: The float model.
        values: What to measure: float tensors; graph inputs are taken from the samples. A value inside a body that no
            sample runs has no statistics afterwards.
        samples: Checked `Samples`, or any iterable of `{input name: array}`, which is then checked.
        progress: Called with the number of samples done and the total (None while unknown), first with 0.
        threads: Threads for onnxruntime; 0 lets it choose.
        kinds: Makes the statistics to collect for a tensor of that name.
        bodies: Runs the model once more for values inside bodies, which onnxruntime cannot show.

    Raises:
        DataError: A sample does not fit the model or makes it fail, a value is not finite, or there are no samples.
        ModelError: onnxruntime cannot load the model.
        ValueError: A value is an initializer, is no float tensor, or is inside a body without `bodies`: the caller's
            mistake.

    """
    taps, fed, inner = _sort_out(values)
    if inner and bodies is None:
        raise ValueError(f"'{inner[0].name}' is inside a body, where onnxruntime shows no values")
    total = samples.count if isinstance(samples, Samples) else len(samples) if isinstance(samples, Sequence) else None
    stats = Stats(kinds)
    session = _tapped(model, taps, threads) if taps else None
    run_bodies = bodies(model, {value: _look(stats, value) for value in inner}) if bodies and inner else None
    if progress:
        progress(0, total)
    with ThreadPoolExecutor(min(os.cpu_count() or 1, MOST_THREADS)) as pool:
        for done, (index, sample) in enumerate(_checked(samples, model), 1):
            for name in fed:
                stats.add(name, _floats(name, sample[name]), f"an input of the model, sample {index}")
            if session is not None:
                _add_all(pool, stats, taps, _run(session, model, taps, sample, index), index)
            if run_bodies is not None:
                run_bodies(sample)
            stats.samples += 1
            if progress:
                progress(done, total)
    del session
    give_back(model.weight_bytes)
    if not stats.samples:
        raise DataError("there are no samples to calibrate with", "Give at least one; 32 to 200 make good ranges.")
    return stats


def _run(session: Session, model: Model, taps: Iterable[str], sample: Sample, index: int) -> list[Any]:
    try:
        return run_session(session, list(taps), sample)
    except SessionError as error:
        raise _run_failed(model, index, sample, error) from error


def _add_all(pool: Executor, stats: Stats, taps: dict[str, Value], results: list[Any], index: int) -> None:
    """Measure what a run gave, several tensors at a time, and let go of each; the number of threads changes no bit."""
    measured = []
    for value in reversed(taps.values()):
        stats.begin(value.name)  # here, so that their order is always the same
        array = _floats(value.name, results.pop())
        measured.append(pool.submit(stats.add, value.name, array, f"{_origin(value)}, sample {index}"))
        del array
    for one in measured:
        one.result()


def _tapped(model: Model, taps: Mapping[str, Value], threads: int) -> Any:
    """Open a session that gives the values as outputs, too."""
    listed = {value.name for value in model.graph.outputs}
    extra = [value for name, value in taps.items() if name not in listed]
    try:
        source = model if is_large(model) else InMemory(model, extra)
        return open_session(source, optimize="basic", threads=threads, reuse_shapes=False, taps=extra)
    except SessionError as error:
        raise ModelError(f"onnxruntime cannot load {model.name}: {error}", "Check the float model.") from error


def _sort_out(values: Sequence[Value]) -> tuple[dict[str, Value], list[str], list[Value]]:
    """Separate values that a run must give from graph inputs and from values of bodies, each once."""
    taps: dict[str, Value] = {}
    fed: list[str] = []
    inner: list[Value] = []
    for value in dict.fromkeys(values):
        if value.tensor is not None:
            raise ValueError(f"'{value.name}' is an initializer, which needs no calibration")
        if value.graph.parent is not None:
            inner.append(value)
        elif value.is_input:
            fed.append(value.name)
        else:
            taps[value.name] = value
    return taps, fed, inner


def _look(stats: Stats, value: Value) -> Look:
    return lambda array: stats.add(value.name, _floats(value.name, array), f"{_origin(value)}, in a body")


def _checked(samples: Iterable[Mapping[str, np.ndarray]], model: Model) -> Iterator[tuple[int, Sample]]:
    """Give the samples and where they stand in the data."""
    if isinstance(samples, Samples):
        yield from zip(count() if samples.numbers is None else samples.numbers, samples, strict=False)
        return
    inputs = input_specs(model)
    for index, raw in enumerate(samples):
        yield index, conform(raw, inputs, f"sample {index}")


def _floats(name: str, array: np.ndarray) -> np.ndarray:
    if not isinstance(array, np.ndarray) or array.dtype.kind != "f":
        kind = array.dtype.name if isinstance(array, np.ndarray) else type(array).__name__
        raise ValueError(f"'{name}' is {kind}, and only float tensors have a range to measure")
    return array


def _origin(value: Value) -> str:
    node = value.producer
    return f"after {node.op_type} node {node.display_name}" if node is not None else "in the model"


def _run_failed(model: Model, index: int, sample: Sample, error: SessionError) -> DataError:
    shapes = ", ".join(f"'{name}' {array.dtype.name}{list(array.shape)}" for name, array in sample.items())
    return DataError(
        f"onnxruntime cannot run {model.name} on sample {index}, input {shapes}: {error}",
        "Check that the sample is prepared as the model expects: sizes, token ids, masks.",
    )
