"""`onnxq explain`: explain the decisions for single nodes.

Tests: `tests/cli/test_cli_explain.py`.
"""

from __future__ import annotations

import sys
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
    SampleLimit,
    Stats,
    Target,
    TimingsFile,
    takes_reading,
    use_custom_ops,
)
from onnxq.data.reading import PLAIN, Reading

NodeName = Annotated[
    str,
    typer.Argument(
        metavar="NODE",
        help="Name of a node, name of a tensor that a node makes, or a glob over names of nodes.",
        show_default=False,
    ),
]


@takes_reading
def explain(
    model: Model,
    node: NodeName,
    data: Data = [],  # noqa: B006  (typer reads the default and never hands it out)
    reading: Reading = PLAIN,
    stats: Stats = None,
    recipe: RecipeName = "auto",
    target: Target = None,
    exclude: Exclude = [],  # noqa: B006
    only: Only = [],  # noqa: B006
    samples: SampleLimit = None,
    timings: TimingsFile = None,
    custom_ops: CustomOps = [],  # noqa: B006
    output_format: OutputFormat = Format.TEXT,
) -> None:
    """Say why single nodes become what they become.

    Shows the rule that decided, what was tried, and what the neighbours become.

    With --data, the model is quantized in memory: scales, zero points, and the errors of each node's outputs show, too.

    With --stats, scales and zero points. Nothing is written.
    """
    from onnxq.cli.details.explanation_tables import explanation_tables
    from onnxq.cli.terminal import TerminalObserver, show
    from onnxq.explanation.explain import explain as explained
    from onnxq.planning.recipe import choose_recipe
    from onnxq.report import SCHEMA, to_json
    from onnxq.stages.kernel_timing import Timing

    use_custom_ops(custom_ops)
    with TerminalObserver() as observer:
        found = explained(
            model,
            node,
            choose_recipe(recipe, target=target),
            data=data,
            reading=reading,
            stats=stats,
            exclude=exclude,
            only=only,
            sample_limit=samples,
            timing=Timing(path=timings),
            observer=observer,
        )
    if output_format is Format.JSON:
        sys.stdout.write(to_json({"schema": SCHEMA, "model": str(model), "nodes": [one.as_dict() for one in found]}))
        return
    show(*explanation_tables(found))
