"""Errors for paths at which there is no model and no data, with what was meant perhaps.

Importing this must stay cheap: a wrong path is told before anything else is loaded.
"""

from __future__ import annotations

import difflib
import errno
import os
import re
import shlex
from pathlib import Path

from onnxq.errors import DataError, ModelError
from onnxq.text import counted, did_you_mean, shell_hint, shell_path

ADDRESS = re.compile(r"([a-z][a-z0-9+.-]+):/+(.+)")  # pathlib makes one slash of two
BUILT = ".int8.onnx"  # the end of what quantizing names by default


def missing_model(path: Path) -> ModelError:
    """Make the error for a model that is not there, with what was meant perhaps."""
    url = address(path)
    if path.is_symlink():
        return ModelError(_broken_link(path), "Mend the link.")
    if url is None and any(sign in path.name for sign in "*?"):
        return _pattern_of_models(path)
    if url is None:
        found = shell_hint(str(path)) or _not_built(path) or similar_model(path) or submodule_hint(path)
        hint = found or _of_hub(path) or "Check the path of the model."
        if "\\" in path.name:  # it is a name here, and the folders of a path on Windows
            hint = f"Write / between folders: {path.as_posix().replace(chr(92), '/')}."
        return ModelError(f"{path} does not exist", hint)
    if url.startswith("file://"):
        place = f"/{url.removeprefix('file://')}".replace("//", "/")
        return ModelError(f"{place} is given as an address, and models are read from paths", f"Write {place}.")
    name = shlex.quote(path.name)
    how = f": curl -L -o {name} {shlex.quote(url)}" if url.startswith("http") else "."
    return ModelError(f"{url} is an address, and models are read from files", f"Download it first{how}")


def similar_model(path: Path) -> str:
    """Ask whether a model in the same folder was meant."""
    try:
        names = sorted(found.name for found in path.parent.iterdir() if found.suffix == ".onnx")
    except (OSError, ValueError):
        return ""
    made = f"{path.stem}{BUILT}"  # what quantizing gives, not what it takes
    names = [name for name in names if name != made]
    given = path.name.lower().strip()
    same = [name for name in names if given in (name.lower(), name.lower().removesuffix(".onnx"))]
    if same:
        return f"Did you mean '{same[0]}'?"
    stems = {name.removesuffix(".onnx"): name for name in names}  # the ending alone makes no names similar
    near = difflib.get_close_matches(path.name.removesuffix(".onnx"), stems, n=1)
    return f"Did you mean '{stems[near[0]]}'?" if near else ""


def _pattern_of_models(path: Path) -> ModelError:
    """Make the error for a pattern: a shell replaces it by files only where it stands without quotes."""
    try:
        found = sorted(path.parent.glob(path.name))
    except (OSError, ValueError):
        found = []
    if not found:
        return ModelError(f"no file matches {path}", "Check the folder and the pattern.")
    return ModelError(f"{path} is a pattern, and one model is read at a time", f"Name each, such as {found[0]}.")


def _not_built(path: Path) -> str:
    """Say how to make a quantized model whose float model is there."""
    source = path.with_name(path.name.removesuffix(BUILT) + ".onnx")
    is_there = path.name.endswith(BUILT) and source.is_file()
    return f"Build it: `onnxq quantize {shlex.quote(str(source))}`." if is_there else ""


def _of_hub(path: Path) -> str:
    """Say how a model of the Hugging Face Hub becomes a file, for what looks like its name; empty otherwise."""
    looks_so = len(path.parts) == 2 and not path.suffix and not path.parent.exists() and path.parts[0][0] not in "./~"
    name = shlex.quote(path.as_posix())
    return f"A model of a hub has to be a file first: `hf download {name} --local-dir {path.name}`." if looks_so else ""


def submodule_hint(path: Path) -> str:
    """Say how to fetch a file of a submodule of git that was not cloned; empty where it is not in one."""
    parents = path.absolute().parents
    for folder in parents:
        try:
            listed = (folder / ".gitmodules").read_text("utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        places = [folder / place for place in re.findall(r"(?m)^\s*path\s*=\s*(.+?)\s*$", listed)]
        if any(place in parents and not (place / ".git").exists() for place in places):
            return "It is in a submodule of git: `git submodule update --init` fetches it."
    return ""


def address(path: Path) -> str | None:
    """Return the address that was given for a path, such as `https://…`; None where it is a path."""
    found = ADDRESS.fullmatch(path.as_posix())
    return None if found is None else f"{found[1]}://{found[2]}"


def missing_data(source: str) -> DataError:
    """Make the error for data that are not there, with what was meant perhaps."""
    path = Path(source)
    if path.is_symlink():
        return DataError(_broken_link(path), "Mend the link.")
    near = did_you_mean(path.name, _beside(path), cutoff=0.75)
    code = Path(source.rstrip(":") + ".py")
    whole, _, name = source.rpartition(".")
    parts = [part.strip() for part in source.split(",")]
    if len(parts) > 1 and all(_is_there(Path(part)) for part in parts):
        hint = f"Repeat --data for every file: {' '.join(f'-d {shell_path(part)}' for part in parts)}."
    elif any(sign in source for sign in "*?["):
        return _pattern_of_data(path)
    elif in_shell := shell_hint(source):
        hint = in_shell
    elif "\\" in source:  # it is a name here, and the folders of a path on Windows
        hint = f"Write / between folders: {source.replace(chr(92), '/')}."
    elif _is_there(code):
        hint = f"Write {code.stem}:FUNCTION for a function of {code}."
    elif whole and name.isidentifier() and _is_there(Path(f"{whole}.py")):
        hint = f"Write {whole}:{name} for a function of {whole}.py."
    else:
        hint = near or "Give an .npz file, a folder, or package.module:function."
    return DataError(f"{source} does not exist", hint)


def _pattern_of_data(path: Path) -> DataError:
    """Make the error for a pattern, which the shell replaces by files only where it stands by itself."""
    try:
        matches = len(list(path.parent.glob(path.name)))
    except (OSError, ValueError):
        matches = 0
    if matches:
        said = f"data are named without patterns, and {path} matches {counted(matches, 'file')}"
        return DataError(said, f"Give the folder {path.parent}, or name each file.")
    return DataError(f"no file matches {path}", "Give the folder that the files are in, or name each file.")


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # its name may be longer than file systems allow
        return False


def is_missing(path: Path) -> bool:
    """Whether nothing has this name; a name that is too long, or in a folder that is closed, has errors of its own."""
    try:
        return not path.exists()
    except OSError:
        return False


def _beside(path: Path) -> list[str]:
    """List the names in the folder that a path is in."""
    try:
        return [found.name for found in path.parent.iterdir()]
    except OSError:
        return []


def _broken_link(path: Path) -> str:
    """Say what is wrong with a link that leads to no file."""
    try:
        os.stat(path)
    except OSError as error:
        if error.errno == errno.ELOOP:
            return f"{path} is a link that leads back to itself"
    return f"{path} is a link to {path.readlink()}, which does not exist"
