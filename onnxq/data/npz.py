"""Samples in `.npz` and `.npy` files, streamed: headers when opened, rows when asked for.

How an array in a file is cut into samples (`SampleCut`):

* rank of the input plus one: a stack, one sample per entry of the first axis;
* the input's own rank: batched along its first axis. If the model fixes the batch at B, samples are batches of B, and
the rows left over are dropped (`Source.dropped` says how many). If it is dynamic, one row is one sample, `[1, …]`;
* a scalar for a scalar input, or any array for an input of unknown rank: the whole array is one sample;
* whole files, where they have several rows of which the model takes all at once (`onnxq.data.whole_files`);
* arrays of different numbers of rows, of inputs whose first axes the model gives different names: four texts and one
  picture are one sample. So is a graph of 60 atoms and 300 pairs `[2, pairs]`, or 40 steps and one state.

Tests: `tests/data/test_samples.py`.
"""

from __future__ import annotations

import math
import weakref
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

from onnxq.data.advice import saving
from onnxq.data.reading import Preparation
from onnxq.data.unread.formats import begins_like, is_array_file, remedy_for
from onnxq.data.validation import InputSpec, check_names, check_shape, is_label, refuse_no_numbers, to_array
from onnxq.errors import DataError
from onnxq.ir.storage.lfs import POINTER, pointer_error
from onnxq.warning import WarningLine

SAVE_AGAIN = "Save it again with numpy.savez or numpy.save, or copy it again."
MOST_KEPT = 32 << 20  # bytes of all compressed arrays that are kept from their first pass on
MAC_FILES = "__MACOSX/"  # what macOS adds to an archive that it packs, a file for each member
UNREADABLE = (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error, RuntimeError)  # an archive with a password


@dataclass(frozen=True)
class Source:
    """Samples of one file or callable, read again each time.

    Attributes:
        label: Names it in messages.
        read: Starts over and gives raw samples one by one.
        count: How many there are; None while unknown.
        dropped: Rows left over by cutting fixed batches.
        rows: Rows of the file's arrays that make one sample.
        read_labels: Gives the arrays of a file that are no inputs; where it is None, they come with the samples.
        preparations: What is done to files that hold no arrays, for each input.
        notes: What was left out, in sentences.
        ignored: Settings of the user that say nothing about these data, in sentences.
        warnings: What looks wrong about the files themselves.
        decoders: For each input that takes pictures, how its values become colours again: called with the values of a
            sample and the most pixels of a side, it gives bytes `[height, width, 1 or 3]`.
        enlarged: By file, how many times larger a picture was made; known once it was read.
        shareable: Whether a copy of this process may read it at the same time: not what runs Python of the user, which
            may hold an open file, and not what runs a model with threads.
        whole: Gives the same file as one sample; None where its rows are surely samples, or it has one.

    """

    label: str
    read: Callable[[], Iterator[Mapping[str, Any]]]
    count: int | None = None
    dropped: int = 0
    rows: int = 1
    read_labels: Callable[[], Mapping[str, np.ndarray]] | None = None
    preparations: tuple[Preparation, ...] = ()
    notes: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    warnings: tuple[WarningLine, ...] = ()
    decoders: Mapping[str, Callable[[np.ndarray, int], np.ndarray]] = field(default_factory=dict)
    enlarged: Mapping[Path, float] = field(default_factory=dict)
    shareable: bool = True
    whole: Callable[[], Source] | None = None


@dataclass(frozen=True)
class SampleCut:
    """How one array becomes samples: `step` rows each, `count` times; a stack loses its first axis; `step` 0: whole."""

    count: int
    step: int = 1
    stack: bool = False
    dropped: int = 0


