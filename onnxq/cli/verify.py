"""`onnxq verify`: whether a quantized model still does what the float one does.

Tests: `tests/cli/test_cli_help.py`.
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from onnxq.cli.completion import targets
from onnxq.cli.options import (
    Config,
    CustomOps,
    Format,
    MaxDrop,
    MetricName,
    OutputFormat,
    SampleLimit,
    TestData,
    takes_reading,
    use_custom_ops,
)
from onnxq.data.reading import PLAIN, Reading

if TYPE_CHECKING:
    from onnxq.cli.runtime import Runtime
    from onnxq.data.input_summary import InputSummary
    from onnxq.verification.engines import EngineCheck
    from onnxq.warning import WarningLine
from onnxq.cli.verify_inputs import check_form, choose_samples

Quantized = Annotated[
    list[Path],
    typer.Argument(
        metavar="MODEL",
        help="The quantized model; without it, all models of the project, against their float models.",
        show_default=False,
    ),
]
OfProject = Annotated[
    bool,
    typer.Option("--project", help="Take the arguments for changed files, and verify the models they belong to."),
]
Against = Annotated[
    Path | None,
    typer.Option("--against", metavar="FLOAT", help="The float model to compare with.", show_default=False),
]
MinSqnr = Annotated[
    float | None,
    typer.Option(
        "--min-sqnr",
        metavar="DB",
        help="Least signal-to-quantization-noise ratio of every output, in dB.",
        show_default=False,
    ),
]
MaxAbs = Annotated[
    float | None,
    typer.Option("--max-abs", metavar="X", help="Largest absolute difference of any element.", show_default=False),
]
MinAgreement = Annotated[
    float | None,
    typer.Option(
        "--min-agreement",
        metavar="P",
        min=0,
        max=100,
        help="Least percentage of equal decisions: classes of float outputs, elements of integer ones.",
        show_default=False,
    ),
]
MinCosine = Annotated[
    float | None,
    typer.Option(
        "--min-cosine",
        metavar="C",
        min=-1,
        max=1,
        help="Least cosine of the angle between every output and the float one.",
        show_default=False,
    ),
]
Layers = Annotated[
    bool | None,
    typer.Option(
        "--layers/--no-layers",
        help="Show every layer, or none; by default those that add most to the error.",
        show_default=False,
    ),
]
FamilyTarget = Annotated[
    str | None,
    typer.Option(
        "--target",
        metavar="NAME",
        help="Hold --min-sqnr against what the model is on processors of this target, too.",
        show_default=False,
        autocompletion=targets,
    ),
]
ENGINES = "Report it with the model: one of the two engines has a mistake, or the operator is defined vaguely."
MADE_UP = (
    "Numbers at random may be far from what the model is made for: give --data, and report it if it is so there, too."
)


@takes_reading
def verify(
    context: typer.Context,
    models: Quantized = [],  # noqa: B006
    against: Against = None,
    data: TestData = [],  # noqa: B006  (typer reads the default and never hands it out)
    reading: Reading = PLAIN,
    samples: SampleLimit = None,
    min_sqnr: MinSqnr = None,
    max_abs: MaxAbs = None,
    min_agreement: MinAgreement = None,
    min_cosine: MinCosine = None,
    metric: MetricName = None,
    max_drop: MaxDrop = None,
    layers: Layers = None,
    target: FamilyTarget = None,
    custom_ops: CustomOps = [],  # noqa: B006
    output_format: OutputFormat = Format.TEXT,
    project: OfProject = False,
    config: Config = None,
) -> None:
    """Check a model, and compare it with its float original.

    Without --against, the model has to be well formed, load in onnxruntime, give finite results, and give the same in
    the reference evaluator, node by node.

    Without --data, random numbers go in, which says little about accuracy.

    Without MODEL, all models of the project file are measured against their float models, by their thresholds.

    Exit code 1 if a model fails or a threshold is missed.
    """
    from onnxq.cli.against import check_options, verify_against
    from onnxq.cli.project import verify_project

    use_custom_ops(custom_ops)
    if project or not models:
        verify_project(context, config, models, output_format)
        return
    model = single(context, models)
    limits = {
        "min_sqnr": min_sqnr,
        "max_abs": max_abs,
        "min_agreement": min_agreement,
        "min_cosine": min_cosine,
        "max_drop": max_drop,
    }
    check_options({**limits, "metric": metric, "layers": layers, "target": target}, against, data)
    if against is None:
        verify_alone(model, data, samples, reading, output_format)
    else:
        verify_against(model, against, data, samples, limits, metric, layers, output_format, target, reading)


def single(context: typer.Context, models: list[Path]) -> Path:
    """Return the one MODEL that the options are about."""
    from onnxq.cli.project import refuse_config
    from onnxq.errors import ProjectError

    refuse_config(context)
    if len(models) > 1:
        pair = f"Write `onnxq verify {models[0]} --against {models[1]}` to compare two; " if len(models) == 2 else ""
        more = "--project verifies those of the project."
        raise ProjectError(f"{len(models)} models are given", f"{pair}{more}" if pair else f"Give one; {more}")
    return models[0]


class CheckedAlone(NamedTuple):
    """The figures and warnings about one model."""

    check: EngineCheck
    data: str
    runtime: Runtime
    inputs: tuple[InputSummary, ...]
    warnings: tuple[WarningLine, ...]


def verify_alone(path: Path, data: list[str], limit: int | None, reading: Reading, output_format: Format) -> None:
    """Check one model by itself, write what was found, and raise CheckFailed where two engines disagree."""
    from onnxq.cli.terminal import warn
    from onnxq.errors import CheckFailed

    checked = _check_alone(path, data, limit, reading)
    check = checked.check
    _write_alone(path, checked, output_format)
    warn(checked.warnings)
    if check.objection:
        raise CheckFailed(f"{path}: {check.objection}", ENGINES if data else MADE_UP)


def _check_alone(path: Path, data: list[str], limit: int | None, reading: Reading) -> CheckedAlone:
    from onnxq.calibration.nonfinite_weights import blaming_weights
    from onnxq.cli.runtime import look
    from onnxq.cli.terminal import TerminalObserver
    from onnxq.data.examine import examine
    from onnxq.errors import CheckFailed
    from onnxq.ir import load
    from onnxq.progress import following
    from onnxq.verification.calibrated_ranges import calibration_warnings
    from onnxq.verification.engines import check_engines

    with TerminalObserver() as observer, following(observer):
        observer.step("load")
        model = load(path)
        check_form(path, model)
        samples = choose_samples(model, data, limit, reading)
        observer.step("examine")
        seen = examine(model, samples, calibrating=False, progress=observer.progress)
        warnings = (*seen.warnings, *(calibration_warnings(path, samples) if data else ()))
        observer.step("run")
        with blaming_weights(model, CheckFailed, CheckFailed):
            check = check_engines(path, samples, progress=observer.progress, blame=CheckFailed)
        return CheckedAlone(check, samples.description, look(path, model), seen.inputs, warnings)


def _write_alone(model: Path, checked: CheckedAlone, output_format: Format) -> None:
    from onnxq.cli.details.engine_tables import engine_tables
    from onnxq.cli.runtime import runtime_tables
    from onnxq.cli.tables import input_table
    from onnxq.cli.terminal import show
    from onnxq.report.as_json import SCHEMA, engines_dict, to_json

    check, description, runtime, inputs, warnings = checked
    missed = [check.objection] if check.objection else []
    if output_format is Format.JSON:
        result: dict[str, object] = {"model": str(model), "against": None, "passed": not missed, "missed": missed}
        result |= {"comparison": None, "samples": check.samples, "data": description, "engines": engines_dict(check)}
        result["inputs"] = [asdict(one) for one in inputs]
        result["warnings"] = [asdict(warning) for warning in warnings]
        sys.stdout.write(to_json({"schema": SCHEMA, **result, **runtime.as_dict()}))
        return
    show(
        f"{model} is well formed, loads in onnxruntime and runs: {description}",
        "",
        input_table(inputs),
        "",
        *engine_tables(check),
    )
    tables = list(runtime_tables(runtime))
    if tables:
        show("", *tables)
