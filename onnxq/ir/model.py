"""A model: its file mapped into memory, its graph as objects over the bytes, and the way back to a file.

Tests: `tests/ir/test_roundtrip.py`.
"""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import onnx

from onnxq.errors import ModelError
from onnxq.ir.clone import can_be_cloned, clone_graph
from onnxq.ir.encode import EncodeTensor, encode_graph, encode_tensor
from onnxq.ir.graph import Graph, Value
from onnxq.ir.names import Names
from onnxq.ir.parse import parse_graph
from onnxq.ir.proto_fields import GRAPH_INITIALIZER
from onnxq.ir.proto_fields import MODEL_FUNCTIONS as FUNCTIONS
from onnxq.ir.proto_fields import MODEL_GRAPH as GRAPH
from onnxq.ir.proto_fields import MODEL_IR_VERSION as IR_VERSION
from onnxq.ir.proto_fields import MODEL_METADATA as METADATA
from onnxq.ir.proto_fields import MODEL_OPSET_IMPORT as OPSET_IMPORT
from onnxq.ir.storage.external import hash_released
from onnxq.ir.storage.formats import foreign_folder, unreadable_model
from onnxq.ir.storage.lfs import pointer_error
from onnxq.ir.storage.residency import Residency, choose_residency
from onnxq.ir.stored_tensor import StoredTensor
from onnxq.ir.tensor import Tensor
from onnxq.ir.wire import (
    LENGTH_DELIMITED,
    VARINT,
    Chunk,
    WireError,
    bytes_field,
    entry_field,
    fields,
    integer_field,
    join,
    message_field,
    read_varint,
    signed,
    text,
)
from onnxq.missing import missing_model

STRIP_ABOVE = 1024  # bytes above which `skeleton` leaves an initializer's elements out


