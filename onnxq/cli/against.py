"""`onnxq verify --against`: compare two models and check thresholds.

Tests: `tests/cli/test_cli_thresholds.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnxq.api.verify import Verification

MOST_MISSED = 5  # sentences on stderr; the rest is counted
REMEDY = "Quantize with --min-sqnr, or --max-drop for a metric, which leave sensitive nodes float; or ask for less."


def refuse_missed(found: Verification, model: Path) -> None:
    """Raise CheckFailed where a threshold is missed."""
    from onnxq.errors import CheckFailed
    from onnxq.report.result_warnings import USELESS

    missed = found.missed
    if not missed:
        return
    more = f"; and {len(missed) - MOST_MISSED} more" if len(missed) > MOST_MISSED else ""
    hint = f"Without thresholds, {USELESS:g} dB are asked for: give --min-sqnr for less." if found.bare else REMEDY
    if found.made_up and not found.bare:
        hint = "Give --data: random numbers say little about accuracy."
    if found.comparison is not None and found.comparison.uncompared():
        hint = "Look at the values of the samples, and at the float model."
    raise CheckFailed(f"{model}: {'; '.join(missed[:MOST_MISSED])}{more}", hint)


def write_comparison(found: Verification, *, every_layer: bool) -> None:
    """Show how two models differ."""
    from onnxq.cli.details.layer_tables import layer_tables
    from onnxq.cli.runtime import runtime_tables
    from onnxq.cli.tables import (
        comparison_tables,
        decoding_table,
        family_tables,
        input_table,
        latency_table,
        metric_table,
    )
    from onnxq.cli.terminal import show

    comparison, families = found.comparison, found.families
    assert comparison is not None
    show(input_table(found.inputs), "")
    show(*comparison_tables(comparison, found.data, made_up=found.made_up), "", *latency_table(comparison))
    if comparison.decoding is not None:
        show("", decoding_table(comparison.decoding))
    if comparison.metric is not None:
        show("", metric_table(comparison.metric))
    if families:
        show("", *family_tables(families, comparison.latency))
    tables = list(runtime_tables(found.runtime))
    if tables:
        show("", *tables)
    if comparison.layers or comparison.no_layers:
        show("", *layer_tables(comparison, every=every_layer))
