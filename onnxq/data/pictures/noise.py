"""Find pictures whose neighbours have nothing in common: random numbers, and pictures that were reshaped.

Many a first try calibrates on what a random generator gives. Ranges of it are those of no picture, and the figures
look fine. On photos, neighbours correlate by 0.8 and more, on scans of letters by 0.5.

Pictures `[height, width, 3]` that are reshaped to `[3, height, width]`, and not transposed, have a colour behind the
other along each row. On ten sets of photos, a pixel then differs from its neighbour 2 to 12 times as much as from the
third one. In right pictures it is 0.4 to 0.6 times, and at most 0.93 times in 200 icons, drawings and photos.

Tests: `tests/data/test_picture_noise.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from onnxq.data.input_summary import InputSummary
from onnxq.data.validation import Sample
from onnxq.warning import WarningLine

CODE = "random-values"
LEAST_SIDE = 12  # pixels: of smaller pictures, chance may take all correlation away
MOST_ALIKE = 0.1  # correlation of neighbours in random numbers; chance alone makes 0.03 of 1,000 pixels
RESHAPED = "reshaped-pictures"
NEARER = 0.75  # of the difference from the neighbour: the most from the third one; pictures have 1 and more
COLOURS = (3, 4)
LEAST_VALUES = 64  # that differ in a sample: maps of few codes may have neighbours that differ
MOST_PIXELS = 1 << 18  # of all samples that are looked at


def noise_warnings(samples: Sequence[Sample], summaries: Iterable[InputSummary]) -> Iterator[WarningLine]:
    """Yield which inputs for pictures hold random numbers, or colours one behind the other.

    Args:
        samples: A few samples, in memory.
        summaries: Figures of the inputs.

    """
    for summary in summaries:
        axis = summary.channel_axis
        if axis == 1 and summary.values is not None and len(summary.channels) in COLOURS:
            channels = len(summary.channels)
            if _is_reshaped(samples, summary.name, channels):
                message = f"the values of '{summary.name}' repeat every {channels} along a row: colours of one pixel"
                remedy = "Turn the axes of pictures, and don't reshape: array.transpose(0, 3, 1, 2)."
                yield WarningLine(RESHAPED, f"{message} stand one behind the other, as after a reshape", remedy)
        if axis is not None and summary.values is not None and _is_noise(samples, summary.name, axis):
            message = f"the values of '{summary.name}' look like random numbers: neighbours have nothing in common"
            yield WarningLine(CODE, message, "Give real pictures: ranges and figures of random numbers hold for none.")


def _is_noise(samples: Sequence[Sample], name: str, axis: int) -> bool:
    own = 0.0
    beside = np.zeros(2)  # sums of products with the neighbour below, and with the one to the right
    for given in looked_at(samples, name):
        array = np.moveaxis(given, axis, 1)
        if min(array.shape[2:]) < LEAST_SIDE or len(np.unique(array[:1])) < LEAST_VALUES:
            return False
        centred = array - array.mean(axis=(2, 3), keepdims=True)
        own += float((centred**2).mean())
        beside += (
            (centred[:, :, 1:] * centred[:, :, :-1]).mean(),
            (centred[:, :, :, 1:] * centred[:, :, :, :-1]).mean(),
        )
    return own > 0 and bool((np.abs(beside) < MOST_ALIKE * own).all())


def _is_reshaped(samples: Sequence[Sample], name: str, channels: int) -> bool:
    """Whether values along a row are nearer to those `channels` further than to their neighbours."""
    beside, further = 0.0, 0.0
    for array in looked_at(samples, name):
        if array.shape[3] < LEAST_SIDE:
            return False
        beside += float(np.abs(array[..., 1:] - array[..., :-1]).mean())
        further += float(np.abs(array[..., channels:] - array[..., :-channels]).mean())
    return further < NEARER * beside


def looked_at(samples: Sequence[Sample], name: str) -> Iterator[np.ndarray]:
    """Yield an input of the first samples in float64, until there are pixels enough."""
    looked = 0
    for sample in samples:
        array = np.asarray(sample[name], np.float64)
        yield array
        looked += array.size
        if looked > MOST_PIXELS:
            return
