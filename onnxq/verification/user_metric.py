"""Metrics of the user's own: what a model is good for, in one number."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from onnxq.data.samples import Samples
from onnxq.data.user_function import CALLABLE, CALLED, import_named
from onnxq.errors import DataError, ModelError
from onnxq.runtime.session import ModelSource, SessionError, open_session, run_session
from onnxq.verification.records import MetricComparison

Metric = Callable[[dict[str, list[Any]], dict[str, list[np.ndarray]]], float]
"""Gives a number, more being better, for outputs and labels.

The outputs are a list for each output of the model by name, with what the model gives for each sample. The labels are
those of `Samples.labels`: for each array of the data whose name starts with `_`, a list of one array a file.
"""

SIGNATURE = "It is called as metric(outputs, labels) and gives a number: see docs/reference/data.md."


def load_metric(source: str) -> Metric:
    """Import a metric named as `package.module:function`.

    Raises:
        DataError: It cannot be imported, or is no function.

    """
    if not CALLABLE.fullmatch(source):
        raise DataError(f"'{source}' does not name a function", "Write it as package.module:function.")
    found = import_named(source)
    if not callable(found):
        raise DataError(f"{source} is {type(found).__name__}, not a function", SIGNATURE)
    metric: Metric = found
    return metric


def measure_metric(
    metric: Metric,
    model: ModelSource,
    samples: Samples,
    *,
    name: str = "the metric",
    progress: Callable[[int, int | None], None] | None = None,
) -> float:
    """Run a model in onnxruntime on every sample and give its outputs to a metric.

    The outputs of all samples are in memory at the same time, the samples are not.

    Args:
        metric: The function.
        model: The model: its bytes, or its path (needed where it has external data).
        samples: From `open_samples` or `wrap_samples`.
        name: What to call the metric in messages.
        progress: Called with the number of samples done and the total (None while unknown).

    Raises:
        ModelError: onnxruntime cannot load or run the model.
        DataError: There are no samples, or the metric fails or gives something other than a number.

    """
    label = str(model) if isinstance(model, str | Path) else "the model"
    try:
        session = open_session(model, exact=True)
        names = [output.name for output in session.get_outputs()]
        outputs: dict[str, list[Any]] = {output: [] for output in names}
        for count, sample in enumerate(samples, 1):
            for output, result in zip(names, run_session(session, None, sample), strict=True):
                outputs[output].append(result)
            if progress:
                progress(count, samples.count)
    except SessionError as error:
        raise ModelError(f"onnxruntime cannot load or run {label}: {error}", "Check the model first.") from error
    labels = samples.labels()
    hint = (
        SIGNATURE
        if labels
        else "The data have no labels, which are arrays whose name starts with _: see docs/reference/data.md."
    )
    return _call(metric, (outputs, labels), name, hint)


def compare_metric(
    source: str,
    float_model: ModelSource,
    quantized: ModelSource,
    samples: Samples,
    *,
    metric: Metric | None = None,
    progress: Callable[[int, int | None], None] | None = None,
) -> MetricComparison:
    """Measure a metric on both models; see `measure_metric`.

    Args:
        source: `package.module:function`.
        float_model: The float model.
        quantized: The quantized model.
        samples: From `open_samples` or `wrap_samples`.
        metric: The function, where it is imported already.
        progress: As in `measure_metric`.

    """
    function = metric or load_metric(source)
    values = [
        measure_metric(function, model, samples, name=source, progress=progress) for model in (float_model, quantized)
    ]
    return MetricComparison(source, *values)


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
