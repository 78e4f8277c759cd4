"""Codes chosen so far, kept in a folder next to the output, so that an interrupted run can go on.

The name of each file is a digest of what its codes depend on: model, samples, settings, and all weights so far. A file
of another run is not found. A file appears whole or not at all.

Tests: `tests/pipeline/test_resume.py`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from onnxq.calibration.stats_file import read_arrays, write_arrays
from onnxq.errors import DataError, OutputError
from onnxq.ir.storage.shelf import release_array
from onnxq.ops.forms.block_codes import BlockCodes
from onnxq.rounding.block_solver import BlockSolution
from onnxq.version import __version__

SUFFIX = ".resume"  # of the folder, behind the name of the output
HINT = "Leave --resume out, or make room."
PIECE = 1 << 24  # elements that are hashed at a time


def checkpoint_folder(output: Path) -> Path:
    """Return the folder for the codes of an output."""
    return output.with_name(output.name + SUFFIX)


def remove_checkpoint(folder: Path) -> None:
    """Remove the files that a checkpoint has written, and the folder if nothing else is in it."""
    digest = 32 * "[0-9a-f]"
    for path in (*folder.glob(f"{digest}.npz"), *folder.glob(f".{digest}.npz.*.tmp")):
        path.unlink(missing_ok=True)
    with suppress(OSError):
        folder.rmdir()


class Checkpoint:
    """The solutions of a run in the order in which they are asked for.

    Args:
        folder: Where they are kept; it is made if it is missing.
        run: What all solutions depend on, such as the digest of the model.
        samples: What they are chosen on.

    Raises:
        OutputError: The folder cannot be made.

    """

    def __init__(self, folder: Path, run: Iterable[str], samples: Iterable[Mapping[str, Any]]) -> None:
        self._folder = folder
        self._digest = hashlib.blake2b("\0".join((__version__, *run)).encode(), digest_size=16)
        for sample in samples:
            for name, array in sample.items():
                self._digest.update(name.encode())
                self._add(array)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(f"the folder {folder} cannot keep codes ({error.strerror})", HINT) from error

    def find(self, weight: np.ndarray, coding: object) -> BlockSolution | None:
        """Return the solution of the next weight; None where it has to be chosen and handed to `keep`."""
        self._digest.update(repr(coding).encode())
        self._add(weight)
        try:
            return read_arrays(self._path(), _solution, "codes", "Leave --resume out.")
        except DataError:
            return None

    def keep(self, solution: BlockSolution) -> None:
        """Write the solution of the weight that `find` was asked for last.

        Raises:
            OutputError: The disk is full.

        """
        codes = solution.codes
        parts = {"codes": codes.codes, "scales": codes.scales, "zeros": codes.zeros}
        columns = {"method": np.array(solution.method), "gain": np.array(solution.gain), **parts}
        try:
            write_arrays(self._path(), columns, force=True, compress=False)
        except OutputError as error:
            raise OutputError(error.message, HINT) from error

    def _path(self) -> Path:
        return self._folder / f"{self._digest.hexdigest()}.npz"

    def _add(self, array: Any) -> None:
        """Take an array into the digest."""
        array = np.atleast_1d(array)
        self._digest.update(f"{array.dtype.str}{array.shape}".encode())
        if array.T.flags.c_contiguous and not array.flags.c_contiguous:  # such as a tied head, whose copy is large
            self._digest.update(b"transposed")
            array = array.T
        height = max(PIECE * len(array) // max(array.size, 1), 1)
        for start in range(0, len(array), height):
            part = array[start : start + height]
            self._digest.update(part.tobytes())
            release_array(part)


def _solution(arrays: Mapping[str, np.ndarray]) -> BlockSolution:
    codes = BlockCodes(arrays["codes"], arrays["scales"], arrays["zeros"])
    return BlockSolution(codes, str(arrays["method"]), float(arrays["gain"]))  # type: ignore[arg-type]
