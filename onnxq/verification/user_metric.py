"""Metrics, which express the quality of a model in one number.

A metric is a function of the user, or one of `onnxq.verification.metrics` by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import signature
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from onnxq.data.advice import CODE, named_type
from onnxq.data.labels import Labels
from onnxq.data.samples import Samples, wrap_samples
from onnxq.data.user_function import CALLED, import_named
from onnxq.data.validation import Sample
from onnxq.errors import DataError, ModelError, OnnxqError
from onnxq.progress import OnSample
from onnxq.runtime.session import ModelSource, SessionError, open_session, run_alike, run_session, runs_in_segments
from onnxq.text import counted
from onnxq.verification.metrics.by_name import metric_of_name
from onnxq.verification.metrics.classes import USUAL as CLASS_LABELS
from onnxq.verification.metrics.named_metric import MetricRun, NamedMetric
from onnxq.verification.records import MetricComparison


class Metric(Protocol):
    """Gives a number, more being better, for outputs and labels."""

    def __call__(self, outputs: dict[str, list[Any]], labels: dict[str, list[np.ndarray]], /) -> float:
        """Judge what a model gives.

        Args:
            outputs: For each output of the model by its name, a list with what the model gives for each sample.
            labels: Those of `Samples.labels`: for each array of the data whose name starts with `_`, a list of one
                array a file.

        """


SIGNATURE = "It is called as metric(outputs, labels) and gives a number: see docs/reference/data.md."
OF_CLASSES = ("top1", "top5")


def metric_name(metric: str | Metric) -> str:
    """Return what a metric is called: `package.module:function`, as people write it, or `top1`."""
    if isinstance(metric, str):
        return metric
    name = getattr(metric, "__qualname__", type(metric).__qualname__)
    return f"{getattr(metric, '__module__', type(metric).__module__)}:{name}"


def load_metric(source: str | Metric) -> Metric | NamedMetric:
    """Look up a metric by name, import one named as `package.module:function`, or return a function as it is.

    Raises:
        DataError: There is none of that name, it cannot be imported, or is no function.

    """
    if not isinstance(source, str):
        if not callable(source):
            raise DataError(f"a metric is {type(source).__name__}, not a function", SIGNATURE)
        return source
    if (file := CODE.fullmatch(source)) is not None and Path(f"{file['file']}.py").is_file():
        named = f"{'.'.join(Path(file['file']).parts)}:{file['name']}"
        raise DataError(f"'{source}' names a file, and a metric is named by its module", f"Write {named}.")
    known = metric_of_name(source)
    if known is not None:
        return known
    found = import_named(source)
    if not callable(found):
        raise DataError(f"{source} is {type(found).__name__}, not a function", SIGNATURE)
    metric: Metric = found
    return metric


def check_labels(source: str | Metric, samples: Samples) -> None:
    """Refuse data that lack what a metric reads; only the first file or sample is read.

    Raises:
        DataError: There is no such metric, or labels are missing.

    """
    metric = load_metric(source)
    if not isinstance(metric, NamedMetric):
        _refuse_parameters(metric, metric_name(source))
        return
    labels = samples.first_labels()
    metric.check(labels, samples.inputs)
    rows = samples.first_rows()
    for name, arrays in labels.items() if source in OF_CLASSES and rows is not None else ():
        if name in CLASS_LABELS and arrays[0].ndim == 1 and len(arrays[0]) != rows:
            told = f"'{name}' holds {counted(len(arrays[0]), 'label')} for {counted(rows or 0, 'row')} of samples"
            raise DataError(f"{source}: {told}", "Give one label for each sample.")


def check_drop(source: str | Metric, max_drop: float | None) -> None:
    """Refuse a drop that no two values of a metric can have: percent and shares are mixed up.

    Raises:
        DataError: It can never be missed, or there is no such metric.

    """
    metric = load_metric(source)
    if max_drop is None or not isinstance(metric, NamedMetric) or metric.span is None or max_drop <= metric.span:
        return
    values = "from 0 to 100" if metric.span > 2 else "from -1 to 1"
    raise DataError(
        f"a drop of {max_drop:g} can never be missed: {metric.name} is {values}", "Ask for less, such as 0.5."
    )


def try_metric(source: str | Metric, float_model: ModelSource, samples: Samples, progress: OnSample | None) -> None:
    """Measure the float model before a long run, so that a metric that fails does not fail behind it.

    A named metric reads the first sample. A function is called with all of them, as it will be again.

    Raises:
        ModelError, DataError: As `measure_metric`.

    """
    metric = load_metric(source)
    if runs_in_segments(float_model):
        return  # each pass takes minutes
    if not isinstance(metric, NamedMetric):
        measure_metric(metric, float_model, samples, name=metric_name(source), progress=progress)
    elif metric.prepare is None:
        run = metric.begin(samples.first_labels())
        for sample, results in _results(float_model, samples.limit(1), None):
            run.add(sample, results)


def _refuse_parameters(metric: Metric, name: str) -> None:
    """Refuse a function that cannot be called with outputs and labels, before it is called at the end of a run."""
    try:
        found = signature(metric)
    except (TypeError, ValueError):  # of a builtin, which tells nothing
        return
    try:
        found.bind({}, {})
    except TypeError as error:
        raise DataError(f"{name}{found} cannot be called with outputs and labels: {error}", SIGNATURE) from error


def measure_metric(
    metric: Metric | str,
    model: ModelSource,
    samples: Samples,
    *,
    name: str = "the metric",
    float_model: ModelSource | None = None,
    progress: OnSample | None = None,
) -> float:
    """Run a model in onnxruntime on every sample and give its outputs to a metric.

    The outputs of all samples are in memory at the same time, the samples are not.

    Args:
        metric: The function, `package.module:function`, or the name of a metric, such as `top1`.
        model: The model: its path, its bytes, a ModelProto, or loaded; with external data by its path.
        samples: From `open_samples` or `wrap_samples`.
        name: What to call the metric in messages.
        float_model: What `agreement` and `cosine` compare with, and `iou` and `psnr` if the data have no labels; the
            model itself by default.
        progress: Called with the number of samples done and the total (None while unknown).

    Raises:
        ModelError: onnxruntime cannot load or run the model.
        DataError: There are no samples, or the metric fails or gives something other than a number.

    Returns:
        What the metric gives.

    Examples:
        >>> import onnxq
        >>> samples = onnxq.open_samples("calibration.npz", onnxq.input_specs("model.onnx"))
        >>> onnxq.measure_metric(lambda outputs, labels: len(outputs["scores"]), "model.onnx", samples)
        16.0

    """
    if not isinstance(samples, Samples):
        raise DataError(f"samples is {named_type(samples)}, not open samples", "Give what onnxq.open_samples returns.")
    if isinstance(metric, str):
        name, found = metric, load_metric(metric)
        if isinstance(found, NamedMetric):
            judge = MetricJudge(metric, model if float_model is None else float_model, samples, progress)
            return judge.float_value if float_model is None else judge.compare(model).quantized_value
        metric = found
    return _measure_function(metric, model, samples, name, progress)


def _measure_function(
    metric: Metric,
    model: ModelSource,
    samples: Samples,
    name: str,
    progress: OnSample | None,
) -> float:
    """Return what a function of the user gives for the outputs of a model; see `measure_metric`."""
    outputs: dict[str, list[Any]] = {}
    for _, results in _results(model, samples, progress):
        for output, result in results.items():
            outputs.setdefault(output, []).append(result)
    labels = samples.labels()
    hint = (
        SIGNATURE
        if labels
        else "The data have no labels, which are arrays whose name starts with _: see docs/reference/data.md."
    )
    return _call(metric, (outputs, labels), name, hint)


class MetricJudge:
    """Measures a metric on one quantized model after another; the float model is run once.

    Args:
        source: A function, `package.module:function`, or the name of a metric.
        float_model: The float model.
        samples: From `open_samples` or `wrap_samples`.
        progress: As in `measure_metric`.

    Attributes:
        float_value: Of the float model.

    Raises:
        ModelError, DataError: As `measure_metric`.

    """

    def __init__(
        self, source: str | Metric, float_model: ModelSource, samples: Samples, progress: OnSample | None = None
    ) -> None:
        self._name, self._samples, self._progress = metric_name(source), samples, progress
        self._float_model = float_model
        self._metric = load_metric(source)
        self._labels: Labels = {}
        self._reference: MetricRun | None = None
        if isinstance(self._metric, NamedMetric):
            self._metric.check(samples.first_labels(), samples.inputs)
            self._samples, self._labels = _prepared(self._metric, float_model, samples, progress)
            self._reference = _run(self._metric, float_model, self._samples, self._labels, progress)
            self.float_value = self._reference.score(self._reference)
        else:
            self.float_value = measure_metric(self._metric, float_model, samples, name=self._name, progress=progress)

    def compare(self, quantized: ModelSource) -> MetricComparison:
        """Measure the metric on a quantized model.

        Raises:
            ModelError, DataError: As `measure_metric`.

        """
        quantized = run_alike(quantized, self._float_model)
        if isinstance(self._metric, NamedMetric) and self._reference is not None:
            run = _run(self._metric, quantized, self._samples, self._labels, self._progress)
            values = self.float_value, run.score(self._reference)
            return _compared(self._metric, self._name, values, self._reference)
        assert not isinstance(self._metric, NamedMetric)
        value = _measure_function(self._metric, quantized, self._samples, self._name, self._progress)
        return MetricComparison(self._name, self.float_value, value)


class WatchedMetric:
    """Measures a named metric on what two models give elsewhere, so that it takes no runs of its own.

    Args:
        metric: It reads the samples of the data.
        samples: From `open_samples` or `wrap_samples`.

    Raises:
        DataError: The samples lack what the metric reads.

    """

    def __init__(self, metric: NamedMetric, samples: Samples) -> None:
        metric.check(samples.first_labels(), samples.inputs)
        labels = samples.labels()
        self._metric, self._runs = metric, (metric.begin(labels), metric.begin(labels))
        self._failed = False

    def add(self, sample: Sample, expected: Mapping[str, Any], got: Mapping[str, Any]) -> None:
        """Take what the float model and the quantized one give for a sample."""
        try:
            for run, outputs in zip(self._runs, (expected, got), strict=True):
                run.add(sample, outputs)
        except OnnxqError:  # the models run for other figures, too
            self._failed = True

    def comparison(self) -> MetricComparison | None:
        """Return the metric of both models; None where they do not give what it reads."""
        if self._failed:
            return None
        reference, run = self._runs
        try:
            values = reference.score(reference), run.score(reference)
        except OnnxqError:
            return None
        return _compared(self._metric, self._metric.name, values, reference)


def _compared(metric: NamedMetric, name: str, values: tuple[float, float], reference: MetricRun) -> MetricComparison:
    """Return the values of the float model and of the quantized one with what is to be known about them."""
    return MetricComparison(name, *values, metric.lower_is_better, reference.doubt(), reference.is_distance())


def compare_metric(
    source: str | Metric,
    float_model: ModelSource,
    quantized: ModelSource,
    samples: Samples,
    *,
    progress: OnSample | None = None,
) -> MetricComparison:
    """Measure a metric on both models; see `MetricJudge`."""
    return MetricJudge(source, float_model, samples, progress).compare(quantized)


def _prepared(
    metric: NamedMetric, float_model: ModelSource, samples: Samples, progress: OnSample | None
) -> tuple[Samples, Labels]:
    """Return the samples that both models read, and their labels."""
    if metric.prepare is None:
        return samples, samples.labels()
    with _running(float_model, reuse_shapes=False, threads=1) as run:  # it may run several samples at a time
        made, labels = metric.prepare(_counted(samples, progress), samples.inputs, run)
    return wrap_samples(made, samples.inputs), labels


def _counted(samples: Samples, progress: OnSample | None) -> Iterator[Sample]:
    for done, sample in enumerate(samples):
        if progress:
            progress(done, samples.count)
        yield sample


def _run(
    metric: NamedMetric,
    model: ModelSource,
    samples: Samples,
    labels: Labels,
    progress: OnSample | None,
) -> MetricRun:
    """Return all outputs of a model to a named metric."""
    run = metric.begin(labels)
    for sample, results in _results(model, samples, progress):
        run.add(sample, results)
    return run


def _results(
    model: ModelSource, samples: Samples, progress: OnSample | None
) -> Iterator[tuple[Sample, dict[str, Any]]]:
    """Yield each sample with the outputs of a model by name."""
    with _running(model) as run:
        for count, sample in enumerate(samples, 1):
            yield sample, run(sample)
            if progress:
                progress(count, samples.count)


@contextmanager
def _running(
    model: ModelSource, *, reuse_shapes: bool = True, threads: int = 0
) -> Iterator[Callable[[Sample], dict[str, Any]]]:
    """Open a model, and give what runs it: all outputs by name for a sample."""
    label = str(model) if isinstance(model, str | Path) else "the model"
    try:
        session = open_session(model, exact=True, reuse_shapes=reuse_shapes, threads=threads)
        names = [output.name for output in session.get_outputs()]
        yield lambda sample: dict(zip(names, run_session(session, None, sample), strict=True))
    except SessionError as error:
        raise ModelError(f"onnxruntime cannot load or run {label}: {error}", "Check the model first.") from error


def _call(metric: Metric, arguments: Sequence[Any], name: str, hint: str) -> float:
    try:
        value = metric(*arguments)
    except CALLED as error:  # whatever the user's function raises is the user's to read
        text = f"{type(error).__name__}: {error}".splitlines()[0]
        raise DataError(f"{name} failed: {text}", hint) from error
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise DataError(f"{name} gives {type(value).__name__}, not a number", SIGNATURE) from None
    if not math.isfinite(number):
        raise DataError(f"{name} gives {number}", "It has to be a finite number to be compared.")
    return number
