"""Compare a quantized model with its float model, or check it alone, as `onnxq verify` does.

Tests: `tests/api/test_api_models.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import permutations
from pathlib import Path
from typing import Any

import onnx

from onnxq.api.runtime import Runtime, look
from onnxq.calibration.nonfinite_weights import blaming_weights
from onnxq.data.examine import examine
from onnxq.data.input_summary import InputSummary
from onnxq.data.reading import PLAIN, Reading
from onnxq.data.samples import Samples, input_specs, list_sources
from onnxq.data.synthetic import synthetic_samples
from onnxq.errors import CheckFailed, ModelError, OnnxqError, RecipeError
from onnxq.ir import IN_MEMORY, Model, ModelInput, infer_types, read_model
from onnxq.ir.invariants import objection
from onnxq.ir.passes import normalise
from onnxq.ir.schemas import misused_node
from onnxq.lowering.coded_caches import coded_attentions, with_float_caches
from onnxq.lowering.prompt_branch import without_prompt_branch
from onnxq.planning.recipe import parse_recipe
from onnxq.progress import Observer, Progress, following
from onnxq.project.provenance import external_files
from onnxq.report.as_json import comparison_dict, engines_dict, record_dict
from onnxq.report.records import WEIGHT_ONLY
from onnxq.report.result_warnings import USELESS, result_warnings
from onnxq.runtime.session import ModelSource
from onnxq.stages.files import is_own_output, open_data
from onnxq.targets.target import load_target
from onnxq.text import join_words, shell_path
from onnxq.verification.calibrated_ranges import calibration_warnings
from onnxq.verification.compare import check_loaded, check_wellformed, compare
from onnxq.verification.decoding import measure_decoding
from onnxq.verification.engines import EngineCheck, check_engines
from onnxq.verification.families import (
    FamilyFigures,
    SaturatingFamilies,
    family_figures,
    recorded_latencies,
    recorded_target,
    saturation_loss,
)
from onnxq.verification.layerwise import with_layers
from onnxq.verification.ort_graph import holds_codes, quantized_already
from onnxq.verification.output_records import wrong_limit
from onnxq.verification.records import Comparison
from onnxq.verification.user_metric import (
    Metric,
    check_drop,
    check_labels,
    compare_metric,
    load_metric,
    try_metric,
)
from onnxq.verification.wellformed import find_defects
from onnxq.warning import WarningLine

RANDOM_SAMPLES = 8
AGAIN = "Export or quantize it again."


@dataclass(frozen=True)
class Verification:
    """Findings of `verify`.

    Attributes:
        model: The file of the model; `the model` where it has none.
        against: The file of the float model, likewise; None where the model was looked at alone.
        missed: A sentence for each threshold that is missed, and for engines that differ; empty where all is well.
        bare: Whether no threshold was given: an output of less than 10 dB counts as missed then.
        data: What the models ran on, for example `100 samples from calib.npz`.
        made_up: Whether the samples are random numbers, which say little about accuracy.
        comparison: Float against quantized; None where the model was looked at alone.
        engines: onnxruntime against the reference evaluator; None where two models were compared.
        families: SQNR and latency on each family of processors.
        inputs: What the samples hold for each input.
        warnings: What should be known before the result is used.
        runtime: What onnxruntime makes of the model.

    """

    model: Path
    against: Path | None
    missed: tuple[str, ...]
    bare: bool
    data: str
    made_up: bool
    comparison: Comparison | None
    engines: EngineCheck | None
    families: tuple[FamilyFigures, ...]
    inputs: tuple[InputSummary, ...]
    warnings: tuple[WarningLine, ...]
    runtime: Runtime

    @property
    def passed(self) -> bool:
        """Whether nothing is missed."""
        return not self.missed

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data for JSON: numbers that are not finite are null."""
        found = {"model": str(self.model), "against": None if self.against is None else str(self.against)}
        told: dict[str, Any] = {"passed": self.passed, "missed": list(self.missed), "comparison": None}
        if self.comparison is not None:
            told["comparison"] = comparison_dict(self.comparison, self.data)
            told["families"] = [record_dict(family) for family in self.families]
        if self.engines is not None:
            told |= {"samples": self.engines.samples, "data": self.data, "engines": engines_dict(self.engines)}
        told["inputs"] = [record_dict(one) for one in self.inputs]
        told["warnings"] = [asdict(warning) for warning in self.warnings]
        return {**found, **told, **self.runtime.as_dict()}


