"""What a run did: one object behind the table on the terminal, JSON, Markdown and the HTML page."""

from onnxq.report.model import NodeReport, Report, model_bytes
from onnxq.report.plain import SCHEMA, comparison_dict, to_json
from onnxq.report.words import FLOAT, decibels
from onnxq.report.write import check_report_path, write_report

__all__ = [
    "FLOAT",
    "SCHEMA",
    "NodeReport",
    "Report",
    "check_report_path",
    "comparison_dict",
    "decibels",
    "model_bytes",
    "to_json",
    "write_report",
]
