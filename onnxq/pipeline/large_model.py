"""The middle of the pipeline for large models: no more than a part of any model is in memory at a time.

Tests: `tests/pipeline/test_quantize.py`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from onnxq.calibration.layer_moments import MeasuredLayers
from onnxq.calibration.stats import Stats
from onnxq.data.generated_text import drafted_text
from onnxq.data.samples import Samples, input_specs, spread_samples
from onnxq.data.synthetic import synthetic_samples
from onnxq.ir import Model
from onnxq.ir.storage.scratch_file import Spool
from onnxq.lowering.rewrite import rewrite
from onnxq.pipeline.offload import release_pages
from onnxq.progress import Observer
from onnxq.report import Report, activation_records
from onnxq.rounding.block_solver import BlockSolution
from onnxq.rounding.layer_by_layer import block_jobs, can_step, round_layer_by_layer
from onnxq.rounding.weights import Key, Weights
from onnxq.runtime.memory import trim_heap
from onnxq.search.variants import GENERATED
from onnxq.stages.finish import finalize
from onnxq.stages.measure import choose_qparams, measure
from onnxq.stages.prepared import Prepared
from onnxq.stages.replan import exclude_unreached_bodies
from onnxq.verification.compare import compare
from onnxq.verification.layerwise import with_layers

SAMPLES = 2  # without data: enough to see that the model runs
MOST_SAMPLES, MOST_ELEMENTS = 128, 1 << 22  # that advance layer by layer, and elements of their inputs
SIMPLER = "a large model: weights were rounded to nearest, channels were not rescaled, latency was not measured"
STAGED = "a large model: channels were not rescaled, latency was not measured"


def quantize_large(
    prepared: Prepared,
    given: Samples | None,
    stats: str | Path | Stats | None,
    observer: Observer,
    scratch: Path,
    *,
    detailed: bool = False,
) -> tuple[Model, Report]:
    """Calibrate, rewrite, and compare the result with the float model, both run in segments over mapped weights.

    Args:
        prepared: The float model with its plan.
        given: Samples, if there are any.
        stats: Statistics of an earlier calibration, if there are any.
        observer: Told about each step.
        scratch: A folder with room for the quantized weights, which stand in a file without a name there.
        detailed: Put the histograms of activations and the errors of layers into the report, too.

    Returns:
        The quantized model, its large weights mapped, and the report.

    """
    baseline, before = prepared.baseline(), prepared.model.copy()
    probe = given if given is not None else synthetic_samples(prepared.model, input_specs(prepared.model), SAMPLES)
    observer.step("calibrate")
    measured = measure(prepared, MeasuredLayers([]), given, stats, observer)
    prepared = exclude_unreached_bodies(prepared, measured)
    qparams = choose_qparams(prepared.plan, measured)
    observer.step("rewrite")
    report = Report.planned(prepared.plan, source=prepared.path, notes=prepared.notes)
    if detailed:
        report = replace(report, activations=activation_records(prepared.plan, qparams, measured))
    with Spool(scratch) as spool:
        solutions, drafted = ({}, 0) if stats is not None else _block_solutions(prepared, given, spool)
        written = (GENERATED.format(drafted),) if drafted else ()
        report = replace(report, notes=(*report.notes, *written, STAGED if solutions else SIMPLER))
        weights = Weights(spool=spool, solutions=solutions)
        model = finalize(rewrite(prepared.model, prepared.plan, qparams, weights), prepared)
        report = replace(report, notes=(*report.notes, *weights.notes()), saturation=weights.cures())
        del weights, solutions  # the model has what it needs of them
    release_pages(model)  # which passes have read
    observer.step("verify")
    probe = probe.limit(SAMPLES) if prepared.fast else probe
    comparison = compare(baseline, model, probe, progress=observer.progress)
    trim_heap(model.weight_bytes)  # of sessions
    if detailed:
        observer.step("layers")
        comparison = with_layers(comparison, before, model, probe)
    return model, replace(report, comparison=comparison, samples=probe.description)


def _block_solutions(prepared: Prepared, given: Samples | None, spool: Spool) -> tuple[dict[Key, BlockSolution], int]:
    """Choose codes of weights in blocks layer by layer, on the samples or on text that a decoder drafts itself.

    Returns:
        The codes; none without either, or for operators without a kernel. How many sequences were drafted.

    """
    jobs = block_jobs(prepared.plan)
    if not jobs or not can_step(prepared.model, jobs):
        return {}, 0
    if given is not None:
        samples = list(spread_samples(given, MOST_SAMPLES, MOST_ELEMENTS).values())
    else:
        samples = drafted_text(prepared.model)
    if not samples:
        return {}, 0
    found = round_layer_by_layer(prepared.model, jobs, samples, spool, prepared.open_checkpoint(samples))
    return found, 0 if given is not None else len(samples)
