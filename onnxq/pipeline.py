"""The contents: load → normalise → plan → even out → rescale → calibrate → round → rewrite → verify → save → report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from onnxq.budget import Budget, Settled, check_budget, check_size, settle
from onnxq.correction import corrected
from onnxq.errors import DataError, ModelError, NothingToQuantize
from onnxq.evening import even_out
from onnxq.families import family_figures, predicted_latencies, record_latencies
from onnxq.fusion import quantized_already
from onnxq.ir import Model, load, save
from onnxq.ir.files import data_path
from onnxq.judge import Split
from onnxq.large import carry_out_large, is_large
from onnxq.layerwise import with_layers
from onnxq.masking import limit_masks
from onnxq.metric import compare_metric, load_metric
from onnxq.moves import float_time
from onnxq.observer import Observer, Silent
from onnxq.quant.away import let_go, put_moments_away, put_weights_away
from onnxq.quant.blas import single_threaded_blas
from onnxq.quant.collecting import collect, uncollected
from onnxq.quant.custom import foreign_node
from onnxq.quant.made_up import runnable_samples
from onnxq.quant.plan import Plan
from onnxq.quant.recipe import Recipe
from onnxq.quant.rewrite import rewrite
from onnxq.quant.samples import Samples, input_specs
from onnxq.quant.session import InMemory, ModelSource
from onnxq.quant.stats import Stats
from onnxq.report import Report, activations, with_hazards
from onnxq.sensitivity import sensitivity
from onnxq.steps import (
    Prepared,
    check_target,
    default_output,
    node_labels,
    open_data,
    prepare,
    refuse_own_output,
    stamp,
)
from onnxq.timed import Timing, sized, timed
from onnxq.trials import fit, rescale
from onnxq.unrun import carry_out_unrun, check_runs
from onnxq.verify import compare
from onnxq.words import one_or_more

PLAN_HINT = "See every node's reason with `onnxq plan`."
DATA_HINT = "Add --data, or use the recipe dynamic-int8, which needs none."
NO_BUDGET, NO_TIMING = Budget(), Timing()
FEW_SAMPLES = 2  # that a fast run compares on
RANDOM_SAMPLES = 4  # without data: enough to time a model and to see that it runs


@dataclass(frozen=True)
class Quantized:
    """A quantized model that ran, its bytes unless it is large, and what there is to say about it."""

    model: Model
    report: Report
    encoded: bytes | None = None


def quantize(
    model: str | Path,
    recipe: str | Path | Recipe = "auto",
    *,
    output: str | Path | None = None,
    data: str | Path | Sequence[str | Path] = (),
    samples: object = None,
    stats: str | Path | Stats | None = None,
    exclude: str | Sequence[str] = (),
    only: str | Sequence[str] = (),
    budget: Budget = NO_BUDGET,
    timing: Timing = NO_TIMING,
    sample_limit: int | None = None,
    fast: bool = False,
    force: bool = False,
    dry_run: bool = False,
    external_data: bool | None = None,
    detailed: bool = False,
    accept: Callable[[Quantized], Mapping[str, str]] | None = None,
    observer: Observer | None = None,
) -> Report:
    """Quantize a model, check the result, and write it; where OnnxqError is raised, nothing was written.

    Args:
        model: Path of a float ONNX model.
        recipe: Name of a recipe, path of a TOML file, or a `Recipe`.
        output: Where to write; `MODEL.int8.onnx` beside the input by default.
        data: Calibration data, one or several: `.npz` files, folders, `package.module:function`.
        samples: Instead of `data`: an iterable of `{input name: array}`, or a function that gives one.
        stats: Instead of a calibration run: statistics of an earlier one.
        exclude: A glob of nodes to leave float, or several.
        only: A glob of nodes to quantize, or several.
        budget: What the result may lose and take; see `onnxq.budget`.
        timing: Kernel times to decide by; see `onnxq.timed`.
        sample_limit: Use no more samples.
        fast: Leave out everything but calibration: no rescaling, no search, weights to nearest, a short comparison.
        force: Replace an old output.
        dry_run: Stop after the plan; nothing is written.
        external_data: Put weights into `OUTPUT.data`; by default only beyond 2 GiB.
        detailed: Put the histograms of activations and the errors of layers into the report, too; not if `fast`.
        accept: Asked before anything is written: raises to refuse the result, or gives entries for its metadata.
        observer: Told about each step.

    """
    watch, target = observer or Silent(), Path(output or default_output(Path(model)))
    with uncollected(), single_threaded_blas():
        data, most = one_or_more(data), budget.max_size
        with_data = bool(data) or samples is not None or stats is not None
        source = load_float(model, watch, target, timing, force=force, reads=(*data, stats, recipe), plan=dry_run)
        ready = prepare(source, recipe, with_data=with_data, exclude=exclude, only=only, fast=fast, most=most)
        given = open_data(ready.model, data, samples, sample_limit)
        ready = sized(ready, given if stats is None else None, most)
        ready = timed(ready, given, timing, watch, most)
        check_plan(ready, with_data=with_data or dry_run)
        if dry_run:
            return planned(ready)
        budget = replace(budget, data_file=data_path(target).name) if external_data else budget
        result = carry_out(ready, given, stats, watch, budget, detailed=detailed and not fast, scratch=target.parent)
        result = accepted(result, budget, target, accept)
        return written(result, target, watch, force=force, external_data=external_data)


def load_float(
    path: str | Path,
    watch: Observer,
    target: Path,
    timing: Timing = NO_TIMING,
    *,
    force: bool = False,
    reads: Iterable[object] = (),
    plan: bool = False,
) -> Model:
    """Load a model and refuse what onnxq has made, and files to write that are in the way or read; see `quantize`."""
    timing.check(target, (path, *reads))
    if not plan:
        check_target(Path(path), target, force=force, reads=(*reads, timing.path))
    watch.step("load")
    model = load(path)
    refuse_own_output(model)
    watch.step("plan")
    return model


def written(result: Quantized, target: Path, watch: Observer, *, force: bool, external_data: bool | None) -> Report:
    """Write a quantized model, and say in the report where."""
    watch.step("save")
    files = save(result.model, target, force=force, external_data=external_data, encoded=result.encoded)
    return with_hazards(replace(result.report, output=target, files=tuple(files)), result.model)


def planned(ready: Prepared) -> Report:
    """Begin the report: what is going to happen to which node."""
    return Report.planned(ready.plan, source=ready.path, notes=ready.notes)


def examined(ready: Prepared, given: Samples | None, stats: str | Path | Stats | None, watch: Observer) -> Report:
    """Measure what each quantized node would add to the error of the outputs; nothing is written."""
    if given is None:
        raise DataError("what a node adds to the error shows on data only", "Add --data.")
    check_plan(ready, with_data=True)
    check_runs(ready.model)
    if is_large(ready.model):
        raise ModelError(f"{ready.path} is too large to run it many times", "Leave --sensitivity out.")
    split = Split(ready.model.copy(), given, float_time(ready.plan))
    watch.step("rescale")
    if stats is None:
        ready = rescale(even_out(limit_masks(ready, split), split), split, watch)
    variants = fit(ready, split, given, stats, watch)
    watch.step("search")
    return replace(planned(ready), sensitivity=sensitivity(variants))


def carry_out(
    ready: Prepared,
    given: Samples | None,
    stats: str | Path | Stats | None,
    watch: Observer,
    budget: Budget = NO_BUDGET,
    *,
    detailed: bool = False,
    scratch: Path = Path(),
) -> Quantized:
    """Calibrate, rewrite, and compare the result with the float model; nothing is written that has a name."""
    check_metric(budget, given)
    if (foreign := foreign_node(ready.model)) is not None:
        return Quantized(*carry_out_unrun(ready, foreign, stats, watch, with_data=given is not None))
    if is_large(ready.model):
        large = Quantized(*carry_out_large(ready, given, stats, watch, scratch, detailed=detailed))
        return with_metric(large, budget, ready.model, given, watch)
    before = ready.model.copy()
    probe = given if given is not None else runnable_samples(ready.model, input_specs(ready.model), RANDOM_SAMPLES)
    split = Split(before, probe, float_time(ready.plan))
    ready, model, report = rewritten(ready, split, given, stats, watch, budget, scratch, detailed=detailed)
    collect(model)  # what was tried last
    record_latencies(model, report.latencies)
    by_layers, model = model.copy() if detailed else model, stamp(model, ready)
    watch.step("verify")
    encoded = model.serialize()
    probe = probe.limit(FEW_SAMPLES) if ready.fast else probe
    baseline = InMemory(before if ready.original is None else ready.original)
    comparison = compare(baseline, encoded, probe, latency=not ready.fast, progress=watch.progress)
    if detailed:
        watch.step("layers")
        comparison = with_layers(comparison, before, by_layers, probe)
    target = ready.plan.recipe.scheme.target
    families = family_figures(target, baseline, model, probe, comparison.worst_sqnr, report.latencies)
    report = replace(report, comparison=comparison, samples=probe.description, families=families)
    return with_metric(Quantized(model, report, encoded), budget, baseline, given, watch)


def rewritten(
    ready: Prepared,
    split: Split,
    given: Samples | None,
    stats: str | Path | Stats | None,
    watch: Observer,
    budget: Budget,
    scratch: Path,
    *,
    detailed: bool,
) -> tuple[Prepared, Model, Report]:
    """Settle all choices and carry them out; statistics and variants, the largest things in memory, go with this."""
    if stats is None:
        watch.step("rescale")
        ready = rescale(even_out(limit_masks(ready, split), split), split, watch)
    put_weights_away(ready.model, split.baseline, scratch)
    variants, settled = fit(ready, split, given, stats, watch), Settled()
    if stats is None:
        put_moments_away(variants.stats, scratch)
    if given is not None or budget.is_set:
        watch.step("search")
        settled = settle(variants, budget)
    ready, qparams = variants.settled(settled.choices)
    if given is not None and settled.correct:
        ready = corrected(ready, variants, settled.choices)
    let_go(variants.ready.model)
    watch.step("rewrite")
    report = replace(planned(ready), sensitivity=settled.sensitivity)
    if detailed:
        report = replace(report, activations=activations(ready.plan, qparams, variants.stats))
    latencies = predicted_latencies(ready.plan)
    variants.weights.begin_notes()
    model = rewrite(ready.model, ready.plan, qparams, variants.weights)
    notes = (*report.notes, *settled.notes, *variants.weights.notes())
    return ready, model, replace(report, notes=notes, weights=variants.weights.chosen(), latencies=latencies)


def with_metric(
    result: Quantized, budget: Budget, baseline: ModelSource, given: Samples | None, watch: Observer
) -> Quantized:
    """Measure the metric of a budget on what is written, which corrections have changed since it was searched for."""
    comparison = result.report.comparison
    if budget.metric is None or given is None or comparison is None:
        return result
    watch.step("metric")
    metric = compare_metric(budget.metric, baseline, result.encoded or result.model, given, progress=watch.progress)
    return replace(result, report=replace(result.report, comparison=replace(comparison, metric=metric)))


def check_plan(ready: Prepared, *, with_data: bool) -> None:
    """Refuse a plan that changes nothing, or that needs data which are not there."""
    plan = ready.plan
    if not plan.quantized():
        idle = plan.recipe.idle_globs(node_labels(ready.model))
        before = quantized_already(ready.model)
        hint = f"It is quantized already ({before}): give the float model." if before else PLAN_HINT
        hint = f"{idle[0][0].upper()}{idle[0][1:]}: see their names with `onnxq plan`." if idle else hint
        raise NothingToQuantize(f"no node of {ready.path} can be quantized: {_reasons(plan)}", hint)
    if plan.calibrated() and not with_data:
        raise DataError(f"recipe {plan.recipe.name} needs data to calibrate with", DATA_HINT)


def check_metric(budget: Budget, given: Samples | None) -> None:
    """Refuse a metric without data, or one that is not there, before any work."""
    if given is None and budget.metric is not None:
        raise DataError("a metric needs data: random numbers have no right answers", "Add --data.")
    if budget.metric is not None:
        load_metric(budget.metric)


def accepted(
    result: Quantized, budget: Budget, target: Path, accept: Callable[[Quantized], Mapping[str, str]] | None
) -> Quantized:
    """Hold a result against the budget, ask the caller about it, and put what he has to say into its metadata.

    The size that the budget allows is that without the caller's entries, which he has left room for.
    """
    check_budget(result.report, budget, target)
    check_size(result.model, result.encoded, budget, target)
    if accept is not None:
        result.model.metadata.update(accept(result))
        result = result if result.encoded is None else replace(result, encoded=result.model.serialize())
    return result


def _reasons(plan: Plan) -> str:
    reasons = [f"{reason} ({count})" for reason, count in list(plan.reasons().items())[:3]]
    return "; ".join(reasons) or "it has none"
