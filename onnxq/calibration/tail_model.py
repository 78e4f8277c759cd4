"""Predict the extremes of unseen samples from the peaks of seen ones.

The greatest peaks are taken as exponential: by how much they exceed any threshold has the same mean. That is wrong if
samples differ by factors, as vibration under other loads does. The logarithms of peaks are then spread widely, and
their greater half lies on a straight line over normal quantiles. Its slope is that spread. The standard error of the
slope is subtracted: one sample far beyond all others is no sign of more.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from onnxq.calibration.sample_extremes import KEPT, SampleExtremes

FEWEST = 8  # samples from which on their peaks say something about others
TAIL, LEAST_TAIL = 6, 3  # one in six samples, and at least three, show how peaks go on
WIDE = 0.6  # spread of logarithms: one sample in six goes 1.8 times as far as the one in the middle
WIDEST = 2.0  # whatever the peaks are, no more is made of them
NORMAL = NormalDist()


class LognormalTail(NamedTuple):
    """Peaks with logarithms that are normal.

    Attributes:
        middle: Mean of the logarithms.
        width: Their standard deviation, no more than the samples are sure to show.

    """

    middle: float
    width: float

    def beyond(self, ends: np.ndarray) -> np.ndarray:
        """Return the expected square of what a sample exceeds each end by, float64."""
        return np.array([self._beyond(float(end)) for end in ends])

    def _beyond(self, end: float) -> float:
        def above(power: int) -> float:
            """Return the moment of peaks above the end, by that power of the end."""
            share = NORMAL.cdf((relative + power * self.width**2) / self.width)
            return math.exp(power * relative + (power * self.width) ** 2 / 2) * share

        relative = self.middle - math.log(end)
        return end**2 * max(above(2) - 2 * above(1) + above(0), 0.0)


def fit_lognormal(sorted_peaks: np.ndarray, samples: int) -> LognormalTail | None:
    """Tell how the peaks of samples are spread, if they differ by factors.

    Args:
        sorted_peaks: The greatest ones, the greatest first; none below zero.
        samples: How many there were in all.

    """
    half = sorted_peaks[: max((samples + 1) // 2, FEWEST)].astype(np.float64)
    if len(half) < FEWEST or half[-1] <= 0:
        return None
    normal = np.array([NORMAL.inv_cdf(1 - (place + 0.625) / (samples + 0.25)) for place in range(len(half))])  # Blom
    logarithms = np.log(half)
    off = normal - normal.mean()
    slope = float(off @ logarithms / (off @ off)) * (1 - 1 / math.sqrt(2 * len(half)))
    if slope < WIDE:
        return None
    slope = min(slope, WIDEST)
    return LognormalTail(float(logarithms.mean() - slope * normal.mean()), slope)


def exponential_tail(peaks: SampleExtremes, sorted_peaks: np.ndarray, ends: np.ndarray) -> np.ndarray | None:
    """Return the expected square of what a sample exceeds each end by, if the greatest peaks are exponential.

    None where they are all the same.
    """
    count = min(max(peaks.batches // TAIL, LEAST_TAIL), KEPT - 1)
    threshold = float(sorted_peaks[count])
    excess = float(sorted_peaks[:count].mean(dtype=np.float64)) - threshold
    if excess <= 0:
        return None
    exceeding = count / peaks.batches * np.exp((threshold - ends) / excess)
    return np.asarray(exceeding * 2 * excess**2)
