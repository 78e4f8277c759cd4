"""Measure the shards of a calibration on an engine, a task each, and add them.

Tests: `tests/distributed/test_runs.py`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnxq.calibration.shard_file import merge_shards, save_shard
from onnxq.calibration.stats import Stats
from onnxq.calibration.stats_file import fingerprint, save_stats
from onnxq.data.remote import digest
from onnxq.distributed.builds import check_files, enter
from onnxq.distributed.runs import TaskRun, failure
from onnxq.distributed.shards import Calibration, check_shards, open_calibration
from onnxq.errors import DataError
from onnxq.ir import check_output, load
from onnxq.ir.storage.scratch_file import scratch_folder
from onnxq.pipeline.options import QuantizeOptions
from onnxq.progress import Observer, Silent
from onnxq.project.entry import Entry
from onnxq.project.provenance import gather
from onnxq.runtime.custom_ops import register_custom_ops

SHARDS = 16  # at most, unless the user says


@dataclass(frozen=True)
class ShardTask:
    """A shard to measure.

    Attributes:
        asked: The calibration.
        wanted: SHA-256 of the files that it reads.
        number: Which shard, counted from 1.
        shards: How many there are.
        output: The file to write.
        folder: The working folder, which paths start in.
        custom_ops: Libraries of custom operators.

    """

    asked: Calibration
    wanted: Mapping[str, Any]
    number: int
    shards: int
    output: Path
    folder: str
    custom_ops: tuple[Path, ...] = ()

    @property
    def name(self) -> str:
        """Name it in messages."""
        return f"shard {self.number} of {self.shards}"

    def run(self) -> str:
        """Measure and write it, if the files here are the same ones; return SHA-256 of what was written."""
        enter(self.folder)
        check_files(_entry(self.asked), self.wanted)
        for library in self.custom_ops:
            register_custom_ops(library)
        shard = open_calibration(self.asked, Silent()).shard(self.number, self.shards, Silent())
        save_shard(self.output, shard, force=True)
        return _sha256(self.output)


def calibrate_on(
    engine: str,
    asked: Calibration,
    output: Path,
    observer: Observer,
    *,
    shards: int | None = None,
    processors: int = 1,
    custom_ops: tuple[Path, ...] = (),
    force: bool = False,
) -> Stats:
    """Measure a calibration on an engine, write the statistics, and return them.

    Args:
        engine: Name of the engine; see `onnxq.distributed.engines`.
        asked: What to measure.
        output: The file to write; shards are kept next to it in the meantime.
        observer: Told how many shards are done.
        shards: How many; by default 16, or fewer where there are fewer samples.
        processors: How many each task may use.
        custom_ops: Libraries of custom operators.
        force: Replace a file that exists.

    Raises:
        EngineError: The engine is gone, or a worker must not be used.
        OnnxqError: A shard failed.

    """
    check_output(output, force=force, reads=(asked.model, *asked.data, asked.recipe))
    opened = open_calibration(asked, observer)
    count = min(SHARDS, opened.blocks.count) if shards is None else shards
    check_shards(opened.blocks, count)
    wanted = gather(_entry(asked), load(asked.model))
    with scratch_folder(output) as folder:
        paths = [folder / f"{number}.stats" for number in range(1, count + 1)]
        tasks = [
            ShardTask(asked, wanted, number, count, path, os.getcwd(), custom_ops)
            for number, path in enumerate(paths, 1)
        ]
        written: dict[int, str] = {}

        def done(at: int, result: Any) -> None:
            if (error := failure(result)) is not None:
                raise error
            written[at] = result
            observer.progress(len(written), count)

        observer.step("shards")
        observer.progress(0, count)
        TaskRun(engine, tasks, folder, processors).results(done)
        observer.step("merge")
        for at, path in enumerate(paths):
            if _sha256(path) != written[at]:
                raise DataError(f"{path} has other bytes than its worker wrote", "Check the shared folder.")
        stats, source = merge_shards(paths)
    observer.step("save")
    save_stats(output, stats, fingerprint(source, stats.names), force=force)
    return stats


def _entry(asked: Calibration) -> Entry:
    """Return the calibration as an entry of a project, whose files can be hashed."""
    given = asked.reading.tokenizer
    tokenizer = None if given is None else Path(given)
    options = QuantizeOptions(recipe=asked.recipe, target=asked.target, data=asked.data, tokenizer=tokenizer)
    return Entry(Path("."), asked.model, asked.model, options)


def _sha256(path: Path) -> str:
    try:
        return digest(path)
    except OSError as error:
        raise DataError(
            f"{path} cannot be read here ({error.strerror})", "Share its folder with the workers."
        ) from error
