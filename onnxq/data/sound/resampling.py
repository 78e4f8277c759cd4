"""Change of the sampling rate by a windowed sinc (J. O. Smith, "Digital Audio Resampling").

Sums run in one order and weights are rounded to 2⁻³⁰, so that every processor gives the same.

Tests: `tests/data/test_sound_decoding.py`.
"""

from __future__ import annotations

import math

import numpy as np

CROSSINGS = 16  # of the sinc on each side
ROLL_OFF = 0.94  # of the lower of both Nyquist frequencies
BETA = 9.0  # of the Kaiser window: what is folded back is 90 dB down
MOST_WEIGHTS = 1 << 24


class Resampler:
    """Turns one rate into another.

    Args:
        source: Frames a second that there are.
        target: Frames a second that are wanted.

    """

    def __init__(self, source: int, target: int) -> None:
        common = math.gcd(source, target)
        self.up, self.down = target // common, source // common
        cutoff = ROLL_OFF * min(1.0, target / source)
        self.half = math.ceil(CROSSINGS / cutoff)
        self._cutoff = cutoff
        rows = self.up if self.up * 2 * self.half <= MOST_WEIGHTS else 0
        self._weights = self._weights_at(np.arange(rows) / self.up) if rows else None

    def _weights_at(self, fractions: np.ndarray) -> np.ndarray:
        """Return the weights of the frames around a place: `[places, 2 * half]`."""
        offsets = np.arange(1 - self.half, self.half + 1)[None] - fractions[:, None]
        inside = np.clip(1 - (offsets / self.half) ** 2, 0, None)
        window = np.i0(BETA * np.sqrt(inside)) / np.i0(BETA)
        weights = self._cutoff * np.sinc(self._cutoff * offsets) * window
        weights /= weights.sum(axis=1, keepdims=True)
        return np.asarray(np.round(weights * 2.0**30) / 2.0**30)

    def frames(self, count: int) -> int:
        """Return how many frames so many become."""
        return -(-count * self.up // self.down)

    def needed(self, start: int, stop: int) -> tuple[int, int]:
        """Return which frames of the source a range of the target is made of."""
        return start * self.down // self.up - self.half, stop * self.down // self.up + self.half + 2

    def resample(self, frames: np.ndarray, first: int, start: int, stop: int) -> np.ndarray:
        """Return a range of the target.

        Args:
            frames: `[channels, n]` of the source, those that `needed` gives.
            first: Number of the first of them.
            start: First frame of the target.
            stop: Frame behind the last one.

        """
        places = np.arange(start, stop) * self.down
        whole, phases = places // self.up, places % self.up
        weights = self._weights[phases] if self._weights is not None else self._weights_at(phases / self.up)
        made = np.zeros((len(frames), stop - start))
        for tap in range(2 * self.half):
            made += frames[:, whole + (tap + 1 - self.half - first)] * weights[:, tap]
        return made
