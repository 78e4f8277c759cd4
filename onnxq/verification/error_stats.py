"""Accumulate the differences of one output between two models, sample by sample."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np

from onnxq.runtime.blas_threads import single_threaded_blas

ANY_AXIS = range(8)  # `lengths` of what may be of another size in every sample and in either model
CHUNK = 1 << 15  # elements at a time: the temporaries stay in the second-level cache
CLASS_RANKS = (1, 2, 3)  # class scores: [classes], [batch, classes], [batch, tokens or boxes, classes]


class Difference:
    """Running sums over pairs of arrays, in float64.

    Args:
        classes: Whether rows of floats may be class scores, whose decisions are compared.
        lengths: Axes along which both may differ in size, because values decide on it: detections, durations. What only
            one of them has is held against zeros.
        ratio_only: Whether only signal and noise are summed, for a search that reads nothing but the SQNR.

    Attributes:
        dtype: NumPy name of the elements; empty before the first.
        elements: How many were compared.
        unequal: How many differ.
        broken: How many are finite in one array only, or infinite with the other sign, and not NaN even as expected.
        spoilt: How many are finite as expected, but not as they came.
        unsound: How many are not finite even as expected.
        undefined: How many are NaN even as expected.
        signal, noise, cross, power: Σ r², Σ (r − q)², Σ rq and Σ q².

    """

    def __init__(self, *, classes: bool = True, lengths: Collection[int] = (), ratio_only: bool = False) -> None:
        self._classes, self._ratio_only = classes and not ratio_only, ratio_only
        self._lengths = lengths
        self.dtype = ""
        self.elements = self.unequal = self.broken = self.spoilt = self.unsound = self.undefined = 0
        self.signal = self.noise = self.cross = self.power = 0.0
        self._max_abs = 0.0
        self._decisions = self._agreed = 0
        self._decides = False

    def add(self, expected: Any, got: Any) -> str:
        """Add what both models gave for one sample: arrays, or sequences and maps of them.

        Returns:
            What makes the two incomparable, empty where nothing does. They count as one broken element then.

        """
        problem = self._add_arrays(expected, got)
        if problem:
            self.unequal += 1
            self.broken += 1
        return problem

    def _add_arrays(self, expected: Any, got: Any) -> str:
        first, second = list(arrays(expected)), list(arrays(got))
        if len(first) != len(second):
            return f"holds {len(second)} arrays instead of {len(first)}"
        for reference, result in zip(first, second, strict=True):
            if reference.dtype != result.dtype:
                return f"is {result.dtype} instead of {reference.dtype}"
            if self._differ_in_length(reference, result):
                reference, result = extended(reference, result)
            if reference.shape != result.shape:
                return f"has shape {list(result.shape)} instead of {list(reference.shape)}"
            self.dtype = self.dtype or ("string" if reference.dtype.kind in "OUS" else reference.dtype.name)
            self.elements += reference.size
            if not reference.size:
                continue
            if reference.dtype.kind in "OUS":
                self._add_exact(reference, result)
            else:
                self._add_numbers(reference, result)
        return ""

    def merge(self, other: Difference) -> None:
        """Add what was counted of other samples; sample after sample, sums are those of adding each of them here."""
        self.dtype = self.dtype or other.dtype
        for name in ("elements", "unequal", "broken", "spoilt", "unsound", "undefined", "_decisions", "_agreed"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self._decides = self._decides or other._decides
        self._take(np.array([other.signal, other.noise, other.cross, other.power]), other._max_abs)

    def _differ_in_length(self, reference: np.ndarray, result: np.ndarray) -> bool:
        if reference.ndim != result.ndim or reference.dtype.kind not in "fiub":
            return False
        axes = [axis for axis, sizes in enumerate(zip(reference.shape, result.shape, strict=True)) if len({*sizes}) > 1]
        return bool(axes) and all(axis in self._lengths for axis in axes)

    def _add_exact(self, reference: np.ndarray, result: np.ndarray) -> None:
        agreed = int((reference == result).sum())
        self.unequal += reference.size - agreed
        self._decisions += reference.size
        self._agreed += agreed

    def _add_numbers(self, reference: np.ndarray, result: np.ndarray) -> None:
        exact = reference.dtype.kind in "iub"
        if exact:
            self._add_exact(reference, result)
        elif self._classes:
            self._add_classes(reference, result)
        if not self._add_sums(reference.reshape(-1), result.reshape(-1), exact):
            self._add_unsound(reference.astype(np.float64), result.astype(np.float64))

    def _add_sums(self, reference: np.ndarray, result: np.ndarray, exact: bool) -> bool:
        """Add to the sums, some elements at a time; change nothing, and return False, where some are not finite."""
        sums, most, unequal = np.zeros(4), 0.0, 0
        with single_threaded_blas(), np.errstate(all="ignore"):
            for start in range(0, reference.size, CHUNK):
                r = reference[start : start + CHUNK].astype(np.float64)
                if self._ratio_only:
                    off = r - result[start : start + CHUNK]
                    sums[:2] += (float(r @ r), float(off @ off))
                    continue
                q = result[start : start + CHUNK].astype(np.float64)
                off = r - q
                unequal += 0 if exact else int(np.count_nonzero(off))
                sums += (r @ r, off @ off, r @ q, q @ q)
                most = max(most, float(np.abs(off, out=off).max(initial=0.0)))
        if not np.isfinite(sums).all():
            return False
        self._take(sums, most)
        self.unequal += int(sums[1] > 0 and not exact) if self._ratio_only else unequal
        return True

    def _take(self, sums: np.ndarray, most: float) -> None:
        signal, noise, cross, power = sums.tolist()
        self.signal += signal
        self.noise += noise
        self.cross += cross
        self.power += power
        self._max_abs = max(self._max_abs, most)

    def _add_unsound(self, r: np.ndarray, q: np.ndarray) -> None:
        """Count what is not finite, and add the rest to the sums."""
        undefined = np.isnan(r)
        same = (r == q) | undefined
        self.unequal += int(r.size - same.sum())
        sound = np.isfinite(r)
        finite = sound & np.isfinite(q)
        self.broken += int((~finite & ~same).sum())
        self.undefined += int(undefined.sum())
        self.spoilt += int((sound & ~finite).sum())
        self.unsound += int(r.size - sound.sum())
        r, q = r[finite], q[finite]
        with np.errstate(over="ignore"):
            off = r - q
        with single_threaded_blas(), np.errstate(over="ignore", invalid="ignore"):
            self._take(np.array([r @ r, off @ off, r @ q, q @ q]), float(np.abs(off).max(initial=0.0)))

    def _add_classes(self, r: np.ndarray, q: np.ndarray) -> None:
        """Count rows where the class that one model prefers is one that the other likes best, ties included."""
        axis = class_axis(r.shape)
        if axis is None or np.isnan(r.min()) or np.isnan(q.min()):
            return
        chosen = np.take_along_axis(r, np.expand_dims(q.argmax(axis=axis), axis), axis=axis)
        self._decides = self._decides or could_decide(r, r.shape[axis])
        self._decisions += chosen.size
        self._agreed += int((chosen == r.max(axis=axis, keepdims=True)).sum())

    @property
    def equal(self) -> bool:
        """Whether every element is the same that is not NaN even as expected."""
        return self.unequal == 0

    @property
    def sqnr(self) -> float:
        """Signal-to-quantization-noise ratio in dB."""
        if self.equal:
            return math.inf
        if self.broken or not self.signal or math.isinf(self.noise):
            return -math.inf
        if not self.noise:  # strings have none; of numbers, the squares of tiny differences vanish
            return -math.inf if self.dtype == "string" else math.inf
        return 10 * (math.log10(self.signal) - math.log10(self.noise))

    @property
    def max_abs(self) -> float:
        """Largest |r − q|; infinite where only one of the two is finite, and NaN was not expected."""
        return math.inf if self.broken else self._max_abs

    @property
    def cosine(self) -> float | None:
        """Cosine of the angle between both, or None where one of them is zero, or too large to be squared."""
        if not (0 < self.signal < math.inf and 0 < self.power < math.inf):
            return None
        return max(-1.0, min(1.0, self.cross / (math.sqrt(self.signal) * math.sqrt(self.power))))

    @property
    def agreement(self) -> float | None:
        """Percentage of equal decisions, or None where there were none."""
        if self._decisions and not self._decides and self.dtype.startswith("float"):
            return None
        return 100.0 * self._agreed / self._decisions if self._decisions else None


SampleDifferences = Sequence[Sequence[Difference]]  # of each sample, of each value


def could_decide(values: np.ndarray, classes: int) -> bool:
    """Whether values can be scores of classes: probabilities, or logits that give one class half of all probability.

    Commands of a Tanh and embeddings of length 1 lie within -1 … 1. Their softmax gives a class at most
    e^(most - least) / (e^(most - least) + classes - 1).

    Args:
        values: Of the float model, not empty.
        classes: How many columns compete.

    """
    least, most = float(values.min()), float(values.max())
    return least >= 0 or not -1 <= least <= most <= 1 or most - least >= math.log(max(classes - 1, 1))


def class_axis(shape: Sequence[int]) -> int | None:
    """Find the axis of class scores: the last one of up to three; of more, the only one behind the batch that is no 1.

    With three axes, as in `[batch, frames, 1]`, the last but one is no class axis: it counts places.

    Returns:
        Its index, as 1 for `[1, 1000, 1, 1]`; None where no axis can be told from others.

    """
    if len(shape) <= max(CLASS_RANKS):
        return len(shape) - 1 if len(shape) and shape[-1] > 1 else None
    wide = [axis for axis, size in enumerate(shape) if axis and size > 1]
    return wide[0] if len(wide) == 1 else None


def extended(first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Extend two arrays of one rank by zeros to the larger size along every axis."""
    shape = np.maximum(first.shape, second.shape)
    padded = [np.pad(array, [(0, n) for n in shape - array.shape]) for array in (first, second)]
    return padded[0], padded[1]


def open_axes(shape: Sequence[object] | None) -> list[int]:
    """List the axes of a declared shape whose size it leaves open; onnxruntime names them, or gives None."""
    return [axis for axis, size in enumerate(shape or ()) if not isinstance(size, int)]


def arrays(value: Any) -> Iterator[np.ndarray]:
    """Flatten what onnxruntime gives for an output: an array, a list, a map, or None for an absent optional."""
    if isinstance(value, dict):
        for key in sorted(value, key=str):
            yield from arrays(value[key])
    elif isinstance(value, list | tuple):
        for item in value:
            yield from arrays(item)
    elif value is not None:
        yield np.asarray(value)