def verify(
    model: ModelInput,
    against: ModelInput | None = None,
    *,
    data: str | Path | Sequence[str | Path] = (),
    reading: Reading = PLAIN,
    samples: object = None,
    sample_limit: int | None = None,
    min_sqnr: float | None = None,
    max_abs: float | None = None,
    min_agreement: float | None = None,
    min_cosine: float | None = None,
    metric: str | Metric | None = None,
    max_drop: float | None = None,
    layers: bool | None = None,
    target: str | None = None,
    observer: Observer | None = None,
) -> Verification:
    """Check a model, and compare it with its float original.

    Without `against`, the model runs in onnxruntime and in the reference evaluator, which have to give the same.
    Without data, random numbers go in, which say little about accuracy.

    Args:
        model: The quantized model: its path, a ModelProto, or loaded.
        against: The float model to compare with, likewise.
        data: What samples are read from, one source or several, as for `quantize`.
        reading: How data that are no arrays become samples.
        samples: Instead of `data`: as for `onnxq.quantize`.
        sample_limit: Use no more samples.
        min_sqnr: Least signal-to-quantization-noise ratio of every output in dB.
        max_abs: Largest absolute difference of any element.
        min_agreement: Least percentage of equal decisions.
        min_cosine: Least cosine of the angle between every output and the float one.
        metric: A name such as `top1`, a function of outputs and labels, or `package.module:function`.
        max_drop: How far the metric may fall.
        layers: Whether to compare layers, too; by default where two models are compared.
        target: Hold `min_sqnr` against what the model is on processors of this target, too.
        observer: Told about each step.

    Returns:
        What was found. Thresholds that are missed are in its `missed`; nothing is raised for them.

    Raises:
        CheckFailed: The model is not well formed, does not load or run, or gives NaN or infinity.
        ModelError: A model cannot be read.
        DataError: The samples do not fit the models.
        RecipeError: A threshold needs something else that is not given.

    Examples:
        >>> import onnxq
        >>> found = onnxq.verify("small.onnx", "model.onnx", data="calibration.npz", min_sqnr=20)
        >>> found.passed, found.missed
        (True, ())

    """
    limits = {
        "min_sqnr": min_sqnr,
        "max_abs": max_abs,
        "min_agreement": min_agreement,
        "min_cosine": min_cosine,
        "max_drop": max_drop,
    }
    given = _Given(list_sources(data), reading, samples, sample_limit)
    _check_options({**limits, "metric": metric, "layers": layers, "target": target}, against, given)
    with following(observer) as progress:
        if against is None:
            return _alone(model, given, progress)
        found = _compare(model, against, given, metric, target, progress, with_layers=layers is not False)
    bare = given.is_given and all(limit is None for limit in limits.values())  # random numbers may give less
    assert found.comparison is not None
    missed = found.comparison.missed(**({**limits, "min_sqnr": USELESS} if bare else limits))
    if target is not None:
        missed += _missed_there(found.families, USELESS if bare else min_sqnr)
    return replace(found, missed=tuple(missed), bare=bare)


@dataclass(frozen=True)
class _Given:
    """Sources of samples."""

    data: Sequence[str | Path]
    reading: Reading
    samples: object
    limit: int | None

    @property
    def is_given(self) -> bool:
        return bool(self.data) or self.samples is not None

    def open(self, model: Model) -> Samples:
        """Open the data, or make up random samples where there are none."""
        infer_types(model)
        found = open_data(model, self.data, self.samples, self.limit, self.reading)
        return found if found is not None else synthetic_samples(model, input_specs(model), RANDOM_SAMPLES)


def _check_options(given: Mapping[str, object], against: ModelInput | None, data: _Given) -> None:
    """Refuse options that need another one, and limits that are no numbers."""
    if against is None:
        for name, value in given.items():
            if value is not None:
                option = "--no-layers" if value is False else "--" + name.replace("_", "-")
                raise RecipeError(f"{option} needs a float model to compare with", "Add --against FLOAT.")
    for name, value in given.items():
        if isinstance(value, int | float) and not isinstance(value, bool) and (wrong := wrong_limit(name, value)):
            option = "--" + name.replace("_", "-")
            raise RecipeError(f"{option} is {value:g}, and has to be {wrong[0]}", f"Write {option} {wrong[1]:g}.")
    if given["max_drop"] is not None and given["metric"] is None:
        raise RecipeError("--max-drop needs a metric that could drop", "Add --metric, such as --metric top1.")
    if given["metric"] is not None:
        check_drop(given["metric"], given["max_drop"])  # type: ignore[arg-type]
    if given["metric"] is not None and not data.is_given:
        raise RecipeError("--metric needs data: random numbers have no right answers", "Add --data.")
    if isinstance(given["target"], str):
        load_target(given["target"])  # refuses unknown names before any work


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


