"""The results of a run, as one object: the command line renders it, and it goes to a file as JSON, Markdown or HTML.

Tests: `tests/report/test_report.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from onnxq.report.as_json import report_dict, to_json
from onnxq.report.html import html
from onnxq.report.markdown import markdown
from onnxq.report.records import ReportData


@dataclass(frozen=True)
class Report(ReportData):
    """The plan, and its result. The attributes are those of `ReportData`."""

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain data for JSON: numbers that are not finite are null."""
        return report_dict(self)

    def to_json(self) -> str:
        """Write the report as JSON, a line end behind it."""
        return to_json(report_dict(self))

    def to_markdown(self) -> str:
        """Write the report as Markdown."""
        return markdown(self)

    def to_html(self) -> str:
        """Write the report as one HTML file; raises OutputError where the extra `report` is not installed."""
        return html(self)
