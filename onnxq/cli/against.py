"""`onnxq verify --against`: both models side by side, and what the thresholds say.

Tests: `tests/cli/test_cli_looking.py`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from onnxq.cli.options import Format

if TYPE_CHECKING:
    from onnxq.cli.runtime import Runtime
    from onnxq.data.input_summary import InputSummary
    from onnxq.data.reading import Reading
    from onnxq.ir import Model
    from onnxq.verification.families import FamilyFigures
    from onnxq.verification.records import Comparison
    from onnxq.warning import WarningLine

MOST_MISSED = 5  # sentences on stderr; the rest is counted


class Compared(NamedTuple):
    """The figures and warnings about two models."""

    comparison: Comparison
    data: str
    runtime: Runtime
    families: tuple[FamilyFigures, ...]
    inputs: tuple[InputSummary, ...]
    warnings: tuple[WarningLine, ...]


def check_options(given: Mapping[str, object], against: Path | None, data: list[str]) -> None:
    """Refuse options that need another one, and limits that are no numbers."""
    from onnxq.errors import RecipeError

    if against is None:
        for name, value in given.items():
            if value is not None:
                option = "--no-layers" if value is False else "--" + name.replace("_", "-")
                raise RecipeError(f"{option} needs a float model to compare with", "Add --against FLOAT.")
    for name, value in given.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise RecipeError(f"--{name.replace('_', '-')} is {value}, not a finite number", "Give a number.")
    if given["max_drop"] is not None and given["metric"] is None:
        raise RecipeError("--max-drop needs a metric that could drop", "Add --metric, such as --metric top1.")
    if given["metric"] is not None and not data:
        raise RecipeError("--metric needs data: random numbers have no right answers", "Add --data.")


def verify_against(
    model: Path,
    against: Path,
    data: list[str],
    limit: int | None,
    limits: Mapping[str, float | None],
    metric: str | None,
    layers: bool | None,
    output_format: Format,
    target: str | None,
    reading: Reading,
) -> None:
    """Compare two models, show how, and say which thresholds are missed: on this processor, or on those of a target."""
    from onnxq.cli.terminal import warn
    from onnxq.errors import CheckFailed
    from onnxq.report.result_warnings import USELESS
    from onnxq.targets.target import load_target

    if target is not None:
        load_target(target)  # refuses unknown names before any work
    found = _compare(model, against, data, limit, metric, target, reading, with_layers=layers is not False)
    bare = bool(data) and all(value is None for value in limits.values())  # random numbers may give less
    missed = found.comparison.missed(**({**limits, "min_sqnr": USELESS} if bare else limits))
    if target is not None:
        missed += _missed_there(found.families, limits["min_sqnr"])
    _write(model, against, found, missed, output_format, every_layer=bool(layers))
    warn(found.warnings)
    if missed:
        more = f"; and {len(missed) - MOST_MISSED} more" if len(missed) > MOST_MISSED else ""
        hint = f"Without thresholds, {USELESS:g} dB are asked for: give --min-sqnr for less." if bare else ""
        raise CheckFailed(f"{model}: {'; '.join(missed[:MOST_MISSED])}{more}", hint)


def _missed_there(families: Sequence[FamilyFigures], least: float | None) -> list[str]:
    """Say on which families the SQNR is less than it is to be, or is not known."""
    if least is None:
        return []
    return [
        f"SQNR on {family.family} is "
        + ("not known" if family.sqnr is None else f"{family.sqnr:.1f} dB, not {least:g}")
        for family in families
        if family.sqnr is None or family.sqnr < least
    ]


def _compare(
    path: Path,
    against: Path,
    data: list[str],
    limit: int | None,
    metric: str | None,
    target: str | None,
    reading: Reading,
    *,
    with_layers: bool,
) -> Compared:
    from onnxq.cli.runtime import look
    from onnxq.cli.terminal import TerminalObserver
    from onnxq.cli.verify_inputs import check_form, choose_samples
    from onnxq.data.examine import examine
    from onnxq.errors import CheckFailed
    from onnxq.ir import load
    from onnxq.ir.passes import normalise
    from onnxq.progress import following
    from onnxq.report.result_warnings import result_warnings
    from onnxq.runtime.session import ModelSource
    from onnxq.verification import layerwise
    from onnxq.verification.compare import compare
    from onnxq.verification.families import family_figures, recorded_latencies, recorded_target
    from onnxq.verification.user_metric import check_labels, compare_metric, load_metric

    with TerminalObserver() as observer, following(observer):
        if metric is not None:
            load_metric(metric)  # refuses unknown names before any work
        observer.step("load")
        quantized, baseline = load(path), load(against)
        check_form(path, quantized)
        _note_another_source(path, quantized, against, baseline)
        swapped = swapped_models(path, quantized, against, baseline)
        samples = choose_samples(baseline, data, limit, reading)
        if metric is not None:
            check_labels(metric, samples)
        observer.step("examine")
        seen = examine(baseline, samples, calibrating=False, progress=observer.progress)
        listed = normalise(baseline, needs=("drop_initializer_inputs",))  # or onnxruntime would not fold constants
        source: ModelSource = baseline if listed else against
        observer.step("verify")
        comparison = compare(source, path, samples, progress=observer.progress, blame=CheckFailed)
        if metric is not None:
            observer.step("metric")
            measured = compare_metric(metric, source, path, samples, progress=observer.progress)
            comparison = replace(comparison, metric=measured)
        if with_layers:
            observer.step("layers")
            normalise(baseline)
            comparison = layerwise.with_layers(comparison, baseline, quantized, samples)
        observer.step("families")
        asked = target or recorded_target(quantized)
        compared = (source, quantized, samples, comparison.worst_sqnr, recorded_latencies(quantized))
        families = family_figures(asked, *compared)
        found = result_warnings(comparison, families, made_up=samples.made_up, for_size=_is_for_size(quantized))
        warnings = (*swapped, *seen.warnings, *found)
        return Compared(comparison, samples.description, look(path, quantized), families, seen.inputs, warnings)


def _note_another_source(path: Path, quantized: Model, against: Path, baseline: Model) -> None:
    """Say that a model was made from another file than it is compared with."""
    from onnxq.cli.terminal import note

    made_from = quantized.metadata.get("onnxq_source_sha256")
    if made_from is not None and made_from != baseline.sha256:
        note(f"{path} says that it was made from another file than {against}")


def _is_for_size(model: Model) -> bool:
    """Whether onnxq has quantized nothing but weights, which is done for the size."""
    from onnxq.errors import OnnxqError
    from onnxq.planning.recipe import parse_recipe
    from onnxq.report.records import WEIGHT_ONLY

    recipe = model.metadata.get("onnxq_recipe")
    try:
        return recipe is not None and parse_recipe(recipe, "metadata").scheme.name.startswith(WEIGHT_ONLY)
    except OnnxqError:
        return False


def swapped_models(path: Path, model: Model, against: Path, baseline: Model) -> list[WarningLine]:
    """Say that the model is float and the one that it is compared with is quantized."""
    from onnxq.verification.ort_graph import quantized_already
    from onnxq.warning import WarningLine

    found = quantized_already(baseline)
    if not found or quantized_already(model) or _stored(model):
        return []
    message = f"{path} is not quantized, and {against} is ({found}): the quantized model goes first"
    return [WarningLine("swapped-models", message, f"Write `onnxq verify {against} --against {path}`.")]


def _stored(model: Model) -> bool:
    """Whether a model holds weights in few bits, which an operator of float models gives their type."""
    from onnx import TensorProto

    small = (TensorProto.INT8, TensorProto.UINT8, TensorProto.INT4, TensorProto.UINT4)
    weights = (value for value in model.initializers() if value.tensor is not None and value.tensor.dtype in small)
    return any(use.node.op_type == "Cast" for value in weights for use in value.uses)


def _write(
    model: Path,
    against: Path,
    found: Compared,
    missed: list[str],
    output_format: Format,
    *,
    every_layer: bool,
) -> None:
    from onnxq.cli.details.layer_tables import layer_tables
    from onnxq.cli.runtime import runtime_tables
    from onnxq.cli.tables import comparison_tables, family_tables, input_table, latency_table, metric_table
    from onnxq.cli.terminal import show
    from onnxq.report import SCHEMA, comparison_dict, to_json
    from onnxq.report.as_json import record_dict

    comparison, description, runtime, families, inputs, warnings = found
    if output_format is Format.JSON:
        result = {"model": str(model), "against": str(against), "passed": not missed, "missed": missed}
        compared: dict[str, object] = {"comparison": comparison_dict(comparison, description)}
        compared["families"] = [record_dict(family) for family in families]
        compared["inputs"] = [asdict(one) for one in inputs]
        compared["warnings"] = [asdict(warning) for warning in warnings]
        sys.stdout.write(to_json({"schema": SCHEMA, **result, **compared, **runtime.as_dict()}))
        return
    show(input_table(inputs), "")
    show(*comparison_tables(comparison, description), "", *latency_table(comparison))
    if comparison.metric is not None:
        show("", metric_table(comparison.metric))
    if families:
        show("", *family_tables(families, comparison.latency))
    tables = list(runtime_tables(runtime))
    if tables:
        show("", *tables)
    if comparison.layers or comparison.no_layers:
        show("", *layer_tables(comparison, every=every_layer))
