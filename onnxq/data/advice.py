"""Advice for data that onnxq does not read; errors give it with the model's own inputs."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from os import PathLike
from pathlib import Path

from onnxq.data.beside import OTHER_PICTURES, OTHER_SOUNDS, PICTURE_SUFFIXES, SOUND_SUFFIXES
from onnxq.data.text.roles import takes_text
from onnxq.data.unread.formats import BY_SUFFIX, UnreadFormat, pictures_without_ending, unread_format
from onnxq.data.validation import InputSpec
from onnxq.errors import DataError
from onnxq.text import counted, join_words, shell_path

PICTURES = (*PICTURE_SUFFIXES, *OTHER_PICTURES)
SOUNDS = (*SOUND_SUFFIXES, *OTHER_SOUNDS)
TEXTS = (".txt", ".json", ".jsonl", ".csv", ".tsv", ".md")
CODE = re.compile(r"(?P<file>.+)\.py:(?P<name>[A-Za-z_][\w.]*)")
SAMPLES = "samples"  # what messages call those that a caller of Python gives
MOST_INPUTS = 4
MOST_KINDS = 3


def named_type(given: object) -> str:
    """Name the type of a value with an article: `an array`, `a dict`."""
    if given is None:
        return "None"
    name = "array" if type(given).__name__ == "ndarray" else type(given).__name__
    return f"{'an' if name[:1] in 'aeiou' else 'a'} {name}"


def one_sample(inputs: Sequence[InputSpec]) -> str:
    """Write one sample of a model's inputs in Python, with their types."""
    shown = inputs[:MOST_INPUTS]
    arrays = ", ".join(f'"{spec.name}": array' for spec in shown) + (", …" if len(inputs) > MOST_INPUTS else "")
    types = ", ".join(f"{spec.name} is {spec}" for spec in shown if str(spec))
    return f"{{{arrays}}}{f', where {types}' if types else ''}"


def saving(inputs: Sequence[InputSpec]) -> str:
    """Return the line of Python that saves samples of a model's inputs, with their types."""
    shown = inputs[:MOST_INPUTS]
    more = ", …" if len(inputs) > MOST_INPUTS else ""
    # a name that is no word of Python goes in by a dictionary
    if all(spec.name.isidentifier() for spec in inputs):
        arrays = ", ".join(f"{spec.name}=array" for spec in shown) + more
    else:
        arrays = "**{" + ", ".join(f"{spec.name!r}: array" for spec in shown) + more + "}"
    types = ", ".join(f"{spec.name} is {spec}" for spec in shown if str(spec))
    return f"numpy.savez('data.npz', {arrays}){f', where {types}' if types else ''}"


def other_data(path: Path, inputs: Sequence[InputSpec]) -> DataError:
    """Make the error for a file that holds no arrays."""
    if path.suffix == ".py":
        return _code(path)
    if path.suffix == ".onnx":
        return DataError(f"{path} is a model, not data", f"Save samples: {saving(inputs)}.")
    if path.suffix == ".pb":
        return DataError(f"{path} is a single tensor", "Give the folder that it is in: test_data_set_0 or the like.")
    found = unread_format(path, inputs, text=takes_text(inputs))
    if found is not None:
        return _unread(path, found, inputs)
    kind = _kind(path.suffix.lower())
    if kind == "text" and any(spec.numpy_dtype is not None and spec.numpy_dtype.kind in "iu" for spec in inputs):
        said = f"{path} is text, and no input of the model is named like token ids, such as input_ids"
        return DataError(said, f"Tokenize it yourself, and save samples: {saving(inputs)}.")
    what = f"{path} is {kind}, and onnxq reads arrays" if kind else f"{path} is neither .npz nor .npy nor a folder"
    return DataError(what, f"Save samples as the model takes them: {saving(inputs)}.")


def _unread(path: Path, found: UnreadFormat, inputs: Sequence[InputSpec]) -> DataError:
    """Make the error for data in a form that onnxq does not read, with the way to arrays."""
    code = found.code.format(repr(str(path)))
    hint = f"Read it with {code}, and save samples: {saving(inputs)}." if found.code else found.hint
    return DataError(f"{path} is {found.what}, which onnxq does not read", hint)


def kinds_of(found: Sequence[Path]) -> str:
    """Count what is in a folder by its kind: `80 .JPEG and 1 .md files`; folders only where there is no file."""
    kinds = Counter(file.suffix or "other" for file in found if file.is_file())
    if not kinds:
        return counted(len(found), "folder")
    names = [f"{count} {suffix}" for suffix, count in kinds.most_common(MOST_KINDS)]
    return f"{join_words(names)} {'file' if kinds.total() == 1 else 'files'}"


