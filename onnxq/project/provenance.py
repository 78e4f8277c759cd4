"""Record the inputs of a quantized model in its own metadata, in place of a lock file.

The record is JSON under the key `onnxq_inputs`. It holds SHA-256 of the float model, its external data, the recipe and
the data. It also holds the options, the version of onnxq, and SHA-256 of the output but for its metadata.
`onnxq_measured` holds the figures of every output and what measured them.

Tests: `tests/project/test_project_build.py`.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from onnxq.data.beside import ARRAY_SUFFIXES, PICTURE_SUFFIXES, SOUND_SUFFIXES, makes_bytes
from onnxq.data.listed import listed_files
from onnxq.data.remote import is_remote, local_copy
from onnxq.errors import DataError
from onnxq.ir import Model, StoredTensor
from onnxq.ir.proto_fields import MODEL_METADATA
from onnxq.ir.storage.external import external_path, hash_released
from onnxq.ir.storage.files import external_chunks
from onnxq.ir.storage.lfs import POINTER, pointer_error
from onnxq.ir.wire import Pending, entry_field, fields
from onnxq.missing import missing_data
from onnxq.pipeline.options import QuantizeOptions, declarations
from onnxq.planning.recipe import Recipe, choose_recipe
from onnxq.project.entry import Entry
from onnxq.project.rules import CheckRule
from onnxq.search.resolution import RESOLUTION
from onnxq.targets.host import host_family, processor_name
from onnxq.text import join_words
from onnxq.verification.records import Comparison, MetricComparison, OutputComparison
from onnxq.version import __version__, installed_version

if TYPE_CHECKING:  # it imports onnxruntime, which `onnxq check` does without
    from onnxq.verification.families import FamilyFigures

INPUTS, MEASURED = "onnxq_inputs", "onnxq_measured"
DATA_SUFFIXES = (*ARRAY_SUFFIXES, ".pb", *PICTURE_SUFFIXES, *SOUND_SUFFIXES)
NO_FILE = "no file"  # in place of a hash: texts become bytes without a tokenizer
ELSEWHERE = "installed elsewhere"  # in place of a hash: the module is no part of the repository
HASHED = (
    "recipe",
    "target",
    "data",
    "tokenizer",
    "metric",
    "custom_ops",
)  # options whose files are hashed, or need not be
BLOCK = 1 << 20
METRIC_VALUES, METRIC_DIGITS = ("float_value", "quantized_value"), 5


def gather(entry: Entry, source: Model) -> dict[str, Any]:
    """Say what a build of a model would read now.

    Args:
        entry: The model.
        source: Its float model, loaded.

    Returns:
        Plain data: `onnxq` (version), `float` (SHA-256 by file name), `recipe` (SHA-256), `data` and `metric` (SHA-256
        by name as in the project file) and `options`, those limits among them that a build works towards. `by_hand`
        names options that a project file cannot hold, if there are any.

    Raises:
        ModelError, RecipeError, DataError: One of them is missing or cannot be read.

    """
    by_hand = [
        one.flag
        for name, one in declarations().items()
        if one.toml is None and getattr(entry.options, name) != one.default
    ]
    return {
        "onnxq": __version__,
        "float": _model_hashes(entry.source, source),
        "recipe": _sha256(chosen_recipe(entry).to_toml().encode()),
        "data": {given: _data_hash(entry, given) for given in dict.fromkeys((*entry.options.data, *_read_with(entry)))},
        "metric": {given: _metric_hash(entry, given) for given in filter(None, [entry.options.metric])},
        "options": _plain(entry.options),
        **({"by_hand": by_hand} if by_hand else {}),
    }


def _read_with(entry: Entry) -> list[str]:
    """Name the tokenizer and the configs that data are read with, relative to the project."""
    named = entry.options.tokenizer
    found = [] if named is None or (entry.root / named).is_dir() else [named.as_posix()]
    return [*found, *(Path(os.path.relpath(path, entry.root)).as_posix() for path in entry.beside(entry.options.data))]


def _plain(options: QuantizeOptions) -> dict[str, Any]:
    """Return as plain data, by key of the project file, the options that nothing else in the record stands for."""
    found = {}
    for name, one in declarations().items():
        if one.toml is not None and name not in HASHED:
            value = getattr(options, name)
            found[one.toml.rpartition(".")[2]] = list(value) if one.many else value
    return found


def chosen_recipe(entry: Entry) -> Recipe:
    """Read the recipe of a model, for its target."""
    return choose_recipe(entry.recipe_source(), target=entry.options.target)


class ChangedInput(NamedTuple):
    """Something that a model was built from and that is another one now."""

    rule: CheckRule
    sentence: str


def changes(
    entry: Entry, recorded: str | None, wanted: dict[str, Any], met: Collection[str] = ()
) -> list[ChangedInput]:
    """Say in sentences why a quantized model is out of date.

    Args:
        entry: The model.
        recorded: What it has under `INPUTS`.
        wanted: What `gather` gives now.
        met: Keys of limits that the model keeps to: whether they have changed makes no difference.

    """
    made = _parsed(recorded)
    if not made:
        return [ChangedInput("stale-origin", f"it was not built from {entry.source} by the project file")]
    found: list[ChangedInput] = []
    if _minor(made.get("onnxq")) != _minor(__version__):
        found.append(ChangedInput("stale-version", f"it was built by onnxq {made.get('onnxq')}, this is {__version__}"))
    if made.get("float") != wanted["float"]:
        found.append(ChangedInput("stale-float", f"{entry.source} has changed since it was built"))
    if made.get("recipe") != wanted["recipe"]:
        sentence = f"its recipe {entry.options.recipe} is another one than it was built with"
        found.append(ChangedInput("stale-recipe", sentence))
    found += [
        ChangedInput("stale-data", one) for one in _listed_changes("data", True, made.get("data"), wanted["data"])
    ]
    changed = _listed_changes("metric", False, made.get("metric"), wanted["metric"])
    found += [ChangedInput("stale-metric", one) for one in changed]
    return found + [ChangedInput("stale-options", one) for one in _option_changes(made, wanted["options"], met)]


def _written(value: object) -> str:
    """Write the value of an option as the project file has it."""
    return "not set" if value is None else json.dumps(value)


def _option_changes(made: dict[str, Any], wanted: dict[str, Any], met: Collection[str]) -> list[str]:
    options = made.get("options")
    options = _plain(QuantizeOptions()) | (options if isinstance(options, dict) else {})  # it may know fewer of them
    found = [
        f"'{key}' was {_written(options[key])} when it was built, and is {_written(value)}"
        for key, value in wanted.items()
        if options[key] != value and key not in met
    ]
    by_hand = made.get("by_hand")
    if isinstance(by_hand, list):
        found.append(f"it was built with {join_words([str(flag) for flag in by_hand])}, which no project file holds")
    return found


def _minor(version: object) -> str:
    """Return a version without its last number: versions that differ in it alone choose the same codes."""
    return ".".join(str(version).split(".")[:2])


def _listed_changes(key: str, plural: bool, recorded: object, wanted: dict[str, str]) -> list[str]:
    before: dict[str, Any] = recorded if isinstance(recorded, dict) else {}
    if list(before) != list(wanted):
        return [f"its {key} {'were' if plural else 'was'} {', '.join(before) or 'none'} when it was built"]
    has = "have" if plural else "has"
    return [f"its {key} {given} {has} changed since it was built" for given in before if before[given] != wanted[given]]


def written_hash(model: Model, data_file: str | None) -> dict[str, str]:
    """Hash what `save` writes of a model but its metadata, which holds the hash.

    Args:
        model: The model.
        data_file: Name of the file that the weights go to, which are hashed by themselves; None where they stay inside.

    """
    kept = dict(model.metadata)
    model.metadata.clear()
    model.metadata[INPUTS] = ""  # with none at all, the header of the float model would be taken over as it is
    entry = entry_field(MODEL_METADATA, INPUTS, "")
    try:
        if data_file is None:
            chunks = model.chunks(verbatim=not model.has_external_data)
        else:
            _, chunks = external_chunks(model, data_file)
    finally:
        model.metadata.clear()
        model.metadata.update(kept)
    digest = hashlib.sha256()
    for chunk in chunks:
        if chunk != entry:
            hash_released(digest, chunk.get() if isinstance(chunk, Pending) else chunk)
    weights = {} if data_file is None else {"weights": weights_sha256(model)}
    return {"content": digest.hexdigest(), **weights}


def record(
    wanted: dict[str, Any],
    written: Mapping[str, str],
    comparison: Comparison | None,
    families: Collection[FamilyFigures] = (),
) -> dict[str, str]:
    """Write the entries for the metadata of a quantized model.

    Args:
        wanted: What `gather` gave when it was built.
        written: What `written_hash` gave.
        comparison: What was measured.
        families: Figures on each family of processors: where they differ, those of `comparison` hold on one alone.

    """
    entries = {INPUTS: json.dumps({**wanted, **written}, ensure_ascii=False)}
    if comparison is not None:
        outputs = [{key: _rounded(key, value) for key, value in asdict(o).items()} for o in comparison.outputs]
        metric = None
        if comparison.metric is not None:
            metric = {key: _rounded(key, value) for key, value in asdict(comparison.metric).items()}
            if not metric["is_distance"]:
                del metric["is_distance"]  # models that were built before it was recorded keep their bytes
        measured = {"samples": comparison.samples, "outputs": outputs, "metric": metric, **_runtime(families)}
        entries[MEASURED] = json.dumps(measured, ensure_ascii=False)
    return entries


def _runtime(families: Collection[FamilyFigures]) -> dict[str, str]:
    """Say what measured the figures; the processor only if they depend on it, or each would write another file."""
    found = {"onnxruntime": installed_version("onnxruntime") or "unknown"}
    reached = {None if one.sqnr is None else _rounded("sqnr", one.sqnr) for one in families}
    if any(one.saturates for one in families) and (len(reached) > 1 or None in reached):
        found |= {"processor": processor_name(), "family": host_family()}
    return found


def recorded_runtime(model: Model) -> str:
    """Say what measured the figures of a model: `onnxruntime 1.32.0`; empty if it was not recorded."""
    made = _parsed(model.metadata.get(MEASURED))
    release = made.get("onnxruntime")
    named = [f"onnxruntime {release}"] if isinstance(release, str) else []
    return ", ".join((*named, *(made[key] for key in ("processor", "family") if isinstance(made.get(key), str))))


def recorded_comparison(model: Model) -> Comparison | None:
    """Return the figures that were measured when a model was built; None where it has none that could be read."""
    made = _parsed(model.metadata.get(MEASURED))
    try:
        metric = None if made["metric"] is None else _metric(made["metric"])
        return Comparison(tuple(_output(given) for given in made["outputs"]), int(made["samples"]), metric=metric)
    except (KeyError, TypeError, ValueError):
        return None


def was_altered(model: Model) -> bool:
    """Whether a model's graph, stamps or weights are others than onnxq wrote, as far as that was recorded."""
    made = _parsed(model.metadata.get(INPUTS))
    content, weights = made.get("content"), made.get("weights")
    if content is not None and content != _content_sha256(model.source):
        return True
    return weights is not None and bool(weights != weights_sha256(model))


