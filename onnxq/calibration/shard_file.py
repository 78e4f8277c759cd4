"""Statistics of a shard on disk: sums of blocks, and the identity of the run that measured them.

Tests: `tests/distributed/test_shards.py`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from onnxq.calibration.blocks import Blocks, BlockSums
from onnxq.calibration.stats import Stats
from onnxq.calibration.stats_file import (
    FORMAT_KEY,
    NAMES_KEY,
    SAMPLES_KEY,
    pack_stats,
    read_arrays,
    unpack_stats,
    write_arrays,
)
from onnxq.errors import DataError
from onnxq.text import join_words

SHARD_FORMAT = "onnxq shard 1"
ORIGIN_KEY, SPANS_KEY = "origin", "spans"
# The properties that must be equal in shards that are merged, in words
WORDS = {
    "onnxq": "version of onnxq",
    "onnxruntime": "version of onnxruntime",
    "numpy": "version of NumPy",
    "model": "model",
    "recipe": "recipe or target",
    "nodes": "choice of nodes",
    "reading": "way to read the data",
    "data": "data",
    "samples": "number of samples",
    "shards": "number of shards",
}


@dataclass(frozen=True)
class ShardStats:
    """The measurements of one shard.

    Attributes:
        origin: By key of `WORDS`, what it was measured on and with.
        number: Which shard it is, counted from 1.
        sums: Sums of its blocks.

    """

    origin: Mapping[str, Any]
    number: int
    sums: BlockSums


def save_shard(path: Path, shard: ShardStats, *, force: bool = False) -> None:
    """Write a shard; the same one gives the same bytes.

    Raises:
        OutputError: The file exists already, or cannot be written.

    """
    origin = {**shard.origin, "shard": shard.number}
    columns = {
        FORMAT_KEY: np.array(SHARD_FORMAT),
        ORIGIN_KEY: np.array(json.dumps(origin, sort_keys=True)),
        **pack_sums(shard.sums),
    }
    write_arrays(path, columns, force=force, compress=False)  # it is read once, and soon


def pack_sums(sums: BlockSums) -> dict[str, np.ndarray]:
    """Return sums of blocks as arrays by name."""
    spans = sorted(sums.pieces)
    columns: dict[str, np.ndarray] = {SPANS_KEY: np.array(spans, np.int64).reshape(-1, 2)}
    for index, span in enumerate(spans):
        stats = sums.pieces[span]
        columns[f"{index}/{NAMES_KEY}"] = np.array(stats.names, dtype=np.str_)
        columns[f"{index}/{SAMPLES_KEY}"] = np.array(stats.samples, np.int64)
        columns |= {f"{index}/{key}": array for key, array in pack_stats(stats).items()}
    return columns


def unpack_sums(columns: Mapping[str, np.ndarray], blocks: Blocks) -> BlockSums:
    """Return the sums that `pack_sums` was given."""
    sums = BlockSums(blocks)
    for index, (start, stop) in enumerate(columns[SPANS_KEY].tolist()):
        prefix = f"{index}/"
        own = {key.removeprefix(prefix): array for key, array in columns.items() if key.startswith(prefix)}
        names = [str(name) for name in own.pop(NAMES_KEY)]
        stats = Stats()
        stats.samples = int(own.pop(SAMPLES_KEY))
        stats.tensors = dict(zip(names, unpack_stats(own, len(names)), strict=True))
        sums.pieces[start, stop] = stats
    return sums


def load_shard(path: Path) -> ShardStats:
    """Read what `save_shard` wrote.

    Raises:
        DataError: The file is missing, damaged, or holds no shard.

    """

    def parse(columns: dict[str, np.ndarray]) -> ShardStats:
        if str(columns[FORMAT_KEY]) != SHARD_FORMAT:
            raise DataError(f"{path} holds no shard, its format is '{columns[FORMAT_KEY]}'", HINT)
        origin = json.loads(str(columns[ORIGIN_KEY]))
        number = int(origin.pop("shard"))
        sums = unpack_sums(columns, Blocks(int(origin["samples"])))
        return ShardStats(origin, number, sums)

    return read_arrays(path, parse, "shard", HINT)


HINT = "Make it with `onnxq calibrate --shard`."


def merge_shards(paths: Sequence[Path]) -> tuple[Stats, str]:
    """Read all shards and add their sums, in whatever order they are named.

    Returns:
        The statistics, and SHA-256 of the model.

    Raises:
        DataError: They do not belong together, one is missing or one is there twice.

    """
    seen: dict[int, Path] = {}
    origin: Mapping[str, Any] = {}
    sums: BlockSums | None = None
    for path in paths:
        shard = load_shard(path)
        if sums is None:
            origin, sums = shard.origin, BlockSums(shard.sums.blocks)
        _refuse_other(paths[0], origin, path, shard.origin)
        if shard.number in seen:
            raise DataError(
                f"{seen[shard.number]} and {path} are both shard {shard.number} of {origin['shards']}",
                "Name each shard once.",
            )
        seen[shard.number] = path
        sums.take_in(shard.sums)
    missing = [number for number in range(1, int(origin.get("shards", 1)) + 1) if number not in seen]
    how = "Measure each shard with `onnxq calibrate --shard`, and name all of them."
    if sums is None:
        raise DataError("no shard is named", how)
    if missing or sums.whole is None:
        named = join_words([str(number) for number in missing]) or "1"
        many = len(missing) > 1
        raise DataError(f"shard{'s' * many} {named} of {origin['shards']} {'are' if many else 'is'} missing", how)
    return sums.whole, str(origin["model"])


def _refuse_other(first: Path, origin: Mapping[str, Any], path: Path, other: Mapping[str, Any]) -> None:
    for key, words in WORDS.items():
        if origin.get(key) != other.get(key):
            shown = "" if key in ("model", "recipe") else f": {_short(origin.get(key))} and {_short(other.get(key))}"
            raise DataError(
                f"{first} and {path} were measured with another {words}{shown}",
                "Merge shards of one model, one recipe, the same data and the same versions.",
            )


def _short(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
