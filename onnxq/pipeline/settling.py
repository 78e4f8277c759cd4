"""Settling what the plan leaves open, and carrying it out: steps that models in memory and large ones share.

Tests: `tests/pipeline/test_step_order.py`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from onnxq.data.samples import Samples
from onnxq.ir import Model, Value
from onnxq.lowering.rewrite import rewrite
from onnxq.pipeline.offload import release_pages
from onnxq.pipeline.plan import plan_report
from onnxq.pipeline.request import Request
from onnxq.pipeline.untransformed import stored_untransformed
from onnxq.report import Report, activation_records
from onnxq.search.bias_correction import correct_biases
from onnxq.search.cross_validation import CrossValidated, cross_validate
from onnxq.search.meet_budget import SearchOutcome, meet_accuracy
from onnxq.search.sensitivity import also_measured
from onnxq.search.variants import Variants
from onnxq.search.without_data import settle_without_data
from onnxq.stages.measure import also_in_8bit
from onnxq.stages.prepared import Prepared
from onnxq.stages.replan import copy_prepared, exclude_unreached_bodies
from onnxq.verification.compare import Comparison
from onnxq.verification.families import predicted_latencies

FEWER = "calibrated on {} of {} samples: a fast run takes no more than it has time for"


class Rewritten(NamedTuple):
    """A model in quantized forms, not optimised for its target yet.

    Attributes:
        prepared: The float model with its final plan.
        model: The rewritten model.
        report: Of all choices.
        halves: Figures of cross-validation, if there was one.

    """

    prepared: Prepared
    model: Model
    report: Report
    halves: CrossValidated | None


def search_nodes(variants: Variants, request: Request) -> SearchOutcome:
    """Return nodes to float that lose too much: on samples, for a budget, or on random numbers."""
    if request.samples is not None or request.budget.is_set:
        request.observer.step("search")
        return meet_accuracy(variants, request.budget)
    if request.stats is None and not variants.prepared.fast:
        request.observer.step("search")
        return settle_without_data(variants)
    return SearchOutcome()


def expected_on_others(variants: Variants, outcome: SearchOutcome, request: Request) -> CrossValidated | None:
    """Tell from halves of the samples what others lose; None in a fast run, without samples, or with statistics."""
    if request.samples is None or request.stats is not None or variants.prepared.fast:
        return None
    request.observer.step("cross-validate")
    return cross_validate(variants, outcome.choices)


def with_expected(
    report: Report, halves: CrossValidated | None, comparison: Comparison, samples: Samples | None
) -> Report:
    """Put into a report what others are expected to lose, if it was told."""
    if halves is None or samples is None:
        return report
    return replace(report, cross_validation=halves.expected(comparison, samples.count or halves.samples))


def stored_if_in_vain(before: Prepared | None, variants: Variants, outcome: SearchOutcome) -> Prepared | None:
    """Plan to store the weights of a copy from before channels were divided, if the search left no integer product."""
    if before is None or variants.planned(outcome.choices).in_integers:
        return None
    return stored_untransformed(before)


def also_asked_for(prepared: Prepared, request: Request) -> list[Value]:
    """Return what the search is to ask for beyond the plan, or may ask for in a fast run."""
    if prepared.fast:
        return also_in_8bit(prepared.plan)
    return [] if request.detailed or request.samples is None else also_measured(prepared)


def rewrite_settled(
    variants: Variants, outcome: SearchOutcome, halves: CrossValidated | None, request: Request
) -> Rewritten:
    """Carry out the choices; variants are of no use afterwards, unless the run is fast."""
    observer, samples = request.observer, request.samples
    prepared, qparams = variants.replan(outcome.choices)
    if prepared is variants.prepared and prepared.fast:
        prepared = exclude_unreached_bodies(copy_prepared(prepared), variants.stats)
        qparams = variants.qparams(prepared)
    if samples is not None and outcome.correct:
        observer.step("correct")
        prepared = correct_biases(prepared, variants, outcome.choices)
    release_pages(variants.prepared.model)
    observer.step("rewrite")
    report = replace(plan_report(prepared), sensitivity=outcome.sensitivity)
    report = replace(report, latencies=predicted_latencies(prepared.plan))
    if prepared.fast and samples is not None and request.stats is None:
        report = _with_few_calibrated(report, variants.stats.samples, samples.count)
    if request.detailed:
        report = replace(report, activations=activation_records(prepared.plan, qparams, variants.stats))
    weights = variants.weights
    weights.begin_notes()
    model = rewrite(prepared.model, prepared.plan, qparams, weights)
    notes = (*report.notes, *outcome.notes, *weights.notes())
    report = replace(report, notes=notes, weights=weights.chosen(), saturation=weights.cures())
    return Rewritten(prepared, model, report, halves)


def _with_few_calibrated(report: Report, calibrated_on: int, count: int | None) -> Report:
    """Say in a report how many samples were calibrated on, where that is not all of them."""
    if not calibrated_on or count is None or calibrated_on == count:
        return report
    note = FEWER.format(calibrated_on, count)
    return replace(report, calibration_samples=calibrated_on, notes=(*report.notes, note))
