"""Input and output files of a run: refusals, default names, samples."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

from onnxq.data.reading import PLAIN, ModelFacts, Reading
from onnxq.data.samples import Samples, input_specs, open_samples, wrap_samples
from onnxq.errors import DataError, NothingToQuantize, OutputError
from onnxq.ir import Model, check_output
from onnxq.ir.storage.files import check_sources, data_path, refuse_source
from onnxq.missing import BUILT
from onnxq.progress import mention

MANY = 2000  # samples, from which on a user is told that fewer do: ranges need 32 to 200


class DataOptions(NamedTuple):
    """Data as the caller gave them, not opened yet; see `open_data`.

    Attributes:
        files: Files, folders and functions.
        samples: Arrays, an iterable of samples or a function, in place of files; None where there are none.
        limit: Most samples to use; None for all.
        reading: How data that are no arrays become samples.
        passes: How often the samples are read; None for more often than anyone waits for where they are very many.

    """

    files: Sequence[str | Path]
    samples: object = None
    limit: int | None = None
    reading: Reading = PLAIN
    passes: int | None = None

    @property
    def given(self) -> bool:
        """Whether there are data."""
        return bool(self.files) or self.samples is not None


def is_own_output(model: Model) -> bool:
    """Whether onnxq has quantized a model: `finalize` has marked it."""
    return "onnxq_version" in model.metadata


def refuse_own_output(model: Model) -> None:
    """Refuse a model that onnxq has quantized already: its weights have lost what another recipe would start from.

    Raises:
        NothingToQuantize: `finalize` has marked it.

    """
    if is_own_output(model):
        raise NothingToQuantize(
            f"nothing to quantize: onnxq has made {model.name} and it is quantized already", "Give the float model."
        )


def default_output(model: Path) -> Path:
    """The default path of the quantized model: `MODEL.int8.onnx` in the folder of the float one."""
    return model.parent / ((model.stem if model.suffix.lower() == ".onnx" else model.name) + BUILT)


def check_result_path(
    model: Model, target: Path, *, force: bool, reads: Iterable[object] = (), external: bool = False
) -> None:
    """Refuse an output that is in the way, or that is the model or something else that is read, before any work."""
    if external:
        check_output(data_path(target), force=force, reads=reads)
    if model.path is None:
        check_output(target, force=force, reads=reads)
        return
    refuse_source(target, [model.path], what="the model")
    check_output(target, force=force, reads=reads)
    if target.exists() or data_path(target).exists():
        check_sources(model, target)


def objection_to(
    model: Model, target: Path, *, force: bool, reads: Iterable[object] = (), external: bool = False
) -> OutputError | None:
    """Return why a result cannot be written; None where it can.

    Args:
        model: The float model as it was read.
        target: Where the result is to go.
        force: Whether an old one is replaced.
        reads: Other things that the run reads.
        external: Whether weights are to have a file of their own.

    """
    try:
        check_result_path(model, target, force=force, reads=reads, external=external)
    except OutputError as error:
        return error
    return None


def open_data(
    model: Model,
    data: Sequence[str | Path],
    samples: Any,
    limit: int | None,
    reading: Reading = PLAIN,
    passes: int | None = None,
    *,
    shared: bool = False,
) -> Samples | None:
    """Open the samples that the caller gave, in whatever form; None where there are none.

    Settings without files to read are refused, unless they are shared with other data. See `DataOptions` for the rest.
    """
    if data and samples is not None:
        raise DataError("both files and samples are given as data", "Give one of them.")
    if not data and samples is None:
        if limit is not None:
            raise DataError("a number of samples is asked for, but no data is given", "Add --data.")
        if not shared:
            _refuse_reading(reading, "no data is given", "Add --data.")
        return None
    inputs = input_specs(model)
    if samples is not None:
        _refuse_reading(reading, "samples are given as they are", "Give data, or leave it out.")
        opened = wrap_samples(samples, inputs)
    else:
        opened = open_samples(data, inputs, reading, ModelFacts.of(model))
    for line in (*map(str, opened.preparations), *opened.notes):
        mention(line)
    if limit is None and passes is None and (opened.count or 0) > MANY:
        mention(f"{opened.count:,} samples are read many times: --samples 200 takes 200 of them, which usually suffice")
    return opened if limit is None else opened.limit(limit)


def _refuse_reading(reading: Reading, why: str, remedy: str) -> None:
    """Refuse a setting about reading files where none are read."""
    unread = next((one.name for one in fields(reading) if getattr(reading, one.name) != one.default), None)
    if unread is not None:
        raise DataError(f"--{unread.replace('_', '-')} says how data are read, but {why}", remedy)
