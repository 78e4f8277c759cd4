"""Statistics on disk: one `.npz` without pickled objects, with a fingerprint of the model they belong to.

Tests: `tests/calibration/test_stats.py`.
"""

from __future__ import annotations

import hashlib
import os
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

import numpy as np

from onnxq.calibration.stats import KINDS, Stats, TensorStats
from onnxq.errors import DataError, OutputError
from onnxq.ir.storage.temporary import temporary_file

T = TypeVar("T")
FORMAT = "onnxq statistics 3"
FORMAT_KEY, FINGERPRINT_KEY, NAMES_KEY, SAMPLES_KEY = "format", "fingerprint", "names", "samples"


def fingerprint(model_sha256: str, names: Iterable[str]) -> str:
    """Identify a model together with the tensors that were measured: a SHA-256, in hexadecimal."""
    digest = hashlib.sha256(model_sha256.encode())
    for name in sorted(names):
        digest.update(b"\0" + name.encode())
    return digest.hexdigest()


def save_stats(path: str | Path, stats: Stats, fingerprint: str, *, force: bool = False) -> None:
    """Write statistics; the same statistics give the same bytes.

    Each state array is stored flat for all tensors in a row (`extremes.range`). Its shapes are in
    `extremes.range.shapes`, a row for each tensor, and the tensors that have it in `extremes.range.owners`.

    Args:
        path: File to write, atomically.
        stats: What to save.
        fingerprint: From `fingerprint`.
        force: Replace a file that exists.

    Raises:
        OutputError: The file exists already, or cannot be written.

    """
    columns: dict[str, np.ndarray] = {
        FORMAT_KEY: np.array(FORMAT),
        FINGERPRINT_KEY: np.array(fingerprint),
        NAMES_KEY: np.array(stats.names, dtype=np.str_),
        SAMPLES_KEY: np.array(stats.samples, np.int64),
    }
    write_arrays(Path(path), columns | pack_stats(stats), force=force)


def write_arrays(path: Path, columns: Mapping[str, np.ndarray], *, force: bool = False, compress: bool = True) -> None:
    """Write arrays by name, atomically; the same arrays give the same bytes.

    Raises:
        OutputError: The file exists already, or cannot be written.

    """
    if path.exists() and not force:
        raise OutputError(f"{path} exists already", "Use --force to replace it, or choose another place.")
    try:
        with temporary_file(path) as temporary:
            with temporary.open("wb") as file:
                (np.savez_compressed if compress else np.savez)(file, allow_pickle=False, **columns)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
    except OSError as error:
        raise OutputError(f"{path} cannot be written ({error.strerror})", "Choose another place.") from error


def load_stats(path: str | Path, expected: str | None = None) -> tuple[Stats, str]:
    """Read what `save_stats` wrote.

    Args:
        path: File to read.
        expected: SHA-256 of the model that the statistics must belong to; None leaves the check to the caller.

    Returns:
        The statistics and their fingerprint.

    Raises:
        DataError: The file is missing, damaged, no statistics, or belongs to another model.

    """

    def parse(columns: dict[str, np.ndarray]) -> tuple[Stats, str]:
        if str(columns[FORMAT_KEY]).startswith("onnxq shard"):
            raise DataError(f"{path} holds one shard of the statistics", "Merge all shards with `onnxq merge`.")
        if str(columns[FORMAT_KEY]) != FORMAT:
            raise DataError(
                f"{path} has format '{columns[FORMAT_KEY]}'", f"This onnxq reads '{FORMAT}': calibrate again."
            )
        names = [str(name) for name in columns[NAMES_KEY]]
        stats = Stats()
        stats.samples = int(columns[SAMPLES_KEY])
        stats.tensors = dict(zip(names, unpack_stats(columns, len(names)), strict=True))
        return stats, str(columns[FINGERPRINT_KEY])

    stats, found = read_arrays(Path(path), parse, "statistics", "Make it with `onnxq calibrate`.")
    names = list(stats.tensors)
    if expected is not None and found != fingerprint(expected, names):
        raise DataError(
            f"the statistics in {path} belong to another model", "Calibrate this model: ranges of another are wrong."
        )
    return stats, found


def read_arrays(path: Path, parse: Callable[[dict[str, np.ndarray]], T], what: str, hint: str) -> T:
    """Read what `write_arrays` wrote, and make something of it.

    Args:
        path: The file.
        parse: Makes it of the arrays.
        what: What it is called in messages.
        hint: Where it comes from.

    Raises:
        DataError: The file is missing or damaged, or `parse` finds that it is something else.

    """
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return parse({key: archive[key] for key in archive.files})
    except FileNotFoundError:
        raise DataError(f"{path} does not exist", hint) from None
    except IsADirectoryError:
        raise DataError(f"{path} is a folder", "Give the file inside it.") from None
    except (
        OSError,
        EOFError,
        LookupError,
        ValueError,
        TypeError,
        AttributeError,
        RuntimeError,  # an archive with a password
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        reason = f"it has no array {reason}" if isinstance(error, KeyError) else reason
        if "allow_pickle" in reason:  # NumPy takes any other file for a pickled object, and advises to load it
            reason = "it is no .npz file"
        kind = "no" if what == "statistics" else "no whole"
        raise DataError(f"{path} holds {kind} {what}: {reason}", hint) from error


def pack_stats(stats: Stats) -> dict[str, np.ndarray]:
    """Return the states of all tensors as arrays, in the order of their names."""
    tensors = [stats[name] for name in stats.names]
    owners: dict[str, list[int]] = {}
    states: dict[str, list[np.ndarray]] = {}
    for index, tensor in enumerate(tensors):
        for part in tensor:
            for field, array in part.arrays().items():
                owners.setdefault(f"{part.key}.{field}", []).append(index)
                states.setdefault(f"{part.key}.{field}", []).append(array)
    packed = {}
    for key, arrays in states.items():
        packed[key] = np.concatenate([array.reshape(-1) for array in arrays])
        packed[f"{key}.shapes"] = np.array([array.shape for array in arrays], np.int64)
        packed[f"{key}.owners"] = np.array(owners[key], np.int64)
    return packed


def unpack_stats(columns: Mapping[str, np.ndarray], count: int) -> list[TensorStats]:
    """Return the statistics of so many tensors, from what `pack_stats` gave."""
    states: list[dict[str, dict[str, np.ndarray]]] = [{} for _ in range(count)]
    for key in columns:
        if key.endswith(".owners"):
            kind, field = key.removesuffix(".owners").split(".")
            flat, shapes = columns[f"{kind}.{field}"], columns[f"{kind}.{field}.shapes"]
            pieces = np.split(flat, np.cumsum([int(np.prod(shape)) for shape in shapes])[:-1])
            for owner, shape, piece in zip(columns[key], shapes, pieces, strict=True):
                states[owner].setdefault(kind, {})[field] = piece.reshape(tuple(shape))
    return [TensorStats(KINDS[kind].from_arrays(arrays) for kind, arrays in state.items()) for state in states]
