"""The results of a run: one object behind the table on the terminal, JSON, Markdown and the HTML page.

Measuring is in `verification`; tables on the terminal are in `cli`.
"""

from onnxq.report.activations import Activation, activation_records
from onnxq.report.as_json import SCHEMA, comparison_dict, record_dict, to_json
from onnxq.report.hazards import with_hazards
from onnxq.report.model import Report
from onnxq.report.records import NodeReport, ReportData, model_bytes
from onnxq.report.write import check_report_path, write_report
from onnxq.text import FLOAT, decibels

__all__ = [
    "FLOAT",
    "SCHEMA",
    "Activation",
    "NodeReport",
    "Report",
    "ReportData",
    "activation_records",
    "check_report_path",
    "comparison_dict",
    "decibels",
    "model_bytes",
    "record_dict",
    "to_json",
    "with_hazards",
    "write_report",
]
