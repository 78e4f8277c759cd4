"""`onnxq calibrate`: statistics once, for many runs of `onnxq quantize`.

Tests: `tests/cli/test_cli_help.py`.
"""

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
    takes_reading,
    use_custom_ops,
)
from onnxq.data.reading import PLAIN, Reading

StatsFile = Annotated[
    Path, typer.Option("--output", "-o", metavar="STATS", help="The .npz file to write.", show_default=False)
]


@takes_reading
def calibrate(
    model: Model,
    output: StatsFile,
    data: Data,
    reading: Reading = PLAIN,
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
    from onnxq.calibration.stats_file import fingerprint, save_stats
    from onnxq.cli.terminal import TerminalObserver, note
    from onnxq.errors import NothingToQuantize
    from onnxq.ir import check_output, load
    from onnxq.progress import following
    from onnxq.stages.files import open_data
    from onnxq.stages.measure import layers_needing_moments, measure
    from onnxq.stages.prepare import prepare
    from onnxq.stages.substitution import substitute_layers
    from onnxq.text import counted

    check_output(output, force=force, reads=(model, *data, recipe))
    use_custom_ops(custom_ops)
    with TerminalObserver() as observer, following(observer):
        observer.step("load")
        source = load(model)
        observer.step("plan")
        prepared = prepare(source, recipe, with_data=True, target=target, exclude=exclude, only=only)
        prepared = substitute_layers(prepared)
        if not prepared.plan.calibrated():
            raise NothingToQuantize(
                f"recipe {prepared.plan.recipe.name} needs no ranges of {model}",
                "See every node's reason with `onnxq plan`.",
            )
        given = open_data(prepared.model, data, None, samples, reading)
        observer.step("calibrate")
        stats = measure(prepared, layers_needing_moments(prepared.plan), given, None, observer)
        observer.step("save")
        save_stats(output, stats, fingerprint(prepared.source, stats.names), force=force)
    note(f"{output}: {counted(len(stats.names), 'tensor')} measured on {counted(stats.samples, 'sample')}")
