"""Cosine and PSNR: how near outputs are to those of the float model, or to pictures that the data hold.

PSNR = 10·log10(peak² / mean squared error) in dB, its mean over pictures; equal pictures count as 100 dB.

Tests: `tests/verification/test_metrics_by_name.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from onnxq.data.labels import Labels
from onnxq.errors import DataError
from onnxq.verification.metrics.named_metric import (
    Arrays,
    MetricRun,
    find_label,
    label_rows,
    numbers,
    pair_rows,
    refuse_outputs,
)

EQUAL_PICTURES = 100.0  # dB of a picture and itself
USUAL = ("_target", "_targets", "_label", "_image", "_y")


class Cosine(MetricRun):
    """Sums over all samples, for each output."""

    def __init__(self, labels: Labels) -> None:
        super().__init__(labels)
        self.outputs: dict[str, list[np.ndarray]] = {}

    def add(self, inputs: Arrays, outputs: Arrays) -> None:
        """Keep the outputs of floats."""
        found = {name: array for name, array in numbers(outputs).items() if array.dtype.kind == "f"}
        if not found:
            raise refuse_outputs("cosine", "an output of floats", outputs)
        for name, array in found.items():
            self.outputs.setdefault(name, []).append(array)

    def score(self, reference: MetricRun) -> float:
        """Return the cosine of the angle to the float model's outputs, of the output where it is least."""
        assert isinstance(reference, Cosine)
        return float(np.min([_cosine(reference.outputs[name], own) for name, own in self.outputs.items()]))


def _cosine(expected: Sequence[np.ndarray], got: Sequence[np.ndarray]) -> float:
    cross = signal = power = 0.0
    for first, second in zip(expected, got, strict=True):
        if first.shape != second.shape:
            raise DataError(
                f"cosine: an output has shape {list(second.shape)} instead of {list(first.shape)}",
                "Choose another metric.",
            )
        r, q = first.astype(np.float64), second.astype(np.float64)
        cross, signal, power = cross + float((r * q).sum()), signal + float((r * r).sum()), power + float((q * q).sum())
    if not signal or not power:
        return 1.0 if signal == power else 0.0
    return float(np.clip(cross / math.sqrt(signal) / math.sqrt(power), -1.0, 1.0))  # NaN stays NaN


class Psnr(MetricRun):
    """Compares pictures with those of the data, or of the float model."""

    def __init__(self, labels: Labels) -> None:
        super().__init__(labels)
        self._labels = find_label(labels, USUAL, lambda array: array.ndim >= 2 and array.dtype.kind in "fu")
        self._output: str | None = None
        self.rows: list[np.ndarray] = []

    def add(self, inputs: Arrays, outputs: Arrays) -> None:
        """Keep the pictures."""
        self._output = self._output or self._find(outputs)
        array = np.asarray(outputs[self._output])
        stacked = array.ndim == 4 if self._labels is None else array.ndim == self._labels[0].ndim
        self.rows.extend(array if stacked else array[None])

    def _find(self, outputs: Mapping[str, Any]) -> str:
        """Choose the largest output of four axes, or else of three or two."""
        arrays = {name: array for name, array in numbers(outputs).items() if array.dtype.kind in "fu"}
        found = [name for name, array in arrays.items() if array.ndim in (2, 3, 4) and self._is_picture(array)]
        if not found:
            raise refuse_outputs("psnr", "an output of pictures", outputs)
        return max(found, key=lambda name: (arrays[name].ndim, arrays[name].size))

    def _is_picture(self, array: np.ndarray) -> bool:
        """Whether an array has height and width: without labels, a row of numbers is no picture."""
        axes = array.shape[1:] if array.ndim == 4 else array.shape
        return self._labels is not None or sum(size > 1 for size in axes) >= 2

    def is_distance(self) -> bool:
        """Whether the data hold no pictures, so that those of the float model are compared."""
        return self._labels is None

    def score(self, reference: MetricRun) -> float:
        """Return the mean PSNR in dB."""
        assert isinstance(reference, Psnr)
        expected = reference.rows
        if self._labels is not None:
            rank = self.rows[0].ndim + 1
            expected = list(label_rows(self._labels, rank, "psnr"))
        least, most = _limits(expected)
        found = []
        for own, target in pair_rows(self.rows, expected, "psnr"):
            if own.shape != target.shape:
                told = f"a picture of the data has shape {list(target.shape)}, and one of the model {list(own.shape)}"
                raise DataError(f"psnr: {told}", "Save them in the layout of the output.")
            clipped = [np.clip(one.astype(np.float64), least, most) for one in (own, target)]
            error = float(((clipped[0] - clipped[1]) ** 2).mean())
            found.append(min(10 * math.log10((most - least) ** 2 / error), EQUAL_PICTURES) if error else EQUAL_PICTURES)
        if not found:
            raise DataError("psnr: the outputs hold no pictures", "Give samples that are not empty.")
        return sum(found) / len(found)


def _limits(pictures: Sequence[np.ndarray]) -> tuple[float, float]:
    """Return black and white: 0 and 1, -1 and 1, or 0 and 255, by what occurs."""
    highest = max((float(one.max(initial=0)) for one in pictures), default=0.0)
    lowest = min((float(one.min(initial=0)) for one in pictures), default=0.0)
    if highest > 2 or any(one.dtype.kind == "u" for one in pictures):
        return 0.0, 255.0
    return (-1.0, 1.0) if lowest < -0.5 else (0.0, 1.0)
