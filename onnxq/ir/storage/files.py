"""Write a model to disk so that a reader finds the whole of it or nothing.

Tests: `tests/ir/test_save.py`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from errno import ENAMETOOLONG
from pathlib import Path

from onnxq.errors import ModelError, OutputError
from onnxq.ir.graph import Value
from onnxq.ir.model import Model
from onnxq.ir.proto_fields import GRAPH_INITIALIZER
from onnxq.ir.storage.atomic_write import write_together
from onnxq.ir.storage.temporary import temporary_path
from onnxq.ir.wire import Chunk, Pending, length
from onnxq.missing import address

PROTOBUF_LIMIT = (1 << 31) - (1 << 20)  # protobuf parsers stop at 2 GiB; 1 MiB is left for what readers add
LARGEST_GRAPH = 1 << 28  # bytes of a model whose weights are elsewhere, more than any graph takes
EXTERNAL_ALIGNMENT = 4096  # a page, so that runtimes can map a weight
EXTERNAL_MINIMUM = 1024  # smaller constants stay in the model, where shape inference can see them


def save(
    model: Model,
    path: str | Path,
    *,
    force: bool = False,
    external_data: bool | None = None,
    encoded: bytes | None = None,
) -> list[Path]:
    """Write a model so that a reader finds the whole of it or nothing.

    Args:
        model: The model.
        path: The file to write.
        force: Whether an existing file may be replaced.
        external_data: Whether weights go to `PATH.data`; None decides by size (beyond 2 GiB they have to).
        encoded: What `model.serialize()` gave, where the caller has it already.

    Returns:
        The files that were written, the model first.

    Raises:
        ModelError: External data is missing or out of bounds, or the model without weights is beyond 2 GiB.
        OutputError: The file exists and `force` is not given, or the folder cannot be written to.

    Examples:
        >>> import onnxq
        >>> [path.name for path in onnxq.save(onnxq.load("model.onnx"), "copy.onnx", external_data=True)]
        ['copy.onnx', 'copy.onnx.data']

    """
    path = Path(path)
    check_output(path, force=force)
    _refuse_external_attributes(model)
    check_sources(model, path)
    if external_data is None:
        external_data = needs_external_data(model)
    try:
        if external_data:
            return _save_external(model, path, force=force)
        chunks = [encoded] if encoded is not None else model.chunks(verbatim=not model.has_external_data)
        if length(chunks) >= PROTOBUF_LIMIT:
            return _save_external(model, path, force=force)
        left = weights_of(path)
        write_together({path: chunks})
        for weights in left:
            weights.unlink(missing_ok=True)
    except OSError as error:
        raise OutputError(
            f"{path} cannot be written ({error.strerror})", "Choose another place with --output."
        ) from error
    return [path]


def weights_of(path: Path) -> list[Path]:
    """Find the file `PATH.data` that belongs to a model alone, and is of no use once another one replaces it.

    Args:
        path: A model, or anything else, or nothing.

    Returns:
        The file, or nothing where there is none or the model does not name it.

    """
    weights = data_path(path)
    if not (path.is_file() and weights.is_file()) or path.stat().st_size > LARGEST_GRAPH:
        return []
    return [weights] if length_delimited(weights.name) in path.read_bytes() else []


def length_delimited(text: str) -> bytes:
    """Encode a short string as protobuf has it behind its tag: the length and UTF-8."""
    raw = text.encode("utf-8", "surrogateescape")
    return bytes([len(raw)]) + raw if len(raw) < 128 else raw


def needs_external_data(model: Model) -> bool:
    """Whether the weights are too large for one protobuf file."""
    return model.weight_bytes > PROTOBUF_LIMIT


def check_output(path: Path, *, force: bool, reads: Iterable[object] = (), option: str = "--output") -> None:
    """Refuse a file to write that is in the way or has no folder, before any work is done.

    Args:
        path: The file to write.
        force: Whether an existing file may be replaced.
        reads: What the run reads; those that are files may not be replaced.
        option: What names it on the command line, for the hints.

    Raises:
        OutputError: As the message says.

    """
    elsewhere = f"Choose another place with {option}."
    if path.name == "-":
        raise OutputError("files are not written to stdout", f"Name a file with {option}.")
    try:
        path.lstat()
    except FileNotFoundError:
        pass
    except OSError as error:
        raise _unwritable(path, error, option) from error
    if path.is_dir():
        raise OutputError(f"{path} is a folder", "Give the name of the file to write.")
    if path.exists() and not path.is_file():  # a device, which renaming a file to its name would do away with
        raise OutputError(f"{path} is no regular file", "Give the name of the file to write.")
    refuse_source(path, reads, option=option)
    if path.exists() and not force:
        raise OutputError(
            f"{path} exists already", f"Use --force to replace it, or choose another place with {option}."
        )
    if address(path) is not None:
        raise OutputError(
            f"{address(path)} is an address, and files are written to folders", f"Name a file with {option}."
        )
    if not path.parent.is_dir():
        raise OutputError(
            f"the folder {path.parent} does not exist", f"Create it, or choose another place with {option}."
        )
    try:
        temporary_path(path).lstat()
    except FileNotFoundError:
        pass
    except OSError as error:
        raise _unwritable(path, error, option) from error
    if not os.access(path.parent, os.W_OK):
        raise OutputError(f"the folder {path.parent} cannot be written to", elsewhere)
    if path.exists() and _is_kept_by_another(path):
        raise OutputError(f"{path} belongs to another user, and its folder lets only that one replace it", elsewhere)


def _is_kept_by_another(path: Path) -> bool:
    """Whether only other users may replace a file, as in the system's folder for temporary files."""
    if os.name != "posix" or os.geteuid() == 0:
        return False
    folder = _stat(path.parent)
    return bool(folder.st_mode & stat.S_ISVTX) and os.geteuid() not in (folder.st_uid, _stat(path).st_uid)


