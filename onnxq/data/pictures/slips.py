"""Find slips of arithmetic in pictures that their values alone tell, whatever the model is.

* Divided by 255 twice: nothing exceeds 1 / 255, or each channel keeps within a hundredth of its value.
* Mean and deviation of ImageNet applied twice: black pixels have one certain value in each channel, and white ones too.
* Bytes that were read as int8: 128 became -128, so that neighbours jump from one end of the range to the other. If the
  halves are exchanged, neighbours come nearer: on 55 sets of photos to 0.24 … 0.64 of their difference. In right
  pictures it becomes 0.98 … 4 times. Black letters on white jump as well, but most of their pixels are at the ends.
* A channel of three that holds one value, where others vary.
* Standardised by their own mean, over all samples at once or pixel by pixel: what is left of the mean is a rounding
  error. The least mean of 45 right sets is 0.007 of the deviation.

Tests: `tests/data/test_picture_slips.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from onnxq.data.conventions import BYTE, COLOURS, IMAGENET
from onnxq.data.input_summary import ChannelSummary, InputSummary, short
from onnxq.data.normalization import CODE
from onnxq.data.pictures.noise import LEAST_SIDE, LEAST_VALUES, looked_at
from onnxq.data.validation import Sample
from onnxq.text import join_words
from onnxq.warning import WarningLine

SLACK = 1.02  # of a greatest value
HARDLY = 0.01  # of a channel's greatest value: how far it varies after two divisions
NEARLY_BLACK, RATHER_WHITE = 5 / 255, 0.7  # of the darkest pixels, and of the brightest ones
JUMP, LEAST_JUMPS = 0.75, 0.005  # of the range between neighbours, and the share of neighbours that differ so
NEARER = 0.7  # of the difference between neighbours: the most after halves are exchanged
NO_MEAN, SOME_MEAN = 1e-4, 0.01  # of the deviation: the mean of all samples, and that of a single one
LEAST_TOGETHER, MOST_TOGETHER = 8, 1000  # samples; more may be all that a model was trained on, whose mean is right
ENDS, MOST_AT_ENDS = 0.05, 0.3  # of the range, and the share of pixels there


def slip_warnings(samples: Sequence[Sample], summaries: Iterable[InputSummary]) -> Iterator[WarningLine]:
    """Yield what is wrong with the values of inputs for pictures.

    Args:
        samples: A few samples, in memory.
        summaries: Figures of the inputs.

    """
    for summary in summaries:
        values, axis = summary.values, summary.channel_axis
        if values is None or axis is None or values.least == values.greatest:
            continue
        found = _twice(summary, values)
        if found:
            yield WarningLine(CODE, *found)
        elif _is_wrapped(samples, summary.name, axis):
            message = f"neighbours in '{summary.name}' jump between {short(values.least)} and {short(values.greatest)}"
            remedy = "Read them as uint8, and convert to float before any arithmetic."
            yield WarningLine(CODE, f"{message}, as bytes do that are read as int8", remedy)
        yield from _of_channels(summary)


def standardized_warnings(
    samples: Sequence[Sample], summaries: Iterable[InputSummary], count: int
) -> Iterator[WarningLine]:
    """Say that the mean of these very samples was taken off from pictures; one for each picture may be meant.

    Args:
        samples: A few samples, in memory.
        summaries: Figures of the inputs, over all samples.
        count: How many samples there are.

    """
    for summary in summaries:
        values = summary.values
        if summary.channel_axis is None or values is None or not LEAST_TOGETHER <= count <= MOST_TOGETHER:
            continue
        each = [abs(float(np.mean(sample[summary.name], dtype=np.float64))) for sample in samples]
        if abs(values.mean) <= NO_MEAN * values.std and max(each, default=0.0) > SOME_MEAN * values.std:
            message = f"the mean of '{summary.name}' over all samples is 0: they were standardised by themselves"
            remedy = "Take mean and deviation of the training data; for a model of 0 … 1 or 0 … 255, take none."
            yield WarningLine(CODE, message, remedy)


def _twice(summary: InputSummary, values: ChannelSummary) -> tuple[str, str] | None:
    """Return what was done twice, and the remedy; None where nothing was."""
    span = f"the values of '{summary.name}' ({short(values.least)} … {short(values.greatest)})"
    if 0 <= values.least < values.greatest <= SLACK / BYTE:
        return f"{span} are those of pictures that were divided by 255 twice", "Divide by 255 once."
    if values.greatest - values.least < HARDLY * max(abs(values.least), abs(values.greatest)) or _hardly_vary(summary):
        message = f"{span} hardly vary within a channel, as those of pictures that were divided by 255 twice"
        return message, "Divide by 255 once, before a mean is taken off."
    if _is_imagenet_twice(summary.channels):
        return f"{span} have had ImageNet's mean and deviation applied twice", f"Apply them once: {IMAGENET.recipe}."
    return None


def _hardly_vary(summary: InputSummary) -> bool:
    spans = [(one.greatest - one.least, max(abs(one.least), abs(one.greatest))) for one in summary.channels]
    return len(spans) == COLOURS and all(0 < span < HARDLY * most for span, most in spans)


def _is_imagenet_twice(channels: Sequence[ChannelSummary]) -> bool:
    if len(channels) != COLOURS:
        return False
    for one, mean, std in zip(channels, IMAGENET.mean, IMAGENET.std, strict=True):
        black, dark, bright, white = (
            ((unit - mean) / std - mean) / std for unit in (0.0, NEARLY_BLACK, RATHER_WHITE, 1.0)
        )
        if not (black * SLACK <= one.least <= dark and bright <= one.greatest <= white * SLACK):
            return False
    return True


def _of_channels(summary: InputSummary) -> Iterator[WarningLine]:
    """Say that some of three channels hold one value: of four, the last one may be opaque everywhere."""
    still = [index for index, one in enumerate(summary.channels) if one.least == one.greatest]
    if len(summary.channels) == COLOURS and 0 < len(still) < COLOURS:
        values = {short(summary.channels[index].least) for index in still}
        which = f"channel {still[0]}" if len(still) == 1 else f"channels {join_words([str(index) for index in still])}"
        held = f"{'holds' if len(still) == 1 else 'hold'} {join_words(sorted(values))} only"
        message = f"{which} of '{summary.name}' {held}, where others vary"
        yield WarningLine("constant-channel", message, "Fill all channels: grey pictures have the same in all three.")


def _is_wrapped(samples: Sequence[Sample], name: str, axis: int) -> bool:
    """Whether neighbours jump from one end of the range to the other, and are near if halves are exchanged."""
    arrays = [np.moveaxis(array, axis, 1) for array in looked_at(samples, name)]
    if any(array.shape[3] < LEAST_SIDE or not array.size for array in arrays):
        return False
    low, high = min(float(array.min()) for array in arrays), max(float(array.max()) for array in arrays)
    width, middle = high - low, (low + high) / 2
    if len(np.unique(arrays[0][:1])) < LEAST_VALUES:
        return False
    jumps = ends = steps = exchanged = 0.0
    for array in arrays:
        step = np.abs(np.diff(array, axis=3))
        jumps += float((step > JUMP * width).mean())
        ends += float(((array < low + ENDS * width) | (array > high - ENDS * width)).mean())
        steps += float(step.mean())
        turned = np.where(array < middle, array + width * (1 + 1 / BYTE), array)
        exchanged += float(np.abs(np.diff(turned, axis=3)).mean())
    count = len(arrays)
    return jumps > LEAST_JUMPS * count and ends < MOST_AT_ENDS * count and exchanged < NEARER * steps
