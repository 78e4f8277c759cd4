"""The base of all named metrics: a run over the samples of one model, and the choice of labels.

Tests: `tests/verification/test_metrics_by_name.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from onnxq.data.labels import Labels
from onnxq.data.validation import InputSpec, Sample
from onnxq.errors import DataError
from onnxq.text import join_words

Arrays = Mapping[str, np.ndarray]
Fits = Callable[[np.ndarray], bool]
Prepare = Callable[[Iterable[Sample], Sequence[InputSpec], Callable[[Sample], Arrays]], tuple[list[Sample], Labels]]
NAME_ONE = "Arrays whose names start with _ are labels: see docs/reference/data.md#metrics."


class MetricRun(ABC):
    """One pass of one model over all samples.

    Args:
        labels: From `Samples.labels`.

    """

    def __init__(self, labels: Labels) -> None:
        self.labels = labels

    @abstractmethod
    def add(self, inputs: Arrays, outputs: Arrays) -> None:
        """Take what the model gives for one sample.

        Raises:
            DataError: No output is what the metric reads.

        """

    @abstractmethod
    def score(self, reference: MetricRun) -> float:
        """Return the value of the metric.

        Args:
            reference: The run of the float model over the same samples. It may be this run itself.

        Raises:
            DataError: The labels do not fit the outputs.

        """

    def doubt(self) -> str:
        """Say what looks wrong about the labels, from a run of the float model; empty where nothing does."""
        return ""

    def is_distance(self) -> bool:
        """Whether the value is a distance to the float model, of which that model's own value has no meaning."""
        return False


@dataclass(frozen=True)
class NamedMetric:
    """A metric that is called by its name.

    Attributes:
        name: What the user writes.
        begin: Makes a run for the labels of the data.
        check: Raises DataError if the labels of a first sample, by name, or the inputs lack what the metric reads.
        lower_is_better: Whether a smaller value is better.
        prepare: Makes the samples that both models read, and their labels, from the samples of the data, the inputs,
            and a run of the float model; None for the samples of the data.
        span: How far its values can be apart; None where there is no end.

    """

    name: str
    begin: Callable[[Labels], MetricRun]
    check: Callable[[Labels, Sequence[InputSpec]], None]
    lower_is_better: bool = False
    prepare: Prepare | None = None
    span: float | None = None


def need_nothing(labels: Labels, inputs: Sequence[InputSpec]) -> None:
    """Accept any data: the metric compares with the float model."""


def find_label(labels: Labels, usual: Sequence[str], fits: Fits) -> list[np.ndarray] | None:
    """Find the labels that a metric reads: those of a usual name, or else the only ones that fit.

    Args:
        labels: By name, from `Samples.labels`.
        usual: Names, the first one that fits is taken.
        fits: Tells whether an array can be what is looked for.

    Returns:
        Its arrays; None if there are none, or if it is not clear which.

    """
    fitting = {name: arrays for name, arrays in labels.items() if arrays and fits(np.asarray(arrays[0]))}
    named = next((fitting[name] for name in usual if name in fitting), None)
    if named is not None:
        return named
    return next(iter(fitting.values())) if len(fitting) == 1 else None


def choose_label(
    labels: Labels, usual: Sequence[str], fits: Fits, metric: str, what: str, kind: str = "numbers"
) -> list[np.ndarray]:
    """Return the labels that a metric reads; see `find_label`.

    Args:
        labels: By name.
        usual: Names, the first one that fits is taken.
        fits: Tells whether an array can be what is looked for.
        metric: Name of the metric, for the message.
        what: What the labels are, for the message.
        kind: How they are saved, for the message.

    Raises:
        DataError: There are none, or it is not clear which.

    """
    found = find_label(labels, usual, fits)
    if found is not None:
        return found
    names = [f"'{name}'" for name, arrays in labels.items() if arrays and fits(np.asarray(arrays[0]))]
    if names:
        raise DataError(f"{metric}: {join_words(names)} could both be {what}", f"Call the right one '{usual[0]}'.")
    others = join_words([f"'{name}' ({_kind(arrays)})" for name, arrays in labels.items()])
    has = f"the data have only {others}" if labels else "the data have no labels"
    wrong = next((name for name in usual if labels.get(name)), None)
    if wrong is not None:  # a name that says what it holds, and something else in it
        raise DataError(f"{metric} needs {what}, and {has}", f"Save '{wrong}' as {kind}.")
    folders = " Pictures have them if each class has a folder." if usual[0] == "_label" else ""
    raise DataError(f"{metric} needs {what}, and {has}", f"Add them as '{usual[0]}'.{folders} {NAME_ONE}")


def _kind(arrays: Sequence[np.ndarray]) -> str:
    """Name what labels hold: `float32`, or text."""
    dtype = np.asarray(arrays[0]).dtype if arrays else np.dtype("float32")
    return "text" if dtype.kind in "US" else str(dtype)


def label_rows(arrays: Sequence[np.ndarray], rank: int, metric: str) -> Iterator[np.ndarray]:
    """Yield the labels of one row after another.

    Args:
        arrays: An array for each file with a row for each sample, or one for each sample.
        rank: Number of axes of an array with a first axis of rows; an array with one axis less is a row.
        metric: Name of the metric, for the message.

    Raises:
        DataError: An array has another number of axes.

    """
    for array in map(np.asarray, arrays):
        if array.ndim == rank:
            yield from array
        elif array.ndim == rank - 1:
            yield array
        else:
            one_hot = array.ndim == rank + 1 and set(np.unique(array)) <= {0, 1} and (array.sum(axis=-1) == 1).all()
            most = "1 axis" if rank == 1 else f"{rank} axes"
            hint = "They are one-hot: save array.argmax(-1)." if one_hot else f"Give {most} at most."
            raise DataError(f"{metric}: labels of shape {list(array.shape)} do not fit the output", hint)


def pair_rows(rows: Sequence[Any], labels: Sequence[Any], metric: str) -> Iterator[tuple[Any, Any]]:
    """Yield each row of outputs with its label.

    Raises:
        DataError: There are more of either.

    """
    if len(rows) != len(labels):
        told = f"there are labels for {len(labels)} rows, and outputs for {len(rows)}"
        raise DataError(f"{metric}: {told}", "Give one label for each sample.")
    yield from zip(rows, labels, strict=True)


def numbers(outputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return the outputs that are arrays of numbers, by name."""
    return {
        name: array for name, array in outputs.items() if isinstance(array, np.ndarray) and array.dtype.kind in "fiub"
    }


def find_logits(metric: str, outputs: Mapping[str, Any]) -> np.ndarray:
    """Return the logits `[rows, length, tokens]` of a language model: the output that is called so, else the first.

    Raises:
        DataError: No output is of this shape.

    """
    found = {name: array for name, array in numbers(outputs).items() if array.ndim == 3 and array.dtype.kind == "f"}
    if not found:
        raise refuse_outputs(metric, "logits [batch, length, tokens]", outputs)
    return found[next((name for name in found if "logit" in name.lower()), next(iter(found)))]


def refuse_outputs(metric: str, wanted: str, outputs: Mapping[str, Any]) -> DataError:
    """Make the error for a model whose outputs a metric cannot read."""
    shapes = [f"'{name}' {list(np.shape(array))}" for name, array in outputs.items()]
    return DataError(
        f"{metric} needs {wanted}, and the model gives {join_words(shapes)}",
        "Choose another metric, or write one: --metric package.module:function.",
    )