class Model:
    """An ONNX model.

    Attributes:
        path: Where it was read from; None for one that was made in memory.
        source: The bytes it was read from.
        ir_version: The IR version it is stamped with.
        opsets: Version by domain; `""` is `ai.onnx`.
        graph: The main graph.
        metadata: Key-value pairs of `metadata_props`.
        has_functions: Whether it has model-local functions.
        typed: The graph whose types were inferred, its revision and the operator sets then; None before.
        symbolic: Sizes that follow from those types, and which they are; see `shapes_of`.

    """

    def __init__(self, data: memoryview, path: Path | None) -> None:
        self.source = data
        self.path = path
        self.typed: tuple[Graph, int, dict[str, int]] | None = None
        self.symbolic: tuple[object, Any] | None = None
        self.read(data)

    def read(self, data: memoryview) -> None:
        """Take the content of a ModelProto instead of the present one; path and source stay.

        Raises:
            WireError: The bytes are no ModelProto; the model is as it was.
            ModelError: The graph contradicts itself; the model is as it was.

        """
        ir_version, opsets, metadata, has_functions = 0, dict[str, int](), dict[str, str](), False
        graph: memoryview | None = None
        for number, wire_type, _, payload, end in fields(data):
            if number == GRAPH and wire_type == LENGTH_DELIMITED:
                if graph is not None:
                    raise WireError("it holds two graphs")
                graph = data[payload:end]
            elif number == IR_VERSION and wire_type == VARINT:
                ir_version = signed(read_varint(data, payload, end)[0])
            elif number == OPSET_IMPORT and wire_type == LENGTH_DELIMITED:
                domain, version = _opset(data[payload:end])
                opsets["" if domain == "ai.onnx" else domain] = version
            elif number == METADATA and wire_type == LENGTH_DELIMITED:
                key, value = _text_pair(data[payload:end])
                metadata[key] = value
            elif number == FUNCTIONS:
                has_functions = True
        if graph is None:
            raise WireError("it holds no graph")
        self.graph = parse_graph(graph, None, None, self.path.parent if self.path else None, Names())
        for node in self.graph.walk():
            self.graph.names.reserve(node.name)
        self.data = data
        self.ir_version, self.opsets, self.metadata, self.has_functions = ir_version, opsets, metadata, has_functions
        self._loaded = (ir_version, dict(opsets), dict(metadata))

    @property
    def opset(self) -> int:
        """Version of the `ai.onnx` operator set."""
        return self.opsets.get("", 1)

    @property
    def sha256(self) -> str:
        """SHA-256 of the bytes the model was read from, external data not included, as hexadecimal digits."""
        digest = hashlib.sha256()
        hash_released(digest, self.source)
        return digest.hexdigest()

    @property
    def weight_bytes(self) -> int:
        """Bytes of the elements of all initializers."""
        return sum(value.tensor.nbytes for value in self.initializers() if value.tensor is not None)

    @property
    def residency(self) -> Residency:
        """The place of its weights while it is worked on, and so what there is memory and time for."""
        return choose_residency(self.weight_bytes)

    @property
    def has_external_data(self) -> bool:
        """Whether some initializer has its elements in a file of their own."""
        return any(isinstance(v.tensor, StoredTensor) and v.tensor.is_external for v in self.initializers())

    @property
    def external_files(self) -> tuple[Path, ...]:
        """The files that hold elements of initializers, each once, in the order of their names."""
        stored = (value.tensor.file for value in self.initializers() if isinstance(value.tensor, StoredTensor))
        return tuple(sorted({file for file in stored if file is not None}))

    def initializers(self) -> Iterator[Value]:
        """Visit the initializers of every scope."""
        for graph in self.graph.graphs():
            yield from graph.initializers.values()

    @property
    def name(self) -> str:
        """The name of the model in a message."""
        return str(self.path) if self.path else "the model"

    def chunks(
        self, tensor: EncodeTensor = encode_tensor, *, extra_outputs: Sequence[Value] = (), verbatim: bool = True
    ) -> list[Chunk]:
        """Return the bytes of the ModelProto in pieces, most of them views of the file it was read from."""
        if self.graph.dirty:  # before IR version 4 every initializer has to be an input, which new constants are not
            self.ir_version = max(self.ir_version, 4)
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

    def header(self) -> bytes:
        """Return the fields that a part of the model needs as well: IR version and operator sets."""
        return integer_field(IR_VERSION, max(self.ir_version, 4)) + self._header(OPSET_IMPORT)

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
        """Return the whole model as bytes, weights inside, with `extra_outputs` listed as outputs too."""
        return join(self.chunks(extra_outputs=extra_outputs, verbatim=not self.has_external_data))

    def skeleton(self, weights: list[Tensor] | None = None) -> bytes:
        """Return the model without the elements of its larger weights and without stated types.

        Args:
            weights: Where to put the weights that were left out. In place of the n-th stands external data at
                location `n`, which `read_skeleton` knows how to undo.

        """
        left_out: list[Tensor] = [] if weights is None else weights

        def strip(value: Value) -> list[Chunk]:
            assert value.tensor is not None
            if value.tensor.nbytes <= STRIP_ABOVE:
                return value.tensor.encode(value.name, number=GRAPH_INITIALIZER)
            location = str(len(left_out))
            left_out.append(value.tensor)
            return value.tensor.encode_external(value.name, number=GRAPH_INITIALIZER, location=location, offset=0)

        return join(self.chunks(strip, verbatim=False))

    def read_skeleton(self, data: bytes, weights: Sequence[Tensor]) -> None:
        """Take what a tool made of a skeleton as the content of the model, and give the weights back to it.

        Args:
            data: The ModelProto, with the placeholders of `skeleton` where large weights belong.
            weights: The weights that `skeleton` left out; they move over as they are.

        Raises:
            WireError, ModelError: As `read`.

        """
        self.read(memoryview(data))
        for value in self.initializers():
            placeholder = value.tensor
            if isinstance(placeholder, StoredTensor) and placeholder.is_external:
                value.tensor = weights[int(placeholder.external["location"])]
                value.graph.mark_dirty()

    def copy(self) -> Model:
        """Return a model of its own with the same content; the weights are shared, not copied."""
        if can_be_cloned(self.graph):
            return self._clone()
        weights: list[Tensor] = []
        skeleton = self.skeleton(weights)
        model = Model(memoryview(skeleton), self.path)
        model.source = self.source
        model.read_skeleton(skeleton, weights)
        for mine, its in zip(self.initializers(), model.initializers(), strict=True):
            its.tensor = mine.tensor  # small ones, too: codes that were chosen for a weight are found by it
        return model

    def _clone(self) -> Model:
        """Copy the graph object by object: a tenth of the time of writing and reading it; see `clone_graph`."""
        made = Model.__new__(Model)
        made.source, made.data, made.path = self.source, self.data, self.path
        made.opsets, made.metadata, made.has_functions = dict(self.opsets), dict(self.metadata), self.has_functions
        made.ir_version = max(self.ir_version, 4) if self.graph.dirty else self.ir_version
        made._loaded = self._loaded
        made.graph, made.symbolic = clone_graph(self.graph), None
        made.typed = (made.graph, made.graph.revision, made.opsets.copy()) if self.is_typed else None
        return made

    @property
    def is_typed(self) -> bool:
        """Whether types were inferred, and nothing has changed since."""
        if self.typed is None:
            return False
        graph, revision, opsets = self.typed
        return graph is self.graph and revision == graph.revision and opsets == self.opsets


