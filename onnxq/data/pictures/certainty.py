"""Find pictures that are turned, inverted or of swapped colours, by how sure a model is of its answers.

A classifier, a detector or a reader of text is surer of what it was trained on. Certainty is compared in pairs: each
sample as it is, and with one change that leaves its contrast as it is. A change that makes nearly every sample surer,
and clearly so, is likely to undo a slip. Right samples are refused by the first few pairs, which takes few runs. A
change that raises the contrast is never tried, since larger values make any model surer.

Tests: `tests/data/test_picture_certainty.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from onnxq.data.conventions import COLOURS, convention_of
from onnxq.data.input_summary import InputSummary
from onnxq.data.validation import Sample
from onnxq.runtime.session import Session, run_session
from onnxq.text import counted
from onnxq.warning import WarningLine

CODE = "surer-otherwise"
LEAST_SAMPLES, MOST_ELEMENTS = 10, 1 << 18  # samples, and elements of each: larger ones take long to run
MOST_WORSE = 1 / 6  # of the samples: 0 and 8 look alike upside down
LUCK = 2  # more that may be worse before all are tried
CLEARLY = 4.5  # times its standard error: the least mean gain; right samples of 25 models: 3.3 and less
LEAST_CLASSES = 10  # of scores that are no probabilities: others may be coordinates
SURE, SURER = 0.8, 0.01  # mean probability of the chosen class by such scores, and how it rises
MOST_DOUBT = 0.15  # mean entropy of numbers from 0 to 1 that are probabilities, in nats: coordinates have 0.4 and more
WIDE = 1.2  # span of values that 0 … 1 takes contrast from
FLOOR = 1e-6  # of a probability


@dataclass(frozen=True)
class PictureChange:
    """A change of pictures.

    Attributes:
        words: How the samples would be, for the message.
        remedy: What to look at.
        apply: Makes the changed array of the array of a sample.

    """

    words: str
    remedy: str
    apply: Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class _Certainty:
    """How sure an output is.

    Attributes:
        value: More is surer; only differences count.
        chosen: Mean probability of what is chosen; None where it is known to be one.

    """

    value: float
    chosen: float | None = None


def certainty_warnings(session: Session, samples: Sequence[Sample], summary: InputSummary) -> Iterator[WarningLine]:
    """Yield the change that makes a model clearly surer of all samples.

    Args:
        session: The float model.
        samples: A few samples, in memory.
        summary: Of the only input that varies, which holds pictures.

    Raises:
        SessionError: It does not run on changed samples.

    """
    if len(samples) < LEAST_SAMPLES or samples[0][summary.name].size > MOST_ELEMENTS:
        return
    given = [_certainties(run_session(session, None, samples[0]))]
    scores = [place for place, one in enumerate(given[0]) if one is not None and one.chosen is not None]
    if not any(given[0]) or len(scores) > 1:  # several are places of boxes and points, and no classes
        return
    best: tuple[float, PictureChange] | None = None
    for change in _changes(summary, samples[0][summary.name].shape):
        gain = _gain(session, samples, summary.name, change, given)
        if gain >= CLEARLY and (best is None or gain > best[0]):
            best = gain, change
    if best is not None:
        message = (
            f"the model is surer of nearly all of {counted(len(samples), 'sample')} of '{summary.name}' {best[1].words}"
        )
        yield WarningLine(CODE, message, best[1].remedy)


def _gain(
    session: Session, samples: Sequence[Sample], name: str, change: PictureChange, given: list[list[_Certainty | None]]
) -> float:
    """Return how many standard errors a change makes the model surer of all samples; 0 where not of each of them.

    Args:
        session: The float model.
        samples: All samples.
        name: Of the input.
        change: What to try.
        given: Certainties of the samples as they are, as far as they are known; more are added.

    """
    pairs: list[tuple[list[_Certainty | None], list[_Certainty | None]]] = []
    worse: dict[int, int] = {}
    for index, sample in enumerate(samples):
        if len(given) <= index:
            given.append(_certainties(run_session(session, None, sample)))
        pairs.append(
            (given[index], _certainties(run_session(session, None, {**sample, name: change.apply(sample[name])})))
        )
        for place, (before, after) in enumerate(zip(*pairs[-1], strict=True)):
            if before is None or after is None:
                worse[place] = len(samples)
            else:
                worse[place] = worse.get(place, 0) + (after.value <= before.value)
        if all(count > LUCK + MOST_WORSE * len(pairs) for count in worse.values()):
            return 0.0
    places = [place for place, count in worse.items() if count <= MOST_WORSE * len(samples)]
    return max((_standard_errors(pairs, place) for place in places), default=0.0)


def _standard_errors(pairs: Sequence[tuple[list[_Certainty | None], list[_Certainty | None]]], place: int) -> float:
    both = [(before[place], after[place]) for before, after in pairs]
    found = [(a, b) for a, b in both if a is not None and b is not None]
    gains = np.array([b.value - a.value for a, b in found])
    chosen = [(a.chosen, b.chosen) for a, b in found if a.chosen is not None and b.chosen is not None]
    if chosen:
        before, after = np.mean(chosen, axis=0).tolist()
        if after < SURE or after < before + SURER:
            return 0.0
    error = float(gains.std(ddof=1)) / math.sqrt(len(gains))
    return float(gains.mean()) / max(error, 1e-12)


def _certainties(outputs: Sequence[object]) -> list[_Certainty | None]:
    return [_certainty(output) for output in outputs]


def _certainty(output: object) -> _Certainty | None:
    """Return how sure an output is; None where it holds neither probabilities nor scores of classes."""
    if not isinstance(output, np.ndarray) or output.dtype.kind != "f" or output.size < 2:
        return None
    array = np.squeeze(output).astype(np.float64)
    if not np.isfinite(array).all():
        return None
    rows = array.reshape(-1, array.shape[-1])
    if rows.shape[1] > 1 and rows.min() >= 0 and np.abs(rows.sum(axis=1) - 1).max() <= 0.02:
        highest = np.log(np.maximum(np.partition(rows, -2, axis=1)[:, -2:], FLOOR))
        return _Certainty(float((highest[:, 1] - highest[:, 0]).mean()))
    if array.ndim == 1 and len(array) >= LEAST_CLASSES and np.ptp(array) > 1:
        second, first = np.partition(array, -2)[-2:]
        return _Certainty(float(first - second), float(1 / np.exp(array - first).sum()))
    if array.min() >= 0 and array.max() <= 1:
        clipped = np.clip(array, FLOOR, 1 - FLOOR)
        doubt = -float((clipped * np.log(clipped) + (1 - clipped) * np.log(1 - clipped)).mean())
        return _Certainty(-doubt) if doubt <= MOST_DOUBT else None
    return None


def _changes(summary: InputSummary, shape: Sequence[int]) -> Iterator[PictureChange]:
    axis, values = summary.channel_axis, summary.values
    if axis is None or values is None or len(shape) != 4:
        return
    down, across = (place for place in (1, 2, 3) if place != axis)
    again = "Read the pictures as in training: "
    yield PictureChange(
        "upside down", f"{again}their rows may stand in the other order.", lambda array: _turned(array, (down,))
    )
    yield PictureChange("mirrored", f"{again}they may be mirrored now.", lambda array: _turned(array, (across,)))
    yield PictureChange(
        "turned by half",
        f"{again}array[..., ::-1, ::-1] turns each by half, where height and width are last.",
        lambda array: _turned(array, (down, across)),
    )
    if shape[down] == shape[across]:
        yield PictureChange(
            "with height and width exchanged",
            f"{again}array.swapaxes({down}, {across}) exchanges height and width.",
            lambda array: np.ascontiguousarray(np.swapaxes(array, down, across)),
        )
    low, high = values.least, values.greatest
    to_unit, from_unit = _units(summary, shape)
    yield PictureChange(
        "with dark and bright exchanged",
        f"{again}dark may be bright now, as in 1 - x.",
        lambda array: from_unit(1 - to_unit(array)).astype(array.dtype),
    )
    if len(summary.channels) == COLOURS:
        yield PictureChange(
            "with the channels in the other order",
            f"{again}RGB or BGR, --preprocess channels=bgr for picture files.",
            lambda array: from_unit(np.flip(to_unit(array), axis)).astype(array.dtype),
        )
    if values.least < 0 and values.greatest - values.least > WIDE:
        yield PictureChange(
            "scaled to 0 … 1",
            "Normalise them as in training: (x - least) / (greatest - least) makes 0 … 1.",
            lambda array: ((array - low) / (high - low)).astype(array.dtype),
        )


def _turned(array: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    return np.ascontiguousarray(np.flip(array, axes))


def _units(summary: InputSummary, shape: Sequence[int]) -> tuple[Callable[..., np.ndarray], Callable[..., np.ndarray]]:
    """Return what makes pictures of 0 … 1 of the values, and what makes values of those."""
    axis, values, convention = summary.channel_axis or 0, summary.values, convention_of(summary)
    assert values is not None
    count = shape[axis]
    mean, std = np.full(count, values.least), np.full(count, values.greatest - values.least)
    if convention is not None:
        places = list(range(COLOURS)) if count == COLOURS else [1] * count
        mean, std = np.array(convention.mean)[places], np.array(convention.std)[places]
        mean, std = -mean / std, 1 / std
    wide = [count if place == axis else 1 for place in range(4)]
    low, span = mean.reshape(wide), std.reshape(wide)
    return lambda array: (array.astype(np.float64) - low) / span, lambda unit: unit * span + low


def only_pictures(samples: Sequence[Sample], summaries: Mapping[str, InputSummary]) -> InputSummary | None:
    """Return the figures of the only input of a model, if it takes pictures that vary; None otherwise."""
    if len(summaries) != 1:
        return None
    summary = next(iter(summaries.values()))
    floats = all(sample[summary.name].dtype.kind == "f" for sample in samples)
    varies = summary.values is not None and summary.values.least < summary.values.greatest
    return summary if floats and varies and summary.channel_axis is not None else None
