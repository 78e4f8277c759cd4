"""One pass of the float model over the samples, measuring the tensors that will be quantized."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from onnxq.calibration.blocks import BlockMeter
from onnxq.calibration.float_runs import MOST_THREADS, WORTH, FloatRuns, float_runs, run_samples
from onnxq.calibration.nonfinite_weights import blaming_weights
from onnxq.calibration.stats import StatisticFactory, Stats, basic_kinds
from onnxq.data.samples import Samples, input_specs
from onnxq.data.validation import Sample, conform
from onnxq.errors import DataError
from onnxq.progress import working
from onnxq.runtime.memory import trim_heap
from onnxq.runtime.workers import submit_alone, worker_count
from onnxq.targets.host import available_processors

if TYPE_CHECKING:
    from collections.abc import Callable

    from onnxq.ir import Model, Value

    Progress = Callable[[int, int | None], None]


def calibrate(
    model: Model,
    values: Sequence[Value],
    samples: Iterable[Mapping[str, np.ndarray]],
    *,
    progress: Progress | None = None,
    threads: int = 0,
    kinds: StatisticFactory = basic_kinds,
    trial: bool = False,
    meter: BlockMeter | None = None,
    runs: FloatRuns | None = None,
) -> Stats:
    """Measure values of the float model over all samples.

    The evaluator runs the model, with sums and functions in float64: statistics are the same on every processor.
    `float_runs` says when onnxruntime runs it. A few samples are in memory at a time, with their values.

    Args:
        model: The float model.
        values: What to measure: float tensors; graph inputs are taken from the samples. A value inside a body that no
            sample runs has no statistics afterwards.
        samples: Checked `Samples`, or any iterable of `{input name: array}`, which is then checked.
        progress: Called with the number of samples done and the total (None while unknown), first with 0.
        threads: Most samples that run at a time, and threads for onnxruntime; 0 for as many as there are processors.
        kinds: Makes the statistics to collect for a tensor of that name.
        trial: Run onnxruntime, in a fraction of the time: for what no last bit of float32 decides, and is not kept.
        meter: Takes the statistics of each block of samples in place of `kinds`; what is returned is then empty.
        runs: What `ready_to_measure` gave for the same arguments.

    Raises:
        DataError: A sample does not fit the model or makes it fail, a value is not finite, or there are no samples.
        ModelError: Neither onnxruntime nor the evaluator can run the model, or a weight is not finite.
        ValueError: A value is an initializer or no float tensor: the caller's mistake.

    """
    taps, fed, inner = _sort_out(values)
    total = samples.count if isinstance(samples, Samples) else len(samples) if isinstance(samples, Sequence) else None
    stats = Stats(kinds) if meter is None else meter.start()
    looks: dict[str | Value, Callable[[Any], None]] = {value: _look(lambda: stats, value) for value in inner}
    if runs is None and (taps or looks):
        runs = float_runs(model, list(taps.values()), looks, threads, trial=trial)
    tell = progress or (lambda done, total: None)
    tell(0, total)
    executor = ThreadPoolExecutor(min(worker_count(), MOST_THREADS))
    with working("measure roughly" if trial else "measure") as advance, blaming_weights(model), executor as pool:
        for done, (index, sample, results) in enumerate(run_samples(runs, _checked(samples, model)), 1):
            for name in fed:
                stats.add(name, _floats(name, sample[name]), f"an input of the model, sample {index}")
            _add_all(pool, stats, taps, results, index)
            stats.samples += 1
            stats = stats if meter is None else meter.hand_over(stats)
            advance(done, total)
            tell(done, total)
    for half in stats.halves():
        half.finish()  # here, where parts of the samples are measured side by side, and once for all who ask
    del runs
    trim_heap(model.weight_bytes)
    if not stats.samples and meter is None:
        raise DataError("there are no samples to calibrate with", "Give at least one; 32 to 200 make good ranges.")
    return stats


def ready_to_measure(model: Model, values: Sequence[Value], *, trial: bool = False) -> FloatRuns | None:
    """Make the float model ready once for several calls of `calibrate` with the same values.

    Returns:
        None where nothing is to run, or where values inside bodies are measured: each call looks into those itself.

    Raises:
        ModelError: Neither onnxruntime nor the evaluator can run the model.
        ValueError: A value is an initializer: the caller's mistake.

    """
    taps, _, inner = _sort_out(values)
    return float_runs(model, list(taps.values()), {}, trial=trial) if taps and not inner else None


def _add_all(pool: Executor, stats: Stats, taps: dict[str, Value], results: list[Any], index: int) -> None:
    """Measure the tensors of a run, several at a time, and release each; the number of threads changes no bit."""
    measured = []
    for value in reversed(taps.values()):
        stats.begin(value.name)  # here, so that their order is always the same
        array = _floats(value.name, results.pop())
        origin = f"{_origin(value)}, sample {index}"
        if array.nbytes < WORTH or available_processors() == 1:
            stats.add(value.name, array, origin)
        else:
            measured.append(submit_alone(pool, stats.add, value.name, array, origin))
        del array
    for one in measured:
        one.result()


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


def _look(stats: Callable[[], Stats], value: Value) -> Callable[[Any], None]:
    return lambda array: stats().add(value.name, _floats(value.name, array), f"{_origin(value)}, in a body")


def _checked(samples: Iterable[Mapping[str, np.ndarray]], model: Model) -> Iterator[tuple[int, Sample]]:
    """Yield the samples and where they stand in the data."""
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