def _content_sha256(encoded: memoryview) -> str:
    """Hash all fields of a ModelProto but its metadata, as `written_hash` does."""
    digest = hashlib.sha256()
    for number, _, start, _, end in fields(encoded):
        if number != MODEL_METADATA:
            hash_released(digest, encoded[start:end])
    return digest.hexdigest()


def weights_sha256(model: Model) -> str:
    """Hash the names and elements of all initializers, wherever they are stored."""
    digest = hashlib.sha256()
    for value in sorted(model.initializers(), key=lambda value: value.name):
        assert value.tensor is not None
        digest.update(value.name.encode())
        digest.update(value.tensor.raw() or b"")
        value.tensor.release()
    return digest.hexdigest()


def external_files(path: Path, model: Model) -> list[Path]:
    """Name the files that hold external data of a model's initializers, each once, in order.

    Raises:
        ModelError: One is missing or lies outside the model's folder.

    """
    tensors = [value.tensor for value in model.initializers()]
    stored = {t.external.get("location", ""): t for t in tensors if isinstance(t, StoredTensor) and t.is_external}
    return [external_path(path.parent, location, stored[location].name) for location in sorted(stored)]


def _model_hashes(path: Path, model: Model) -> dict[str, str]:
    hashes = {"model": model.sha256}
    folder = Path(path.parent).resolve()
    return hashes | {file.relative_to(folder).as_posix(): _file_sha256(file) for file in external_files(path, model)}


