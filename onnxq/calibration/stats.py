"""Statistics of tensors that can be added to and merged, in any order and from any number of batches.

Each `Statistic` is a commutative monoid: its constructor makes the empty one, `add` takes a batch, `merge` joins two.
So samples stream, memory does not grow with them, and shards can be joined. `TensorStats` combines several of them for
one tensor, `Stats` those of all tensors. Counts, extremes and histograms are exact whatever the order; sums are float64
and differ in the last bits.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from typing import Any, Self, TypeVar

import numpy as np

from onnxq.calibration.channel_stats import ChannelStats
from onnxq.calibration.gram import Half
from onnxq.calibration.histogram import CHUNK, Histogram
from onnxq.calibration.sample_extremes import SampleExtremes
from onnxq.calibration.second_moments import InputMoments
from onnxq.calibration.statistic import Statistic
from onnxq.calibration.weighted_histogram import WeightedHistogram
from onnxq.errors import DataError

S = TypeVar("S", bound=Statistic)


class Extremes(Statistic):
    """The least and the greatest value, exact; +inf and -inf while empty."""

    key = "extremes"

    def __init__(self, low: float = np.inf, high: float = -np.inf) -> None:
        self.low, self.high = np.float32(low), np.float32(high)

    def add(self, values: np.ndarray) -> None:
        """Take in a batch."""
        self.add_between(values, values.min(), values.max())

    def add_between(self, values: np.ndarray, low: np.float32, high: np.float32) -> None:
        """Take in a batch whose extremes are known."""
        zero = np.float32(0)  # added, it makes 0.0 of -0.0, whatever the order they came in
        self.low = min(self.low, low) + zero
        self.high = max(self.high, high) + zero

    def merge(self, other: Self) -> Self:
        """Return the extremes of both."""
        return type(self)(float(min(self.low, other.low)), float(max(self.high, other.high)))

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the state."""
        return {"range": np.array([self.low, self.high], np.float32)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> Self:
        """Take the state."""
        low, high = arrays["range"].astype(np.float32)
        return cls(float(low), float(high))


class Moments(Statistic):
    """Count, sum and sum of squares; the sums in float64."""

    key = "moments"

    def __init__(self, count: int = 0, total: float = 0.0, squares: float = 0.0) -> None:
        self.count, self.total, self.squares = count, total, squares

    def add(self, values: np.ndarray) -> None:
        """Take in a batch."""
        flat = values.reshape(-1)
        self.count += flat.size
        for start in range(0, flat.size, CHUNK):
            chunk = flat[start : start + CHUNK].astype(np.float64)
            self.total += float(chunk.sum())
            chunk *= chunk
            self.squares += float(chunk.sum())

    def merge(self, other: Self) -> Self:
        """Return the moments of both."""
        return type(self)(self.count + other.count, self.total + other.total, self.squares + other.squares)

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the state."""
        return {"count": np.array(self.count, np.int64), "sums": np.array([self.total, self.squares])}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> Self:
        """Take the state."""
        return cls(int(arrays["count"]), *(float(v) for v in arrays["sums"]))


# Every kind that a file may hold. A new kind of statistic is added here and nowhere else.
KINDS: dict[str, type[Statistic]] = {
    kind.key: kind
    for kind in (Extremes, SampleExtremes, Moments, Histogram, WeightedHistogram, ChannelStats, InputMoments)
}
StatisticFactory = Callable[[str], Sequence[Statistic]]


def basic_kinds(name: str = "") -> Sequence[Statistic]:
    """Make what is measured of every tensor, whatever its name."""
    return Extremes(), SampleExtremes(), Moments(), Histogram()


def range_kinds(name: str = "") -> Sequence[Statistic]:
    """Make what a range from least to greatest value needs, and nothing more."""
    return Extremes(), SampleExtremes()


class NotFiniteError(ValueError):
    """A batch holds NaN or infinity."""


class TensorStats:
    """Statistics of one tensor: `stats[Histogram]` gives one statistic, the properties the common ones.

    Args:
        parts: Empty statistics, at most one of a kind; the basic ones by default.

    Attributes:
        ranges: Ranges that were chosen from them, by how: those of least error are found among hundreds.

    """

    def __init__(self, parts: Iterable[Statistic] | None = None) -> None:
        self.ranges: dict[Hashable, tuple[float, float]] = {}
        self._parts = {type(p): p for p in (basic_kinds() if parts is None else parts)}

    @classmethod
    def of(cls, *batches: np.ndarray) -> TensorStats:
        """Measure arrays that are at hand."""
        made = cls()
        for batch in batches:
            made.add(batch)
        return made

    def __getitem__(self, kind: type[S]) -> S:
        part = self._parts[kind]
        assert isinstance(part, kind)
        return part

    def __contains__(self, kind: type[Statistic]) -> bool:
        return kind in self._parts

    def __iter__(self) -> Iterator[Statistic]:
        return iter(self._parts.values())

    @property
    def count(self) -> int:
        """Number of elements seen."""
        return self[Moments].count

    @property
    def min(self) -> float:
        """Least value, exact; 0 where nothing was seen."""
        return float(self[Extremes].low) if self[Extremes].low <= self[Extremes].high else 0.0

    @property
    def max(self) -> float:
        """Greatest value, exact; 0 where nothing was seen."""
        return float(self[Extremes].high) if self[Extremes].low <= self[Extremes].high else 0.0

    @property
    def mean(self) -> float:
        """Mean; 0 where nothing was seen."""
        return self[Moments].total / self.count if self.count else 0.0

    @property
    def second_moment(self) -> float:
        """Mean of squares; 0 where nothing was seen."""
        return self[Moments].squares / self.count if self.count else 0.0

    @property
    def histogram(self) -> Histogram:
        """The histogram."""
        return self[Histogram]

    def add(self, values: np.ndarray) -> None:
        """Take in a batch of any float dtype and shape; an empty one changes nothing.

        Raises:
            NotFiniteError: It holds NaN or infinity, as float32. Nothing is changed then.

        """
        if values.dtype != np.float32:
            with np.errstate(over="ignore"):  # too large for float32 becomes infinity, refused below
                values = values.astype(np.float32)
        if not values.size:
            return
        low, high = values.min(), values.max()  # NaN shows in both
        if np.isnan(low):
            raise NotFiniteError("NaN")
        if np.isinf(low) or np.isinf(high):
            raise NotFiniteError("infinity")
        self.ranges.clear()
        for part in self._parts.values():
            part.add_between(values, low, high)

    def merge(self, other: TensorStats) -> TensorStats:
        """Return the statistics of both; both must measure the same things."""
        if self._parts.keys() != other._parts.keys():
            raise ValueError("statistics of different kinds cannot be merged")
        return TensorStats(part.merge(other._parts[kind]) for kind, part in self._parts.items())


class Stats:
    """Statistics of many tensors, by name.

    Args:
        kinds: Makes the empty statistics of a tensor from its name.

    """

    def __init__(self, kinds: StatisticFactory = basic_kinds) -> None:
        self._kinds = kinds
        self.tensors: dict[str, TensorStats] = {}
        self.samples = 0

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what makes empty statistics, which may be any function: further tensors get the basic ones."""
        return vars(self) | {"_kinds": basic_kinds}

    def copy(self) -> Self:
        """Return a copy of which tensors can be left out or replaced; the statistics themselves are shared."""
        other = copy(self)
        other.tensors = dict(self.tensors)
        return other

    def without(self, kind: type[Statistic]) -> Self:
        """Return a copy that lacks one kind of statistics; the others are shared."""
        other = self.copy()
        kept = {name: [part for part in tensor if not isinstance(part, kind)] for name, tensor in self.tensors.items()}
        other.tensors = {name: TensorStats(parts) for name, parts in kept.items()}
        return other

    def __getitem__(self, name: str) -> TensorStats:
        return self.tensors[name]

    def __contains__(self, name: object) -> bool:
        return name in self.tensors

    @property
    def names(self) -> list[str]:
        """Names of the tensors, sorted."""
        return sorted(self.tensors)

    def begin(self, name: str) -> None:
        """Make the empty statistics of a tensor, unless there are some."""
        if name not in self.tensors:
            self.tensors[name] = TensorStats(self._kinds(name))

    def add(self, name: str, values: np.ndarray, origin: str = "") -> None:
        """Take in a batch of tensor `name`.

        Args:
            name: The tensor.
            values: Of any float dtype and shape.
            origin: Where the batch came from, for the message, such as `after Conv node 'c1', sample 3`.

        Raises:
            DataError: It holds NaN or infinity.

        """
        self.begin(name)
        try:
            self.tensors[name].add(values)
        except NotFiniteError as error:
            where = f" ({origin})" if origin else ""
            raise DataError(
                f"tensor '{name}' holds {error}{where}",
                "The float model itself computes it from these samples: check them, or leave out the sample.",
            ) from None

    def merge(self, other: Stats) -> Stats:
        """Return the statistics of both sets of samples."""
        merged = Stats(self._kinds)
        merged.samples = self.samples + other.samples
        for name in {**self.tensors, **other.tensors}:
            one, two = self.tensors.get(name), other.tensors.get(name)
            found = one.merge(two) if one is not None and two is not None else one or two
            assert found is not None
            merged.tensors[name] = found
        return merged

    def halves(self) -> Iterator[Half]:
        """Visit the second moments, the largest part."""
        for tensor in self.tensors.values():
            if InputMoments in tensor:
                for layer in tensor[InputMoments].layers.values():
                    yield from layer.halves

    def require(self, names: Iterable[str]) -> None:
        """Check that each tensor was measured.

        Raises:
            DataError: Names the first that was not.

        """
        missing = [name for name in names if name not in self.tensors]
        if missing:
            more = f", and {len(missing) - 1} more" if len(missing) > 1 else ""
            raise DataError(
                f"the statistics lack '{missing[0]}'{more}",
                "Calibrate again with this model and this recipe.",
            )
