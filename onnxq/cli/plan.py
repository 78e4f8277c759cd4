"""`onnxq plan`: every node with its decision.

Tests: `tests/cli/test_cli_looking.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onnxq.cli.options import (
    OF_PLANS,
    PLANNING,
    Format,
    Model,
    OutputFormat,
    takes_options,
    use_custom_ops,
)
from onnxq.pipeline.options import QuantizeOptions, declarations
from onnxq.text import printable

Sensitivity = Annotated[
    bool,
    typer.Option("--sensitivity", help="Run variants of the model to see what each node adds to the outputs' error."),
]

WhyNot = Annotated[
    tuple[str, str] | None,
    typer.Option("--why-not", metavar="PASS NODE", help="Say why a pass over the graph did not change a node."),
]


@takes_options(*PLANNING, texts=OF_PLANS)
def plan(
    model: Model,
    options: QuantizeOptions = QuantizeOptions(),
    sensitivity: Sensitivity = False,
    why_not: WhyNot = None,
    output_format: OutputFormat = Format.TEXT,
) -> None:
    """Show what every node would become, or why it stays float.

    Nothing is written, and nothing is run but the first sample where the model
    leaves sizes open, and for --sensitivity.

    Whether data or statistics are given decides between static and dynamic. They are opened, but not read through.
    """
    from onnxq.cli.terminal import TerminalObserver, warn

    use_custom_ops(options.custom_ops)
    if why_not is not None:
        known = [declarations()[name] for name in PLANNING if name not in ("recipe", "target", "custom_ops")]
        given = [one.flag for one in known if getattr(options, one.name) != one.default]
        given += ["--sensitivity"] if sensitivity else []
        _answer(model, why_not, options, given, output_format)
        return
    with TerminalObserver() as observer:
        from onnxq.pipeline.plan import plan as planned
        from onnxq.planning.recipe import choose_recipe

        recipe = choose_recipe(options.recipe, target=options.target)
        report = planned(model, recipe, **options.planning(), sensitivity=sensitivity, observer=observer)
    from onnxq.cli.tables import write_report

    write_report(report, output_format, planned=True)
    warn(report.warnings)


def _answer(
    model: Path, asked: tuple[str, str], options: QuantizeOptions, left_out: list[str], output_format: Format
) -> None:
    """Print why a pass did not change a node."""
    import sys
    from dataclasses import asdict

    from rich.text import Text

    from onnxq.cli.terminal import show
    from onnxq.errors import RecipeError
    from onnxq.explanation.why_not import why_not
    from onnxq.planning.recipe import choose_recipe
    from onnxq.report import SCHEMA, to_json

    if left_out:
        raise RecipeError(f"--why-not makes no plan, and {left_out[0]} is for one", f"Leave out {left_out[0]}.")
    answer = why_not(model, *asked, choose_recipe(options.recipe, target=options.target))
    if output_format is Format.JSON:
        sys.stdout.write(to_json({"schema": SCHEMA, **asdict(answer)}))
        return
    verdict = "it changes the node" if answer.applies else f"it does not change the node: {answer.reason}"
    show(Text(f"{answer.name} ({answer.phase}): {answer.summary}"))
    show(Text(printable(f"{answer.node} ({answer.operator}): {verdict}")))
