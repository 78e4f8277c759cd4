"""`onnxq explain`: explain the decisions for single nodes.

Tests: `tests/cli/test_cli_explain.py`.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from onnxq.cli.options import OF_PLANS, PLANNING, Format, Model, OutputFormat, takes_options, use_custom_ops
from onnxq.pipeline.options import QuantizeOptions

NodeName = Annotated[
    str,
    typer.Argument(
        metavar="NODE",
        help="Name of a node, name of a tensor that a node makes, or a glob over names of nodes.",
        show_default=False,
    ),
]


@takes_options(*PLANNING, texts=OF_PLANS)
def explain(
    model: Model,
    node: NodeName,
    options: QuantizeOptions = QuantizeOptions(),
    output_format: OutputFormat = Format.TEXT,
) -> None:
    """Say why single nodes become what they become.

    Shows the rule that decided, what was tried, and what the neighbours become.

    With --data, the model is quantized in memory: scales, zero points, and the errors of each node's outputs show, too.

    With --stats, scales and zero points. Nothing is written.
    """
    from onnxq.cli.terminal import TerminalObserver, show

    use_custom_ops(options.custom_ops)
    with TerminalObserver() as observer:
        from onnxq.explanation.explain import explain as explained
        from onnxq.planning.recipe import choose_recipe

        recipe = choose_recipe(options.recipe, target=options.target)
        found = explained(model, node, recipe, **options.planning(), observer=observer)
    from onnxq.cli.details.explanation_tables import explanation_tables
    from onnxq.report import SCHEMA, to_json

    if output_format is Format.JSON:
        sys.stdout.write(to_json({"schema": SCHEMA, "model": str(model), "nodes": [one.as_dict() for one in found]}))
        return
    show(*explanation_tables(found))
