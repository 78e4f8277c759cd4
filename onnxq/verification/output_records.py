"""Figures of single outputs: error, selections, and missed thresholds.

Tests: `tests/verification/test_compare.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from onnxq.text import decibels, join_words

INDICES = ("int32", "int64", "bool")  # what labels, places and counts come as; pixels come as other integers
LARGEST_LIMIT = 1e300  # of any figure; an integer of TOML may be larger than all floats
TEXT = ("string", "object")  # what labels may come as, too; they have no size


@dataclass(frozen=True)
class OutputComparison:
    """How one output of the quantized model differs from the float one, over all samples.

    Attributes:
        name: Name of the output.
        dtype: NumPy name of its elements.
        elements: How many elements were compared.
        equal: Whether every element is the same.
        sqnr: Signal-to-quantization-noise ratio in dB; infinite for equal outputs, minus infinity where the quantized
            model gives NaN or infinity and the float one does not, or the float one infinity and the other does not.
        max_abs: Largest absolute difference.
        cosine: Cosine of the angle between both, all samples in one vector; None where one of them is zero.
        agreement: Percentage of equal decisions: for floats the largest element along the axis of classes (see
            `onnxq.verification.error_stats.class_axis`), for integers, booleans and strings every element. None where
            neither makes sense.
        spoilt: How many elements are NaN or infinite in the quantized model only; 0 where some are so in the float
            model, too, which then was not made for such samples.
        undefined: How many are NaN in the float model, whatever the quantized one makes of them; the other figures
            leave them out.

    """

    name: str
    dtype: str
    elements: int
    equal: bool
    sqnr: float
    max_abs: float
    cosine: float | None
    agreement: float | None
    spoilt: int = 0
    undefined: int = 0

    @property
    def is_compared(self) -> bool:
        """Whether the float model gives anything but NaN."""
        return not self.elements or self.undefined < self.elements

    def sqnr_words(self) -> str:
        """Write its SQNR for people; `none` where nothing was compared."""
        return decibels(self.sqnr) if self.is_compared else "none"

    def lost(self) -> str:
        """Say why it has no SQNR at all."""
        if math.isinf(self.max_abs):
            return "overflows"
        return "has other text" if self.dtype in TEXT else "is zero in the float model, and here it is not"


@dataclass(frozen=True)
class SelectionComparison:
    """The outputs that hold picks by scores, as boxes are, and the values that are picked from.

    Attributes:
        operators: The operators that pick.
        outputs: Names of the outputs that depend on it. Their SQNR, largest error and cosine are those of a quantized
            model that is told what the float one picks.
        picks: Those of them that say themselves what is picked, and cannot be told.
        agreement: Percentage of what is picked that both models pick, in the stage where that is least; None where
            nothing is.
        read: How the values differ that are picked from; they count like outputs where an SQNR is asked for.

    """

    operators: tuple[str, ...]
    outputs: tuple[str, ...]
    picks: tuple[str, ...]
    agreement: float | None
    read: tuple[OutputComparison, ...]

    def said(self) -> list[str]:
        """Say which outputs hold what is picked, and how much of that is the same."""
        names, who = join_words([f"'{name}'" for name in self.outputs]), join_words(self.operators)
        agreed = "" if self.agreement is None else f", {self.agreement:.2f} % of it the same in both models"
        holds = "holds" if len(self.outputs) == 1 else "hold"
        picks = "picks" if len(self.operators) == 1 else "pick"
        figures = "SQNR and largest error are those of what the float model picks"
        if set(self.outputs) == set(self.picks):
            figures = "SQNR and largest error say nothing of it"
        said = [f"{names} {holds} what {who} {picks}{agreed}; {figures}"]
        worst = min(self.read, key=lambda one: one.sqnr, default=None)
        if worst is not None:
            said.append(f"of what it is picked from, '{worst.name}' has the lowest SQNR: {decibels(worst.sqnr)}")
        return said


def with_sqnr(dtypes: Sequence[str]) -> list[bool]:
    """Tell for which outputs an SQNR is meaningful: not for labels if there are others."""
    counts = [dtype not in (*INDICES, *TEXT) for dtype in dtypes]
    return counts if any(counts) else [True] * len(dtypes)


def wrong_limit(name: str, limit: float) -> tuple[str, float] | None:
    """Say what a limit of the comparison has to be instead, and give one that is; None for a right one.

    Args:
        name: A parameter of `Comparison.missed`.
        limit: What was given for it.

    """
    if not -LARGEST_LIMIT < limit < LARGEST_LIMIT:
        return "a finite number", 30.0
    if name == "min_agreement" and not 0 <= limit <= 100:
        return "a percentage from 0 to 100", 99.0
    if name == "min_agreement" and 0 < limit <= 1:
        return "a percentage, not a share of 1", 100 * limit
    if name == "min_sqnr" and 0 < limit < 1:
        return "a number of dB, not a share of 1", 30.0
    if name == "max_abs" and limit < 0:
        return "0 or more", 0.5
    if name == "min_cosine" and not -1 <= limit <= 1:
        return "from -1 to 1", 0.99
    return None


def sqnr_missed(output: OutputComparison, limit: float) -> str:
    """Say by how much an SQNR misses a limit; empty where it does not."""
    if output.sqnr >= limit:
        return ""
    if math.isinf(output.sqnr):
        return f"{output.lost()}: {limit:g} dB are asked for"
    return f"has {output.sqnr:.2f} dB, {limit - output.sqnr:.2f} dB below the {limit:g} dB asked for"


def _max_abs_missed(output: OutputComparison, limit: float) -> str:
    if output.max_abs <= limit:
        return ""
    return f"is off by up to {output.max_abs:.4g}, {output.max_abs - limit:.4g} above {limit:g}"


def _agreement_missed(output: OutputComparison, limit: float) -> str:
    if output.agreement is None or output.agreement >= limit:
        return ""
    return f"agrees in {output.agreement:.2f} %, {limit - output.agreement:.2f} points below {limit:g} %"


def _cosine_missed(output: OutputComparison, limit: float) -> str:
    if output.equal or output.dtype == "string":
        return ""
    if output.max_abs == math.inf:
        return f"has no cosine, where {limit:g} is asked for: only one of the models gives NaN or infinity"
    if output.cosine is None:
        return f"has no cosine, where {limit:g} is asked for: one of the models gives nothing but zeros"
    if output.cosine >= limit:
        return ""
    return f"has a cosine of {output.cosine:.6f}, {limit - output.cosine:.3g} below {limit:g}"


MISSED: dict[str, Callable[[OutputComparison, float], str]] = {
    "min_sqnr": sqnr_missed,
    "max_abs": _max_abs_missed,
    "min_agreement": _agreement_missed,
    "min_cosine": _cosine_missed,
}
