"""`onnxq calibrate`: statistics once, for many runs of `onnxq quantize`.

Tests: `tests/cli/test_cli_quantize.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onnxq.cli.options import ExecutorName, Force, Jobs, Model, takes_options, use_runtime
from onnxq.pipeline.options import READING, QuantizeOptions

if TYPE_CHECKING:
    from onnxq.calibration.stats import Stats

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


@takes_options("data", *READING, "recipe", "target", "exclude", "only", "samples", "custom_ops")
def calibrate(
    model: Model,
    output: StatsFile,
    options: QuantizeOptions = QuantizeOptions(),
    shard: ShardOf = None,
    executor: ExecutorName = None,
    shards: ShardCount = None,
    jobs: Jobs = None,
    force: Force = False,
) -> None:
    """Measure ranges once, for `onnxq quantize --stats`.

    The statistics serve this model alone, and every recipe that needs the ranges of no other tensors.
    """
    from onnxq.cli.terminal import TerminalObserver, note
    from onnxq.progress import following

    part = None if shard is None else parse_shard(shard)
    _check_engine(shard, executor, shards)
    use_runtime(options.custom_ops, jobs, None)
    asked: dict[str, Any] = {**options.planning(), "recipe": options.recipe, "target": options.target}
    with TerminalObserver() as observer, following(observer):
        if executor is None or not options.data:
            from onnxq.api.calibrate import Shard
            from onnxq.api.calibrate import calibrate as measured

            which = None if part is None else Shard(*part)
            stats = measured(model, output, **asked, shard=which, force=force, observer=observer)
        else:
            from onnxq.distributed.calibrations import calibrate_on
            from onnxq.distributed.shards import Calibration

            on = Calibration(model, samples=asked.pop("sample_limit", None), **asked)
            how: dict[str, Any] = {"shards": shards, "processors": jobs or 1, "custom_ops": options.custom_ops}
            stats = calibrate_on(executor, on, output, observer, **how, force=force)
    note(f"{output}: shard {shard} measured" if stats is None else stats_words(output, stats))


def stats_words(output: Path, stats: Stats) -> str:
    """Say where the statistics of a model are, and how much they hold."""
    from onnxq.text import counted

    return f"{output}: {counted(len(stats.names), 'tensor')} measured on {counted(stats.samples, 'sample')}"


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
