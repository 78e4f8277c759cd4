"""Write one file for each target of a convention, all of them or none.

Each is quantized, run and compared with the float model as by `onnxq.quantize`. All are written to a hidden folder
next to the output first, and moved when the last one is done.

Tests: `tests/publish/test_export.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from onnxq.data.reading import PLAIN, Reading
from onnxq.errors import NothingToQuantize, OutputError
from onnxq.ir import Model, load, save
from onnxq.ir.storage.files import data_path, weights_of
from onnxq.ir.storage.scratch_file import scratch_folder
from onnxq.ir.stored_tensor import StoredTensor
from onnxq.pipeline.quantize import quantize
from onnxq.planning.recipe import in_blocks
from onnxq.progress import Observer
from onnxq.publish.conventions import PublishedFile, find_convention
from onnxq.publish.external_data import rename_data
from onnxq.publish.model_card import ExportedFile, model_card
from onnxq.publish.quantize_config import quantize_config
from onnxq.search.budget import Budget
from onnxq.targets import families_of
from onnxq.verification.user_metric import Metric

CARD = "onnxq-model-card.md"
BLOCK = 32  # weights that share a scale in 4 bits, as in the files of transformers.js


@dataclass(frozen=True)
class Export:
    """The files that were written.

    Attributes:
        folder: Where they are.
        files: In the order of the convention.
        skipped: Names of files that were not written, and why.
        card: Path of the model card's table.

    """

    folder: Path
    files: tuple[ExportedFile, ...]
    skipped: tuple[tuple[str, str], ...]
    card: Path


def export(
    model: str | Path,
    convention: str,
    folder: str | Path,
    *,
    data: str | Path | Sequence[str | Path] = (),
    reading: Reading = PLAIN,
    sample_limit: int | None = None,
    metric: str | Metric | None = None,
    force: bool = False,
    observer: Observer | None = None,
) -> Export:
    """Quantize a model for each target of a convention, and write the files and a table for the model card.

    Args:
        model: Path of a float ONNX model.
        convention: `hub`, `transformers.js` or `sherpa`.
        folder: Where to write; it is made if it does not exist.
        data: Calibration data as for `onnxq.quantize`; without, the recipe is dynamic.
        reading: How data that are no arrays become samples.
        sample_limit: Use no more samples.
        metric: A name such as `top1`, a function of outputs and labels, or `package.module:function`, measured on each
            file.
        force: Replace files that exist.
        observer: Told about each step.

    Returns:
        The files that were written, and those that were not.

    Raises:
        RecipeError: There is no such convention.
        OutputError: A file exists, or cannot be written.
        OnnxqError: As `onnxq.quantize`; nothing was written then.

    Examples:
        >>> import onnxq
        >>> [file.name for file in onnxq.export("model.onnx", "sherpa", "files", data="calibration.npz").files]
        ['model.onnx', 'model.int8.onnx']

    """
    chosen, source, target = find_convention(convention), Path(model), Path(folder)
    names = {file: file.name.format(model=source.stem) for file in chosen.files}
    extra = [chosen.settings] if chosen.settings else []
    outside = [f"{name}{chosen.data_suffix}" for name in names.values()]
    _refuse_existing(source, target, [*names.values(), *extra, CARD, *outside], force=force)
    done: list[ExportedFile] = []
    skipped: list[tuple[str, str]] = []
    settings = {"data": data, "reading": reading, "sample_limit": sample_limit, "budget": Budget(metric=metric)}
    with scratch_folder(target) as hidden:
        for file, name in names.items():
            path = hidden / name
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                one = _write(source, file, name, path, {**settings, "observer": observer})
                outside_data = rename_data(path, chosen.data_suffix)
                done.append(replace(one, data=f"{name}{chosen.data_suffix}") if outside_data else one)
            except NothingToQuantize as error:
                if file.bits is None:  # then no file of the convention can be made
                    raise
                skipped.append((name, error.message.partition(": ")[2] or error.message))
            except OutputError as error:  # the hidden folder is not known outside
                raise OutputError(error.message.replace(str(path), str(target / name)), error.hint) from error
        card = model_card(chosen.ecosystem, done, skipped, chosen.left_out.format(model=source.stem))
        (hidden / CARD).write_text(card, "utf-8")
        if chosen.settings:
            written = {file.name for file in done}
            made = [file for file, name in names.items() if name in written]
            (hidden / chosen.settings).write_text(quantize_config(made, done, BLOCK), "utf-8")
        _move(hidden, target)
    return Export(target, tuple(done), tuple(skipped), target / CARD)


def _write(source: Path, file: PublishedFile, name: str, path: Path, settings: Mapping[str, Any]) -> ExportedFile:
    """Write one file, and describe it."""
    if file.target is None:
        save(load(source), path)
        return ExportedFile.of_float(name, file.serves, path)
    recipe = "auto" if file.bits is None else in_blocks(file.bits, BLOCK, file.target)
    target = file.target if file.bits is None else None
    report = quantize(source, recipe, output=path, target=target, **settings)
    return ExportedFile.of_report(name, file.serves, report, families_of(file.target))


def _refuse_existing(source: Path, folder: Path, names: Sequence[str], *, force: bool) -> None:
    """Refuse to replace the float model, or other files without `force`."""
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"{folder} is a file", "Name a folder with --output.")
    if not folder.absolute().parent.is_dir():
        raise OutputError(f"{folder.absolute().parent} does not exist", "Make it first, or choose another folder.")
    read = {source.resolve(), *weight_files(load(source))}
    for name in names:
        path = folder / name
        if path.is_dir():
            raise OutputError(f"{path} is a folder", "Move it away, or choose another folder with --output.")
        if path.exists() and path.resolve() in read:
            raise OutputError(f"{path} would be replaced by itself", "Choose another folder with --output.")
        if path.exists() and not force:
            raise OutputError(f"{path} already exists", "Use --force to replace it, or choose another folder.")


def weight_files(model: Model) -> set[Path]:
    """Return the files that the weights of a model are in."""
    tensors = [value.tensor for value in model.initializers() if isinstance(value.tensor, StoredTensor)]
    return {tensor.file.resolve() for tensor in tensors if tensor.file is not None}


def _move(hidden: Path, folder: Path) -> None:
    """Move all files; models last, so that none refers to weights that are not there."""
    files = sorted(path for path in hidden.rglob("*") if path.is_file())
    try:
        for path in sorted(files, key=lambda path: path.suffix == ".onnx"):
            place = folder / path.relative_to(hidden)
            place.parent.mkdir(parents=True, exist_ok=True)
            left = [] if data_path(path).exists() else weights_of(place)
            path.replace(place)
            for weights in left:
                weights.unlink(missing_ok=True)
    except OSError as error:
        raise OutputError(f"{folder} cannot be written ({error.strerror})", "Choose another folder.") from error
