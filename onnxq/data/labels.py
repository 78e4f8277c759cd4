"""Labels of samples: arrays of the data whose names start with `_`, for metrics.

Tests: `tests/data/test_samples.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

import numpy as np

from onnxq.data.npz import Source
from onnxq.data.validation import InputSpec, is_label, to_array
from onnxq.errors import DataError

Labels = dict[str, list[np.ndarray]]


def read_labels(sources: Sequence[Source], inputs: Sequence[InputSpec], most: int | None) -> Labels:
    """Collect the labels of several sources; see `Samples.labels`."""
    found: Labels = {}
    left = most
    for source in sources:
        seen = 0
        for labels in _of_source(source, inputs, left):
            seen += 1
            for name, array in labels.items():
                found.setdefault(name, []).append(array)
        if left is not None:
            left = max(left - (seen if source.count is None else source.count), 0)
    return found


def first_labels(sources: Sequence[Source], inputs: Sequence[InputSpec]) -> Labels:
    """Collect the labels of the first source, or of its first sample; see `Samples.first_labels`."""
    for source in sources[:1]:
        for labels in _of_source(source, inputs, 1 if source.read_labels is None else None):
            return {name: [array] for name, array in labels.items()}
    return {}


def label_names(sources: Sequence[Source], inputs: Sequence[InputSpec]) -> tuple[str, ...]:
    """Return the names of labels; of sources that give them with samples, only the first sample is read."""
    found: set[str] = set()
    for source in sources:
        for labels in _of_source(source, inputs, 1 if source.read_labels is None else None):
            found.update(labels)
    return tuple(sorted(found))


def _of_source(source: Source, inputs: Sequence[InputSpec], most: int | None) -> Iterator[Mapping[str, np.ndarray]]:
    if source.read_labels is None:
        for raw in islice(source.read(), most):
            yield {name: to_array(array, f"'{name}'") for name, array in raw.items() if is_label(name, inputs)}
    elif most != 0:
        yield {name: _used(array, name, source, most) for name, array in source.read_labels().items()}


def _used(array: np.ndarray, name: str, source: Source, most: int | None) -> np.ndarray:
    """Cut off the rows of samples that are not used."""
    count = source.count or 0
    used = count if most is None else min(count, most)
    if array.ndim and len(array) == count * source.rows + source.dropped:
        return array[: used * source.rows]
    if used < count:
        raise DataError(
            f"'{name}' in {source.label} has {len(array) if array.ndim else 'no'} rows for {count} samples: it is not "
            f"known which belong to the first {used}",
            "Use all samples, or put those to be used into a file of their own.",
        )
    return array
