"""Describe for the report how a layer stays within 16 bits on x86 processors without VNNI."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Cure = Literal["none needed", "pair limits", "7 bits"]
MEASURED = "the largest codes of the samples plus a fifth"
ASSUMED = "codes of 255, as no samples show less"


@dataclass(frozen=True)
class SaturationCure:
    """Record what was done to the weight of one layer.

    Attributes:
        node: The layer.
        cure: The cheapest that removes all saturation: nothing, limits for codes of neighbours, or 7 bits.
        pairs: Pairs of neighbouring weights whose products could leave 16 bits with codes of 8 bits; None where they
            were not counted.
        because: Why this cure, a sentence.

    """

    node: str
    cure: Cure
    pairs: int | None
    because: str


def pair_cure(node: str, pairs: int, *, measured: bool) -> SaturationCure:
    """Describe a layer whose codes obey pair limits.

    Args:
        node: The layer.
        pairs: How many pairs could have left 16 bits.
        measured: Whether samples tell how large activation codes get.

    """
    largest = MEASURED if measured else ASSUMED
    if not pairs:
        return SaturationCure(node, "none needed", 0, f"no two products leave 16 bits at {largest}")
    could = "1 pair of weights" if pairs == 1 else f"{pairs} pairs of weights"
    return SaturationCure(node, "pair limits", pairs, f"{could} could leave 16 bits at {largest}")


def seven_bits(node: str) -> SaturationCure:
    """Describe a layer that `reduce_range` gave 7 bits."""
    return SaturationCure(node, "7 bits", None, "reduce_range is set, and 8 bits could saturate")


def merged(cures: Iterable[SaturationCure]) -> tuple[SaturationCure, ...]:
    """Keep one cure for each node, that of its weight with most pairs: an LSTM has two weights."""
    found: dict[str, SaturationCure] = {}
    for cure in cures:
        known = found.setdefault(cure.node, cure)
        if known.pairs is not None and (cure.pairs is None or cure.pairs > known.pairs):
            found[cure.node] = cure
    return tuple(found.values())
