"""Summarise for the report how the codes of each weight were chosen."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from onnxq.rounding.block_solver import BlockSolution
from onnxq.rounding.gptq import Method, RoundedWeight
from onnxq.rounding.jobs import RoundingJob

MomentsKind = Literal["full", "block-diagonal", "diagonal", "none"]


@dataclass(frozen=True)
class RoundingSummary:
    """How the codes of one weight were chosen.

    Attributes:
        nodes: The nodes that read it.
        bits: Width of the codes.
        method: By the error of the layer's output on samples or on assumed inputs, by the error of the weight itself,
            or to nearest, where nothing else was better on samples left out.
        gain: What that gains at the layer's output over rounding to nearest, in dB, on samples left out.
        moments: Which part of H = XᵀX of the layer's input was known.
        columns: Columns of a group of H.
        block: Columns of a block of H where it is block-diagonal.

    """

    nodes: tuple[str, ...]
    bits: int
    method: Method
    gain: float
    moments: MomentsKind
    columns: int
    block: int


def chosen_weight(job: RoundingJob, rounded: RoundedWeight) -> RoundingSummary:
    """Describe the outcome of a rounding job."""
    columns, block = job.rows.shape[1], job.moments.block if job.moments is not None else 0
    kind: MomentsKind = (
        "none" if not block else "full" if block >= columns else "diagonal" if block == 1 else "block-diagonal"
    )
    return RoundingSummary(job.readers, job.bits, rounded.method, rounded.gain, kind, columns, block)


def chosen_blocks(readers: tuple[str, ...], bits: int, solution: BlockSolution, columns: int) -> RoundingSummary:
    """Describe how a weight in blocks was rounded."""
    kind: MomentsKind = "none" if solution.method == "weight error" else "full"
    return RoundingSummary(readers, bits, solution.method, solution.gain, kind, columns, columns)


def summary(weights: Iterable[RoundingSummary]) -> tuple[str, ...]:
    """Say in a sentence how weights were chosen; nothing where none was chosen."""
    made = list(weights)
    measured = [weight for weight in made if weight.method == "output error"]
    assumed = sum(weight.method == "assumed inputs" for weight in made)
    nearest = sum(weight.method == "nearest" for weight in made)
    parts = []
    if measured:
        gain = sorted(weight.gain for weight in measured)[len(measured) // 2]
        parts.append(f"rounded {_weights(len(measured))} by output error, +{gain:.1f} dB in the median")
    if assumed:
        parts.append(f"rounded {_weights(assumed)} by output error on assumed inputs")
    if nearest and parts:
        parts.append(f"rounded {nearest} to nearest")
    for kind in ("block-diagonal", "diagonal"):
        count = sum(weight.moments == kind for weight in measured)
        if count:
            parts.append(f"knew only {kind} second moments for {count}")
    return ("; ".join(parts),) if parts else ()


def _weights(count: int) -> str:
    """Return the number with its noun."""
    return f"{count} weight{'' if count == 1 else 's'}"
