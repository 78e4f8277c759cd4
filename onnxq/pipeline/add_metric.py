"""The metric of a budget on what is written: bias correction has changed the model since the search.

Tests: `tests/verification/test_user_metric.py`.
"""

from __future__ import annotations

from dataclasses import replace

from onnxq.pipeline.request import Quantized, Request
from onnxq.runtime.session import ModelSource
from onnxq.verification.user_metric import compare_metric


def add_metric(result: Quantized, baseline: ModelSource, request: Request) -> Quantized:
    """Measure the metric that the budget asks for on both models, if there are samples, and put it into the report."""
    metric, samples, comparison = request.budget.metric, request.samples, result.report.comparison
    if metric is None or samples is None or comparison is None:
        return result
    request.observer.step("metric")
    model = result.encoded or result.model
    measured = compare_metric(metric, baseline, model, samples, progress=request.observer.progress)
    return replace(result, report=replace(result.report, comparison=replace(comparison, metric=measured)))
