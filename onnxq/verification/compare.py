"""Compare float and quantized model in onnxruntime: error of every output, and latency of both."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnxruntime as ort

from onnxq.calibration.float_runs import UNPREPARED
from onnxq.data.advice import named_type
from onnxq.data.samples import Samples
from onnxq.data.validation import Sample
from onnxq.errors import DataError, InvalidResult, ModelError, OnnxqError
from onnxq.ir import Model, Tensor, load
from onnxq.ir.invariants import first_line, objection
from onnxq.ir.storage.residency import choose_residency
from onnxq.ir.storage.temporary import temporary_folder
from onnxq.progress import OnSample, working
from onnxq.runtime.custom_ops import refusal_hint
from onnxq.runtime.ort_session import check_path, load_hint
from onnxq.runtime.session import ModelSource, SessionError, open_session, run_alike, run_session
from onnxq.runtime.workers import submit_alone
from onnxq.verification.calibrated_ranges import CalibratedRanges
from onnxq.verification.class_axes import RANK, outputs_of_places
from onnxq.verification.error_stats import ANY_AXIS, Difference, open_axes
from onnxq.verification.records import Comparison, Latency, OutputComparison, SampleError
from onnxq.verification.replayed_detections import ReplayedDetections, replay_detections
from onnxq.verification.sliding_caches import SlidingCaches

__all__ = ["Comparison", "Latency", "OutputComparison", "check_wellformed", "compare"]


CHECKED = Path("model.onnx")  # what the checker is shown of a model without a file
CACHE_RANK = 4
MOST_NAMED = 3  # inputs whose sizes an error tells
WORST_SAMPLES = 5  # that are named
# Timing: pairs until the median is steady, and never much longer than this for a model that runs in milliseconds
WARM_UPS, LEAST_PAIRS, MOST_PAIRS, TIMING_SECONDS = 3, 5, 500, 0.3
FIRST_LOOK, STEADY = 16, 0.015  # pairs after which steadiness is judged, and half of a 95 % interval that is steady
OTHER_MODEL = "Compare only models with the same inputs and outputs; if onnxq made this one, report it."
MADE_UP = "The sample was made up, and not every model takes any numbers: give --data."
OPEN_SIZES = "Sizes of input {} are open, and none that was tried fits: give --data."


def compare(
    float_model: ModelSource,
    quantized: ModelSource,
    samples: Iterable[Mapping[str, np.ndarray]],
    *,
    latency: bool = True,
    progress: OnSample | None = None,
    blame: type[OnnxqError] = InvalidResult,
    watch: Callable[[Sample, Mapping[str, Any], Mapping[str, Any]], None] | None = None,
) -> Comparison:
    """Run both models on every sample, one sample in memory at a time, and measure how the outputs differ.

    Let r be the signal (float) and q the output (quantized), summed in float64 over all elements of all samples. An
    output has SQNR = 10·log10(Σ r² / Σ (r − q)²) dB and cosine = Σ rq / √(Σ r² Σ q²). If an output holds picks by
    scores, q is that of a quantized model with the float model's picks; see `onnxq.verification.detections`.

    Args:
        float_model: The float model: its path, a ModelProto, loaded, or its bytes. Initializers listed
            as graph inputs keep onnxruntime from folding constants; take them off first for a fair latency.
        quantized: The quantized model, likewise.
        samples: `{input name: array}` with exactly the model's dtypes; shapes may differ.
        latency: Whether to time both models as well, on the first sample; not done for models that run in segments.
        progress: Called with the number of samples done and the total (None while unknown).
        blame: What to raise where the quantized model is at fault.
        watch: Called with each sample and the outputs of both models by name.

    Raises:
        ModelError: onnxruntime cannot load the float model.
        DataError: The float model does not run on a sample, or there is none.
        InvalidResult: The quantized model does not load or run, or its inputs or outputs are others (see `blame`).

    Returns:
        How each output differs, and both latencies.

    Examples:
        >>> import numpy as np, onnxq
        >>> samples = [{"image": image[None]} for image in np.load("calibration.npz")["image"]]
        >>> onnxq.compare("model.onnx", "small.onnx", samples).worst_sqnr > 20
        True

    """
    pair = _Pair(float_model, quantized, blame)
    pair.check(samples)
    names = [output.name for output in pair.reference.get_outputs()]
    told = replay_detections(float_model, quantized)
    threes = [output.name for output in pair.reference.get_outputs() if len(output.shape or ()) == RANK]
    differences = _differences(pair.reference, told, outputs_of_places(float_model, threes))
    caches = [output.name for output in pair.reference.get_outputs() if len(output.shape or ()) == CACHE_RANK]
    sliding = SlidingCaches(float_model, caches)
    first: Sample | None = None
    worst: tuple[SampleError, ...] = ()
    ranges = CalibratedRanges() if getattr(samples, "made_up", False) else CalibratedRanges.of(quantized)
    count = 0
    for count, feeds in enumerate(_counted(samples, progress)):
        first = feeds if first is None else first
        results = pair.run(feeds, count, _hint(samples))
        sliding.clear(feeds, names, *results)
        pair.begin_beside(ranges.add, feeds)
        before = [(difference.signal, difference.noise, difference.broken) for difference in differences]
        for name, difference, expected, got in zip(names, differences, *results, strict=True):
            problem = difference.add(expected, got)
            if problem:
                raise blame(f"output '{name}' of the quantized model {problem}, sample {count}", OTHER_MODEL)
        if told is not None:
            told.add(feeds)
        if watch is not None:
            watch(feeds, *(dict(zip(names, outputs, strict=True)) for outputs in results))
        worst = _worst(worst, count, names, differences, before)
        del results, expected, got  # logits of a decoder are 50 MB a model
    if first is None:
        raise DataError("there are no samples to compare the models on", "Give at least one.")
    pair.end_beside()
    with working("latency"):
        timed = time_pair(pair.reference, pair.result, first) if latency and pair.in_memory else None
    outputs = tuple(_summary(name, difference) for name, difference in zip(names, differences, strict=True))
    outputs, selection = told.figures(outputs) if told is not None else (outputs, None)
    warned = ranges.warnings()
    return Comparison(outputs, count + 1, timed, selection=selection, warnings=warned, worst_samples=worst)


def _worst(
    worst: tuple[SampleError, ...],
    index: int,
    names: Sequence[str],
    differences: Sequence[Difference],
    before: Sequence[tuple[float, float, int]],
) -> tuple[SampleError, ...]:
    """Take a sample into the few that are off most, by what it has added to the sums of its float outputs."""
    found = []
    for name, difference, (signal, noise, broken) in zip(names, differences, before, strict=True):
        power, off = difference.signal - signal, difference.noise - noise
        if difference.broken > broken:
            found.append(SampleError(index, name, -math.inf))
        elif difference.dtype.startswith("float") and 0 < power < math.inf and 0 < off < math.inf:
            found.append(SampleError(index, name, 10 * math.log10(power / off)))
    most = min(found, key=lambda one: one.sqnr, default=None)
    return worst if most is None else tuple(sorted((*worst, most), key=lambda one: one.sqnr)[:WORST_SAMPLES])


def _counted(samples: Iterable[Mapping[str, np.ndarray]], progress: OnSample | None) -> Iterator[Sample]:
    """Yield the samples one by one, and say how many have been done."""
    count = getattr(samples, "count", None)
    total = count if isinstance(count, int) else None
    if progress:
        progress(0, total)
    with working("compare") as advance:
        for done, sample in enumerate(samples, 1):
            if not isinstance(sample, Mapping):
                message = f"samples gives {named_type(sample)} for a sample, not a dictionary"
                raise DataError(message, "Give {'INPUT': array} for each.")
            yield dict(sample)
            advance(done, total)
            if progress:
                progress(done, total)


def _differences(reference: Any, told: ReplayedDetections | None, places: Collection[str]) -> list[Difference]:
    """Begin a sum for each output; the number of boxes differs even if the model states a fixed one."""
    picked = told.selection.outputs if told is not None else ()
    return [
        Difference(
            classes=output.name not in places,
            lengths=ANY_AXIS if output.name in picked else open_axes(output.shape),
        )
        for output in reference.get_outputs()
    ]


class _Pair:
    """Both models in sessions of one thread each, side by side: loading takes seconds for graphs of many nodes.

    If the float model runs in segments, so does what became of it.
    """

    def __init__(self, float_model: ModelSource, quantized: ModelSource, blame: type[OnnxqError]) -> None:
        self.blame = blame
        self.pool = ThreadPoolExecutor(1, thread_name_prefix="quantized")
        self._beside: Future[None] | None = None
        other = self.pool.submit(open_session, run_alike(quantized, float_model), threads=1)
        try:
            self.reference = open_session(float_model, threads=1)
        except SessionError as error:
            label = _label(float_model, "the float model")
            raise ModelError(f"onnxruntime cannot load {label}: {error}", load_hint(error)) from error
        self.result: Any = None
        self.refusal: OnnxqError | None = None
        try:
            self.result = other.result()
        except SessionError as error:
            label = _label(quantized, "the quantized model")
            self.refusal = blame(f"onnxruntime cannot load {label}: {error}", refusal_hint(error))
            self.refusal.__cause__ = error

    @property
    def in_memory(self) -> bool:
        """Whether both models run whole, as users run them."""
        return isinstance(self.reference, ort.InferenceSession) and isinstance(self.result, ort.InferenceSession)

    def check(self, samples: Iterable[Mapping[str, np.ndarray]]) -> None:
        """Refuse a quantized model that is another one, or that does not load although the float one runs.

        Shapes that contradict each other are found when a model is loaded or when it is run, by operator.
        """
        if self.refusal is None:
            _check_interface(self.reference, self.result, self.blame)
            return
        for sample in samples:
            self.expected(dict(sample), 0, _hint(samples))
            break
        raise self.refusal

    def expected(self, feeds: Sample, index: int, hint: str) -> list[Any]:
        """Run the float model; `hint` is for samples that it refuses."""
        try:
            return run_session(self.reference, None, feeds)
        except SessionError as error:
            sizes = ", ".join(f"{name} {list(np.shape(array))}" for name, array in list(feeds.items())[:MOST_NAMED])
            message = f"onnxruntime cannot run the float model on sample {index} ({sizes}): {error}"
            raise DataError(message, hint) from error

    def run(self, feeds: Sample, index: int, hint: str) -> tuple[list[Any], list[Any]]:
        """Run both at the same time; in segments one after the other, whose weights would be in memory together."""
        run = partial(run_session, self.result, None, feeds)
        other = self.pool.submit(run) if self.in_memory else None
        expected = self.expected(feeds, index, hint)
        try:
            return expected, run() if other is None else other.result()
        except SessionError as error:
            message = f"onnxruntime cannot run the quantized model on sample {index}: {error}"
            raise self.blame(message, refusal_hint(error)) from error

    def begin_beside(self, look: Callable[[Sample], None], feeds: Sample) -> None:
        """Look at a sample while the float model runs on the next one, which takes longer than the quantized model."""
        self.end_beside()
        self._beside = submit_alone(self.pool, look, feeds)

    def end_beside(self) -> None:
        """Wait until the last sample was looked at."""
        if self._beside is not None:
            self._beside.result()


def _hint(samples: object) -> str:
    """Say what to do about samples that the float model refuses."""
    if not isinstance(samples, Samples) or not samples.made_up:
        return UNPREPARED
    sizes = ((spec, spec.fixed(axis)) for spec in samples.inputs for axis in range(1, len(spec.shape or ())))
    first = next((spec for spec, size in sizes if size is None), None)
    return MADE_UP if first is None else OPEN_SIZES.format(f"'{first.name}' ({first})")


def _check_interface(reference: Any, result: Any, blame: type[OnnxqError]) -> None:
    """Refuse models whose inputs or outputs differ in name, order, dtype or, of inputs, rank or a fixed dimension.

    Shapes of outputs are what a file states or onnxruntime infers, which may be wrong. Their real shapes are compared
    on samples.
    """
    pairs = (
        ("input", reference.get_inputs(), result.get_inputs()),
        ("output", reference.get_outputs(), result.get_outputs()),
    )
    for kind, wanted, found in pairs:
        names = [item.name for item in wanted]
        given = [item.name for item in found]
        if names != given and (kind == "output" or sorted(names) != sorted(given)):
            raise blame(f"the quantized model has the {kind}s {given}, the float model {names}", OTHER_MODEL)
        others = {item.name: item for item in found}
        for item in wanted:
            other = others[item.name]
            if item.type != other.type or (kind == "input" and not _same_shape(item.shape, other.shape)):
                raise blame(
                    f"{kind} '{item.name}' is {other.type} {other.shape} in the quantized model, "
                    f"{item.type} {item.shape} in the float one",
                    OTHER_MODEL,
                )


def _same_shape(first: list[Any] | None, second: list[Any] | None) -> bool:
    """Whether two declared shapes allow each other; onnxruntime gives an empty list for an unknown rank, too."""
    if not first or not second:
        return True
    return len(first) == len(second) and all(
        a == b or not isinstance(a, int) or not isinstance(b, int) for a, b in zip(first, second, strict=True)
    )


def time_pair(reference: Any, result: Any, feeds: Sample) -> Latency:
    """Time both models on one sample: one thread, in turn, so that a busy machine slows both.

    Timing ends as soon as the median of ratios is known to `STEADY` of itself. A quiet machine knows it after 16 pairs.

    Args:
        reference: A session of the float model.
        result: A session of the quantized one.
        feeds: The sample.

    Raises:
        SessionError: One of them does not run.

    """
    pair_seconds = TIMING_SECONDS
    for _ in range(WARM_UPS):
        started = time.perf_counter()
        run_session(reference, None, feeds)
        run_session(result, None, feeds)
        taken = time.perf_counter() - started
        pair_seconds = min(pair_seconds, taken)
        if taken * LEAST_PAIRS > TIMING_SECONDS:  # a long run warms up all that there is
            break
    pairs = min(max(int(TIMING_SECONDS / max(pair_seconds, 1e-9)), LEAST_PAIRS), MOST_PAIRS)
    times: list[tuple[float, float]] = []
    collecting = gc.isenabled()
    gc.disable()
    try:
        for _ in range(pairs):
            started = time.perf_counter()
            run_session(reference, None, feeds)
            between = time.perf_counter()
            run_session(result, None, feeds)
            times.append((between - started, time.perf_counter() - between))
            count = len(times)
            if count >= FIRST_LOOK and count.bit_count() == 1 and _is_steady([q / f for f, q in times]):
                break
    finally:
        if collecting:
            gc.enable()
    return Latency(
        float_ms=median(f for f, _ in times) * 1e3,
        quantized_ms=median(q for _, q in times) * 1e3,
        ratio=median(q / f for f, q in times),
        pairs=len(times),
    )


def _is_steady(ratios: Sequence[float]) -> bool:
    """Tell whether the median of some ratios is known, by the 95 % interval of a sign test, whatever they spread like.

    See H. A. David and H. N. Nagaraja, Order Statistics, third edition, section 7.1.
    """
    count, ranked = len(ratios), sorted(ratios)
    reach = 0.98 * math.sqrt(count)  # 1.96 standard deviations of a binomial distribution with p = 1/2
    low, high = ranked[math.floor(count / 2 - reach)], ranked[min(math.ceil(count / 2 + reach), count - 1)]
    return high - low <= 2 * STEADY * median(ranked)


def _summary(name: str, difference: Difference) -> OutputComparison:
    return OutputComparison(
        name=name,
        dtype=difference.dtype,
        elements=difference.elements,
        equal=difference.equal,
        sqnr=difference.sqnr,
        max_abs=difference.max_abs,
        cosine=difference.cosine,
        agreement=difference.agreement,
        spoilt=0 if difference.unsound else difference.spoilt,
        undefined=difference.undefined,
    )


def check_wellformed(path: Path) -> str | None:
    """Ask the ONNX checker about a model file.

    Returns:
        What it objects to, on one line; None where the model is well formed.

    Raises:
        ModelError: The path is no UTF-8, which the checker wants.

    """
    check_path(str(path))
    try:
        fits = choose_residency(path.stat().st_size).copies
        return objection(str(path)) if fits else _check_without_weights(load(path))
    except (OSError, ValueError, RuntimeError) as error:
        return first_line(error)


def check_loaded(model: Model) -> str | None:
    """Ask the ONNX checker about a loaded model; see `check_wellformed`."""
    return objection(model.serialize()) if model.residency.copies else _check_without_weights(model)


def _check_without_weights(model: Model) -> str | None:
    """Let the checker, which reads a file whole, have one in whose large weights it finds external data."""
    weights: list[Tensor] = []
    skeleton = model.skeleton(weights)
    with temporary_folder() as folder:
        for location in range(len(weights)):
            (folder / str(location)).touch()
        target = folder / (model.path or CHECKED).name
        target.write_bytes(skeleton)
        return objection(str(target))


def _label(source: ModelSource, otherwise: str) -> str:
    return str(source) if isinstance(source, str | Path) else otherwise
