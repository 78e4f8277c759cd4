"""Rules by which a variant is given up before it has run on all samples, since the rest cannot change the verdict.

A variant that is held to a goal is given up once it made more noise than the goal allows to all samples: `NoiseLimit`.
Another one has to gain on a model, the `Incumbent`. The first few samples may show that it surely does not:
`RequiredGain`.

Tests: `tests/search/test_held_out.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from onnxq.search.resolution import gained, round_to_resolution
from onnxq.verification.error_stats import SampleDifferences

# A variant that is sure not to gain enough is given up after so many samples; Student's t is 6 in one case of 200
FIRST_SAMPLES, SURE = 4, 6.0
MISSED = 1 + 1e-6  # times the noise at which a goal is met: a variant that makes more is not run on further samples

Ratios = Callable[[SampleDifferences], np.ndarray]  # in dB, `[samples, values]`
Figure = Callable[[SampleDifferences | None], float]  # in dB; None stands for a model that does not run


class StoppingRule(Protocol):
    """Tells when a variant need not run on further samples."""

    def is_decided(self, made: SampleDifferences) -> bool:
        """Tell whether the samples so far decide; asked once behind each sample."""


class NoiseLimit:
    """The noise that a goal allows.

    Args:
        allowed: Noise of each value in all samples, `[values]`.

    """

    def __init__(self, allowed: np.ndarray) -> None:
        self._allowed = allowed * MISSED
        self._made = np.zeros(len(allowed))

    def is_decided(self, made: SampleDifferences) -> bool:
        """Tell whether the samples so far made more."""
        if made:
            self._made += [part.noise for part in made[-1]]
        return bool((self._made > self._allowed).any())


class RequiredGain:
    """The gain that variants need over a model, held against their first samples.

    Args:
        before: Ratios of the model in dB, `[samples, values]`; its worst value decides.
        ratios: Gives the same of a variant, of as many samples as it ran on.
        least: dB to gain.

    """

    def __init__(self, before: np.ndarray, ratios: Ratios, least: float) -> None:
        self._worst = int(before.mean(axis=0).argmin())
        self._before, self._ratios, self._least = before[:, self._worst], ratios, least

    def is_decided(self, made: SampleDifferences) -> bool:
        """Tell after the first samples, and only then, whether a variant is sure not to gain as much."""
        if len(made) != FIRST_SAMPLES or len(self._before) < 2 * FIRST_SAMPLES:
            return False
        gains = self._gains(made)
        return bool(gains.mean() + SURE * gains.std(ddof=1) / np.sqrt(len(gains)) < self._least)

    def gain(self, made: SampleDifferences) -> float:
        """Return what a variant gains on the samples that it ran on."""
        return round_to_resolution(float(self._gains(made).mean()))

    def _gains(self, made: SampleDifferences) -> np.ndarray:
        after = self._ratios(made)[:, self._worst]
        return np.asarray(after - self._before[: len(after)])


@dataclass(frozen=True)
class Incumbent:
    """The model that variants have to gain on.

    Attributes:
        figure: What models are compared by.
        reached: That of this one, in dB.
        required: What variants have to gain; None if this model does not run.
        samples: How many samples a variant runs on that may gain enough.

    """

    figure: Figure
    reached: float
    required: RequiredGain | None
    samples: int

    def figure_of(self, judged: SampleDifferences | None) -> float:
        """Return the figure of a variant; by its gain on the first samples, where it was not run on the rest."""
        if self.required is not None and judged is not None and len(judged) < self.samples:
            return self.reached + self.required.gain(judged)
        return self.figure(judged)

    def gain(self, judged: SampleDifferences | None) -> float:
        """Return what a variant gains, in dB."""
        return gained(self.reached, self.figure_of(judged))
