"""Explanations of nodes, laid out for a terminal.

Tests: `tests/cli/test_cli_explain.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from onnxq.cli.tables import Cell, columns
from onnxq.explanation.records import Explanation, Times, Wire
from onnxq.report import Activation, NodeReport
from onnxq.text import FLOAT, decibels, noise, percent, printable

MOST_READERS = 4
INDENT = 2


def explanation_tables(found: Sequence[Explanation]) -> Iterator[RenderableType]:
    """Lay out explanations, one below the other."""
    for index, one in enumerate(found):
        if index:
            yield ""
        yield from _tables(one)


def _tables(one: Explanation) -> Iterator[RenderableType]:
    node = one.node
    yield Text.assemble(
        (printable(node.name), "bold"), f"   {printable(node.op_type)} → ", (_became(node), _style(node))
    )
    yield Padding(Text(printable(node.reason)), (0, 0, 0, INDENT))
    yield ""
    yield columns(("why", ""), _grounds(one))
    yield ""
    wires = [_wire("reads", "made by ", wire) for wire in one.inputs]
    wires += [_wire("gives", "read by ", wire) for wire in one.outputs]
    yield columns(("", "tensor", "type", "neighbours"), wires)
    if one.activations:
        yield ""
        yield from _range_tables(one.activations)
    if one.layers:
        yield ""
        head = ("tensor", "SQNR", "own", "inherited", "largest error")
        rows = [
            (layer.tensor, noise(layer.sqnr), noise(layer.own), noise(layer.inherited), f"{layer.max_abs:.3g}")
            for layer in one.layers
        ]
        yield columns(head, rows, right=(1, 2, 3, 4))


def _grounds(one: Explanation) -> list[tuple[Cell, ...]]:
    rows: list[tuple[Cell, ...]] = [("rule", f"{one.rule}: scheme {one.asked}")]
    rows += [
        (attempt.scheme, Text.assemble(("possible: " if attempt.accepted else "no: ", "bold"), attempt.sentence))
        for attempt in one.attempts
    ]
    if one.times is not None:
        rows.append(("times", _times(one.times)))
    if one.contribution is not None:
        how = "run alone" if one.contribution.exact else "estimated"
        rows.append(("adds", f"{percent(one.contribution.share, 1)} of the outputs' error ({how})"))
    if one.saturation is not None:
        rows.append(("saturation", f"{one.saturation.cure}: {one.saturation.because}"))
    rows += [("runtime", printable(hazard.advice)) for hazard in one.hazards]
    return rows


def _times(times: Times) -> str:
    guessed = ", open dimensions guessed" if times.guessed else ""
    return (
        f"{_micro(times.in_float)} in float, {_micro(times.in_integers)} in 8 bit; with a float neighbour "
        f"{_micro(times.conversion_in)} more before it, {_micro(times.conversion_out)} behind it (from tables{guessed})"
    )


def _micro(value: float) -> str:
    return f"{value:.3g} µs" if value < 1000 else f"{value / 1000:.3g} ms"


def _wire(role: str, verb: str, wire: Wire) -> tuple[Cell, ...]:
    parts = [wire.origin] if wire.origin else []
    names = [f"{printable(node.name)} ({printable(node.op_type)}, {_became(node)})" for node in wire.nodes]
    if len(names) > MOST_READERS:
        names = [*names[:MOST_READERS], f"{len(names) - MOST_READERS} more"]
    if names:
        parts.append(verb + ", ".join(names))
    return role, printable(wire.tensor or "nothing"), printable(wire.kind), "; ".join(parts) or "not read"


def _range_tables(ranges: Sequence[Activation]) -> Iterator[RenderableType]:
    head = ("in codes", "type", "scale", "zero point", "range", "clipped", "grid SQNR")
    rows = [
        (
            a.tensor,
            a.dtype,
            f"{a.scale:.4g}",
            str(a.zero_point),
            f"{a.low:.4g} to {a.high:.4g}",
            f"{a.clipped:.2g} %",
            decibels(a.sqnr),
        )
        for a in ranges
    ]
    yield columns(head, rows, right=(2, 3, 4, 5, 6))
    yield ""
    percentages = [f"{percentage:g} %" for percentage, _ in ranges[0].percentiles]
    measured = [
        (a.tensor, f"{a.minimum:.4g}", *(f"{value:.4g}" for _, value in a.percentiles), f"{a.maximum:.4g}")
        for a in ranges
    ]
    yield columns(("measured", "least", *percentages, "greatest"), measured, right=range(1, len(percentages) + 3))


def _became(node: NodeReport) -> str:
    return node.scheme or FLOAT


def _style(node: NodeReport) -> str:
    return "green" if node.scheme else "dim"
