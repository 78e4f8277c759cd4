"""The middle of the pipeline for models in memory: every step, and variants are judged on held-out samples.

limit masks → store → equalize → rescale → calibrate → round → search → cross-validate → correct biases → rewrite →
optimize → verify

Tests: `tests/pipeline/test_step_order.py`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from onnxq.data.samples import Samples, input_specs
from onnxq.data.synthetic import synthetic_samples
from onnxq.ir import Model
from onnxq.lowering.coded_caches import code_caches, with_float_caches
from onnxq.pipeline.add_metrics import add_metrics
from onnxq.pipeline.offload import spill_moments, spill_weights
from onnxq.pipeline.request import Quantized, Request
from onnxq.pipeline.schedule import Schedule
from onnxq.pipeline.settling import (
    Rewritten,
    also_asked_for,
    expected_on_others,
    rewrite_settled,
    search_nodes,
    stored_if_in_vain,
    with_expected,
)
from onnxq.pipeline.untransformed import copy_before_transforms, still_of_use
from onnxq.progress import expect
from onnxq.report import Report
from onnxq.report.details import kernels_of, layer_sizes, operator_times
from onnxq.runtime.fork import in_copy
from onnxq.runtime.memory import collect_garbage, spared_from_collection
from onnxq.runtime.session import InMemory
from onnxq.search.candidates import float_time
from onnxq.search.fast_search import ENOUGH as ENOUGH_IF_FAST
from onnxq.search.fast_search import calibrated, compared, fewest_for_use
from onnxq.search.held_out import HoldoutSplit
from onnxq.search.meet_budget import SearchOutcome, bits_by_size, settle_codes
from onnxq.search.trials.float_transforms import transform_values
from onnxq.search.variants import Variants, calibrate_and_round
from onnxq.stages.finish import finalize, with_fast_prompts
from onnxq.stages.prepared import Prepared
from onnxq.verification.compare import compare
from onnxq.verification.decoding import watched_perplexity
from onnxq.verification.families import (
    SaturatingFamilies,
    family_figures,
    record_latencies,
    saturation_loss,
)
from onnxq.verification.layerwise import with_layers
from onnxq.verification.user_metric import try_metric

FITTED = ", the ones calibrated on"
RANDOM_SAMPLES = 4  # without data: enough to time a model and to see that it runs


def quantize_in_memory(prepared: Prepared, request: Request) -> Quantized:
    """Choose everything that the plan leaves open, rewrite the model, and compare the result with the float model."""
    before = prepared.model.copy()
    samples = request.samples
    if samples is None:
        samples = synthetic_samples(prepared.model, input_specs(prepared.model), RANDOM_SAMPLES)
    split = HoldoutSplit(before, samples, float_time(prepared.plan))
    if request.budget.metric is not None and request.samples is not None:
        try_metric(request.budget.metric, InMemory(before), request.samples, request.observer.progress)
    _expect(prepared, split, request)
    probe = samples.spread(compared(float_time(prepared.plan), samples.count)) if prepared.fast else samples
    collect_garbage(prepared.model)  # what planning left
    with spared_from_collection():
        rewritten, variants = _choose_and_rewrite(prepared, split, request)
    collect_garbage(rewritten.model)  # what was tried last
    result = _verified(rewritten, before, probe, request)
    comparison = result.report.comparison
    if variants is None or comparison is None or comparison.worst_sqnr >= ENOUGH_IF_FAST:
        return result
    request.observer.step("search")
    with spared_from_collection():
        choices = fewest_for_use(variants, probe, comparison.worst_sqnr)
    if not choices:
        return result
    rewritten = rewrite_settled(variants, SearchOutcome(choices), None, request)
    return _verified(rewritten, before, probe, request)


def _expect(prepared: Prepared, split: HoldoutSplit, request: Request) -> None:
    """Say what is to be done for a plan."""
    data, known = request.samples is not None, request.stats is not None
    schedule = Schedule(prepared, split, request.budget, with_data=data, with_stats=known, detailed=request.detailed)
    expect(schedule.work())


def _choose_and_rewrite(prepared: Prepared, split: HoldoutSplit, request: Request) -> tuple[Rewritten, Variants | None]:
    """Settle all choices and carry them out; statistics and variants, the largest things in memory, go with this.

    A fast run has no second moments. It keeps the rest until the comparison has shown whether to search after all.
    """
    observer, budget, samples, stats = request.observer, request.budget, request.samples, request.stats
    if prepared.fast and samples is not None and stats is None:
        samples = _few_to_calibrate(prepared, samples)
    prepared, before = _transformed(prepared, split, request)
    spill_weights(prepared.model, split.baseline, request.scratch)
    bits = bits_by_size(prepared.plan.recipe, budget)
    others = also_asked_for(prepared, request)
    variants = calibrate_and_round(
        prepared, split, samples, stats, observer, detailed=request.detailed, others=others, choose_bits=bits
    )
    if stats is None:
        spill_moments(variants.stats, request.scratch)
    outcome = search_nodes(variants, request)
    stored = stored_if_in_vain(before, variants, outcome)
    if stored is not None:
        _expect(stored, split, request)
        del variants
        return _choose_and_rewrite(stored, split, request)
    outcome = settle_codes(variants, budget, outcome)
    halves = expected_on_others(variants, outcome, request)
    kept = variants if prepared.fast and samples is not None and budget.max_size is None else None
    return rewrite_settled(variants, outcome, halves, request), kept


def _transformed(prepared: Prepared, split: HoldoutSplit, request: Request) -> tuple[Prepared, Prepared | None]:
    """Transform values where samples gain; return the model before that, too, if the search may show it to be vain."""
    if request.stats is not None:
        return prepared, None
    before = copy_before_transforms(prepared, request)
    made = transform_values(prepared, split, request.observer, lambda replanned: _expect(replanned, split, request))
    return made, still_of_use(before, made)


def _few_to_calibrate(prepared: Prepared, samples: Samples) -> Samples:
    """Return what a fast run calibrates on: all samples, or some from all over them where those would take long."""
    count = samples.count
    return samples if count is None else samples.spread(calibrated(float_time(prepared.plan), count))


def _verified(rewritten: Rewritten, before: Model, probe: Samples, request: Request) -> Quantized:
    """Optimise a rewritten model for its target, and compare it with the float model."""
    prepared, model, report, halves = rewritten
    observer, detailed, data = request.observer, request.detailed, request.samples
    record_latencies(model, report.latencies)
    by_layers, written = model.copy() if detailed else model, code_caches(finalize(model, prepared), prepared.caches)
    model = with_float_caches(written)
    observer.step("verify")
    target, budget = prepared.plan.recipe.scheme.target, request.budget
    asked = partial(with_fast_prompts, target=target, most=budget.max_size, data_file=budget.data_file)
    faster = asked(model)
    encoded = faster.serialize()
    baseline = InMemory(before if prepared.original is None else prepared.original)
    saturating = SaturatingFamilies.of(target, model)
    watched = None if prepared.fast or data is None else watched_perplexity(before, probe)
    watch = None if watched is None else watched.add
    with in_copy(partial(saturation_loss, saturating, baseline, model, probe), copies=probe.shareable) as lost:
        comparison = compare(
            baseline, encoded, probe, latency=not prepared.fast, progress=observer.progress, watch=watch
        )
        if detailed:
            observer.step("layers")
            comparison = with_layers(comparison, before, by_layers, probe)
        observer.step("families")
        families = family_figures(saturating, comparison.worst_sqnr, lost(), report.latencies)
    on_all = data is not None and request.stats is None and report.calibration_samples is None
    fitted = on_all and (prepared.plan.calibrated() or report.weights)
    judged = probe.describe(comparison.samples) + (FITTED if fitted else "")
    report = replace(report, comparison=comparison, samples=judged, families=families)
    report = with_expected(report, halves, comparison, data)
    if detailed:
        observer.step("details")
        report = _with_details(report, baseline.model, model, model.serialize(), probe)
    perplexity = None if watched is None else watched.comparison()
    result = add_metrics(Quantized(faster, report, encoded), before, baseline, request, perplexity, fast=prepared.fast)
    if model is written:
        return result
    written = asked(written)
    return replace(result, model=written, encoded=written.serialize())


def _with_details(report: Report, before: Model, model: Model, encoded: bytes, samples: Samples) -> Report:
    """Add kernels, times by operator and sizes by layer."""
    times = operator_times(before.serialize(), encoded, next(iter(samples)))
    sizes = layer_sizes(before, model)
    return replace(report, kernels=kernels_of(encoded), operator_times=times, layer_sizes=sizes)
