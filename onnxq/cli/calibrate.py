"""`onnxq calibrate`: statistics once, for many runs of `onnxq quantize`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onnxq.cli.options import (
    CustomOps,
    Data,
    Exclude,
    Force,
    Model,
    Only,
    RecipeName,
    SampleLimit,
    Target,
    chosen_recipe,
    use_custom_ops,
)

StatsFile = Annotated[
    Path, typer.Option("--output", "-o", metavar="STATS", help="The .npz file to write.", show_default=False)
]


def calibrate(
    model: Model,
    output: StatsFile,
    data: Data,
    recipe: RecipeName = "auto",
    target: Target = None,
    exclude: Exclude = [],  # noqa: B006  (typer reads the default and never hands it out)
    only: Only = [],  # noqa: B006
    samples: SampleLimit = None,
    custom_ops: CustomOps = [],  # noqa: B006
    force: Force = False,
) -> None:
    """Measure ranges once, for `onnxq quantize --stats`.

    The statistics serve this model alone, and every recipe that needs the ranges of no other tensors.
    """
    from onnxq import steps
    from onnxq.cli.terminal import TerminalObserver, note
    from onnxq.errors import NothingToQuantize
    from onnxq.ir import check_output, load
    from onnxq.quant.stats_file import fingerprint, save_stats
    from onnxq.timed import in_other_forms
    from onnxq.words import counted

    check_output(output, force=force, reads=(model, *data, recipe))
    use_custom_ops(custom_ops)
    with TerminalObserver() as observer:
        observer.step("load")
        source = load(model)
        observer.step("plan")
        ready = steps.prepare(source, chosen_recipe(recipe, target), with_data=True, exclude=exclude, only=only)
        ready = in_other_forms(ready)
        if not ready.plan.calibrated():
            raise NothingToQuantize(
                f"recipe {ready.plan.recipe.name} needs no ranges of {model}",
                "See every node's reason with `onnxq plan`.",
            )
        given = steps.open_data(ready.model, data, None, samples)
        observer.step("calibrate")
        stats = steps.measure(ready, steps.layers_to_measure(ready.plan), given, None, observer)
        observer.step("save")
        save_stats(output, stats, fingerprint(ready.source, stats.names), force=force)
    note(f"{output}: {counted(len(stats.names), 'tensor')} measured on {counted(stats.samples, 'sample')}")
