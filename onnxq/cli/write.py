"""Reports to stdout, in the format asked for.

Tests: `tests/cli/test_cli_looking.py`.
"""

from __future__ import annotations

import sys

from onnxq.cli.options import Format
from onnxq.cli.tables import plan_tables, report_tables
from onnxq.cli.terminal import show
from onnxq.report import Report


def write_report(report: Report, output_format: Format) -> None:
    """Print what a run did."""
    if output_format is Format.JSON:
        sys.stdout.write(report.to_json())
    else:
        show(*report_tables(report))


def write_plan(report: Report, output_format: Format) -> None:
    """Print the decision about every node."""
    if output_format is Format.JSON:
        sys.stdout.write(report.to_json())
    else:
        show(*plan_tables(report))
