"""`onnxq plan`: every node with its decision.

Tests: `tests/cli/test_cli_help.py`.
"""

from __future__ import annotations

from typing import Annotated

import typer

from onnxq.cli.options import (
    CustomOps,
    Data,
    Exclude,
    Format,
    Model,
    Only,
    OutputFormat,
    RecipeName,
    Stats,
    Target,
    TimingsFile,
    use_custom_ops,
)

Sensitivity = Annotated[
    bool,
    typer.Option("--sensitivity", help="Run variants of the model to see what each node adds to the outputs' error."),
]


def plan(
    model: Model,
    data: Data = [],  # noqa: B006  (typer reads the default and never hands it out)
    stats: Stats = None,
    recipe: RecipeName = "auto",
    target: Target = None,
    exclude: Exclude = [],  # noqa: B006
    only: Only = [],  # noqa: B006
    timings: TimingsFile = None,
    custom_ops: CustomOps = [],  # noqa: B006
    sensitivity: Sensitivity = False,
    output_format: OutputFormat = Format.TEXT,
) -> None:
    """Show what every node would become, or why it stays float.

    Nothing is written, and nothing is run but the first sample where the model
    leaves sizes open, and for --sensitivity.

    Whether data or statistics are given decides between static and dynamic. They are opened, but not read through.
    """
    from onnxq.cli.terminal import TerminalObserver
    from onnxq.cli.write import write_plan
    from onnxq.pipeline.plan import plan as planned
    from onnxq.planning.recipe import choose_recipe
    from onnxq.stages.kernel_timing import Timing

    use_custom_ops(custom_ops)
    with TerminalObserver() as observer:
        report = planned(
            model,
            choose_recipe(recipe, target=target),
            data=data,
            stats=stats,
            exclude=exclude,
            only=only,
            timing=Timing(path=timings),
            sensitivity=sensitivity,
            observer=observer,
        )
    write_plan(report, output_format)
