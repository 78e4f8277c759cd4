"""`onnxq calibrate`: statistics once, for many runs of `onnxq quantize`.

Tests: `tests/cli/test_cli_quantize.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from onnxq.cli.options import (
    CustomOps,
    Data,
    Exclude,
    ExecutorName,
    Force,
    Jobs,
    Model,
    Only,
    RecipeName,
    SampleLimit,
    Target,
    takes_reading,
    use_runtime,
)
from onnxq.data.reading import PLAIN, Reading

if TYPE_CHECKING:
    from onnxq.calibration.stats import Stats
    from onnxq.cli.terminal import TerminalObserver
    from onnxq.distributed.shards import Calibration

StatsFile = Annotated[
    Path, typer.Option("--output", "-o", metavar="STATS", help="The .npz file to write.", show_default=False)
]


ShardOf = Annotated[
    str | None,
    typer.Option(
        "--shard",
        metavar="K/N",
        help="Measure the K-th of N parts of the samples alone; `onnxq merge` adds them up.",
        show_default=False,
    ),
]
ShardCount = Annotated[
    int | None,
    typer.Option(
        "--shards",
        metavar="N",
        min=1,
        help="With --executor: cut the samples into so many tasks; by default 16.",
        show_default=False,
    ),
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
    shard: ShardOf = None,
    executor: ExecutorName = None,
    shards: ShardCount = None,
    jobs: Jobs = None,
    force: Force = False,
) -> None:
    """Measure ranges once, for `onnxq quantize --stats`.

    The statistics serve this model alone, and every recipe that needs the ranges of no other tensors.
    """
    from onnxq.cli.terminal import TerminalObserver
    from onnxq.distributed.shards import Calibration
    from onnxq.ir import check_output
    from onnxq.progress import following

    part = None if shard is None else parse_shard(shard)
    _check_engine(shard, executor, shards)
    check_output(output, force=force, reads=(model, *data, recipe))
    use_runtime(custom_ops, jobs, None)
    asked = Calibration(
        model, tuple(data), reading, recipe, target, exclude=tuple(exclude), only=tuple(only), samples=samples
    )
    with TerminalObserver() as observer, following(observer):
        if part is not None:
            _measure_shard(part, asked, output, observer, force=force)
        elif executor is None:
            _measure_here(asked, output, observer, force=force)
        else:
            from onnxq.distributed.calibrations import calibrate_on

            stats, source = calibrate_on(
                executor, asked, output, observer, shards=shards, processors=jobs or 1, custom_ops=tuple(custom_ops)
            )
            observer.step("save")
            write_stats(output, stats, source, force=force)


def _measure_shard(
    part: tuple[int, int], asked: Calibration, output: Path, observer: TerminalObserver, *, force: bool
) -> None:
    """Measure one shard of the samples and write its sums."""
    from onnxq.calibration.shard_file import save_shard
    from onnxq.cli.terminal import note
    from onnxq.distributed.shards import open_calibration
    from onnxq.text import counted

    opened = open_calibration(asked, observer)
    made = opened.shard(*part, observer)
    observer.step("save")
    save_shard(output, made, force=force)
    measured = sum(stats.samples for stats in made.sums.pieces.values())
    of = f"{counted(measured, 'sample')} of {opened.blocks.samples}"
    note(f"{output}: shard {part[0]} of {part[1]}, {of} measured")


def _measure_here(asked: Calibration, output: Path, observer: TerminalObserver, *, force: bool) -> None:
    """Measure all samples on this machine and write the statistics."""
    from onnxq.distributed.processes import measure_all
    from onnxq.distributed.shards import open_calibration

    opened = open_calibration(asked, observer)
    whole = measure_all(opened, observer)
    observer.step("save")
    write_stats(output, whole, opened.prepared.source, force=force)


def parse_shard(given: str) -> tuple[int, int]:
    """Return which shard is meant, counted from 1, and how many there are.

    Raises:
        RecipeError: It is no shard.

    """
    from onnxq.errors import RecipeError

    number, slash, count = given.partition("/")
    if not (slash and number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise RecipeError(f"--shard {given} is no part of a whole", "Give its number and how many there are: 3/16.")
    return int(number), int(count)


def _check_engine(shard: str | None, executor: str | None, shards: int | None) -> None:
    """Refuse options that contradict each other, and what names no engine."""
    from onnxq.errors import RecipeError

    if executor is None:
        if shards is not None:
            raise RecipeError("--shards needs --executor", "Measure one shard with --shard K/N.")
        return
    if shard is not None:
        raise RecipeError("--executor measures all shards, --shard only one", "Leave one of them out.")
    from onnxq.distributed.engines import check_name

    check_name(executor)


def write_stats(output: Path, stats: Stats, source: str, *, force: bool) -> None:
    """Write statistics of a model and name the file."""
    from onnxq.calibration.stats_file import fingerprint, save_stats
    from onnxq.cli.terminal import note
    from onnxq.text import counted

    save_stats(output, stats, fingerprint(source, stats.names), force=force)
    note(f"{output}: {counted(len(stats.names), 'tensor')} measured on {counted(stats.samples, 'sample')}")
