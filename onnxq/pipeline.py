"""The table of contents: load → normalise → plan → calibrate → rewrite → verify → save → report."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from onnxq.errors import CheckFailed, DataError, NothingToQuantize, OutputError
from onnxq.ir import Model, Value, check_output, load, save
from onnxq.ir.opset import check_loadable, raise_opset
from onnxq.ir.passes import normalise
from onnxq.ir.types import infer_types
from onnxq.observer import Observer, Silent
from onnxq.quant.calibrate import calibrate
from onnxq.quant.layers import MeasuredLayers
from onnxq.quant.plan import Plan
from onnxq.quant.plan import make_plan as decide
from onnxq.quant.qparams import QParams, activation_qparams
from onnxq.quant.ranges import choose_range
from onnxq.quant.recipe import Recipe, load_recipe
from onnxq.quant.rewrite import rewrite
from onnxq.quant.samples import Samples, input_specs, open_samples, random_samples, wrap_samples
from onnxq.quant.stats import Stats
from onnxq.quant.stats_file import load_stats
from onnxq.quant.weights import Weights
from onnxq.report import Report
from onnxq.verify import Comparison, compare
from onnxq.version import __version__

PLAN_HINT = "See every node's reason with `onnxq plan`."
DATA_HINT = "Add --data, or use the recipe dynamic-int8, which needs none."
RANDOM_SAMPLES = 4  # without data: enough to time a model and to see that it runs


@dataclass(frozen=True)
class Prepared:
    """A float model that is ready to be quantized, and what will happen to it.

    Attributes:
        source: SHA-256 of the file it was read from, as hexadecimal digits.
        model: The normalised float model, types inferred.
        plan: A decision for every node.
        notes: What normalising did, a sentence each.

    """

    source: str
    model: Model
    plan: Plan
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Quantized:
    """A quantized model that ran: the model, its bytes, how it compares with float, and on what samples."""

    model: Model
    encoded: bytes
    comparison: Comparison
    samples: str


def quantize(
    model: str | Path,
    recipe: str | Path | Recipe = "auto",
    *,
    output: str | Path | None = None,
    data: Sequence[str | Path] = (),
    samples: object = None,
    stats: str | Path | Stats | None = None,
    exclude: Sequence[str] = (),
    only: Sequence[str] = (),
    min_sqnr: float | None = None,
    sample_limit: int | None = None,
    force: bool = False,
    dry_run: bool = False,
    external_data: bool | None = None,
    observer: Observer | None = None,
) -> Report:
    """Quantize a model, check the result, and write it.

    Args:
        model: Path of a float ONNX model.
        recipe: Name of a recipe, path of a TOML file, or a `Recipe`.
        output: Where to write; `MODEL.int8.onnx` beside the input by default.
        data: Calibration data: `.npz` files, folders, `package.module:function`.
        samples: Instead of `data`: an iterable of `{input name: array}`, or a function that gives one.
        stats: Instead of a calibration run: statistics of an earlier one.
        exclude: Globs of nodes to leave float.
        only: Globs of nodes to quantize.
        min_sqnr: Least signal-to-quantization-noise ratio of every output in dB.
        sample_limit: Use at most this many samples.
        force: Replace an old output.
        dry_run: Stop after the plan; nothing is written.
        external_data: Put weights into `OUTPUT.data`; by default only beyond 2 GiB.
        observer: Told about each step.

    Raises:
        OnnxqError: See `onnxq.errors`; nothing was written then.

    """
    watch, target = observer or Silent(), Path(output or default_output(Path(model)))
    if not dry_run:
        check_target(Path(model), target, force=force)
    with uncollected():
        watch.step("load")
        source = load(model)
        watch.step("plan")
        with_data = bool(data) or samples is not None or stats is not None
        ready = prepare(source, recipe, with_data=with_data, exclude=exclude, only=only)
        given = open_data(ready.model, data, samples, sample_limit)
        report = Report.planned(ready.plan, source=Path(model), notes=ready.notes)
        if not ready.plan.quantized():
            raise NothingToQuantize(f"no node of {model} can be quantized: {_reasons(ready.plan)}", PLAN_HINT)
        if dry_run:
            return report
        if ready.plan.calibrated() and not with_data:
            raise DataError(f"recipe {ready.plan.recipe.name} needs data to calibrate with", DATA_HINT)
        result = carry_out(ready, given, stats, watch)
        check_budget(result.comparison, min_sqnr, target)
        watch.step("save")
        files = save(result.model, target, force=force, external_data=external_data, encoded=result.encoded)
    return replace(report, output=target, files=tuple(files), comparison=result.comparison, samples=result.samples)


def prepare(
    model: Model,
    recipe: str | Path | Recipe = "auto",
    *,
    with_data: bool,
    exclude: Sequence[str] = (),
    only: Sequence[str] = (),
) -> Prepared:
    """Normalise a loaded model as far as the recipe needs, and decide about every node."""
    check_loadable(model)
    source = model.sha256
    chosen = (recipe if isinstance(recipe, Recipe) else load_recipe(recipe)).selecting(exclude, only)
    notes = tuple(normalise(model))
    infer_types(model)
    plan = decide(model, chosen, with_data=with_data)
    if plan.opset > model.opset:
        notes += (f"opset raised from {model.opset} to {plan.opset}",)
        model = raise_opset(model, plan.opset)
        notes += tuple(normalise(model))
        infer_types(model)
        plan = decide(model, chosen, with_data=with_data)
    return Prepared(source, model, plan, notes)


def carry_out(ready: Prepared, given: Samples | None, stats: str | Path | Stats | None, watch: Observer) -> Quantized:
    """Calibrate, rewrite, and compare the result with the float model; nothing is written."""
    watch.step("calibrate")
    layers = layers_to_measure(ready.plan)
    measured = measure(ready, layers, given, stats, watch)
    qparams = choose_qparams(ready.plan, measured)
    watch.step("round")
    weights = Weights(ready.plan, qparams, measured, layers)
    watch.step("rewrite")
    baseline = ready.model.serialize()
    probe = given if given is not None else random_samples(input_specs(ready.model), RANDOM_SAMPLES)
    model = stamp(rewrite(ready.model, ready.plan, qparams, weights), ready)
    watch.step("verify")
    encoded = model.serialize()
    return Quantized(model, encoded, compare(baseline, encoded, probe, progress=watch.progress), probe.description)


def check_budget(comparison: Comparison, min_sqnr: float | None, target: Path) -> None:
    """Refuse a result that loses more than the caller allows."""
    if min_sqnr is not None and comparison.worst_sqnr < min_sqnr:
        raise CheckFailed(
            f"{target} would have {comparison.worst_sqnr:.1f} dB, below the {min_sqnr:g} dB asked for",
            "Nothing was written. Leave sensitive nodes float with --exclude, or give more data.",
        )


def layers_to_measure(plan: Plan) -> MeasuredLayers:
    """Name the layers whose weights are rounded by what they read."""
    return MeasuredLayers(d.node for d in plan.decisions if d.settings and d.settings.rounding == "output-error")


def choose_qparams(plan: Plan, stats: Stats) -> dict[Value, QParams]:
    """Turn the statistics of every calibrated value into its scale and zero point."""
    values = plan.calibrated()
    stats.require(value.name for value in values)
    chosen: dict[Value, QParams] = {}
    for value in values:
        settings = plan.range_settings(value)
        low, high = choose_range(stats[value.name], settings.ranges, percentile=settings.percentile)
        chosen[value] = activation_qparams(low, high)
    return chosen


def default_output(model: Path) -> Path:
    """Where the quantized model goes when nobody says: `MODEL.int8.onnx` beside the float one."""
    return model.parent / (model.name.removesuffix(".onnx") + ".int8.onnx")


def check_target(model: Path, target: Path, *, force: bool) -> None:
    """Refuse an output that is in the way, or that is the input itself, before any work is done."""
    check_output(target, force=force)
    if target.exists() and model.exists() and target.samefile(model):
        raise OutputError(f"{target} is the model that is to be read", "Choose another place with --output.")


def open_data(model: Model, data: Sequence[str | Path], samples: Any, limit: int | None) -> Samples | None:
    """Open the samples that the caller gave, in whatever form; None where there are none."""
    if data and samples is not None:
        raise DataError("both files and samples are given as data", "Give one of them.")
    if not data and samples is None:
        if limit is not None:
            raise DataError("a number of samples is asked for, but no data is given", "Add --data.")
        return None
    inputs = input_specs(model)
    opened = wrap_samples(samples, inputs) if samples is not None else open_samples(data, inputs)
    return opened if limit is None else opened.limit(limit)


def measure(
    ready: Prepared, layers: MeasuredLayers, samples: Samples | None, stats: str | Path | Stats | None, watch: Observer
) -> Stats:
    """Give the statistics that the plan needs: those that the caller has, or those of one pass over the samples."""
    values = [*ready.plan.calibrated(), *layers.values]
    if isinstance(stats, Stats):
        return stats
    if stats is not None:
        return load_stats(stats, expected=ready.source)[0]
    if not values or samples is None:
        return Stats()
    return calibrate(ready.model, values, samples, progress=watch.progress, kinds=layers.kinds)


def stamp(model: Model, ready: Prepared) -> Model:
    """Record in the quantized model what made it."""
    model.metadata["onnxq_version"] = __version__
    model.metadata["onnxq_recipe"] = ready.plan.recipe.to_toml()
    model.metadata["onnxq_source_sha256"] = ready.source
    return model


def _reasons(plan: Plan) -> str:
    return "; ".join(f"{reason} ({count})" for reason, count in list(plan.reasons().items())[:3])


@contextmanager
def uncollected() -> Iterator[None]:
    """Switch the cyclic collector off: a graph is all alive, and scanning it over and over costs quadratic time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