def _metric_hash(entry: Entry, given: str) -> str:
    """Hash the module of a function; a metric of onnxq changes only with its version."""
    return _data_hash(entry, given) if entry.is_function(given) else ELSEWHERE


def _data_hash(entry: Entry, given: str) -> str:
    """Hash a file and those that it lists, the files of a folder with their names, a URL, or a function's module."""
    if entry.is_function(given):
        module = entry.module_file(given)
        return ELSEWHERE if module is None else _file_sha256(module)
    path = local_copy(given) if is_remote(given) else entry.root / given
    if path == entry.tokenizer() and makes_bytes(path):
        return NO_FILE
    if not path.is_dir():
        listed = listed_files(path)
        own = _file_sha256(path)
        return _sha256("\n".join([own, *map(_file_sha256, listed)]).encode()) if listed else own
    hashes = "".join(f"{name} {_file_sha256(file)}\n" for name, file in _folder_files(path))
    return _sha256(hashes.encode("utf-8", "surrogateescape"))  # a name may be no UTF-8


def _folder_files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the files of data below a folder by their names in it, those of linked folders too, each folder once."""
    found, seen = dict[str, Path](), set[str]()
    for place, folders, files in os.walk(folder, followlinks=True):
        if (where := os.path.realpath(place)) in seen:
            folders.clear()
            continue
        seen.add(where)
        folders.sort()
        paths = [Path(place, name) for name in files if name.lower().endswith(DATA_SUFFIXES)]
        found |= {path.relative_to(folder).as_posix(): path for path in paths if path.is_file()}
    yield from sorted(found.items())


def _file_sha256(path: Path) -> str:
    """Hash a file; of Python code the line ends don't count, which git may change.

    Blocks are large, so that threads that hash run side by side.
    """
    digest = hashlib.sha256()
    try:
        if path.suffix == ".py":
            return _sha256(path.read_bytes().replace(b"\r\n", b"\n"))
        with path.open("rb") as file:
            pointer = pointer_error(file.read(len(POINTER)), str(path), DataError, "data")
            if pointer is not None:
                raise pointer
            file.seek(0)
            while block := file.read(BLOCK):
                digest.update(block)
    except OSError as error:
        home = any(part.startswith("~") for part in path.parts)
        if isinstance(error, FileNotFoundError) and not home:
            raise missing_data(str(path)) from error
        hint = "Write a path without ~: only shells replace it." if home else "Check its path and permissions."
        raise DataError(f"{path} cannot be read ({error.strerror})", hint) from error
    return digest.hexdigest()


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _parsed(text: str | None) -> dict[str, Any]:
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _rounded(key: str, value: Any) -> Any:
    """Round a figure by its name, so that the last bits of float kernels don't show; null where it is not finite.

    An SQNR and a largest error are rounded to what is better: a check finds no limit missed that the build has met.
    """
    if not isinstance(value, float):
        return value
    if not math.isfinite(value):
        return None
    if key == "sqnr":
        return math.ceil(value / RESOLUTION - 1e-6) / round(1 / RESOLUTION)
    if key == "max_abs" and value:
        unit = 10.0 ** (math.floor(math.log10(value)) - 2)
        return float(f"{math.floor(value / unit + 1e-6) * unit:.3g}")
    return float(f"{value:.{METRIC_DIGITS if key in METRIC_VALUES else 6}g}")


def _metric(given: dict[str, Any]) -> MetricComparison:
    known: dict[str, Any] = {key: math.nan if one is None else one for key, one in given.items()}
    return MetricComparison(**known)


def _output(given: dict[str, Any]) -> OutputComparison:
    limit = math.inf if given["equal"] else -math.inf  # what null stands for
    sqnr = limit if given["sqnr"] is None else float(given["sqnr"])
    max_abs = math.inf if given["max_abs"] is None else float(given["max_abs"])
    return OutputComparison(
        name=str(given["name"]),
        dtype=str(given["dtype"]),
        elements=int(given["elements"]),
        equal=bool(given["equal"]),
        sqnr=sqnr,
        max_abs=max_abs,
        cosine=given["cosine"],
        agreement=given["agreement"],
    )
