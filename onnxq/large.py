"""The middle of the pipeline for large models: no more than a part of any model is in memory at a time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from onnxq.anew import reached
from onnxq.ir import Model
from onnxq.ir.spool import Spool
from onnxq.layerwise import with_layers
from onnxq.observer import Observer
from onnxq.quant.layers import MeasuredLayers
from onnxq.quant.made_up import runnable_samples
from onnxq.quant.rewrite import rewrite
from onnxq.quant.samples import Samples, input_specs
from onnxq.quant.session import is_large
from onnxq.quant.stats import Stats
from onnxq.quant.weights import Weights
from onnxq.report import Report, activations
from onnxq.steps import Prepared, choose_qparams, measure, stamp
from onnxq.verify import compare

__all__ = ["carry_out_large", "is_large"]

SAMPLES = 2  # without data: enough to see that the model runs
SIMPLER = "a large model: weights were rounded to nearest, channels were not rescaled, latency was not measured"


def carry_out_large(
    ready: Prepared,
    given: Samples | None,
    stats: str | Path | Stats | None,
    watch: Observer,
    scratch: Path,
    *,
    detailed: bool = False,
) -> tuple[Model, Report]:
    """Calibrate, rewrite, and compare the result with the float model, both run in segments over mapped weights.

    Args:
        ready: The float model with its plan.
        given: Samples, if there are any.
        stats: Statistics of an earlier calibration, if there are any.
        watch: Told about each step.
        scratch: A folder with room for the quantized weights, which stand in a file without a name there.
        detailed: Put the histograms of activations and the errors of layers into the report, too.

    Returns:
        The quantized model, its large weights mapped, and the report.

    """
    baseline, before = ready.baseline(), ready.model.copy()
    probe = given if given is not None else runnable_samples(ready.model, input_specs(ready.model), SAMPLES)
    watch.step("calibrate")
    measured = measure(ready, MeasuredLayers([]), given, stats, watch)
    ready = reached(ready, measured)
    qparams = choose_qparams(ready.plan, measured)
    watch.step("rewrite")
    report = Report.planned(ready.plan, source=ready.path, notes=(*ready.notes, SIMPLER))
    if detailed:
        report = replace(report, activations=activations(ready.plan, qparams, measured))
    with Spool(scratch) as spool:
        weights = Weights(spool=spool)
        model = stamp(rewrite(ready.model, ready.plan, qparams, weights), ready)
        report = replace(report, notes=(*report.notes, *weights.notes()))
    watch.step("verify")
    probe = probe.limit(SAMPLES) if ready.fast else probe
    comparison = compare(baseline, model, probe, progress=watch.progress)
    if detailed:
        watch.step("layers")
        comparison = with_layers(comparison, before, model, probe)
    return model, replace(report, comparison=comparison, samples=probe.description)
