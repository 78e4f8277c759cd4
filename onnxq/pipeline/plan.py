"""The first half of the pipeline: a model is loaded, prepared, and planned; nothing is carried out.

load → normalise → simplify → plan

Tests: `tests/pipeline/test_plan.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from onnx import TensorProto

from onnxq.calibration.stats import Stats
from onnxq.calibration.stats_file import load_stats
from onnxq.data.examine import unused_options
from onnxq.data.reading import PLAIN, Reading
from onnxq.data.samples import Samples, list_sources
from onnxq.errors import DataError, ModelError, NothingToQuantize
from onnxq.ir import Model, ModelInput, read_model
from onnxq.planning.planner import NOT_FASTER
from onnxq.planning.recipe import Recipe, choose_recipe
from onnxq.progress import Observer, following
from onnxq.report import Report
from onnxq.runtime.custom_ops import check_runs
from onnxq.search.candidates import float_time
from onnxq.search.held_out import HoldoutSplit
from onnxq.search.sensitivity import sensitivity as node_sensitivity
from onnxq.search.trials.float_transforms import transform_values
from onnxq.search.variants import calibrate_and_round
from onnxq.stages.files import DataOptions, open_data
from onnxq.stages.kernel_timing import Timing, replan_with_sample_shapes, replan_with_timings
from onnxq.stages.prepare import node_labels, prepare
from onnxq.stages.prepared import Prepared
from onnxq.stages.strategy import Strategy
from onnxq.verification.ort_graph import quantized_already

PLAN_HINT = "See every node's reason with `onnxq plan`."
DATA_HINT = "Add --data, or use the recipe dynamic-int8, which needs none."
NO_TIMING = Timing()


def plan(
    model: ModelInput,
    recipe: str | Path | Recipe = "auto",
    *,
    data: str | Path | Sequence[str | Path] = (),
    reading: Reading = PLAIN,
    samples: object = None,
    stats: str | Path | None = None,
    exclude: str | Sequence[str] = (),
    only: str | Sequence[str] = (),
    sample_limit: int | None = None,
    timing: Timing = NO_TIMING,
    sensitivity: bool = False,
    observer: Observer | None = None,
) -> Report:
    """Decide about every node; nothing is written.

    Args:
        model: A float ONNX model: its path, a ModelProto, or loaded.
        recipe: Name of a recipe, path of a TOML file, or a `Recipe`.
        data: Calibration data, one or several: with data or statistics, the plan is a static one. They are opened, and
            the first sample is run where the model leaves sizes open.
        reading: How data that are no arrays become samples.
        samples: Instead of `data`: as for `onnxq.quantize`.
        stats: Instead of data: statistics of an earlier calibration.
        exclude: A glob of nodes to leave float, or several.
        only: A glob of nodes to quantize, or several.
        sample_limit: Use no more samples.
        timing: Kernel times to decide by.
        sensitivity: Run variants of the model on the data, to see what each node adds to the error of the outputs.
        observer: Told about each step.

    Returns:
        A report without an output: every node with its scheme and the reason.

    Raises:
        ModelError: The model cannot be read.
        DataError: The data do not fit the model, or `sensitivity` has none.
        RecipeError: The recipe is wrong.

    Examples:
        >>> import onnxq
        >>> report = onnxq.plan("model.onnx", "static-int8", data="calibration.npz")
        >>> [(node.op_type, node.scheme) for node in report.nodes][:2]
        [('Conv', 'static-int8'), ('Relu', 'static-int8')]

    """
    given = DataOptions(list_sources(data), samples, sample_limit, reading, None if sensitivity else 1)
    with following(observer) as observer:
        observer.step("load")
        source = read_model(model)
        observer.step("plan")
        chosen = choose_recipe(recipe, exclude=exclude, only=only)
        prepared, opened = prepare_with_data(source, chosen, given, stats, timing, observer)
        if stats is not None:
            load_stats(stats, expected=prepared.identity)
        return measure_sensitivity(prepared, opened, stats, observer) if sensitivity else plan_report(prepared)


def prepare_with_data(
    source: Model,
    recipe: Recipe,
    data: DataOptions,
    stats: str | Path | Stats | None,
    timing: Timing,
    observer: Observer,
    *,
    max_size: int | None = None,
    fast: bool = False,
) -> tuple[Prepared, Samples | None]:
    """Plan, open the data, and replan with the shapes of the first sample and with measured times.

    Args:
        source: The model, which is changed.
        recipe: The recipe with all options.
        data: What to calibrate with.
        stats: Statistics of an earlier calibration stand for samples: then no sample says shapes.
        timing: Kernel times to decide by.
        observer: Told about steps.
        max_size: Bytes that the file may have.
        fast: Whether to leave out all that takes trials.

    Returns:
        The model with its plan, and the opened samples.

    """
    prepared = prepare(source, recipe, with_data=data.given or stats is not None, fast=fast, max_size=max_size)
    given = open_data(prepared.model, *data)
    if given is not None:
        prepared = replace(prepared, warnings=(*prepared.warnings, *unused_options(given)))
    prepared = replan_with_sample_shapes(prepared, given if stats is None else None, max_size)
    return replan_with_timings(prepared, given, timing, observer, max_size), given


def plan_report(prepared: Prepared) -> Report:
    """Begin the report: what is going to happen to which node."""
    source, size = prepared.path, prepared.source_bytes
    report = Report.planned(prepared.plan, source=source, source_bytes=size, notes=prepared.notes)
    return replace(report, data_warnings=prepared.warnings)


def check_plan(prepared: Prepared, *, with_data: bool) -> None:
    """Refuse a plan that changes nothing, or that needs data which are not there.

    Raises:
        DataError: A node needs calibration, and there are no data.
        NothingToQuantize: All nodes stay as they are.

    """
    plan = prepared.plan
    if not plan.quantized():
        idle = plan.recipe.idle_globs(node_labels(prepared.model))
        before = quantized_already(prepared.model)
        hint = f"It is quantized already ({before}): give the float model." if before else _plan_hint(prepared)
        hint = f"{idle[0][0].upper()}{idle[0][1:]}: see their names with `onnxq plan`." if idle else hint
        raise NothingToQuantize(f"no node of {prepared.path} can be quantized: {_reasons(prepared)}", hint)
    if plan.calibrated() and not with_data:
        raise DataError(f"recipe {plan.recipe.name} needs data to calibrate with", DATA_HINT)


def _plan_hint(prepared: Prepared) -> str:
    """Say what can be done about a model of which nothing can be quantized."""
    model, plan = prepared.model, prepared.plan
    if not model.graph.outputs:
        return "Export it again with its outputs."
    if _classical(prepared):
        return "Nothing is to be done: onnxruntime has no 8-bit kernels for trees and linear models of ai.onnx.ml."
    types = {value.dtype for node in model.graph.nodes for value in node.reads}
    if TensorProto.DOUBLE in types and TensorProto.FLOAT not in types:
        return "Export it in float32: no float64 is quantized."
    layout = next((warning for warning in prepared.warnings if warning.code == "processor-layout"), None)
    if layout is not None:
        return f"{layout.message}. {layout.remedy}"
    if NOT_FASTER in plan.reasons() and plan.recipe.name == "auto":
        return f"--recipe static-int8 or dynamic-int8 quantizes it all the same. {PLAN_HINT}"
    return PLAN_HINT


def _classical(prepared: Prepared) -> list[str]:
    """List operators of trees, linear models and support vectors in a model without weights of its own."""
    if prepared.model.weight_bytes:
        return []
    nodes = (node for node in prepared.model.graph.nodes if node.domain == "ai.onnx.ml")
    return sorted({node.op_type for node in nodes if node.op_type.endswith(("Classifier", "Ensemble", "Regressor"))})


def _reasons(prepared: Prepared) -> str:
    model, plan = prepared.model, prepared.plan
    if not model.graph.outputs:
        return "it has no outputs"
    if not model.weight_bytes:
        made = (value.producer or value.tensor or value.is_input for value in model.graph.values.values())
        sparse = not all(made)
        if classical := _classical(prepared):
            return f"its weights are attributes of {', '.join(classical)}"
        return "its weights are sparse initializers" if sparse else "it has no weights"
    reasons = [f"{reason} ({count})" for reason, count in list(plan.reasons().items())[:3]]
    return "; ".join(reasons) or "it has none"


def measure_sensitivity(
    prepared: Prepared, samples: Samples | None, stats: str | Path | Stats | None, observer: Observer
) -> Report:
    """Measure what each quantized node would add to the error of the outputs; nothing is written."""
    if samples is None:
        raise DataError("what a node adds to the error shows on data only", "Add --data.")
    check_plan(prepared, with_data=True)
    check_runs(prepared.model)
    if prepared.strategy is Strategy.STREAMED:
        raise ModelError(f"{prepared.path} is too large to run it many times", "Leave --sensitivity out.")
    split = HoldoutSplit(prepared.model.copy(), samples, float_time(prepared.plan))
    if stats is None:
        prepared = transform_values(prepared, split, observer)
    variants = calibrate_and_round(prepared, split, samples, stats, observer)
    observer.step("search")
    return replace(plan_report(prepared), sensitivity=node_sensitivity(variants))
