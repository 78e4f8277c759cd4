"""Find pictures that are random numbers: their neighbours have nothing in common.

Many a first try calibrates on what a random generator gives. Ranges of it are those of no picture, and the figures
look fine. On photos, neighbours correlate by 0.8 and more, on scans of letters by 0.5.

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
LEAST_VALUES = 64  # that differ in a sample: maps of few codes may have neighbours that differ
MOST_PIXELS = 1 << 18  # of all samples that are looked at


def noise_warnings(samples: Sequence[Sample], summaries: Iterable[InputSummary]) -> Iterator[WarningLine]:
    """Yield which inputs for pictures hold random numbers.

    Args:
        samples: A few samples, in memory.
        summaries: Figures of the inputs.

    """
    for summary in summaries:
        axis = summary.channel_axis
        if axis is not None and summary.values is not None and _is_noise(samples, summary.name, axis):
            message = f"the values of '{summary.name}' look like random numbers: neighbours have nothing in common"
            yield WarningLine(CODE, message, "Give real pictures: ranges and figures of random numbers hold for none.")


def _is_noise(samples: Sequence[Sample], name: str, axis: int) -> bool:
    looked, own = 0, 0.0
    beside = np.zeros(2)  # sums of products with the neighbour below, and with the one to the right
    for sample in samples:
        array = np.moveaxis(np.asarray(sample[name], np.float64), axis, 1)
        if min(array.shape[2:]) < LEAST_SIDE or len(np.unique(array[:1])) < LEAST_VALUES:
            return False
        centred = array - array.mean(axis=(2, 3), keepdims=True)
        own += float((centred**2).mean())
        beside += (
            (centred[:, :, 1:] * centred[:, :, :-1]).mean(),
            (centred[:, :, :, 1:] * centred[:, :, :, :-1]).mean(),
        )
        looked += array.size
        if looked > MOST_PIXELS:
            break
    return own > 0 and bool((np.abs(beside) < MOST_ALIKE * own).all())
