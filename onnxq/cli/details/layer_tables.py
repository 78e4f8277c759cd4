"""Layers as a table for a terminal.

Tests: `tests/cli/test_cli_layers.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from onnxq.cli.tables import columns
from onnxq.text import noise, printable
from onnxq.verification.records import Comparison, LayerComparison

MOST_LAYERS = 12


def layer_tables(comparison: Comparison, *, every: bool) -> Iterator[RenderableType]:
    """Lay out where the error enters: the layers that add most to it, or every layer in the order of the graph."""
    if comparison.no_layers:
        yield Text(printable(f"  layers cannot be compared: {comparison.no_layers}"), style="yellow")
        return
    shown = comparison.layers if every else comparison.worst_layers(MOST_LAYERS)
    if not shown:
        return
    head = ("own", "inherited", "in all", "operator", "layer" if every else "layer that adds most to the error")
    yield columns(head, [_row(layer) for layer in shown], right=(0, 1, 2))
    if any(layer.rescaled for layer in shown):
        yield Text("  * its channels are rescaled, which is taken out here", style="dim")


def _row(layer: LayerComparison) -> tuple[str | Text, ...]:
    figures = Text(noise(layer.own), style="bold"), noise(layer.inherited), noise(layer.sqnr)
    return *figures, layer.op_type, layer.node + (" *" if layer.rescaled else "")