def _alone(source: ModelInput, given: _Given, progress: Progress) -> Verification:
    """Run one model in two engines."""
    progress.step("load")
    model = read_model(source)
    _check_form(source, model, progress)
    samples = given.open(model)
    progress.step("examine")
    seen = examine(model, samples, calibrating=False, progress=progress.progress)
    warnings = (*seen.warnings, *(calibration_warnings(source, samples) if given.is_given else ()))
    progress.step("run")
    with blaming_weights(model, CheckFailed, CheckFailed):
        check = check_engines(source, samples, progress=progress.progress, blame=CheckFailed)
    return Verification(
        model=model.path or IN_MEMORY,
        against=None,
        missed=(check.objection,) if check.objection else (),
        bare=False,
        data=samples.description,
        made_up=samples.made_up,
        comparison=None,
        engines=check,
        families=(),
        inputs=seen.inputs,
        warnings=warnings,
        runtime=look(source, model),
    )


def _compare(
    model: ModelInput,
    against: ModelInput,
    given: _Given,
    metric: str | Metric | None,
    target: str | None,
    progress: Progress,
    *,
    with_layers: bool,
) -> Verification:
    if metric is not None:
        load_metric(metric)  # refuses unknown names before any work
    progress.step("load")
    quantized, baseline = read_model(model), read_model(against)
    _check_form(model, quantized, progress)
    _note_another_source(quantized, baseline, progress)
    runtime = look(model, quantized)
    plain = without_prompt_branch(quantized)  # whose nodes are those of the float model, and fit into segments
    if coded_attentions(plain) and not coded_attentions(baseline):
        model = quantized = plain = with_float_caches(plain)
    elif plain is not quantized and not baseline.residency.copies:
        model = quantized = plain
    if given.is_given:
        _refuse_other_inputs(quantized, baseline)
    same = _same_models(quantized, baseline)
    mixed_up = same or _swapped_models(quantized, baseline)
    samples = given.open(baseline)
    if metric is not None:
        check_labels(metric, samples)
    progress.step("examine")
    seen = examine(baseline, samples, calibrating=False, progress=progress.progress)
    listed = normalise(baseline, needs=("drop_initializer_inputs",))  # or onnxruntime would not fold constants
    source: ModelSource = baseline if listed else against
    comparison = _measured(source, model, samples, metric, progress)
    if given.is_given and not samples.made_up:
        decoding = measure_decoding(baseline, source, model, samples, progress, [comparison.metric])
        comparison = replace(comparison, decoding=decoding)
    if with_layers and not mixed_up:
        progress.step("layers")
        comparison = _with_layers(comparison, baseline, plain, samples)
    families = _families(source, plain, samples, comparison, target, progress)
    judged = replace(comparison, latency=None) if mixed_up else comparison  # the other one's latency is no news
    found = result_warnings(judged, families, made_up=samples.made_up, for_size=_is_for_size(quantized))
    return Verification(
        model=quantized.path or IN_MEMORY,
        against=baseline.path or IN_MEMORY,
        missed=(),
        bare=False,
        data=samples.describe(comparison.samples),
        made_up=samples.made_up,
        comparison=comparison,
        engines=None,
        families=families,
        inputs=seen.inputs,
        warnings=(*mixed_up, *seen.warnings, *(() if same else found)),
        runtime=runtime,
    )


def _measured(
    source: ModelSource, model: ModelInput, samples: Samples, metric: str | Metric | None, progress: Progress
) -> Comparison:
    """Compare the outputs, and the metric if there is one."""
    if metric is not None:
        try_metric(metric, source, samples, progress.progress)
    progress.step("verify")
    comparison = compare(source, model, samples, progress=progress.progress, blame=CheckFailed)
    if metric is None:
        return comparison
    progress.step("metric")
    measured = compare_metric(metric, source, model, samples, progress=progress.progress)
    return replace(comparison, metric=measured)


def _with_layers(comparison: Comparison, baseline: Model, quantized: Model, samples: Samples) -> Comparison:
    normalise(baseline)
    if not holds_codes(quantized):
        quantized = quantized.copy()
        normalise(quantized)  # layers that one model has folded mean something else in the other
    return with_layers(comparison, baseline, quantized, samples)