@dataclass(frozen=True)
class Column:
    """One array of a file: its header, and a function that streams blocks of rows (all of it for 0 rows)."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    blocks: Callable[[int, ExitStack], Iterator[np.ndarray]]


def make_cut(shape: tuple[int, ...], spec: InputSpec, where: str) -> SampleCut:
    """Decide how an array of `shape` is cut into samples of `spec`; the module's docstring has the rule.

    Raises:
        DataError: Its rank or a fixed dimension fits neither a stack nor a batch, or it is smaller than one batch.

    """
    rank = None if spec.shape is None else len(spec.shape)
    if rank is None or (rank == 0 and not shape):
        return SampleCut(1, step=0)
    if len(shape) == rank + 1:
        check_shape(shape[1:], spec, where, behind=1)
        return SampleCut(shape[0], stack=True)
    if len(shape) != rank:
        check_shape(shape, spec, where)
    step = spec.fixed(0) or 1
    check_shape((step, *shape[1:]), spec, where, rows=shape[0])
    if 0 < shape[0] < step:
        raise DataError(
            f"input '{spec.name}' takes batches of {step} ({spec}), {where} has {shape[0]} rows {list(shape)}",
            f"Give at least {step} rows.",
        )
    return SampleCut(shape[0] // step, step, dropped=shape[0] % step)


def _arrange(
    columns: Mapping[str, Column],
    inputs: Sequence[InputSpec],
    label: str,
    read_labels: Callable[[], Mapping[str, np.ndarray]],
    *,
    whole: bool = False,
) -> Source:
    """Make one source of arrays that belong together: cut into samples, or `whole` as one.

    Raises:
        DataError: Names, shapes or numbers of samples do not fit.

    """
    check_names(columns, inputs, label)
    cuts = {}
    for spec in inputs:
        column = columns[spec.name]
        if column.dtype.hasobject:
            raise DataError(
                f"input '{spec.name}' in {label} is a pickled array of Python objects, which is not loaded",
                "Save plain arrays: numpy.stack makes one of rows of one length; others go into separate files.",
            )
        refuse_no_numbers(column.dtype, spec, label)
        cuts[spec.name] = make_cut(column.shape, spec, label)
    if whole or _is_one_sample(cuts, inputs):
        cuts = dict.fromkeys(cuts, SampleCut(1, step=0))
    counts = {name: cut.count for name, cut in cuts.items()}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{count} for '{name}' {list(columns[name].shape)}" for name, count in counts.items())
        raise DataError(
            f"the arrays in {label} disagree in the number of samples: {listed}",
            "Give every input the same number of rows; a stack (one leading dimension more) leaves no doubt.",
        )

    def read() -> Iterator[Mapping[str, np.ndarray]]:
        with ExitStack() as files:
            streams = [columns[name].blocks(cut.step, files) for name, cut in cuts.items()]
            for _ in range(next(iter(counts.values()), 0)):
                try:
                    blocks = [next(stream) for stream in streams]
                except UNREADABLE as error:
                    raise unreadable(label, error) from error
                yield {n: b[0] if c.stack else b for (n, c), b in zip(cuts.items(), blocks, strict=True)}

    dropped = max((cut.dropped for cut in cuts.values()), default=0)
    rows = max((cut.step for cut in cuts.values() if not cut.stack), default=1)
    batched = not any(cuts[spec.name].stack or spec.fixed(0) is not None for spec in inputs)
    several = batched and next(iter(counts.values()), 0) > 1
    if whole:
        rows = columns[inputs[0].name].shape[0]
    return Source(
        label,
        read,
        next(iter(counts.values()), 0),
        dropped,
        max(rows, 1),
        read_labels,
        whole=(lambda: _arrange(columns, inputs, label, read_labels, whole=True)) if several else None,
    )


def _is_one_sample(cuts: Mapping[str, SampleCut], inputs: Sequence[InputSpec]) -> bool:
    """Whether rows are no samples: their numbers differ, and only where the model names what is counted differently.

    An input whose first axis is fixed takes part with one batch, and a scalar always. Such are a graph of 60 atoms and
    300 pairs `[2, pairs]`, and 40 steps and one state `[1, 1, 128]`.
    """
    counted: dict[str, set[int]] = {}
    fixed = {cuts[spec.name].count for spec in inputs if spec.shape and spec.fixed(0) is not None}
    for spec in inputs:
        axis, cut = spec.shape[0] if spec.shape else None, cuts[spec.name]
        if isinstance(axis, str) and cut.step and not cut.stack:
            counted.setdefault(axis, set()).add(cut.count)
        elif cut.stack or cut.count != 1 or cut.dropped or (cut.step and spec.fixed(0) is None):
            return False
    return len(fixed.union(*counted.values())) > 1 and all(len(counts) == 1 for counts in counted.values())


def unreadable(label: str, error: BaseException) -> DataError:
    """Say that a file cannot be read."""
    if isinstance(error, OSError) and error.strerror:
        return DataError(f"{label} cannot be read: {error.strerror}", "Check its name and permissions.")
    pointer = None
    with suppress(OSError), open(label, "rb") as file:
        pointer = pointer_error(file.read(len(POINTER)), label, DataError, "data")
    if pointer is not None:
        return pointer
    other = {".npy": ".npz", ".npz": ".npy"}.get(Path(label).suffix.lower(), "")
    if other and is_array_file(Path(label), other):
        return DataError(f"{label} is a {other} file by what is in it", f"Name it {Path(label).with_suffix(other)}.")
    found = begins_like(Path(label))
    if found and not (label.endswith(".npy") and ".npy" in found):
        return DataError(f"{label} cannot be read: {found}", remedy_for(Path(label)) or SAVE_AGAIN)
    reason = (str(error) or type(error).__name__).splitlines()[0]
    if reason.startswith("the magic string is not correct"):
        reason = "an array in it does not begin like one"
    if reason.startswith(("EOF: reading ", "mmap length is greater than")):  # words of NumPy, and of Python
        reason = "its end is missing"
    if reason.startswith("Bad CRC-32 for file "):
        member = reason.removeprefix("Bad CRC-32 for file ").strip("'").removesuffix(".npy")
        reason = f"it is damaged: the bytes of its array '{member}' are not those that were written"
    return DataError(f"{label} cannot be read: {reason}", SAVE_AGAIN)


def read_npz(path: Path, inputs: Sequence[InputSpec]) -> Source:
    """Open an `.npz`: headers now, rows as they are asked for, compressed or not.

    Raises:
        DataError: It cannot be read, or does not fit the model.

    """
    try:
        with zipfile.ZipFile(path) as archive:
            found = [n for n in archive.namelist() if n.endswith(".npy") and not n.startswith(MAC_FILES)]
            if not found and archive.namelist():
                raise DataError(f"{path} is a ZIP archive, and holds no arrays", f"Save samples: {saving(inputs)}.")
            members = {n.removesuffix(".npy"): n for n in found}
            names = check_names(members, inputs, path.name)
            columns = {name: _member(path, archive, members[name]) for name in names}
    except UNREADABLE as error:
        raise unreadable(str(path), error) from error

    def read_labels() -> Mapping[str, np.ndarray]:
        try:
            with np.load(path, allow_pickle=False) as file:
                return {name: file[name] for name in members if is_label(name, inputs)}
        except UNREADABLE as error:
            raise unreadable(str(path), error) from error

    return _arrange(columns, inputs, path.name, read_labels)


def _member(path: Path, archive: zipfile.ZipFile, member: str) -> Column:
    with archive.open(member) as file:
        shape, fortran, dtype = _header(file)
    info = archive.getinfo(member)
    kept = _Inflated() if info.compress_type != zipfile.ZIP_STORED and _Inflated.has_room(info.file_size) else None
    if kept is not None:
        kept.reserve(info.file_size)

    def blocks(step: int, files: ExitStack) -> Iterator[np.ndarray]:
        """Read blocks from the file, or copy those that an earlier pass has inflated."""
        if kept is None:
            yield from read_blocks(step, files)
        elif step in kept.blocks:
            yield from (block.copy() for block in kept.blocks[step])
        else:
            inflated = []
            for block in read_blocks(step, files):
                inflated.append(block.copy())
                if len(inflated) == (shape[0] // step if step and shape else 1):
                    kept.blocks = {step: inflated}
                yield block

    def read_blocks(step: int, files: ExitStack) -> Iterator[np.ndarray]:
        stream = files.enter_context(files.enter_context(zipfile.ZipFile(path)).open(member))
        if fortran or step == 0 or not shape:  # column-major rows are scattered: this array is read whole
            yield from _cut(np.lib.format.read_array(stream, allow_pickle=False), step)
            return
        _header(stream)
        block = (step, *shape[1:])
        for _ in range(shape[0] // step):
            data = bytearray(stream.read(math.prod(block) * dtype.itemsize))
            if len(data) != math.prod(block) * dtype.itemsize:
                raise EOFError(f"'{member}' ends early")
            yield np.frombuffer(data, dtype).reshape(block)

    return Column(shape, dtype, blocks)


class _Inflated:
    """Blocks of a compressed array that are kept for further passes: to inflate them takes as long as ten copies.

    Attributes:
        blocks: All blocks of the array by their number of rows; empty before the end of a pass.

    """

    reserved = 0  # bytes of all arrays that are kept, or are going to be

    def __init__(self) -> None:
        self.blocks: dict[int, list[np.ndarray]] = {}

    @classmethod
    def has_room(cls, size: int) -> bool:
        """Whether so many bytes more may be kept: memory must not grow with the number of files."""
        return cls.reserved + size <= MOST_KEPT

    def reserve(self, size: int) -> None:
        """Count bytes as kept until this is no longer in use."""
        _Inflated.reserved += size
        weakref.finalize(self, _Inflated._release, size)

    @classmethod
    def _release(cls, size: int) -> None:
        cls.reserved -= size


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(file)
    if version == (2, 0):
        return np.lib.format.read_array_header_2_0(file)
    raise ValueError(f"its .npy format version is {version[0]}.{version[1]}, which numeric arrays never need")


def _cut(array: np.ndarray, step: int) -> Iterator[np.ndarray]:
    if step == 0:
        yield array
        return
    for start in range(0, len(array) - step + 1, step):
        yield array[start : start + step]


def cut_arrays(given: Mapping[str, Any], inputs: Sequence[InputSpec], label: str) -> Source:
    """Take samples from arrays in memory, one for each input.

    Args:
        given: Arrays or what NumPy makes arrays of, by name; those whose names start with `_` are labels.
        inputs: What the model wants.
        label: Names them in messages.

    Raises:
        DataError: They do not fit the model.

    """
    try:
        arrays = {name: to_array(array, f"{label}, array '{name}',") for name, array in given.items()}
    except ValueError as error:
        hint = "Rows of different lengths go into separate samples: give a list of dictionaries."
        raise DataError(f"{label} hold rows of different lengths", hint) from error

    def column(array: np.ndarray) -> Column:
        return Column(array.shape, array.dtype, lambda step, files: _cut(array, step))

    def read_labels() -> Mapping[str, np.ndarray]:
        return {name: array for name, array in arrays.items() if is_label(name, inputs)}

    return _arrange({name: column(array) for name, array in arrays.items()}, inputs, label, read_labels)


def read_npy(paths: Mapping[str, Path], inputs: Sequence[InputSpec], label: str) -> Source:
    """Open `.npy` files that belong together, one for each input; they are memory-mapped.

    Raises:
        DataError: One cannot be read, or does not fit the model.

    """

    def column(path: Path) -> Column:
        try:
            with path.open("rb") as file:
                shape, _, dtype = _header(file)
        except UNREADABLE as error:
            raise unreadable(str(path), error) from error

        def blocks(step: int, files: ExitStack) -> Iterator[np.ndarray]:
            for block in _cut(np.load(path, mmap_mode="r" if shape else None, allow_pickle=False), step):
                yield np.array(block)

        return Column(shape, dtype, blocks)

    def read_labels() -> Mapping[str, np.ndarray]:
        try:
            return {name: np.load(p, allow_pickle=False) for name, p in paths.items() if is_label(name, inputs)}
        except UNREADABLE as error:
            raise unreadable(label, error) from error

    return _arrange({name: column(path) for name, path in paths.items()}, inputs, label, read_labels)
