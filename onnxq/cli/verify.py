"""`onnxq verify`: compare a quantized model with its float model, or check it alone.

Tests: `tests/cli/test_cli_looking.py`.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onnxq.cli.completion import targets
from onnxq.cli.options import Config, Format, OutputFormat, takes_options, use_custom_ops
from onnxq.pipeline.options import READING, SOURCES, QuantizeOptions
from onnxq.text import printable, shell_path

if TYPE_CHECKING:
    from onnxq.api.verify import Verification

QUANTIZED = re.compile(r"int8|uint8|int4|quant|qdq|q8", re.IGNORECASE)  # in the name of a file
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


@takes_options(
    "data", *READING, "metric", "max_drop", "samples", "custom_ops", texts={"data": f"Data to run on: {SOURCES}"}
)
def verify(
    context: typer.Context,
    models: Quantized = [],  # noqa: B006  (typer reads the default and never hands it out)
    against: Against = None,
    options: QuantizeOptions = QuantizeOptions(),
    min_sqnr: MinSqnr = None,
    max_abs: MaxAbs = None,
    min_agreement: MinAgreement = None,
    min_cosine: MinCosine = None,
    layers: Layers = None,
    target: FamilyTarget = None,
    output_format: OutputFormat = Format.TEXT,
    project: OfProject = False,
    config: Config = None,
) -> None:
    """Check a model, and compare it with its float original.

    Without --against, the model has to be well formed, load in onnxruntime and give finite results. The reference
    evaluator has to give the same, node by node.

    Without --data, random numbers go in, which says little about accuracy.

    Without MODEL, all models of the project file are measured against their float models, by their thresholds.

    Exit code 1 if a model fails or a threshold is missed.
    """
    from onnxq.cli.project import verify_project
    from onnxq.cli.terminal import TerminalObserver, warn

    use_custom_ops(options.custom_ops)
    if project or not models:
        verify_project(context, config, models, output_format)
        return
    model = single(context, models)
    limits = {"min_sqnr": min_sqnr, "max_abs": max_abs, "min_agreement": min_agreement, "min_cosine": min_cosine}
    limits |= {"max_drop": options.max_drop}
    read = {"data": options.data, "reading": options.reading, "sample_limit": options.samples}
    asked: dict[str, Any] = {**limits, **read, "metric": options.metric, "layers": layers, "target": target}
    with TerminalObserver() as observer:
        from onnxq.api.verify import verify as verified

        found = verified(model, against, observer=observer, **asked)
    from onnxq.cli.against import refuse_missed, write_comparison
    from onnxq.report import SCHEMA, to_json

    if output_format is Format.JSON:
        sys.stdout.write(to_json({"schema": SCHEMA, **found.as_dict()}))
    elif against is not None:
        write_comparison(found, every_layer=bool(layers))
    else:
        _write_alone(model, found)
    warn(found.warnings)
    if against is not None:
        refuse_missed(found, model)
    else:
        _refuse_disagreement(found, model)


def single(context: typer.Context, models: list[Path]) -> Path:
    """Return the one MODEL that the options are about."""
    from onnxq.cli.project import refuse_beside_model
    from onnxq.errors import ProjectError

    refuse_beside_model(context, "config", "is about the models of a project", "Leave one of them out.")
    data = [model for model in models if model.suffix in (".npz", ".npy")]
    if data and len(models) == 2:
        other = next((model for model in models if model not in data), "MODEL")
        raise ProjectError(
            f"{data[0]} is no model", f"Write `onnxq verify {shell_path(other)} -d {shell_path(data[0])}`."
        )
    if len(models) > 1:
        first, last = sorted(models[:2], key=lambda model: not QUANTIZED.search(model.name))
        two = f"Write `onnxq verify {shell_path(first)} --against {shell_path(last)}` to compare two; "
        pair = two if len(models) == 2 else ""
        more = "--project verifies those of the project."
        raise ProjectError(f"{len(models)} models are given", f"{pair}{more}" if pair else f"Give one; {more}")
    return models[0]


def _refuse_disagreement(found: Verification, model: Path) -> None:
    """Raise CheckFailed where two engines disagree."""
    from onnxq.errors import CheckFailed

    if found.missed:
        raise CheckFailed(f"{model}: {found.missed[0]}", MADE_UP if found.made_up else ENGINES)


def _write_alone(model: Path, found: Verification) -> None:
    """Show what two engines make of one model."""
    from onnxq.cli.details.engine_tables import engine_tables
    from onnxq.cli.runtime import runtime_tables
    from onnxq.cli.tables import input_table
    from onnxq.cli.terminal import show

    check = found.engines
    assert check is not None
    show(
        printable(f"{model} is well formed, loads in onnxruntime and runs: {found.data}"),
        "",
        input_table(found.inputs),
        "",
        *engine_tables(check),
    )
    tables = list(runtime_tables(found.runtime))
    if tables:
        show("", *tables)
