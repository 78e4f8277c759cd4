"""The pipeline of one model, top to bottom.

load → normalise → simplify → plan → limit masks → equalize → rescale → calibrate → round → correct biases → search →
rewrite → optimize → verify → save → report
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from onnxq.calibration.stats import Stats
from onnxq.calibration.stats_file import load_stats
from onnxq.data.examine import Examination, examine
from onnxq.data.reading import PLAIN, Reading
from onnxq.data.samples import Samples, input_specs, list_sources
from onnxq.data.synthetic import synthetic_samples
from onnxq.errors import DataError, ModelError, NothingToQuantize, OutputError, RecipeError
from onnxq.ir import IN_MEMORY, Model, ModelInput, read_model, save
from onnxq.ir.segment import is_large
from onnxq.ir.storage.files import data_path
from onnxq.lowering.rewrite import rewrite
from onnxq.pipeline.large_model import quantize_large
from onnxq.pipeline.measured_latency import slower_here, stored_copy
from onnxq.pipeline.offload import release_pages, spill_moments, spill_weights
from onnxq.pipeline.schedule import Schedule
from onnxq.pipeline.unrunnable import check_runs, quantize_unrunnable
from onnxq.planning.planner import Plan
from onnxq.planning.recipe import Recipe, choose_recipe
from onnxq.progress import Observer, Progress, expect, following
from onnxq.report import Report, activation_records, with_hazards
from onnxq.report.details import kernels_of, layer_sizes, limits_kept, operator_times
from onnxq.rounding.checkpoint import checkpoint_folder, remove_checkpoint
from onnxq.rounding.layer_by_layer import block_jobs
from onnxq.runtime.blas_threads import single_threaded_blas
from onnxq.runtime.memory import collect_garbage, gc_disabled
from onnxq.runtime.session import InMemory, ModelSource, sessions_kept
from onnxq.search.bias_correction import correct_biases
from onnxq.search.budget import (
    Budget,
    SearchOutcome,
    bits_by_size,
    check_budget,
    check_mixed_bits,
    check_size,
    meet_budget,
)
from onnxq.search.candidates import float_time
from onnxq.search.cross_validation import CrossValidated, cross_validate
from onnxq.search.equalization_trial import equalize_if_it_helps
from onnxq.search.held_out import HoldoutSplit
from onnxq.search.mask_limit_trial import limit_attention_masks
from onnxq.search.rescaling_trial import rescale
from onnxq.search.sensitivity import sensitivity
from onnxq.search.variants import calibrate_and_round
from onnxq.stages.files import default_output, objection_to, open_data, refuse_own_output
from onnxq.stages.finish import finalize, size_note
from onnxq.stages.kernel_timing import Timing, replan_with_sample_shapes, replan_with_timings
from onnxq.stages.prepare import node_labels, prepare
from onnxq.stages.prepared import Prepared
from onnxq.stages.strategy import Strategy
from onnxq.targets.tables import NATIVE
from onnxq.verification.compare import compare
from onnxq.verification.decoding import measure_decoding
from onnxq.verification.families import family_figures, predicted_latencies, record_latencies
from onnxq.verification.layerwise import with_layers
from onnxq.verification.ort_graph import quantized_already
from onnxq.verification.user_metric import check_drop, check_labels, compare_metric, try_metric

PLAN_HINT = "See every node's reason with `onnxq plan`."
DATA_HINT = "Add --data, or use the recipe dynamic-int8, which needs none."
NO_BUDGET, NO_TIMING = Budget(), Timing()
UNMEASURED = "bits are chosen by running the model, and onnxruntime lacks one of its operators"
FITTED = ", the ones calibrated on"
FEW_SAMPLES = 2  # that a fast run compares on
RANDOM_SAMPLES = 4  # without data: enough to time a model and to see that it runs


@dataclass(frozen=True)
class Quantized:
    """A quantized model that ran, its bytes unless it is large, and what there is to say about it."""

    model: Model
    report: Report
    encoded: bytes | None = None


def quantize(
    model: ModelInput,
    recipe: str | Path | Recipe = "auto",
    *,
    output: str | Path | None = None,
    data: str | Path | Sequence[str | Path] = (),
    reading: Reading = PLAIN,
    samples: object = None,
    stats: str | Path | Stats | None = None,
    target: str | None = None,
    exclude: str | Sequence[str] = (),
    only: str | Sequence[str] = (),
    budget: Budget = NO_BUDGET,
    timing: Timing = NO_TIMING,
    sample_limit: int | None = None,
    fast: bool = False,
    reduce_range: bool = False,
    force: bool = False,
    resume: bool = False,
    dry_run: bool = False,
    external_data: bool | None = None,
    detailed: bool = False,
    accept: Callable[[Quantized], Mapping[str, str]] | None = None,
    observer: Observer | None = None,
) -> Report:
    """Quantize a model, check the result, and write it; where OnnxqError is raised, nothing was written.

    Args:
        model: A float ONNX model: its path, a ModelProto, or loaded.
        recipe: Name of a recipe, path of a TOML file, or a `Recipe`.
        output: Where to write; `MODEL.int8.onnx` beside a model that is given by its path. Of others nothing is
            written by default: `Report.model` has the result.
        data: Calibration data, one or several: `.npz` files, folders, `package.module:function`, pictures.
        reading: How data that are no arrays become samples.
        samples: Instead of `data`: `{input name: array}` with a row for each sample, an iterable of samples
            `{input name: array}`, or a function that gives one.
        stats: Instead of a calibration run: statistics of an earlier one.
        target: Name of the runtime that the model is for; by default that of the recipe.
        exclude: A glob of nodes to leave float, or several.
        only: A glob of nodes to quantize, or several.
        budget: What the result may lose and take.
        timing: Kernel times to decide by.
        sample_limit: Use no more samples.
        fast: Leave out everything but calibration: no rescaling, no search, weights to nearest, a short comparison.
        reduce_range: Give weights 7 bits where products of 8 bits could saturate.
        force: Replace an old output.
        resume: Keep chosen codes beside the output until it is written, and go on from those of an interrupted run.
        dry_run: Stop after the plan; nothing is written.
        external_data: Put weights into `OUTPUT.data`; by default only beyond 2 GiB.
        detailed: Put the histograms of activations and the errors of layers into the report, too; not if `fast`.
        accept: Asked before anything is written: raises to refuse the result, or gives entries for its metadata.
        observer: Told about each step.

    Returns:
        What became of every node, how the result compares with the float model, and where it was written.

    Raises:
        ModelError: The model cannot be read, or has what onnxq does not support.
        DataError: The data do not fit the model, or there are none and the recipe needs some.
        RecipeError: The recipe or an option is wrong.
        OutputError: The output exists already, or cannot be written.
        CheckFailed: The budget is missed.
        NothingToQuantize: No node can be quantized.

    Examples:
        >>> import onnxq
        >>> report = onnxq.quantize("model.onnx", "static-int8", data="calibration.npz", output="new.onnx")
        >>> report.counts()
        {'static-int8': 7}
        >>> report.comparison.worst_sqnr > 20
        True

    """
    path, files = _target(model, output, external_data), (list_sources(data), samples, sample_limit, reading)
    chosen = choose_recipe(recipe, target=target, reduce_range=reduce_range, exclude=exclude, only=only)
    check_mixed_bits(chosen, budget, fast=fast)
    with following(observer) as observer, gc_disabled(), single_threaded_blas(), sessions_kept():
        reads = (*files[0], stats, recipe)
        source = load_float_model(model, observer, path, timing, reads)
        blocked = None if dry_run or path is None else _in_the_way(source, path, timing, reads, force=force)
        before = source.copy()
        prepared, given = _prepare_by_data(source, chosen, files, stats, timing, observer, budget.max_size, fast=fast)
        if dry_run:
            return _planned(prepared, before)
        prepared = replace(prepared, here=target == NATIVE)
        wanted = _Output(path, accept, force, resume, external_data, detailed, blocked)
        return _quantize_into(wanted, before, prepared, given, stats, observer, budget)


class _Output(NamedTuple):
    """How a result is to be written, None if it stays in memory; see `quantize`."""

    path: Path | None
    accept: Callable[[Quantized], Mapping[str, str]] | None
    force: bool
    resume: bool
    external_data: bool | None
    detailed: bool
    blocked: OutputError | None


def _in_the_way(
    source: Model, path: Path, timing: Timing, reads: Iterable[object], *, force: bool
) -> OutputError | None:
    """Return why a result cannot be written, to be said after what is wrong with samples and nodes.

    Raises:
        OutputError: The same, at once where the steps between take long.

    """
    found = objection_to(source, path, force=force, reads=(*reads, timing.path))
    if found is not None and (timing.benchmark or is_large(source)):
        raise found
    return found


def _quantize_into(
    wanted: _Output,
    before: Model,
    prepared: Prepared,
    given: Samples | None,
    stats: str | Path | Stats | None,
    observer: Progress,
    budget: Budget,
) -> Report:
    """Quantize and write; codes chosen so far are kept if the run is to be resumed."""
    path, accept, force, resume, external_data, detailed, blocked = wanted
    if blocked is not None:
        _check_samples(prepared, given, budget)
        if isinstance(stats, str | Path):
            load_stats(stats, expected=prepared.source)
        raise blocked
    if resume:
        prepared = _resumed(prepared, path)
    budget = replace(budget, data_file=data_path(path).name) if path and external_data else budget
    scratch = path.parent if path else Path(tempfile.gettempdir())
    result = _quantize_seen(before, prepared, given, stats, observer, budget, detailed=detailed, scratch=scratch)
    result = replace(result, report=with_source_size(result.report, before))
    result = check_result(result, budget, path or IN_MEMORY, accept, fast=prepared.fast)
    return write_result(result, budget, path, observer, given, force=force, external_data=external_data)


def _resumed(prepared: Prepared, path: Path | None) -> Prepared:
    """Keep codes in a folder next to the output, and go on from those that are there."""
    if not block_jobs(prepared.plan):
        raise RecipeError(
            "--resume keeps codes of weights in blocks, and this recipe makes none", "Leave it out, or pass --bits."
        )
    if path is None:
        raise OutputError("codes are kept next to the output, and there is none", "Give an output.")
    return replace(prepared, checkpoint=checkpoint_folder(path))


def _target(model: ModelInput, output: str | Path | None, external_data: bool | None) -> Path | None:
    """Return where the result goes: into a file, or, of a model that has none, by default nowhere."""
    if output is not None:
        return Path(output)
    if isinstance(model, str | Path):
        return default_output(Path(model))
    if external_data:
        raise OutputError("weights have no file to go to where the model is not written", "Give an output.")
    return None


def _planned(prepared: Prepared, before: Model) -> Report:
    """Report a plan that changes something; data need not be there."""
    check_plan(prepared, with_data=True)
    return with_source_size(plan_report(prepared), before)


def with_source_size(report: Report, before: Model) -> Report:
    """Say in a report how large a float model is that has no file."""
    return report if before.path is not None else replace(report, source_bytes=len(before.source))


def _check_samples(prepared: Prepared, given: Samples | None, budget: Budget) -> None:
    """Refuse a plan that changes nothing, and data whose first sample does not fit."""
    check_plan(prepared, with_data=prepared.plan.with_data)
    check_metric(budget, given)
    if given is not None:
        next(iter(given))


def _quantize_seen(
    before: Model,
    prepared: Prepared,
    given: Samples | None,
    stats: str | Path | Stats | None,
    observer: Observer,
    budget: Budget,
    *,
    detailed: bool,
    scratch: Path,
) -> Quantized:
    """Look at the samples, with BatchNormalization as it was in the float model, and quantize."""
    check_plan(prepared, with_data=prepared.plan.with_data)
    check_metric(budget, given)
    seen = Examination()
    if given is not None:
        observer.step("examine")
        calibrating = stats is None and bool(prepared.plan.calibrated())
        seen = examine(before, given, calibrating=calibrating, progress=observer.progress)
    result = _quantize_faster(prepared, given, stats, observer, budget, detailed=detailed, scratch=scratch)
    report = replace(result.report, inputs=seen.inputs, data_warnings=seen.warnings, made_up=given is None)
    return replace(result, report=replace(report, pictures=seen.pictures))


def _quantize_faster(
    prepared: Prepared,
    given: Samples | None,
    stats: str | Path | Stats | None,
    observer: Observer,
    budget: Budget,
    *,
    detailed: bool,
    scratch: Path,
) -> Quantized:
    """Quantize, and once more to compute in float where that is measured here, and is not faster."""
    spare = stored_copy(prepared)
    result = quantize_prepared(prepared, given, stats, observer, budget, detailed=detailed, scratch=scratch)
    slower = slower_here(result.report.comparison)
    if spare is None or slower is None:
        return result
    spare = replace(spare, notes=(*spare.notes, slower))
    return quantize_prepared(spare, given, stats, observer, budget, detailed=detailed, scratch=scratch)


def _prepare_by_data(
    source: Model,
    recipe: Recipe,
    files: tuple[Sequence[str | Path], object, int | None, Reading],
    stats: str | Path | Stats | None,
    timing: Timing,
    observer: Observer,
    most: int | None,
    *,
    fast: bool,
) -> tuple[Prepared, Samples | None]:
    """Plan, open the data, and replan with the shapes of the first sample and with measured times.

    Statistics stand for samples: then no sample says shapes.
    """
    data, samples, limit, reading = files
    with_data = bool(data) or samples is not None or stats is not None
    prepared = prepare(source, recipe, with_data=with_data, fast=fast, most=most)
    given = open_data(prepared.model, data, samples, limit, reading)
    prepared = replan_with_sample_shapes(prepared, given if stats is None else None, most)
    return replan_with_timings(prepared, given, timing, observer, most), given


def load_float_model(
    given: ModelInput, observer: Observer, target: Path | None, timing: Timing, reads: Iterable[object]
) -> Model:
    """Load a model and refuse what onnxq has made, and a file of times that is in the way or read; see `quantize`."""
    path = Path(given) if isinstance(given, str | Path) else None
    timing.check(target, (path, *reads))
    observer.step("load")
    model = read_model(given)
    if target is None and is_large(model):
        raise OutputError("the result is too large to stay in memory", "Give an output.")
    refuse_own_output(model)
    observer.step("plan")
    return model


def write_result(
    result: Quantized,
    budget: Budget,
    path: Path | None,
    observer: Progress,
    given: Samples | None,
    *,
    force: bool,
    external_data: bool | None,
) -> Report:
    """Write a quantized model that is accepted, and say in the report where, after how long, and by what samples."""
    observer.step("save")
    if path is None:
        report = replace(result.report, encoded=result.encoded or result.model.serialize())
    else:
        files = save(result.model, path, force=force, external_data=external_data, encoded=result.encoded)
        remove_checkpoint(checkpoint_folder(path))
        report = replace(result.report, output=path, files=tuple(files))
    notes = (*report.notes, *size_note(result.model, report.source_bytes, report.output_bytes or 0))
    report = with_hazards(replace(report, notes=notes), result.model)
    limits = {"min_sqnr": budget.min_sqnr, "max_drop": budget.max_drop}
    kept = limits_kept(report.comparison, report.output_bytes, max_size=budget.max_size, **limits)
    made = datetime.now(UTC).isoformat(timespec="seconds")
    report = replace(report, seconds=observer.seconds(), budget=kept, made=made)
    if given is None:
        return report
    return replace(report, calibration_samples=given.count, preparations=given.preparations)


def plan_report(prepared: Prepared) -> Report:
    """Begin the report: what is going to happen to which node."""
    return Report.planned(prepared.plan, source=prepared.path, notes=prepared.notes)


def measure_sensitivity(
    prepared: Prepared, given: Samples | None, stats: str | Path | Stats | None, observer: Observer
) -> Report:
    """Measure what each quantized node would add to the error of the outputs; nothing is written."""
    if given is None:
        raise DataError("what a node adds to the error shows on data only", "Add --data.")
    check_plan(prepared, with_data=True)
    check_runs(prepared.model)
    if prepared.strategy is Strategy.STREAMED:
        raise ModelError(f"{prepared.path} is too large to run it many times", "Leave --sensitivity out.")
    split = HoldoutSplit(prepared.model.copy(), given, float_time(prepared.plan))
    observer.step("rescale")
    if stats is None:
        prepared = rescale(equalize_if_it_helps(limit_attention_masks(prepared, split), split), split, observer)
    variants = calibrate_and_round(prepared, split, given, stats, observer)
    observer.step("search")
    return replace(plan_report(prepared), sensitivity=sensitivity(variants))


def quantize_prepared(
    prepared: Prepared,
    given: Samples | None,
    stats: str | Path | Stats | None,
    observer: Observer,
    budget: Budget = NO_BUDGET,
    *,
    detailed: bool = False,
    scratch: Path = Path(),
) -> Quantized:
    """Calibrate, rewrite, and compare the result with the float model; nothing is written that has a name."""
    detailed = detailed and not prepared.fast
    if prepared.strategy is Strategy.NOT_RUN:
        if prepared.plan.recipe.scheme.mixed_bits:
            raise RecipeError(UNMEASURED, "Pass --bits 4.")
        return Quantized(*quantize_unrunnable(prepared, stats, observer, with_data=given is not None))
    if prepared.strategy is Strategy.STREAMED:
        baseline = prepared.baseline()  # the model itself is rewritten
        large = Quantized(*quantize_large(prepared, given, stats, observer, scratch, budget, detailed=detailed))
        return add_metric(large, budget, baseline, given, observer)
    return _quantize_in_memory(prepared, given, stats, observer, budget, detailed=detailed, scratch=scratch)


def _quantize_in_memory(
    prepared: Prepared,
    given: Samples | None,
    stats: str | Path | Stats | None,
    observer: Observer,
    budget: Budget,
    *,
    detailed: bool,
    scratch: Path,
) -> Quantized:
    """Take every step of the pipeline; variants are judged on samples."""
    before = prepared.model.copy()
    probe = (
        given if given is not None else synthetic_samples(prepared.model, input_specs(prepared.model), RANDOM_SAMPLES)
    )
    split = HoldoutSplit(before, probe, float_time(prepared.plan))
    if budget.metric is not None and given is not None:
        try_metric(budget.metric, InMemory(before), given, observer.progress)
    data, known = given is not None, stats is not None
    expect(Schedule(prepared, split, budget, with_data=data, with_stats=known, detailed=detailed).work())
    prepared, model, report, halves = search_and_rewrite(
        prepared, split, given, stats, observer, budget, scratch, detailed=detailed
    )
    collect_garbage(model)  # what was tried last
    record_latencies(model, report.latencies)
    by_layers, model = model.copy() if detailed else model, finalize(model, prepared)
    observer.step("verify")
    encoded = model.serialize()
    probe = probe.limit(FEW_SAMPLES) if prepared.fast else probe
    baseline = InMemory(before if prepared.original is None else prepared.original)
    comparison = compare(baseline, encoded, probe, latency=not prepared.fast, progress=observer.progress)
    if given is not None and not prepared.fast:
        comparison = replace(comparison, decoding=measure_decoding(before, baseline, encoded, probe))
    if detailed:
        observer.step("layers")
        comparison = with_layers(comparison, before, by_layers, probe)
    target = prepared.plan.recipe.scheme.target
    observer.step("families")
    families = family_figures(target, baseline, model, probe, comparison.worst_sqnr, report.latencies)
    fitted = given is not None and stats is None and (prepared.plan.calibrated() or report.weights)
    judged = probe.description + (FITTED if fitted else "")
    report = replace(report, comparison=comparison, samples=judged, families=families)
    if halves is not None and given is not None:
        report = replace(report, cross_validation=halves.expected(comparison, given.count or halves.samples))
    if detailed:
        observer.step("details")
        report = _with_details(report, baseline.model, model, encoded, probe)
    return add_metric(Quantized(model, report, encoded), budget, baseline, given, observer)


def _with_details(report: Report, before: Model, model: Model, encoded: bytes, samples: Samples) -> Report:
    """Add kernels, times by operator and sizes by layer."""
    times = operator_times(before.serialize(), encoded, next(iter(samples)))
    sizes = layer_sizes(before, model)
    return replace(report, kernels=kernels_of(encoded), operator_times=times, layer_sizes=sizes)


def search_and_rewrite(
    prepared: Prepared,
    split: HoldoutSplit,
    given: Samples | None,
    stats: str | Path | Stats | None,
    observer: Observer,
    budget: Budget,
    scratch: Path,
    *,
    detailed: bool,
) -> tuple[Prepared, Model, Report, CrossValidated | None]:
    """Settle all choices and carry them out; statistics and variants, the largest things in memory, go with this."""
    if stats is None:
        observer.step("rescale")
        prepared = rescale(equalize_if_it_helps(limit_attention_masks(prepared, split), split), split, observer)
    spill_weights(prepared.model, split.baseline, scratch)
    bits = bits_by_size(prepared.plan.recipe, budget)
    variants = calibrate_and_round(prepared, split, given, stats, observer, detailed=detailed, choose_bits=bits)
    settled = SearchOutcome()
    if stats is None:
        spill_moments(variants.stats, scratch)
    if given is not None or budget.is_set:
        observer.step("search")
        settled = meet_budget(variants, budget)
    halves = None
    if given is not None and stats is None and not prepared.fast:
        observer.step("cross-validate")
        halves = cross_validate(variants, settled.choices)
    prepared, qparams = variants.replan(settled.choices)
    if given is not None and settled.correct:
        observer.step("correct")
        prepared = correct_biases(prepared, variants, settled.choices)
    release_pages(variants.prepared.model)
    observer.step("rewrite")
    report = replace(plan_report(prepared), sensitivity=settled.sensitivity)
    if detailed:
        report = replace(report, activations=activation_records(prepared.plan, qparams, variants.stats))
    latencies = predicted_latencies(prepared.plan)
    variants.weights.begin_notes()
    model = rewrite(prepared.model, prepared.plan, qparams, variants.weights)
    notes = (*report.notes, *settled.notes, *variants.weights.notes())
    report = replace(report, notes=notes, latencies=latencies)
    report = replace(report, weights=variants.weights.chosen(), saturation=variants.weights.cures())
    return prepared, model, report, halves


def add_metric(
    result: Quantized, budget: Budget, baseline: ModelSource, given: Samples | None, observer: Observer
) -> Quantized:
    """Measure the metric of a budget on what is written, which corrections have changed since it was searched for."""
    comparison = result.report.comparison
    if budget.metric is None or given is None or comparison is None:
        return result
    observer.step("metric")
    metric = compare_metric(budget.metric, baseline, result.encoded or result.model, given, progress=observer.progress)
    return replace(result, report=replace(result.report, comparison=replace(comparison, metric=metric)))


def check_plan(prepared: Prepared, *, with_data: bool) -> None:
    """Refuse a plan that changes nothing, or that needs data which are not there."""
    plan = prepared.plan
    if not plan.quantized():
        idle = plan.recipe.idle_globs(node_labels(prepared.model))
        before = quantized_already(prepared.model)
        hint = f"It is quantized already ({before}): give the float model." if before else PLAN_HINT
        hint = f"{idle[0][0].upper()}{idle[0][1:]}: see their names with `onnxq plan`." if idle else hint
        raise NothingToQuantize(f"no node of {prepared.path} can be quantized: {_reasons(plan)}", hint)
    if plan.calibrated() and not with_data:
        raise DataError(f"recipe {plan.recipe.name} needs data to calibrate with", DATA_HINT)


def check_metric(budget: Budget, given: Samples | None) -> None:
    """Refuse a metric without data, one that is not there, or one without its labels, before any work."""
    if given is None and budget.metric is not None:
        raise DataError("a metric needs data: random numbers have no right answers", "Add --data.")
    if given is not None and budget.metric is not None:
        check_drop(budget.metric, budget.max_drop)
        check_labels(budget.metric, given)


def check_result(
    result: Quantized,
    budget: Budget,
    target: Path,
    accept: Callable[[Quantized], Mapping[str, str]] | None,
    *,
    fast: bool,
) -> Quantized:
    """Hold a result against the budget, ask the caller about it, and put what he has to say into its metadata.

    The size that the budget allows is that without the caller's entries, which he has left room for.
    """
    check_budget(result.report, budget, target, fast=fast)
    check_size(result.model, result.encoded, budget, target)
    if accept is not None:
        result.model.metadata.update(accept(result))
        result = result if result.encoded is None else replace(result, encoded=result.model.serialize())
    return result


def _reasons(plan: Plan) -> str:
    reasons = [f"{reason} ({count})" for reason, count in list(plan.reasons().items())[:3]]
    return "; ".join(reasons) or "it has none"
