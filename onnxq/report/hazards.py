"""The part of a report about versions of onnxruntime.

Tests: `tests/cli/test_cli_hazards.py`.
"""

from __future__ import annotations

from dataclasses import replace

from onnxq.hazards import find_hazards, least_onnxruntime
from onnxq.ir import Model
from onnxq.report.model import Report


def with_hazards(report: Report, model: Model) -> Report:
    """Return a report that also says which onnxruntime the model needs, and what the one installed makes of it.

    Sessions without graph optimizations are left to `verify` and `inspect`: those who ask for one look there.
    """
    findings = find_hazards(model)
    notes = tuple(
        finding.hazard.advice for finding in findings if finding.here and finding.hazard.effect != "unoptimized"
    )
    return replace(report, notes=(*report.notes, *notes), min_onnxruntime=least_onnxruntime(model, findings))