def _of_one_format(found: Sequence[Path], inputs: Sequence[InputSpec]) -> str:
    """Say how to read files that are all of a format of other programs, such as videos."""
    if found and takes_text(inputs) and all(file.suffix.lower() == ".txt" for file in found):
        return f"Make one file of them, a sentence in each line: awk 1 {shell_path(found[0].parent)}/*.txt > texts.txt."
    formats = {BY_SUFFIX.get(file.suffix.lower()) for file in found}
    kind = formats.pop() if len(formats) == 1 else None
    if kind is None:
        return ""
    return kind.hint or f"Read each with {kind.code.format('FILE')}, and save samples: {saving(inputs)}."


def empty_folder(
    folder: Path, found: Sequence[Path], inputs: Sequence[InputSpec], *, below: Path | None = None
) -> DataError:
    """Make the error for a folder without arrays, and say what is in it instead; `below` is a folder that has some."""
    kind = BY_SUFFIX.get(folder.suffix.lower())
    if kind is not None and kind.code:
        return _unread(folder, kind, inputs)
    hidden = not found and any(file.name.startswith(".") for file in folder.iterdir())
    files = f": it holds {kinds_of(found)}" if found else f": it {'holds hidden files alone' if hidden else 'is empty'}"
    tests = "; or give ONNX test_data_set_* folders with input_0.pb, input_1.pb, …"
    hint = pictures_without_ending(found) or _of_one_format(found, inputs)
    if below is not None:
        hint = f"Give {shell_path(below)}, which has some."
    hint = hint or f"Save samples: {saving(inputs)}{tests}"
    if any(file.suffix.lower() in SOUNDS for file in found):
        hint = f"No input takes a waveform, so compute what it takes. {hint}"
    return DataError(f"the folder {folder} has no samples in .npz or .npy{files}", hint)


def refuse_values(sources: Iterable[object]) -> None:
    """Refuse arrays where files are named.

    Raises:
        DataError: One of the sources is neither a path nor a name.

    """
    for source in sources:
        if not isinstance(source, str | PathLike):
            raise DataError(
                f"data names files, and {named_type(source)} is given",
                "Give arrays as samples={'INPUT': array}, a row for each sample.",
            )


def refuse_single_array(source: str, inputs: Sequence[InputSpec]) -> None:
    """Refuse one `.npy` for a model with several inputs.

    Raises:
        DataError: The model does not have exactly one input.

    """
    if len(inputs) != 1:
        raise DataError(
            f"{source} holds one array, and the model has {counted(len(inputs), 'input')}",
            f"Save them together: {saving(inputs)}." if source != SAMPLES else f"Give all: {one_sample(inputs)}.",
        )


def refuse_file_of_code(source: str) -> None:
    """Refuse `file.py:function`, which is not how a module is named.

    Raises:
        DataError: It is of that form.

    """
    found = CODE.fullmatch(source)
    if found is None:
        return
    file, name = Path(found["file"] + ".py"), found["name"]
    module = ".".join(part for part in file.with_suffix("").parts if part not in (".", "/"))
    if not file.exists():
        raise DataError(f"{source}: {file} does not exist", f"Write {module}:{name} for a function of a module.")
    if file.is_absolute() or ".." in file.parts:
        hint = f"Go to {file.parent}, or put it on PYTHONPATH, and write {file.stem}:{name}."
        raise DataError(f"{source} names a file, not a module", hint)
    raise DataError(f"{source} names a file, not a module", f"Write {module}:{name}.")


def _code(path: Path) -> DataError:
    """Make the error for a file of Python without a function behind it; it is read, not run."""
    names: list[str] = []
    try:
        body = ast.parse(path.read_bytes()).body
    except (SyntaxError, ValueError, OSError) as error:
        return DataError(f"{path} is Python code with a mistake: {error}", "Correct it, and write MODULE:FUNCTION.")
    names = [made.name for made in body if isinstance(made, ast.FunctionDef) and not made.name.startswith("_")]
    module = ".".join(part for part in path.with_suffix("").parts if part not in (".", "/"))
    if not names:
        return DataError(f"{path} is Python code without a function", f"Write one, and give {module}:FUNCTION.")
    forms = " or ".join(f"{module}:{name}" for name in names[:MOST_INPUTS])
    return DataError(f"{path} is Python code: the name of a function belongs behind it", f"Write {forms}.")


def _kind(suffix: str) -> str:
    kinds = (("a picture", PICTURES), ("a sound", SOUNDS), ("text", TEXTS))
    return next((name for name, suffixes in kinds if suffix in suffixes), "")
