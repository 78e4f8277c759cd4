"""Statistics of samples for each input: least, greatest and mean value, in all and by channel.

Tests: `tests/data/test_examine.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from onnxq.data.text.roles import CACHE
from onnxq.data.validation import InputSpec


@dataclass(frozen=True)
class ChannelSummary:
    """Figures of one channel over all samples.

    Attributes:
        least: Least value.
        greatest: Greatest value.
        mean: Mean.
        std: Standard deviation.

    """

    least: float
    greatest: float
    mean: float
    std: float


@dataclass(frozen=True)
class InputSummary:
    """Statistics of samples for one input.

    Attributes:
        name: Name of the input.
        type: Type and shape that the model declares, such as `float32[1, 3, 224, 224]`.
        given: NumPy dtype of the data where it is another one and they are converted; None otherwise.
        values: Figures of all values; None for text and for arrays without elements.
        channel_axis: Which axis holds channels; None where there is none.
        channels: Figures of each channel; empty where there is no axis of channels.

    """

    name: str
    type: str
    given: str | None
    values: ChannelSummary | None
    channel_axis: int | None
    channels: tuple[ChannelSummary, ...] = ()

    def cells(self) -> tuple[str, ...]:
        """Return name, type, least, greatest and mean for people; the figures are empty where there are none."""
        kind = f"{self.type}, given as {self.given}" if self.given else self.type
        if self.values is None:
            return self.name, kind, "", "", ""
        return self.name, kind, short(self.values.least), short(self.values.greatest), short(self.values.mean)

    def __str__(self) -> str:
        name, kind, low, high, mean = self.cells()
        return f"{name}  {kind}  values {low} … {high}, mean {mean}" if low else f"{name}  {kind}"


def short(value: float) -> str:
    """Write a value of an input for people, in about three digits: `-2.12`, `151`, `0.00371`."""
    value += 0.0  # -0 is 0
    if value and (abs(value) >= 1e6 or abs(value) < 1e-3):
        return f"{value:.2e}"
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def channel_axis(shape: Sequence[int | str | None] | None) -> int | None:
    """Return which axis of an input holds the channels of pictures; None where none does.

    That is the second or the last of four axes, if the model fixes it to at most four.

    Args:
        shape: Of the input, as the model declares it or as an array has it.

    """
    if shape is None or len(shape) != 4:
        return None
    found = [axis for axis in (1, 3) if (size := shape[axis]) in (1, 3, 4) and isinstance(size, int)]
    others = [shape[axis] for axis in (1, 2, 3)]
    return found[0] if found and others.count(1) < 2 else None


@dataclass
class _Sums:
    """Sums of one input over all samples, a column for each channel."""

    least: np.ndarray = field(default_factory=lambda: np.array([math.inf]))
    greatest: np.ndarray = field(default_factory=lambda: np.array([-math.inf]))
    count: int = 0
    total: np.ndarray | float = 0.0
    squares: np.ndarray | float = 0.0

    def add(self, array: np.ndarray, axis: int | None) -> None:
        rows = np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1) if axis is not None else array.reshape(1, -1)
        if not rows.size:
            return
        self.least = np.minimum(self.least, rows.min(axis=1).astype(np.float64))
        self.greatest = np.maximum(self.greatest, rows.max(axis=1).astype(np.float64))
        self.count += rows.shape[1]
        wide = rows.astype(np.float64)
        self.total = self.total + wide.sum(axis=1)
        self.squares = self.squares + np.einsum("ij,ij->i", wide, wide)

    def summary(self) -> tuple[ChannelSummary, ...]:
        if not self.count:
            return ()
        means = np.atleast_1d(self.total) / self.count
        variances = np.maximum(np.atleast_1d(self.squares) / self.count - means**2, 0)
        rows = zip(self.least, self.greatest, means, np.sqrt(variances), strict=True)
        return tuple(ChannelSummary(*map(float, row)) for row in rows)


class InputSummaries:
    """Gathers figures of the inputs from samples that stream by: sums and extremes, no samples.

    Args:
        inputs: What the model wants.

    """

    def __init__(self, inputs: Sequence[InputSpec]) -> None:
        self._inputs = tuple(inputs)
        # Caches of four heads have the shape of pictures
        self._axes = {s.name: None if CACHE.search(s.name.lower()) else channel_axis(s.shape) for s in inputs}
        self._sums = {spec.name: _Sums() for spec in inputs}

    def add(self, sample: Mapping[str, np.ndarray]) -> None:
        """Add a sample."""
        for name, array in sample.items():
            if array.dtype.kind in "fiub":
                self._sums[name].add(array, self._axes[name])

    def summaries(self, given: Mapping[str, np.dtype[Any]]) -> tuple[InputSummary, ...]:
        """Return the figures of each input.

        Args:
            given: By input, the dtype of data that were converted.

        """
        found = []
        for spec in self._inputs:
            channels, axis = self._sums[spec.name].summary(), self._axes[spec.name]
            dtype = given[spec.name].name if spec.name in given else None
            whole = _together(channels)
            found.append(InputSummary(spec.name, str(spec), dtype, whole, axis, channels if axis is not None else ()))
        return tuple(found)


def _together(channels: Sequence[ChannelSummary]) -> ChannelSummary | None:
    """Join the figures of channels of one size."""
    if not channels:
        return None
    mean = float(np.mean([channel.mean for channel in channels]))
    square = float(np.mean([channel.std**2 + channel.mean**2 for channel in channels]))
    least, greatest = min(channel.least for channel in channels), max(channel.greatest for channel in channels)
    return ChannelSummary(least, greatest, mean, math.sqrt(max(square - mean**2, 0)))
