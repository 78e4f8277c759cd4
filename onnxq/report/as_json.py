"""A report as plain data: the JSON of `--format json` and of `--report FILE.json`; docs/reference/json.md describes it.

Tests: `tests/report/test_report.py`.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from onnxq.verification.engines import EngineCheck
from onnxq.verification.output_records import SelectionComparison
from onnxq.verification.records import Comparison, Decoding, MetricComparison
from onnxq.version import __version__

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from onnxq.report.records import ReportData

SCHEMA = 1  # rises when a key goes away or changes its meaning


def report_dict(report: ReportData) -> dict[str, Any]:
    """Return a report as plain data for JSON: numbers that are not finite are null."""
    passes = report.float_passes
    return {
        "schema": SCHEMA,
        "onnxq": __version__,
        "recipe": report.recipe,
        "source": {"path": str(report.source), "bytes": report.source_bytes},
        "output": None
        if report.output is None
        else {"path": str(report.output), "files": [str(f) for f in report.files], "bytes": report.output_bytes},
        "counts": report.counts(),
        "reasons": report.reasons(),
        "notes": list(report.notes),
        "comparison": None if report.comparison is None else comparison_dict(report.comparison, report.samples),
        "cross_validation": None if report.cross_validation is None else record_dict(report.cross_validation),
        "seconds": {step: round(seconds, 4) for step, seconds in report.seconds},
        "float_passes": None if passes is None else {step: round(number, 2) for step, number in passes},
        "nodes": [asdict(node) for node in report.nodes],
        "rules": report.rules,
        "activations": [record_dict(activation) for activation in report.activations],
        "returned": list(report.returned),
        "sensitivity": [record_dict(contribution) for contribution in report.sensitivity],
        "weights": [record_dict(weight) for weight in report.weights],
        "saturation": [asdict(cure) for cure in report.saturation],
        "timings": None if report.timings is None else report.timings.as_dict(),
        "families": [record_dict(family) for family in report.families],
        "preparations": [asdict(one) for one in report.preparations],
        "min_onnxruntime": report.min_onnxruntime,
        "inputs": [record_dict(one) for one in report.inputs],
        "warnings": [asdict(warning) for warning in report.warnings],
        "made": report.made,
        "command": report.command,
        "kernels": dict(report.kernels),
        "operator_times": [asdict(one) for one in report.operator_times],
        "layer_sizes": [asdict(one) for one in report.layer_sizes],
        "budget": [asdict(one) for one in report.budget],
    }


def comparison_dict(comparison: Comparison, samples: str | None) -> dict[str, Any]:
    """Return a comparison as plain data for JSON: numbers that are not finite are null."""
    latency = None if comparison.latency is None else asdict(comparison.latency)
    return {
        "samples": comparison.samples,
        "data": samples,
        "worst_sqnr": _finite(comparison.worst_sqnr),
        "latency": latency,
        "outputs": [record_dict(output) for output in comparison.outputs],
        "selection": None if comparison.selection is None else _selection_dict(comparison.selection),
        "layers": [record_dict(layer) for layer in comparison.layers],
        "no_layers": comparison.no_layers,
        "worst_samples": [record_dict(one) for one in comparison.worst_samples],
        "warnings": [asdict(warning) for warning in comparison.warnings],
        "decoding": None if comparison.decoding is None else _decoding_dict(comparison.decoding),
        "metric": None if comparison.metric is None else _metric_dict(comparison.metric),
    }


def _metric_dict(metric: MetricComparison) -> dict[str, Any]:
    return record_dict(metric) | {"drop": _finite(metric.drop)}


def _decoding_dict(decoding: Decoding) -> dict[str, Any]:
    metrics = {"perplexity": decoding.perplexity, "greedy": decoding.greedy}
    return record_dict(decoding) | {name: one and _metric_dict(one) for name, one in metrics.items()}


def _selection_dict(selection: SelectionComparison) -> dict[str, Any]:
    return record_dict(selection) | {"read": [record_dict(read) for read in selection.read]}


def engines_dict(check: EngineCheck) -> dict[str, Any]:
    """Return what two engines make of one model as plain data for JSON: numbers that are not finite are null."""
    return {
        "outputs": [record_dict(output) for output in check.outputs],
        "optimised": [record_dict(output) for output in check.optimised],
        "nodes": check.nodes,
        "codes": check.codes,
        "ties": check.ties,
        "flipped": check.flipped,
        "culprits": [record_dict(culprit) for culprit in check.culprits],
        "parting": None if check.parting is None else record_dict(check.parting),
        "notes": list(check.notes),
    }


def to_json(data: Any) -> str:
    """Write plain data as JSON that any parser reads: numbers that are not finite are null."""
    return json.dumps(_finite(data), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def record_dict(record: DataclassInstance) -> dict[str, Any]:
    """Return a record of figures as plain data for JSON: numbers that are not finite are null."""
    found: dict[str, Any] = _finite(asdict(record))
    return found


def _finite(value: Any) -> Any:
    """Return plain data with null in place of numbers that are not finite."""
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_finite, value))
    return None if isinstance(value, float) and not math.isfinite(value) else value
