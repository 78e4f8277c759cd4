"""Statistics of a model, measured once for many runs of `quantize`.

Tests: `tests/api/test_api_examples.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from onnxq.calibration.shard_file import merge_shards, save_shard
from onnxq.calibration.stats import Stats
from onnxq.calibration.stats_file import fingerprint, save_stats
from onnxq.data.reading import PLAIN, Reading
from onnxq.data.samples import list_sources
from onnxq.distributed.processes import measure_all
from onnxq.distributed.shards import Calibration, OpenCalibration, open_calibration
from onnxq.errors import DataError
from onnxq.ir import IN_MEMORY, ModelInput, check_output, read_model
from onnxq.progress import Observer, Progress, following
from onnxq.text import as_list


@dataclass(frozen=True)
class Shard:
    """One of several parts of the samples.

    Attributes:
        number: Which one, counted from 1.
        count: How many there are.

    """

    number: int
    count: int


def calibrate(
    model: ModelInput,
    output: str | Path | None = None,
    *,
    data: str | Path | Sequence[str | Path] = (),
    reading: Reading = PLAIN,
    samples: object = None,
    recipe: str = "auto",
    target: str | None = None,
    exclude: str | Sequence[str] = (),
    only: str | Sequence[str] = (),
    sample_limit: int | None = None,
    shard: Shard | None = None,
    force: bool = False,
    observer: Observer | None = None,
) -> Stats | None:
    """Measure ranges once, for `quantize(stats=…)`.

    Args:
        model: A float ONNX model: its path, a ModelProto, or loaded.
        output: The `.npz` file to write; by default nothing is written.
        data: Calibration data as for `quantize`.
        reading: How data that are no arrays become samples.
        samples: Instead of `data`: as for `onnxq.quantize`.
        recipe: Name of a recipe, or path of a TOML file.
        target: Name of the runtime that the model is for; by default that of the recipe.
        exclude: A glob of nodes to leave float, or several.
        only: A glob of nodes to quantize, or several.
        sample_limit: Use no more samples.
        shard: Measure this part of the samples alone; `merge` adds up the files of all parts.
        force: Replace a file that exists.
        observer: Told about each step.

    Returns:
        The statistics; None for a shard, which only its file has.

    Raises:
        DataError: There are no data, or they do not fit the model.
        OutputError: The output exists already, or cannot be written.
        NothingToQuantize: The recipe needs no ranges.

    Examples:
        >>> import onnxq
        >>> stats = onnxq.calibrate("model.onnx", data="calibration.npz", recipe="static-int8")
        >>> stats.samples
        16
        >>> onnxq.quantize("model.onnx", "static-int8", stats=stats, output="new.onnx", fast=True).counts()
        {'static-int8': 7}

    """
    sources = list_sources(data)
    if not sources and samples is None:
        raise DataError("no data is given", "Add --data.")
    if shard is not None and output is None:
        raise DataError("a shard is only of use in a file", "Give an output.")
    if output is not None:
        check_output(Path(output), force=force, reads=(model, *sources, recipe))
    left, kept = tuple(as_list(exclude)), tuple(as_list(only))
    with following(observer) as progress:
        progress.step("load")
        read = read_model(model)
        given = tuple(map(str, sources))
        asked = Calibration(read.path or IN_MEMORY, given, reading, recipe, target, left, kept, sample_limit)
        opened = open_calibration(asked, progress, samples, read)
        if shard is not None:
            made = opened.shard(shard.number, shard.count, progress)
            progress.step("save")
            save_shard(Path(str(output)), made, force=force)
            return None
        named = isinstance(model, str | Path)  # not changed in memory, so other processes can read it
        stats = measure_all(opened, progress) if named else opened.measure_whole(progress)
        return _saved(stats, opened, output, progress, force=force)


def _saved(
    stats: Stats, opened: OpenCalibration, output: str | Path | None, progress: Progress, *, force: bool
) -> Stats:
    if output is not None:
        progress.step("save")
        save_stats(output, stats, fingerprint(opened.prepared.identity, stats.names), force=force)
    return stats


def merge(shards: Sequence[str | Path], output: str | Path | None = None, *, force: bool = False) -> Stats:
    """Add up shards of a calibration; the statistics are those of one run, in whatever order shards are named.

    Args:
        shards: The files of all shards.
        output: The `.npz` file to write; by default nothing is written.
        force: Replace a file that exists.

    Returns:
        The statistics.

    Raises:
        DataError: A shard is missing, there twice, or of another calibration.
        OutputError: The output exists already, or cannot be written.

    Examples:
        >>> import onnxq
        >>> for number in (1, 2):
        ...     settings = {"recipe": "static-int8", "shard": onnxq.Shard(number, 2)}
        ...     _ = onnxq.calibrate("model.onnx", f"{number}.npz", data="calibration.npz", **settings)
        >>> onnxq.merge(["1.npz", "2.npz"]).samples
        16

    """
    paths = [Path(shard) for shard in shards]
    if output is not None:
        check_output(Path(output), force=force, reads=paths)
    stats, source = merge_shards(paths)
    if output is not None:
        save_stats(output, stats, fingerprint(source, stats.names), force=force)
    return stats
