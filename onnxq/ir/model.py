"""A model: its file mapped into memory, its graph as objects over the bytes, and the way back to a file."""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Sequence
from pathlib import Path

from onnxq.errors import ModelError
from onnxq.ir.encode import EncodeTensor, encode_graph, encode_tensor
from onnxq.ir.graph import Value
from onnxq.ir.names import Names
from onnxq.ir.parse import parse_graph
from onnxq.ir.protos import GRAPH_INITIALIZER
from onnxq.ir.protos import MODEL_FUNCTIONS as FUNCTIONS
from onnxq.ir.protos import MODEL_GRAPH as GRAPH
from onnxq.ir.protos import MODEL_IR_VERSION as IR_VERSION
from onnxq.ir.protos import MODEL_METADATA as METADATA
from onnxq.ir.protos import MODEL_OPSET_IMPORT as OPSET_IMPORT
from onnxq.ir.tensor import StoredTensor
from onnxq.ir.wire import (
    LENGTH_DELIMITED,
    VARINT,
    Chunk,
    WireError,
    bytes_field,
    entry_field,
    fields,
    integer_field,
    message_field,
    read_varint,
    signed,
    text,
)

STRIP_ABOVE = 1024  # bytes above which `skeleton` leaves an initializer's elements out


class Model:
    """An ONNX model.

    Attributes:
        path: Where it was read from; None for one that was made in memory.
        ir_version: The IR version it is stamped with.
        opsets: Version by domain; `""` is `ai.onnx`.
        graph: The main graph.
        metadata: Key-value pairs of `metadata_props`.
        has_functions: Whether it has model-local functions.
        sha256: Hash of the bytes it was read from, external data not included.

    """

    def __init__(self, data: memoryview, path: Path | None) -> None:
        self.data = data
        self.path = path
        self.ir_version = 0
        self.opsets: dict[str, int] = {}
        self.metadata: dict[str, str] = {}
        self.has_functions = False
        self._loaded_metadata: dict[str, str] = {}
        graph: memoryview | None = None
        for number, wire_type, _, payload, end in fields(data):
            if number == GRAPH and wire_type == LENGTH_DELIMITED:
                if graph is not None:
                    raise WireError("it holds two graphs")
                graph = data[payload:end]
            elif number == IR_VERSION and wire_type == VARINT:
                self.ir_version = signed(read_varint(data, payload, end)[0])
            elif number == OPSET_IMPORT and wire_type == LENGTH_DELIMITED:
                domain, version = _opset(data[payload:end])
                self.opsets["" if domain == "ai.onnx" else domain] = version
            elif number == METADATA and wire_type == LENGTH_DELIMITED:
                key, value = _text_pair(data[payload:end])
                self.metadata[key] = value
            elif number == FUNCTIONS:
                self.has_functions = True
        if graph is None:
            raise WireError("it holds no graph")
        self._loaded = (self.ir_version, dict(self.opsets), dict(self.metadata))
        self.graph = parse_graph(graph, None, None, path.parent if path else None, Names())
        for node in self.graph.walk():
            self.graph.names.reserve(node.name)

    @property
    def opset(self) -> int:
        """Version of the `ai.onnx` operator set."""
        return self.opsets.get("", 1)

    @property
    def sha256(self) -> str:
        """SHA-256 of the model file as hexadecimal digits."""
        return hashlib.sha256(self.data).hexdigest()

    @property
    def name(self) -> str:
        """What to call the model in a message."""
        return str(self.path) if self.path else "the model"

    def chunks(
        self, tensor: EncodeTensor = encode_tensor, *, extra_outputs: Sequence[Value] = (), verbatim: bool = True
    ) -> list[Chunk]:
        """Give the bytes of the ModelProto in pieces, most of them views of the file it was read from."""
        header = (self.ir_version, self.opsets, self.metadata)
        changed = header != self._loaded
        out: list[Chunk] = []
        pending = {IR_VERSION, OPSET_IMPORT, METADATA} if changed else set()
        for number, _, start, _, end in fields(self.data):
            if number == GRAPH:
                out += message_field(
                    GRAPH, encode_graph(self.graph, tensor, extra_outputs=tuple(extra_outputs), verbatim=verbatim)
                )
            elif changed and number in (IR_VERSION, OPSET_IMPORT, METADATA):
                if number in pending:
                    out.append(self._header(number))
                    pending.discard(number)
            else:
                out.append(self.data[start:end])
        return out + [self._header(number) for number in sorted(pending)]

    def _header(self, number: int) -> bytes:
        if number == IR_VERSION:
            return integer_field(IR_VERSION, self.ir_version)
        if number == METADATA:
            return b"".join(entry_field(METADATA, key, value) for key, value in self.metadata.items())
        return b"".join(
            bytes_field(OPSET_IMPORT, bytes_field(1, domain) + integer_field(2, version))
            for domain, version in self.opsets.items()
        )

    def serialize(self, extra_outputs: Sequence[Value] = ()) -> bytes:
        """Give the whole model as bytes, weights inside, with `extra_outputs` listed as outputs too."""
        external = any(
            isinstance(v.tensor, StoredTensor) and v.tensor.is_external
            for g in self.graph.graphs()
            for v in g.initializers.values()
        )
        return b"".join(self.chunks(extra_outputs=extra_outputs, verbatim=not external))

    def skeleton(self) -> bytes:
        """Give the model without the elements of its larger weights and without stated types, for type inference."""

        def strip(value: Value) -> list[Chunk]:
            assert value.tensor is not None
            if value.tensor.nbytes <= STRIP_ABOVE:
                return value.tensor.encode(value.name, number=GRAPH_INITIALIZER)
            return value.tensor.encode_external(value.name, number=GRAPH_INITIALIZER, location="stripped", offset=0)

        return b"".join(self.chunks(strip, verbatim=False))


