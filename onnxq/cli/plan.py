"""`onnxq plan`: every node with its decision."""

from __future__ import annotations

from onnxq.cli.options import Data, Exclude, Format, Model, Only, OutputFormat, RecipeName, Stats, Target, chosen_recipe


def plan(
    model: Model,
    data: Data = [],  # noqa: B006  (typer reads the default and never hands it out)
    stats: Stats = None,
    recipe: RecipeName = "auto",
    target: Target = None,
    exclude: Exclude = [],  # noqa: B006
    only: Only = [],  # noqa: B006
    output_format: OutputFormat = Format.TEXT,
) -> None:
    """Show for every node what it would become, or why it would stay float.

    Nothing is run and nothing is written.

    Whether data or statistics are given decides between static and dynamic. They are opened, but not read through.
    """
    from onnxq import steps
    from onnxq.cli.terminal import TerminalObserver
    from onnxq.cli.write import write_plan
    from onnxq.ir import load
    from onnxq.quant.stats_file import load_stats
    from onnxq.report import Report

    with TerminalObserver() as observer:
        observer.step("load")
        source = load(model)
        observer.step("plan")
        with_data = bool(data) or stats is not None
        ready = steps.prepare(source, chosen_recipe(recipe, target), with_data=with_data, exclude=exclude, only=only)
        steps.open_data(ready.model, data, None, None)
        if stats is not None:
            load_stats(stats, expected=ready.source)
        report = Report.planned(ready.plan, source=model, notes=ready.notes)
    write_plan(report, output_format)