def _stat(path: Path) -> os.stat_result:
    """Return facts about a file or a folder; those of a link are its own."""
    return path.lstat() if path.is_file() else path.stat()


def _unwritable(path: Path, error: OSError, option: str) -> OutputError:
    if error.errno == ENAMETOOLONG:
        hint = f"Choose a shorter name, or choose another place with {option}."
        return OutputError(f"{path} cannot be written: its name is too long", hint)
    return OutputError(f"{path} cannot be written ({error.strerror})", f"Choose another place with {option}.")


def refuse_source(path: Path, reads: Iterable[object], *, what: str = "a file", option: str = "--output") -> None:
    """Refuse to write where something is read, whatever its name there.

    Args:
        path: The file to write.
        reads: What the run reads; only those things count that are paths of files.
        what: What to call them.
        option: What names the file to write on the command line.

    Raises:
        OutputError: It is one of them.

    """
    if any(_same_file(Path(read), path) for read in reads if isinstance(read, str | Path)):
        raise OutputError(f"{path} is {what} that is to be read", f"Choose another place with {option}.")


def _same_file(one: Path, other: Path) -> bool:
    try:
        return one.is_file() and one.samefile(other)
    except OSError:  # one of them is not there
        return False


def _refuse_external_attributes(model: Model) -> None:
    """A tensor attribute that points to a file next to the source would dangle in the copy."""
    for node in model.graph.walk():
        for name in node.spans if node.op_type == "Constant" and not node.domain else ():
            tensor = node.tensor_attribute(name)
            if tensor is not None and tensor.is_external:
                raise ModelError(
                    f"node {node.label} keeps its attribute '{name}' in an external data file",
                    "Lift Constant nodes to initializers first (the pass lift_constants).",
                )


def check_sources(model: Model, path: Path) -> None:
    """Refuse to replace the files that the weights of a model are in; a model may be saved onto itself, though.

    Raises:
        OutputError: As the message says.

    """
    if model.path is not None and _same_file(path, model.path):
        return
    for target in (path, data_path(path)):
        if any(_same_file(source, target) for source in model.external_files):
            raise OutputError(f"{target} holds the weights of {model.name}", "Choose another place with --output.")


def data_path(path: Path) -> Path:
    """The place of weights that are not in the model's own file."""
    return path.with_name(path.name + ".data")


def _save_external(model: Model, path: Path, *, force: bool) -> list[Path]:
    weights = data_path(path)
    if weights.exists() and not force:
        raise OutputError(
            f"{weights} exists already", "Use --force to replace it, or choose another place with --output."
        )
    blocks, chunks = external_chunks(model, weights.name)
    if length(chunks) > PROTOBUF_LIMIT:
        raise ModelError(
            f"{model.name} is too large: even without weights it has {length(chunks)} bytes", "Split the model."
        )
    write_together({weights: blocks, path: chunks})
    return [path, weights]


def written_bytes(model: Model, data_file: str | None = None, encoded: bytes | None = None) -> int:
    """Return what `save` writes of a model.

    Args:
        model: The model.
        data_file: Name of the file that the weights go to, with the space between them; None where they stay inside.
        encoded: What `model.serialize()` gave, where the caller has it already.

    """
    if data_file is not None:
        return sum(length(chunks) for chunks in external_chunks(model, data_file))
    return length(model.chunks(verbatim=not model.has_external_data)) if encoded is None else len(encoded)


def external_chunks(model: Model, location: str) -> tuple[list[Chunk], list[Chunk]]:
    """Encode the weights of a model for a file of that name, and the model for one next to it."""
    blocks: list[Chunk] = []
    written = 0

    def external(value: Value) -> list[Chunk]:
        nonlocal written
        tensor = value.tensor
        assert tensor is not None
        if tensor.nbytes < EXTERNAL_MINIMUM:
            return tensor.encode(value.name, number=GRAPH_INITIALIZER)
        padding = -written % EXTERNAL_ALIGNMENT
        blocks.extend((bytes(padding), Pending(tensor.nbytes, tensor.raw)))
        written += padding + tensor.nbytes
        return tensor.encode_external(
            value.name, number=GRAPH_INITIALIZER, location=location, offset=written - tensor.nbytes
        )

    chunks = model.chunks(external, verbatim=False)
    return blocks, chunks