def _families(
    source: ModelSource,
    quantized: Model,
    samples: Samples,
    comparison: Comparison,
    target: str | None,
    progress: Progress,
) -> tuple[FamilyFigures, ...]:
    """Measure a model on each family of processors."""
    progress.step("families")
    asked = target or recorded_target(quantized)
    latencies = recorded_latencies(quantized)
    saturating = SaturatingFamilies.of(asked, quantized)
    lost = saturation_loss(saturating, source, quantized, samples)
    return family_figures(saturating, comparison.worst_sqnr, lost, latencies)


def _check_form(source: ModelInput, model: Model, progress: Progress) -> None:
    """Refuse a model that the ONNX checker or ours objects to; what is only odd is mentioned."""
    name = model.name
    try:
        external_files(model.path or Path(), model)  # the checker has other words for one that is missing
    except ModelError as error:
        raise CheckFailed(f"{name} is not well formed: {error.message}", error.hint) from error
    wrong = misused_node(model.graph, model.opset) or _objection(source, model)
    if wrong:
        raise CheckFailed(f"{name} is no valid ONNX model: {wrong}", AGAIN)
    defects = find_defects(model)
    errors = [defect.sentence for defect in defects if defect.is_error]
    if errors:
        more = f", and {len(errors) - 1} more" if len(errors) > 1 else ""
        raise CheckFailed(f"{name} is not well formed: {errors[0]}{more}", AGAIN)
    for defect in defects:
        progress.mention(f"{name}: {defect.sentence}")


def _objection(source: ModelInput, model: Model) -> str | None:
    """Ask the ONNX checker about a file, or about a model in memory."""
    if isinstance(source, str | Path):
        return check_wellformed(Path(source))
    if isinstance(source, onnx.ModelProto):
        return objection(source.SerializeToString())
    return check_loaded(model)


def _note_another_source(quantized: Model, baseline: Model, progress: Progress) -> None:
    """Mention that a model was made from another file than it is compared with."""
    made_from = quantized.metadata.get("onnxq_source_sha256")
    if made_from is not None and made_from != baseline.sha256 != quantized.sha256:
        progress.mention(f"{quantized.name} says that it was made from another file than {baseline.name}")


def _refuse_other_inputs(quantized: Model, baseline: Model) -> None:
    """Refuse two models that do not belong together, before data are held to blame.

    Raises:
        ModelError: One takes an input that the other does not have.

    """
    names = [{spec.name for spec in input_specs(model)} for model in (quantized, baseline)]
    for (one, own), (other, its) in permutations(zip((quantized, baseline), names, strict=True)):
        if own - its:
            said = f"{one.name} takes {join_words([repr(name) for name in sorted(own - its)[:3]])}"
            told = f"{said}, and {other.name} does not: neither was made from the other"
            raise ModelError(told, "Give a quantized model, and the float model that it was made from.")


def _is_for_size(model: Model) -> bool:
    """Whether onnxq has quantized nothing but weights, which is done for the size."""
    recipe = model.metadata.get("onnxq_recipe")
    try:
        return recipe is not None and parse_recipe(recipe, "metadata").scheme.name.startswith(WEIGHT_ONLY)
    except OnnxqError:
        return False


def _same_models(model: Model, baseline: Model) -> tuple[WarningLine, ...]:
    """Say that both models are one: figures of it say nothing, and latencies differ by chance."""
    if model.sha256 != baseline.sha256:
        return ()
    one = model.name == baseline.name
    message = f"{model.name} is compared with itself" if one else f"{model.name} and {baseline.name} are the same model"
    return (WarningLine("same-model", message, "Give the float model with --against."),)


def _swapped_models(model: Model, baseline: Model) -> tuple[WarningLine, ...]:
    """Say that the model is float and the one that it is compared with is quantized."""
    made = [is_own_output(one) for one in (model, baseline)]
    found = quantized_already(baseline) or ("made by onnxq" if made[1] else "")
    if not found or made[0] or holds_codes(model):
        return ()
    message = f"{model.name} is not quantized, and {baseline.name} is ({found}): the quantized model goes first"
    first, second = shell_path(baseline.path or baseline.name), shell_path(model.path or model.name)
    return (WarningLine("swapped-models", message, f"Write `onnxq verify {first} --against {second}`."),)
