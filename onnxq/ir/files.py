"""Write a model to disk so that a reader finds the whole of it or nothing."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from onnxq.errors import ModelError, OutputError
from onnxq.ir.external import release
from onnxq.ir.graph import Value
from onnxq.ir.model import Model
from onnxq.ir.protos import GRAPH_INITIALIZER
from onnxq.ir.wire import Chunk, Pending, length

PROTOBUF_LIMIT = (1 << 31) - (1 << 20)  # protobuf parsers stop at 2 GiB; 1 MiB is left for what readers add
EXTERNAL_ALIGNMENT = 4096  # a page, so that runtimes can map a weight
EXTERNAL_MINIMUM = 1024  # smaller constants stay in the model, where shape inference can see them
RELEASED = 1 << 16  # bytes of a chunk from which on its pages are let go of
WRITE_BLOCK = 1 << 24  # bytes written at a time, so that a mapped weight never stands in memory whole


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

    """
    path = Path(path)
    check_output(path, force=force)
    _refuse_external_attributes(model)
    if external_data is None:
        external_data = needs_external_data(model)
    try:
        if external_data:
            return _save_external(model, path)
        chunks = [encoded] if encoded is not None else model.chunks(verbatim=not model.has_external_data)
        if length(chunks) >= PROTOBUF_LIMIT:
            return _save_external(model, path)
        _write({path: chunks})
    except OSError as error:
        raise OutputError(
            f"{path} cannot be written ({error.strerror})", "Choose another place with --output."
        ) from error
    return [path]


def needs_external_data(model: Model) -> bool:
    """Whether the weights are too large for one protobuf file."""
    return model.weight_bytes > PROTOBUF_LIMIT


def check_output(path: Path, *, force: bool) -> None:
    """Refuse an output that is in the way or has no folder, before any work is done.

    Raises:
        OutputError: As the message says.

    """
    try:
        path.lstat()
    except FileNotFoundError:
        pass
    except OSError as error:
        raise OutputError(
            f"{path} cannot be written ({error.strerror})", "Choose another place with --output."
        ) from error
    if path.is_dir():
        raise OutputError(f"{path} is a folder", "Give the name of the file to write.")
    if path.exists() and not force:
        raise OutputError(f"{path} exists already", "Use --force to replace it, or choose another place with --output.")
    if not path.parent.is_dir():
        raise OutputError(
            f"the folder {path.parent} does not exist", "Create it, or choose another place with --output."
        )
    if not os.access(path.parent, os.W_OK):
        raise OutputError(f"the folder {path.parent} cannot be written to", "Choose another place with --output.")


def _refuse_external_attributes(model: Model) -> None:
    """A tensor attribute that points to a file beside the source would dangle in the copy."""
    for node in model.graph.walk():
        for name in node.spans if node.op_type == "Constant" and not node.domain else ():
            tensor = node.tensor_attribute(name)
            if tensor is not None and tensor.is_external:
                raise ModelError(
                    f"node {node.label} keeps its attribute '{name}' in an external data file",
                    "Lift Constant nodes to initializers first (the pass lift_constants).",
                )


def _save_external(model: Model, path: Path) -> list[Path]:
    data_path = path.with_name(path.name + ".data")
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
            value.name, number=GRAPH_INITIALIZER, location=data_path.name, offset=written - tensor.nbytes
        )

    chunks = model.chunks(external, verbatim=False)
    if length(chunks) > PROTOBUF_LIMIT:
        raise ModelError(
            f"{model.name} is too large: even without weights it has {length(chunks)} bytes", "Split the model."
        )
    _write({data_path: blocks, path: chunks})
    return [path, data_path]


def _write(files: dict[Path, Sequence[Chunk]]) -> None:
    """Write beside the targets, flush to disk, rename, the last file last.

    A single file replaces the old one in one step. Of several, the last refers to the others: its old version goes
    before they change, so that nobody finds it beside data that is not its own.
    """
    temporary = {path: path.with_name(f".{path.name}.{os.getpid()}.tmp") for path in files}
    try:
        for path, chunks in files.items():
            with temporary[path].open("wb") as file:
                for chunk in chunks:
                    _write_chunk(file, chunk)
                file.flush()
                os.fsync(file.fileno())
        if len(files) > 1:
            list(files)[-1].unlink(missing_ok=True)
        for path, written in temporary.items():
            written.replace(path)
    finally:
        for written in temporary.values():
            with contextlib.suppress(FileNotFoundError):
                written.unlink()


def _write_chunk(file: BinaryIO, chunk: Chunk) -> None:
    raw = chunk.get() if isinstance(chunk, Pending) else chunk
    if len(raw) < RELEASED:
        file.write(raw)
        return
    view = memoryview(raw)
    for start in range(0, len(view), WRITE_BLOCK):
        block = view[start : start + WRITE_BLOCK]
        file.write(block)
        release(block)
