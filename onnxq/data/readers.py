"""Samples in folders, ONNX test data sets and Python callables; the array files have `onnxq.data.npz`.

Tests: `tests/data/test_samples.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from onnxq.data.advice import empty_folder, kinds_of, named_type, one_sample
from onnxq.data.beside import ARRAY_SUFFIXES
from onnxq.data.npz import UNREADABLE, Source, read_npy, read_npz
from onnxq.data.user_function import CALLED
from onnxq.data.validation import InputSpec
from onnxq.errors import DataError


def read_folder(folder: Path, inputs: Sequence[InputSpec]) -> list[Source]:
    """Open a folder: ONNX test data sets, or `.npz` and `.npy` files in natural order.

    Every `.npz` is opened as if it were given alone. A `.npy` is the data of the only input; where the model has
    several inputs, the files are named like them (`input_ids.npy`) and belong together.

    Raises:
        DataError: The folder holds nothing of the kind, or a file does not fit the model.

    """
    found = sorted(_visible(folder), key=natural_order)
    if (folder / "input_0.pb").is_file():
        return [read_test_data(folder, inputs)]
    sets = [f for f in found if f.name.startswith("test_data_set_") and (f / "input_0.pb").is_file()]
    if sets:
        sources = [read_test_data(f, inputs) for f in sets]
        return _with_left_out(
            sources, folder, [f for f in found if f.suffix.lower() in ARRAY_SUFFIXES], "the test data sets are"
        )
    arrays = [f for f in found if f.suffix.lower() == ".npy"]
    sources = [read_npz(f, inputs) for f in found if f.suffix.lower() == ".npz"]
    if arrays and len(inputs) == 1:
        sources += [read_npy({inputs[0].name: f}, inputs, f.name) for f in arrays]
    elif arrays:
        sources.append(read_npy({f.stem: f for f in arrays}, inputs, str(folder)))
    if not sources:
        raise empty_folder(folder, found, inputs, below=_below(folder, inputs))
    left = [f for f in found if f.suffix.lower() not in ARRAY_SUFFIXES]
    return _with_left_out(sources, folder, left, ".npz and .npy files are")


def _with_left_out(sources: list[Source], folder: Path, left: Sequence[Path], read: str) -> list[Source]:
    """Note at the first source what else is in a folder."""
    if not left:
        return sources
    said = f"{folder}: only {read} read there, not {kinds_of(left)}"
    return [replace(sources[0], notes=(*sources[0].notes, said)), *sources[1:]]


def holds_arrays(folder: Path) -> bool:
    """Whether a folder has arrays or ONNX test data itself, not further below."""
    found = _visible(folder)
    sets = (path for path in found if path.name.startswith("test_data_set_"))
    return (
        any(path.suffix.lower() in ARRAY_SUFFIXES for path in found)
        or (folder / "input_0.pb").is_file()
        or any((path / "input_0.pb").is_file() for path in sets)
    )


def _below(folder: Path, inputs: Sequence[InputSpec]) -> Path | None:
    """Return a folder one or two levels below that has arrays; a folder for each input is another matter."""
    names = {spec.name for spec in inputs}
    found = (path for pattern in ("*", "*/*") for path in sorted(folder.glob(pattern), key=natural_order))
    visible = (path for path in found if path.is_dir() and not path.name.startswith(".") and path.name not in names)
    with suppress(OSError):
        return next((path for path in visible if holds_arrays(path)), None)
    return None


def _visible(folder: Path) -> list[Path]:
    """List what is in a folder; hidden files, such as those that macOS adds for each file, are no data."""
    return [path for path in folder.iterdir() if not path.name.startswith(".")]


def natural_order(path: Path) -> list[tuple[int, str]]:
    """Sort key that puts `sample_2` before `sample_10`."""
    return [(int(p), "") if p.isdecimal() else (-1, p) for p in re.split(r"(\d+)", path.name) if p] + [(-2, path.name)]


def read_test_data(folder: Path, inputs: Sequence[InputSpec]) -> Source:
    """Open one ONNX test data set: `input_0.pb`, `input_1.pb`, …, each a TensorProto, together one sample.

    Tensors go to the inputs that they are named after; where the names are not exactly the inputs', by their numbers.

    Raises:
        DataError: When read: a file is no TensorProto, or there are more files than inputs.

    """
    files: list[Path] = []
    while (folder / f"input_{len(files)}.pb").is_file():
        files.append(folder / f"input_{len(files)}.pb")

    def read() -> Iterator[Mapping[str, np.ndarray]]:
        tensors = [_test_tensor(file) for file in files]
        names = [spec.name for spec in inputs]
        if sorted(t.name for t in tensors) == sorted(names):
            names = [t.name for t in tensors]
        if len(tensors) > len(names):
            raise DataError(
                f"{folder} holds {len(tensors)} inputs, the model takes {len(names)}", "Is this the model's own data?"
            )
        yield {name: onnx.numpy_helper.to_array(t) for name, t in zip(names, tensors, strict=False)}

    return Source(folder.name, read, 1)


def _test_tensor(file: Path) -> onnx.TensorProto:
    try:
        tensor = onnx.load_tensor(file)
        onnx.numpy_helper.to_array(tensor)
    except (*UNREADABLE, DecodeError, TypeError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise DataError(f"{file} is no tensor: {reason}", "Only tensor inputs (TensorProto) can be sampled.") from error
    return tensor


def read_iterable(give: Callable[[], Iterable[Any]], label: str, inputs: Sequence[InputSpec]) -> Source:
    """Make a source of a function that gives an iterable of `{input name: array}`; it is called for each pass.

    Args:
        give: The function.
        label: Names it in messages.
        inputs: What the model wants.

    Raises:
        DataError: When read: the function or its iterable fails, or gives something other than mappings.

    """

    def read() -> Iterator[Mapping[str, Any]]:
        try:
            given = give()
            if not isinstance(given, Iterable) or isinstance(given, str | bytes | Mapping):
                hint = f"Let it yield each sample, or return a list of them: {one_sample(inputs)}."
                raise DataError(f"{label} returns {named_type(given)}, not samples", hint)
            stream = iter(given)
        except CALLED as error:  # whatever the user's code raises is the user's to read
            raise _failed(label, error) from error
        while True:
            try:
                sample = next(stream)
            except StopIteration:
                return
            except CALLED as error:
                raise _failed(label, error) from error
            if not isinstance(sample, Mapping):
                raise DataError(
                    f"{label} gives {named_type(sample)} for a sample, not a dictionary",
                    f"Give each as {one_sample(inputs)}.",
                )
            yield sample

    return Source(label, read, shareable=False)


def _failed(label: str, error: BaseException) -> DataError:
    if isinstance(error, DataError):
        return error
    text = f"{type(error).__name__}: {error}".splitlines()[0]
    return DataError(f"{label} failed: {text}", "It must be callable without arguments and give samples.")
