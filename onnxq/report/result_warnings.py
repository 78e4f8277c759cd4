"""Warnings about a result: its accuracy, its latency, processors that saturate.

Tests: `tests/report/test_result_warnings.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from onnxq.text import decibels, join_words, speed_change
from onnxq.verification.families import FamilyFigures
from onnxq.verification.records import Comparison, CrossValidation, Latency
from onnxq.warning import WarningLine

LOW, USELESS = 20.0, 10.0  # dB: an error of a tenth and of a third
SLOWER, NO_FASTER = 1.02, 0.95  # of float's latency
LEAST_LOSS = 1.0  # dB that saturation takes off on a family
FASTER = "Quantize with --target native --benchmark, which decides by times measured here"


def result_warnings(
    comparison: Comparison | None,
    families: Sequence[FamilyFigures] = (),
    expected: CrossValidation | None = None,
    *,
    made_up: bool = False,
    for_size: bool = False,
) -> tuple[WarningLine, ...]:
    """Say what should be known before a result is used.

    Args:
        comparison: Float against quantized; None where nothing ran.
        families: Figures on each family of processors.
        expected: The error to expect on other samples, where it is known.
        made_up: Whether the samples are random numbers, whose accuracy says nothing.
        for_size: Whether nothing but weights is quantized, which is done for the size.

    """
    if comparison is None:
        return ()
    found = [*comparison.warnings, *_of_nothing(comparison), *(() if made_up else _of_accuracy(comparison, expected))]
    if comparison.metric is not None and comparison.metric.doubt:
        remedy = "Count classes from 0 in the order of the outputs, one label for each sample, in the samples' order."
        found.append(WarningLine("unlike-labels", comparison.metric.doubt, remedy))
    if comparison.latency is not None:
        found += _of_latency(comparison.latency, for_size=for_size)
    return (*found, *_of_saturation(families))


def _of_nothing(comparison: Comparison) -> Iterator[WarningLine]:
    for output in comparison.uncompared():
        message = f"'{output.name}' is NaN in the float model, every time: it was not compared"
        remedy = "Look at the values of the samples, which may be too large, and at the float model."
        yield WarningLine("nothing-compared", message, remedy)


def _of_accuracy(comparison: Comparison, expected: CrossValidation | None) -> Iterator[WarningLine]:
    worst, has = comparison.worst_sqnr, "has"
    found = [output for output in comparison.measured() if output.sqnr == worst]
    name, lost = (found[0].name, found[0].lost()) if found else ("", "")
    if expected is not None and expected.sqnr < min(worst, LOW):
        worst, name, has = expected.sqnr, expected.output, "is expected to have, on other samples,"
    if worst >= LOW:
        return
    share = 100 * 10 ** (-worst / 20) if math.isfinite(worst) else math.inf
    figure = f"{share:.0f}" if share >= 10 else f"{share:.2g}"
    judged = "it is of no use" if worst < USELESS else "40 dB are an error of 1 %"
    said = f"{has} {decibels(worst)}, an error of {figure} % of its size" if math.isfinite(worst) else lost
    message = f"'{name}' {said}: {judged}"
    remedy = "Give more typical data, or quantize with --min-sqnr 20 to keep the layers that lose most in float."
    yield WarningLine("low-sqnr", message, remedy)


def _of_latency(latency: Latency, *, for_size: bool) -> Iterator[WarningLine]:
    if latency.ratio > SLOWER:
        message = f"the quantized model is slower than float here ({speed_change(latency.ratio)})"
        yield WarningLine("slower-than-float", message, f"{FASTER}, or -r weight-int8 where size is all that counts.")
    elif latency.ratio >= NO_FASTER and not for_size:
        message = f"the quantized model is hardly faster than float here ({speed_change(latency.ratio)})"
        remedy = f"{FASTER}, or -r weight-int8, which loses least for the same size."
        yield WarningLine("size-only", f"{message}: the gain is its size alone", remedy)


def _of_saturation(families: Sequence[FamilyFigures]) -> Iterator[WarningLine]:
    exact = [family.sqnr for family in families if family.sqnr is not None and not family.saturates]
    best = max(exact, default=None)
    lost = [
        (best - family.sqnr, family)
        for family in families
        if family.saturates and family.sqnr is not None and best is not None and best - family.sqnr >= LEAST_LOSS
    ]
    if lost:
        most = max(loss for loss, _ in lost)
        names = join_words([f"{family.family}{' (this processor)' if family.here else ''}" for _, family in lost])
        message = f"8-bit products saturate on {names}, which takes {most:.1f} dB off"
        yield WarningLine("saturation", message, "Quantize with --reduce-range.")
