"""The pipeline of one model, top to bottom.

load → normalise → simplify → plan → limit masks → store → equalize → rescale → calibrate → round → search →
cross-validate → correct biases → rewrite → optimize → verify → save → report

`plan.py` has the steps as far as the plan. `in_memory.py`, `large_model.py` and `unrunnable.py` have those from there
to the comparison, one for each strategy. The rest is here.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from onnxq.calibration.stats import Stats
from onnxq.calibration.stats_file import load_stats
from onnxq.data.examine import Examination, examining
from onnxq.data.reading import PLAIN, Reading
from onnxq.data.samples import list_sources
from onnxq.errors import CheckFailed, DataError, OnnxqError, OutputError, RecipeError
from onnxq.ir import IN_MEMORY, Model, ModelInput, read_model, save
from onnxq.ir.storage.files import data_path
from onnxq.pipeline.in_memory import quantize_in_memory
from onnxq.pipeline.large_model import quantize_large
from onnxq.pipeline.measured_latency import slower_here, stored_copy
from onnxq.pipeline.plan import NO_TIMING, check_plan, plan_report, prepare_with_data
from onnxq.pipeline.request import NO_BUDGET, Quantized, Request
from onnxq.pipeline.unrunnable import quantize_unrunnable
from onnxq.planning.recipe import Recipe, choose_recipe
from onnxq.progress import Observer, Progress, following
from onnxq.report import Report, with_hazards
from onnxq.report.details import limits_kept
from onnxq.rounding.checkpoint import checkpoint_folder, remove_checkpoint
from onnxq.rounding.layer_by_layer import block_jobs
from onnxq.runtime.blas_threads import single_threaded_blas
from onnxq.runtime.memory import gc_disabled
from onnxq.runtime.session import SessionError, sessions_kept
from onnxq.search.budget import Budget, check_budget, check_mixed_bits, check_size
from onnxq.stages.caches import cache_scales, check_caches
from onnxq.stages.files import DataOptions, default_output, objection_to, refuse_own_output
from onnxq.stages.finish import size_note
from onnxq.stages.kernel_timing import Timing
from onnxq.stages.prepared import Prepared
from onnxq.stages.strategy import Strategy, choose_strategy
from onnxq.targets.tables import NATIVE
from onnxq.text import counted, size
from onnxq.verification.user_metric import check_drop, check_labels

MIDDLES: Mapping[Strategy, Callable[[Prepared, Request], Quantized]] = {
    Strategy.IN_MEMORY: quantize_in_memory,
    Strategy.STREAMED: quantize_large,
    Strategy.NOT_RUN: quantize_unrunnable,
}

FEWEST_BITS, FLOAT_BITS = 2, 32  # of a weight, and of one in float
LEAST_PLAUSIBLE = 1000  # bytes; a size below is one without its unit


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
    kv_cache: str | None = None,
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
        output: Where to write; `MODEL.int8.onnx` next to a model that is given by its path. Of others nothing is
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
        fast: Leave out everything but calibration: no rescaling, weights to nearest, a short comparison, and no search
            unless that shows less than 24 dB.
        reduce_range: Give weights 7 bits where products of 8 bits could saturate.
        kv_cache: `int8` lets caches of keys and values hold codes, where they are inputs and outputs of
            GroupQueryAttention; by default that of the recipe, mostly `float`.
        force: Replace an old output.
        resume: Keep chosen codes next to the output until it is written, and go on from those of an interrupted run.
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
    data_options = DataOptions(list_sources(data), samples, sample_limit, reading)
    path = _output_path(model, output, external_data)
    chosen = choose_recipe(
        recipe, target=target, reduce_range=reduce_range, kv_cache=kv_cache, exclude=exclude, only=only
    )
    check_mixed_bits(chosen, budget, fast=fast)
    if budget.metric is not None:
        check_drop(budget.metric, budget.max_drop)  # a wrong name, before anything is read
    timing = replace(timing, force=timing.force or force)
    with following(observer) as progress, gc_disabled(), single_threaded_blas(), sessions_kept():
        destination = _Destination(path, force, resume, external_data, timing, (*data_options.files, stats, recipe))
        source = _load_float_model(model, progress, destination)
        blocked = None if dry_run else destination.objection(source)
        before = source.copy()
        prepared, given = prepare_with_data(
            source, chosen, data_options, stats, timing, progress, max_size=budget.max_size, fast=fast
        )
        if dry_run:
            check_plan(prepared, with_data=True)  # data need not be there
            return plan_report(prepared)
        budget = replace(budget, data_file=destination.data_file)
        request = Request(progress, given, stats, budget, destination.scratch, detailed and not fast)
        _check_request(prepared, request, destination)
        if blocked is not None:
            _check_data(prepared, request)
            raise blocked
        prepared = replace(prepared, here=target == NATIVE, checkpoint=destination.checkpoint(prepared))
        with _examining(before, prepared, request) as seen, _blaming(seen):
            prepared = replace(prepared, caches=cache_scales(prepared, given, progress))
            result = _for_this_computer(prepared, request)
            result = replace(result, report=_with_examination(result.report, seen(), request))
            result = check_result(result, budget, path or IN_MEMORY, accept, fast=fast)
        return _write(result, destination, request)


def quantize_prepared(prepared: Prepared, request: Request) -> Quantized:
    """Carry out a plan, and compare the result with the float model; nothing is written that has a name."""
    return MIDDLES[prepared.strategy](prepared, request)


@dataclass(frozen=True)
class _Destination:
    """How a result is to be written; see `quantize`.

    Attributes:
        path: Where; None if it stays in memory.
        force: Whether an old output is replaced.
        resume: Whether codes are kept next to the output until it is written.
        external_data: Whether weights have a file of their own; None where their size decides.
        timing: Kernel times, which may have a file.
        reads: What else the run reads.

    """

    path: Path | None
    force: bool
    resume: bool
    external_data: bool | None
    timing: Timing
    reads: Sequence[object]

    @property
    def scratch(self) -> Path:
        """A folder with room for files without a name."""
        return self.path.parent if self.path else Path(tempfile.gettempdir())

    @property
    def data_file(self) -> str | None:
        """Name of the file that weights are asked to have, which adds to the size of the model."""
        return data_path(self.path).name if self.path and self.external_data else None

    def objection(self, source: Model) -> OutputError | None:
        """Return why a result cannot be written, to be said after what is wrong with samples and nodes.

        Raises:
            OutputError: The same, at once where the steps between take long.

        """
        if self.path is None:
            return None
        reads, external = (*self.reads, self.timing.path), bool(self.external_data)
        found = objection_to(source, self.path, force=self.force, reads=reads, external=external)
        if found is not None and (self.timing.benchmark or choose_strategy(source) is Strategy.STREAMED):
            raise found
        return found

    def checkpoint(self, prepared: Prepared) -> Path | None:
        """Return the folder next to the output for codes, some of which may be there; None if none are to be kept."""
        if not self.resume:
            return None
        if prepared.fast and prepared.plan.recipe.scheme.block_size:
            raise RecipeError("--resume keeps codes that a search has chosen, and --fast has none", "Leave one out.")
        if not block_jobs(prepared.plan):
            raise RecipeError(
                "--resume keeps codes of weights in blocks, and this recipe makes none", "Leave it out, or pass --bits."
            )
        if self.path is None:
            raise OutputError("codes are kept next to the output, and there is none", "Give an output.")
        return checkpoint_folder(self.path)


def _output_path(model: ModelInput, output: str | Path | None, external_data: bool | None) -> Path | None:
    """Return where the result goes: into a file, or, of a model that has none, by default nowhere."""
    if output is not None:
        return Path(output)
    if isinstance(model, str | Path):
        return default_output(Path(model))
    if external_data:
        raise OutputError("weights have no file to go to where the model is not written", "Give an output.")
    return None


def _load_float_model(given: ModelInput, progress: Progress, destination: _Destination) -> Model:
    """Load a model and refuse what onnxq has made, and a file of times that is in the way or read; see `quantize`."""
    path = Path(given) if isinstance(given, str | Path) else None
    destination.timing.check(destination.path, (path, *destination.reads))
    progress.step("load")
    model = read_model(given)
    refuse_own_output(model)
    progress.step("plan")
    return model


def _check_request(prepared: Prepared, request: Request, destination: _Destination) -> None:
    """Refuse what cannot come to an end, before any work.

    Raises:
        DataError: There are no data for the plan or the metric, or they lack labels.
        NothingToQuantize: The plan changes nothing.
        OutputError: The result would be too large to stay in memory.

    """
    if destination.path is None and prepared.strategy is Strategy.STREAMED:
        raise OutputError("the result is too large to stay in memory", "Give an output.")
    check_plan(prepared, with_data=prepared.plan.with_data)
    check_caches(prepared, request.samples)
    _check_least_size(prepared, request.budget.max_size)
    metric, samples = request.budget.metric, request.samples
    if metric is None:
        return
    if samples is None:
        raise DataError("a metric needs data: random numbers have no right answers", "Add --data.")
    check_labels(metric, samples)


def _check_least_size(prepared: Prepared, most: int | None) -> None:
    """Refuse a size that not even weights of `FEWEST_BITS` would keep to, before a search for it.

    Raises:
        CheckFailed: It is smaller.

    """
    least = prepared.model.weight_bytes * FEWEST_BITS // FLOAT_BITS
    if most is not None and most < least:
        needs = f"the weights alone take {size(least)} in {FEWEST_BITS} bits"
        hint = f"Write a unit, as in {most}MB." if most < LEAST_PLAUSIBLE else "Allow a larger file."
        raise CheckFailed(f"no model has {counted(most, 'byte')} or fewer: {needs}", hint)


def _check_data(prepared: Prepared, request: Request) -> None:
    """Refuse data whose first sample does not fit, and statistics of another model."""
    if request.samples is not None:
        next(iter(request.samples))
    if isinstance(request.stats, str | Path):
        load_stats(request.stats, expected=prepared.identity)


@contextmanager
def _examining(before: Model, prepared: Prepared, request: Request) -> Iterator[Callable[[], Examination]]:
    """Look at the samples, with BatchNormalization as it was in the float model, while the rest goes on."""
    if request.samples is None:
        yield Examination
        return
    request.observer.step("examine")
    calibrating = request.stats is None and bool(prepared.plan.calibrated())
    progress = request.observer.progress
    with examining(before, request.samples, calibrating=calibrating, judging=True, progress=progress) as seen:
        yield seen


@contextmanager
def _blaming(seen: Callable[[], Examination]) -> Iterator[None]:
    """Add what looked wrong about the samples to an error: it may come from them."""
    try:
        yield
    except OnnxqError as error:
        error.warnings = warnings = seen().warnings
        failed = next((warning for warning in warnings if warning.code == "not-run"), None)
        if failed is not None and isinstance(error.__cause__, SessionError):  # it says the same
            error.warnings = tuple(warning for warning in warnings if warning is not failed)
            error.hint = failed.remedy
        raise


def _for_this_computer(prepared: Prepared, request: Request) -> Quantized:
    """Quantize, and once more to compute in float where that is measured here, and is not faster."""
    spare = stored_copy(prepared)
    result = quantize_prepared(prepared, request)
    slower = slower_here(result.report.comparison)
    if spare is None or slower is None:
        return result
    return quantize_prepared(replace(spare, notes=(*spare.notes, slower)), request)


def _with_examination(report: Report, seen: Examination, request: Request) -> Report:
    """Add what the samples look like to a report."""
    warnings = (*report.data_warnings, *seen.warnings)
    made_up = request.samples is None
    return replace(report, inputs=seen.inputs, data_warnings=warnings, pictures=seen.pictures, made_up=made_up)


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


def _write(result: Quantized, destination: _Destination, request: Request) -> Report:
    """Write a quantized model that is accepted, and say in the report where, after how long, and by what samples."""
    observer, budget, samples, path = request.observer, request.budget, request.samples, destination.path
    observer.step("save")
    if path is None:
        encoded = result.encoded or result.model.serialize()
        report = replace(result.report, encoded=encoded, output_bytes=len(encoded))
    else:
        external = destination.external_data
        files = save(result.model, path, force=destination.force, external_data=external, encoded=result.encoded)
        remove_checkpoint(checkpoint_folder(path))
        total = sum(file.stat().st_size for file in files)
        report = replace(result.report, output=path, files=tuple(files), output_bytes=total)
    notes = (*report.notes, *size_note(result.model, report.source_bytes, report.output_bytes or 0))
    report = with_hazards(replace(report, notes=notes), result.model)
    limits = {"min_sqnr": budget.min_sqnr, "max_drop": budget.max_drop}
    kept = limits_kept(report.comparison, report.output_bytes, max_size=budget.max_size, **limits)
    made = datetime.now(UTC).isoformat(timespec="seconds")
    report = replace(report, seconds=observer.seconds(), budget=kept, made=made)
    if samples is None:
        return report
    calibrated = report.calibration_samples or samples.count
    return replace(report, calibration_samples=calibrated, preparations=samples.preparations)
