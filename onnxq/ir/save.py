"""Write a model to disk so that a reader finds the whole of it or nothing."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from onnxq.errors import ModelError, OutputError
from onnxq.ir.graph import Value
from onnxq.ir.model import Model
from onnxq.ir.protos import GRAPH_INITIALIZER
from onnxq.ir.tensor import StoredTensor
from onnxq.ir.wire import Chunk, length

PROTOBUF_LIMIT = (1 << 31) - (1 << 20)  # protobuf parsers stop at 2 GiB; 1 MiB is left for what readers add
EXTERNAL_ALIGNMENT = 4096  # a page, so that runtimes can map a weight
EXTERNAL_MINIMUM = 1024  # smaller constants stay in the model, where shape inference can see them


def save(model: Model, path: str | Path, *, force: bool = False, external_data: bool | None = None) -> list[Path]:
    """Write a model so that a reader finds the whole of it or nothing.

    Args:
        model: The model.
        path: The file to write.
        force: Whether an existing file may be replaced.
        external_data: Whether weights go to `PATH.data`; None decides by size (beyond 2 GiB they have to).

    Returns:
        The files that were written, the model first.

    Raises:
        OutputError: The file exists and `force` is not given, or the folder cannot be written to.

    """
    path = Path(path)
    check_output(path, force=force)
    if external_data is None:
        external_data = (
            sum(v.tensor.nbytes for g in model.graph.graphs() for v in g.initializers.values() if v.tensor)
            > PROTOBUF_LIMIT
        )
    try:
        if not external_data:
            has_external = any(
                isinstance(v.tensor, StoredTensor) and v.tensor.is_external
                for g in model.graph.graphs()
                for v in g.initializers.values()
            )
            _write(path, model.chunks(verbatim=not has_external))
            return [path]
        return _save_external(model, path)
    except OSError as error:
        raise OutputError(
            f"{path} cannot be written ({error.strerror})", "Choose another place with --output."
        ) from error


def check_output(path: Path, *, force: bool) -> None:
    """Refuse an output that is in the way or has no folder, before any work is done."""
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
        raw = tensor.raw()
        assert raw is not None
        blocks.extend((bytes(padding), raw))
        written += padding + len(raw)
        offset = written - len(raw)
        return tensor.encode_external(value.name, number=GRAPH_INITIALIZER, location=data_path.name, offset=offset)

    chunks = model.chunks(external, verbatim=False)
    if length(chunks) > PROTOBUF_LIMIT:
        raise ModelError(
            f"{model.name} is too large: even without weights it has {length(chunks)} bytes", "Split the model."
        )
    _write(data_path, blocks)
    _write(path, chunks)
    return [path, data_path]


def _write(path: Path, chunks: Sequence[Chunk]) -> None:
    """Write beside the target, flush to disk, rename: the old file stays whole until the new one is."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            for chunk in chunks:
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