def load(path: str | Path) -> Model:
    """Read a model without its weights: they stay in the file, mapped, until they are read.

    Args:
        path: An ONNX file; external data is looked for next to it.

    Returns:
        The model.

    Raises:
        ModelError: There is no such file, or it is no valid ONNX model.

    Examples:
        >>> import onnxq
        >>> onnxq.load("model.onnx").weight_bytes
        11200

    """
    path = Path(path)
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise ModelError(f"{path} is no regular file", "Save the model to a file first.")
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                raise ModelError(f"{path} is empty", "Give an ONNX model.")
            data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except FileNotFoundError:
        if path.name == "-":
            raise ModelError("a model is not read from stdin", "Save it to a file first, and give its path.") from None
        raise missing_model(path) from None
    except IsADirectoryError:
        found = foreign_folder(path)
        if found is not None:
            raise ModelError(f"{path} is a folder: it is {found.what}", found.hint) from None
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
        pointer = pointer_error(data, label, ModelError, "model")
        raise pointer or unreadable_model(data, path, label, str(error)) from error
    except ModelError as error:
        raise ModelError(f"{label}: {error.message}", error.hint) from error
    if not model.opsets and model.graph.nodes:
        raise ModelError(f"{label} is not a readable ONNX model: it imports no operator set", "Export the model again.")
    return model


ModelInput = str | Path | Model | onnx.ModelProto
"""A model as a caller has it: its path, loaded by `load`, or a `ModelProto` with its weights inside."""
IN_MEMORY = Path("the model")  # what a model without a file is called


def read_model(model: ModelInput) -> Model:
    """Read a model in whatever form a caller has it; what is returned may be changed.

    Raises:
        ModelError: As `load`, or a ModelProto is larger than protobuf can write.

    """
    if isinstance(model, Model):
        return model.copy()
    if isinstance(model, onnx.ModelProto):
        return parse(encode_proto(model))
    if not isinstance(model, str | PathLike):
        how = "Give its path, or onnx.load_from_string(bytes)." if isinstance(model, bytes) else "Give its path."
        raise ModelError(f"a model is a path, a ModelProto or loaded, and {type(model).__name__} is given", how)
    return load(model)


def encode_proto(model: onnx.ModelProto) -> bytes:
    """Return the bytes of a ModelProto.

    Raises:
        ModelError: It is larger than protobuf can write.

    """
    try:
        encoded: bytes = model.SerializeToString()
    except Exception as error:  # protobuf has several classes for it, none of which is public
        hint = "Save it with onnx.save_model(…, save_as_external_data=True), and give the path."
        raise ModelError("the ModelProto is too large for protobuf", hint) from error
    return encoded


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
