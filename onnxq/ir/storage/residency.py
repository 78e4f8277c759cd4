"""Residency of weights, in memory or in files: the one module that asks whether a model is large.

Tests: `tests/runtime/test_segmented.py`.
"""

from __future__ import annotations

from enum import Enum

LARGE = 512 << 20  # bytes of weights from which on a model is not held in memory whole


class Residency(Enum):
    """The place of a model's weights while it is worked on.

    Attributes:
        MEMORY: In memory, as often as a step needs them.
        FILES: Mapped from their files, a part of them in memory at a time.

    """

    MEMORY = "memory"
    FILES = "files"

    @property
    def copies(self) -> bool:
        """Whether there is memory for the weights once more: written, in a session, joined, in float64."""
        return self is Residency.MEMORY

    @property
    def quick(self) -> bool:
        """Whether a run takes so little time that a model is run for more than its result."""
        return self is Residency.MEMORY


def choose_residency(nbytes: int) -> Residency:
    """Choose where weights of so many bytes are."""
    return Residency.FILES if nbytes > LARGE else Residency.MEMORY
