"""Conventions of normalisation for pictures, and the conversion from one to another.

Mean and deviation of ImageNet are those of torchvision; the mean colour is the one that Caffe's reference models take.

Tests: `tests/data/test_normalization.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from onnxq.data.input_summary import InputSummary

BYTE, SHORT = 255.0, 32768.0  # scales of pictures in 8 bit and of sound in 16 bit
COLOURS = 3  # channels of a picture that is not grey
FAR_OUT, MOST_OUT = 2.0, 6.0  # times the range of ImageNet's: twice makes -11.4 … 9.9 of -2.1 … 2.6
SLACK = 0.02  # how far values may lie outside a convention's range, as a share of it


@dataclass(frozen=True)
class Convention:
    """Conventions for the values of pictures: `value = (unit - mean) / std`, where `unit` is from 0 to 1.

    Attributes:
        words: What a person calls it.
        recipe: How to get there from a picture `x` of 0 to 255.
        mean: By channel: red, green, blue.
        std: Likewise.
        setting: What `--preprocess normalize` calls it.

    """

    words: str
    recipe: str
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    setting: str

    @property
    def range(self) -> tuple[float, float]:
        """The least and greatest value that a picture can have."""
        pairs = list(zip(self.mean, self.std, strict=True))
        return min(-mean / std for mean, std in pairs), max((1 - mean) / std for mean, std in pairs)


UNIT = Convention("0 … 1", "x / 255", (0, 0, 0), (1, 1, 1), "unit")
BYTES = Convention("0 … 255", "x as it is read", (0, 0, 0), (1 / 255, 1 / 255, 1 / 255), "bytes")
SIGNED = Convention("-1 … 1", "x / 127.5 - 1", (0.5, 0.5, 0.5), (0.5, 0.5, 0.5), "signed")
IMAGENET = Convention(
    "ImageNet's mean and deviation",
    "(x / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]",
    (0.485, 0.456, 0.406),
    (0.229, 0.224, 0.225),
    "imagenet",
)
CENTRED = Convention(
    "0 … 255 less a mean colour",
    "x - [123.68, 116.78, 103.94]",
    (0.485, 0.458, 0.4076),
    (1 / 255, 1 / 255, 1 / 255),
    "caffe",
)
CONVENTIONS = (UNIT, BYTES, SIGNED, IMAGENET, CENTRED)
# No model takes these: pictures of 0 … 255 that ImageNet's mean and deviation were applied to, -2.1 … 1136
UNDIVIDED = Convention(
    "ImageNet's mean and deviation on 0 … 255",
    "(x - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]",
    (0.485 / BYTE, 0.456 / BYTE, 0.406 / BYTE),
    (0.229 / BYTE, 0.224 / BYTE, 0.225 / BYTE),
    "",
)
FILLED = (UNIT, BYTES, CENTRED)  # stretched to 0 … 1, they are what `_converted` makes of them
DARKEST = -1.5  # the least value of such pictures, or below


@dataclass(frozen=True)
class OtherValues:
    """Other values that the same samples could have.

    Attributes:
        words: What they would be, with how to get there, for a remedy.
        change: Makes them of the array of one sample; the dtype stays.
        short: What they would be, for picture files.
        setting: What makes them of picture files; empty where no setting does.
        is_convention: Whether all values are those of another convention, in the same places.

    """

    words: str
    change: Callable[[np.ndarray], np.ndarray]
    short: str = ""
    setting: str = ""
    is_convention: bool = False


def other_values(summary: InputSummary) -> Iterator[OtherValues]:
    """Yield what else the values of an input could have been made to.

    Args:
        summary: Of the values as they are.

    """
    if summary.values is None:
        return
    own = convention_of(summary)
    if own is not None and summary.channel_axis is not None:
        for other in CONVENTIONS:
            if other is not own:
                yield _converted(own, other, summary)
    if summary.channel_axis is not None and own not in FILLED:
        yield _stretched(summary.values.least, summary.values.greatest)
    if len(summary.channels) == COLOURS and summary.channel_axis is not None:
        yield _swapped(summary.channel_axis)
        if _is_twice(summary.values.least, summary.values.greatest):
            yield _once(summary.channel_axis)
    for scale in (BYTE,) if summary.channel_axis is not None else (BYTE, SHORT):
        yield _scaled(f"values {scale:.0f} times as large", scale)
        yield _scaled(f"values divided by {scale:.0f}", 1 / scale)


def convention_of(summary: InputSummary) -> Convention | None:
    """Return the narrowest convention that all values keep to and nearly fill; None where there is none."""
    if summary.values is None:
        return None
    low, high = summary.values.least, summary.values.greatest
    fitting = []
    for convention in CONVENTIONS:
        least, greatest = convention.range
        slack, width = SLACK * (greatest - least), greatest - least
        if least - slack <= low and high <= greatest + slack and high - low > width / 4:
            fitting.append((width, convention))
    least, greatest = (bound * (1 + SLACK) for bound in UNDIVIDED.range)
    if not fitting and least <= low <= DARKEST and BYTE < high <= greatest:
        return UNDIVIDED
    return min(fitting, key=lambda pair: pair[0], default=(0.0, None))[1]


def _converted(own: Convention, other: Convention, summary: InputSummary) -> OtherValues:
    """Return the values of another convention; a single channel takes the middle one's figures."""
    axis, count = summary.channel_axis, len(summary.channels)

    def figures(numbers: tuple[float, float, float]) -> np.ndarray:
        chosen = [numbers[1]] if count == 1 else [*numbers, *numbers[2:]][:count]
        shape = [1] * 4
        shape[axis or 0] = count
        return np.asarray(chosen).reshape(shape)

    def change(array: np.ndarray) -> np.ndarray:
        unit = array.astype(np.float64) * figures(own.std) + figures(own.mean)
        return np.asarray((unit - figures(other.mean)) / figures(other.std), array.dtype)

    words = f"{other.words} ({other.recipe}, where x is a picture of 0 … 255)"
    return OtherValues(words, change, other.words, f"normalize={other.setting}", is_convention=True)


