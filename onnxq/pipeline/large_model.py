"""The middle of the pipeline for large models: no more than a part of any model is in memory at a time.

Tests: `tests/runtime/test_segmented.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from onnxq.calibration.layer_moments import MeasuredLayers
from onnxq.calibration.stats import Stats
from onnxq.data.generated_text import drafted_text
from onnxq.data.samples import Samples, input_specs, spread_samples
from onnxq.data.synthetic import synthetic_samples
from onnxq.errors import CheckFailed
from onnxq.ir import Model
from onnxq.ir.storage.scratch_file import Spool
from onnxq.lowering.coded_caches import code_caches, with_float_caches
from onnxq.lowering.rewrite import rewrite
from onnxq.pipeline.add_metrics import add_metrics
from onnxq.pipeline.offload import release_pages, store_computed
from onnxq.pipeline.plan import plan_report
from onnxq.pipeline.request import Quantized, Request
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
from onnxq.planning.decision import Choices
from onnxq.progress import Observer
from onnxq.report import Report, activation_records
from onnxq.rounding.block_solver import BlockSolution
from onnxq.rounding.layer_by_layer import block_jobs, can_step, round_layer_by_layer
from onnxq.rounding.weights import WeightKey, Weights
from onnxq.runtime.memory import collect_garbage, trim_heap
from onnxq.search.budget import RAISE, BudgetCheck
from onnxq.search.candidates import float_time
from onnxq.search.held_out import HoldoutSplit
from onnxq.search.meet_budget import bits_by_size, settle_codes
from onnxq.search.mixed_bits import keep_to_loss, mixed_weights, said_bits
from onnxq.search.trials.rescaling_trial import rescale
from onnxq.search.variants import GENERATED, calibrate_and_round
from onnxq.stages.finish import finalize, with_fast_prompts
from onnxq.stages.measure import choose_qparams, measure
from onnxq.stages.prepared import Prepared
from onnxq.stages.replan import copy_prepared, exclude_unreached_bodies, replan
from onnxq.verification.compare import compare
from onnxq.verification.decoding import watched_perplexity
from onnxq.verification.layerwise import with_layers

SAMPLES = 2  # without data: enough to see that the model runs
COMPARED = 8  # with data: two models take as long as a quarter of the samples do in rounding
MOST_SAMPLES, MOST_ELEMENTS = 128, 1 << 22  # that advance layer by layer, and elements of their inputs
SIMPLER = "a large model: weights were rounded to nearest, latency was not measured"
UNTIMED = "a large model: latency was not measured"
STAGED = "a large model: channels were not rescaled, latency was not measured"


def quantize_large(prepared: Prepared, request: Request) -> Quantized:
    """Calibrate, rewrite, and compare the result with the float model, both run in segments over mapped weights.

    Args:
        prepared: The float model with its plan.
        request: What else the run is given. Large quantized weights are in a file without a name in its scratch folder.

    Returns:
        The quantized model, its large weights mapped, and the report.

    """
    before = prepared.model.copy()  # the model itself is rewritten
    baseline = before if prepared.original is None else prepared.original
    samples, observer = request.samples, request.observer
    if samples is None:
        samples = synthetic_samples(prepared.model, input_specs(prepared.model), SAMPLES)
    halves = None
    if block_jobs(prepared.plan):
        prepared, written, report = _choose_blocks(prepared, baseline, request)
    else:
        store_computed(before, request.scratch)
        split = HoldoutSplit(before, samples, float_time(prepared.plan), request.scratch)
        prepared, written, report, halves = _choose_and_rewrite(prepared, split, request)
    collect_garbage(before)  # plans, runs and sums of the search
    model = with_float_caches(code_caches(written, prepared.caches))
    release_pages(model)  # which passes have read
    store_computed(baseline, request.scratch)
    observer.step("verify")
    probe = samples.limit(SAMPLES if prepared.fast else COMPARED)
    watched = None if prepared.fast or request.samples is None else watched_perplexity(before, probe)
    watch = None if watched is None else watched.add
    comparison = compare(baseline, model, probe, progress=observer.progress, watch=watch)
    trim_heap(model.weight_bytes)  # of sessions
    if request.detailed:
        observer.step("layers")
        comparison = with_layers(comparison, before, model, probe)
    report = replace(report, comparison=comparison, samples=probe.describe(comparison.samples))
    report = with_expected(report, halves, comparison, request.samples)
    perplexity = None if watched is None else watched.comparison()
    result = add_metrics(Quantized(model, report), before, baseline, request, perplexity, fast=prepared.fast)
    target, budget = prepared.plan.recipe.scheme.target, request.budget
    return replace(result, model=with_fast_prompts(written, target, budget.max_size, budget.data_file))


def _choose_and_rewrite(prepared: Prepared, split: HoldoutSplit, request: Request) -> Rewritten:
    """Settle all choices as for a model in memory, by variants that run in segments; statistics go with this."""
    observer, budget, before = request.observer, request.budget, copy_before_transforms(prepared, request)
    if not prepared.fast and request.stats is None:
        observer.step("rescale")
        prepared = rescale(prepared, split, observer)
        store_computed(prepared.model, request.scratch)
    before = still_of_use(before, prepared)
    with Spool(request.scratch) as spool:
        others = also_asked_for(prepared, request)
        variants = calibrate_and_round(
            prepared,
            split,
            request.samples,
            request.stats,
            observer,
            detailed=request.detailed,
            others=others,
            spool=spool,
        )
        outcome = search_nodes(variants, request)
        stored = stored_if_in_vain(before, variants, outcome)
        if stored is not None:
            del variants
            return _choose_and_rewrite(stored, split, request)
        outcome = settle_codes(variants, budget, outcome)
        halves = expected_on_others(variants, outcome, request)
        made = rewrite_settled(variants, outcome, halves, request)
        report = replace(made.report, notes=(*made.report.notes, UNTIMED))
        return made._replace(model=finalize(made.model, made.prepared, spool.keep), report=report)


def _choose_blocks(prepared: Prepared, baseline: Model, request: Request) -> tuple[Prepared, Model, Report]:
    """Measure, choose codes layer by layer, and rewrite; statistics go with this."""
    given, observer = request.samples, request.observer
    observer.step("calibrate")
    measured = measure(prepared, MeasuredLayers([]), given, request.stats, observer)
    prepared = exclude_unreached_bodies(prepared, measured)
    with Spool(request.scratch) as spool:
        samples, drafted = ([], 0) if request.stats is not None else _texts(prepared, given)
        prepared = _with_bits_by_size(prepared, samples, measured, request)
        solutions = _block_solutions(prepared, samples, spool, observer)
        weights = Weights(spool=spool, solutions=solutions)
        prepared = _with_bits_by_loss(prepared, baseline, samples, measured, request, weights, spool)
        observer.step("rewrite")
        qparams = choose_qparams(prepared.plan, measured)
        report = plan_report(prepared)
        if request.detailed:
            report = replace(report, activations=activation_records(prepared.plan, qparams, measured))
        written = (GENERATED.format(drafted),) if drafted and solutions else ()
        notes = (*report.notes, *written, *said_bits(prepared.plan.choices), STAGED if solutions else SIMPLER)
        weights.begin_notes()
        model = finalize(rewrite(prepared.model, prepared.plan, qparams, weights), prepared, spool.keep)
        return prepared, model, replace(report, notes=(*notes, *weights.notes()), saturation=weights.cures())


def _texts(prepared: Prepared, given: Samples | None) -> tuple[Sequence[Mapping[str, Any]], int]:
    """Return samples for weights in blocks, and how many of them a decoder has drafted itself."""
    jobs = block_jobs(prepared.plan)
    if not jobs or not can_step(prepared.model, jobs):
        return [], 0
    if given is not None:
        return list(spread_samples(given, MOST_SAMPLES, MOST_ELEMENTS).values()), 0
    samples = drafted_text(prepared.model)
    return samples, len(samples)


def _with_bits_by_size(
    prepared: Prepared, samples: Sequence[Mapping[str, Any]], measured: Stats, request: Request
) -> Prepared:
    """Plan the bits of weights for the size that the budget allows, if the recipe leaves them open."""
    choose = bits_by_size(prepared.plan.recipe, request.budget)
    if choose is None:
        return prepared
    request.observer.step("bits")
    with Spool(request.scratch) as spool:  # of codes that are of no use
        return choose(prepared, samples, measured, spool=spool)


def _with_bits_by_loss(
    prepared: Prepared,
    baseline: Model,
    samples: Sequence[Mapping[str, Any]],
    measured: Stats,
    request: Request,
    weights: Weights,
    spool: Spool,
) -> Prepared:
    """Plan 8 bits for as many weights as the metric of the budget needs, if the recipe leaves them open."""
    budget, given = request.budget, request.samples
    scheme = prepared.plan.recipe.scheme
    if not scheme.mixed_bits or scheme.mean_bits or budget.max_size is not None:
        return prepared
    if budget.max_drop is None or given is None:
        return prepared
    meets = BudgetCheck(baseline, given, replace(budget, min_sqnr=None))

    def made(choices: Choices) -> Model:
        spare = copy_prepared(prepared, choices)
        qparams = choose_qparams(spare.plan, measured)
        return finalize(rewrite(spare.model, spare.plan, qparams, weights), spare, spool.keep)

    request.observer.step("bits")
    open_weights = mixed_weights(prepared, samples, spool)
    choices = keep_to_loss(prepared, open_weights, made, meets)
    if choices is None:
        raise CheckFailed(f"no choice of bits meets the budget: {meets.last}", RAISE)
    return replan(prepared, choices)


def _block_solutions(
    prepared: Prepared, samples: Sequence[Mapping[str, Any]], spool: Spool, observer: Observer
) -> dict[WeightKey, BlockSolution]:
    """Choose codes of weights in blocks layer by layer on samples; none without samples."""
    if not samples:
        return {}
    observer.step("round")
    jobs = block_jobs(prepared.plan)
    solutions = round_layer_by_layer(prepared.model, jobs, samples, spool, prepared.open_checkpoint(samples))
    collect_garbage(prepared.model)
    return solutions