def load(path: str | Path) -> Model:
    """Read a model without its weights: they stay in the file, mapped, until somebody asks for them.

    Args:
        path: An ONNX file; external data is looked for beside it.

    Raises:
        ModelError: There is no such file, or it is no valid ONNX model.

    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                raise ModelError(f"{path} is empty", "Give an ONNX model.")
            data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except FileNotFoundError:
        raise ModelError(f"{path} does not exist", "Check the path of the model.") from None
    except IsADirectoryError:
        raise ModelError(f"{path} is a folder", "Give the .onnx file inside it.") from None
    except OSError as error:
        raise ModelError(f"{path} cannot be read ({error.strerror})", "Check the path and its permissions.") from error
    return parse(data, path)


def parse(data: bytes | memoryview, path: Path | None = None) -> Model:
    """Read a model from bytes; `path` names it in messages and locates its external data."""
    label = str(path) if path else "the model"
    try:
        model = Model(memoryview(data), path)
    except WireError as error:
        hint = "The file is truncated, damaged, or something else: fetch or export it again."
        if bytes(data[:7]) == b"version":
            hint = "It is a Git LFS pointer: run `git lfs pull`."
        raise ModelError(f"{label} is not a readable ONNX model: {error}", hint) from error
    except ModelError as error:
        raise ModelError(f"{label}: {error.message}", error.hint) from error
    if not model.opsets and model.graph.nodes:
        raise ModelError(f"{label} is not a readable ONNX model: it imports no operator set", "Export the model again.")
    return model


def _opset(data: memoryview) -> tuple[str, int]:
    domain, version = "", 1
    for number, wire_type, _, payload, end in fields(data):
        if number == 1 and wire_type == LENGTH_DELIMITED:
            domain = text(data[payload:end])
        elif number == 2 and wire_type == VARINT:
            version = signed(read_varint(data, payload, end)[0])
    return domain, version


def _text_pair(data: memoryview) -> tuple[str, str]:
    pair = ["", ""]
    for number, wire_type, _, payload, end in fields(data):
        if number in (1, 2) and wire_type == LENGTH_DELIMITED:
            pair[number - 1] = text(data[payload:end])
    return pair[0], pair[1]