def _stretched(least: float, greatest: float) -> OtherValues:
    """Return the values from 0 to 1 that a mean and deviation of the samples themselves may have been applied to."""

    def change(array: np.ndarray) -> np.ndarray:
        return np.asarray((array.astype(np.float64) - least) / max(greatest - least, 1e-30), array.dtype)

    if least < 0:
        words = f"{UNIT.words} ({UNIT.recipe}, where x is a picture of 0 … 255)"
        return OtherValues(words, change, UNIT.words, f"normalize={UNIT.setting}", is_convention=True)
    words = f"{UNIT.words}, as by (x - {least:.3g}) / {greatest - least:.3g}"
    return OtherValues(words, change, UNIT.words, is_convention=True)


def _swapped(axis: int) -> OtherValues:
    """Return the values with red and blue in each other's place."""

    def change(array: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(np.flip(array, axis))

    words = "the channels in the other order: RGB instead of BGR, or BGR instead of RGB"
    return OtherValues(words, change, "the channels in the other order", "channels=bgr, or channels=rgb")


def _is_twice(least: float, greatest: float) -> bool:
    """Whether values lie as far out as those that ImageNet's mean and deviation were applied to twice."""
    low, high = IMAGENET.range
    return low * FAR_OUT > least > low * MOST_OUT and high * FAR_OUT < greatest < high * MOST_OUT


def _once(axis: int) -> OtherValues:
    """Return the values that ImageNet's mean and deviation were applied to, perhaps for the second time."""
    shape = [-1 if place == axis else 1 for place in range(4)]
    mean, std = (np.asarray(figures).reshape(shape) for figures in (IMAGENET.mean, IMAGENET.std))

    def change(array: np.ndarray) -> np.ndarray:
        return np.asarray(array.astype(np.float64) * std + mean, array.dtype)

    return OtherValues(f"{IMAGENET.words} applied once: it seems to be twice", change, f"{IMAGENET.words}, once")


def _scaled(words: str, scale: float) -> OtherValues:
    def change(array: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore"):
            return (array.astype(np.float64) * scale).astype(array.dtype)

    return OtherValues(words, change)
