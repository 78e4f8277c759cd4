"""Metrics of what is written: bias correction has changed the model since the search.

Tests: `tests/verification/test_decoding.py`.
"""

from __future__ import annotations

from dataclasses import replace

from onnxq.ir import Model
from onnxq.pipeline.request import Quantized, Request
from onnxq.runtime.session import ModelSource
from onnxq.verification.decoding import measure_decoding
from onnxq.verification.records import MetricComparison
from onnxq.verification.user_metric import compare_metric


def add_metrics(
    result: Quantized,
    model: Model,
    baseline: ModelSource,
    request: Request,
    perplexity: MetricComparison | None = None,
    *,
    fast: bool = False,
) -> Quantized:
    """Put the metric that the budget asks for into the report, and the figures of a decoder, if there are samples.

    Args:
        result: The quantized model.
        model: The float model.
        baseline: What is run of it.
        request: What the run is given.
        perplexity: That of a decoder, if it has been measured.
        fast: Leave the figures of a decoder out.

    """
    metric, samples, comparison = request.budget.metric, request.samples, result.report.comparison
    if samples is None or comparison is None:
        return result
    written = result.encoded or result.model
    if metric is not None:
        request.observer.step("metric")
        measured = compare_metric(metric, baseline, written, samples, progress=request.observer.progress)
        comparison = replace(comparison, metric=measured)
    if not fast:
        known = perplexity, comparison.metric
        decoding = measure_decoding(model, baseline, written, samples, request.observer, known)
        comparison = replace(comparison, decoding=decoding)
    return replace(result, report=replace(result.report, comparison=comparison))
