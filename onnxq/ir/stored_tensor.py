"""Constants of the model that was read: handles on its bytes or its external data, mapped when read.

Tests: `tests/ir/test_tensor.py`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import TensorProto

from onnxq.errors import ModelError
from onnxq.ir.proto_fields import DATA_LOCATION, DATA_TYPE, DIMS, EXTERNAL_DATA, NAME, RAW_DATA
from onnxq.ir.storage.external import external_path, map_file, release
from onnxq.ir.storage.lfs import POINTER, pointer_error
from onnxq.ir.tensor import SUB_BYTE_BITS, ArrayTensor, Tensor
from onnxq.ir.wire import (
    LENGTH_DELIMITED,
    VARINT,
    Chunk,
    Raw,
    WireError,
    bytes_field,
    fields,
    message_field,
    read_varint,
    signed,
    text,
)

TYPED_DATA = frozenset((4, 5, 6, 7, 10, 11))


class StoredTensor(Tensor):
    """A constant of the model that was read, still where it was.

    Args:
        encoded: The TensorProto as the file has it.
        folder: Folder that external data paths are relative to; None where the model has no folder.

    Raises:
        WireError: The bytes are no TensorProto.
        ModelError: Its external data is out of bounds.

    """

    def __init__(self, encoded: memoryview, folder: Path | None) -> None:
        self.encoded = encoded
        self.folder = folder
        self.name = ""
        self.dtype = 0
        self.external: dict[str, str] = {}
        self._raw: memoryview | None = None
        self._view: memoryview | None = None
        self._typed = False
        dims: list[int] = []
        location = 0
        for number, wire_type, _, payload, end in fields(encoded):
            if number == DIMS and wire_type == VARINT:
                dims.append(signed(read_varint(encoded, payload, end)[0]))
            elif number == DIMS and wire_type == LENGTH_DELIMITED:
                while payload < end:
                    value, payload = read_varint(encoded, payload, end)
                    dims.append(signed(value))
            elif number == DATA_TYPE and wire_type == VARINT:
                self.dtype = read_varint(encoded, payload, end)[0]
            elif number == NAME and wire_type == LENGTH_DELIMITED:
                self.name = text(encoded[payload:end])
            elif number == RAW_DATA and wire_type == LENGTH_DELIMITED:
                self._raw = encoded[payload:end]
            elif number == DATA_LOCATION and wire_type == VARINT:
                location = read_varint(encoded, payload, end)[0]
            elif number == EXTERNAL_DATA and wire_type == LENGTH_DELIMITED:
                key, entry = _entry(encoded[payload:end])
                self.external[key] = entry
            elif number in TYPED_DATA:
                self._typed = True
        self.shape = tuple(dims)
        if any(d < 0 for d in dims):
            raise ModelError(f"tensor '{self.name}' has a negative dimension {self.shape}", "Export the model again.")
        if location != 1:
            self.external = {}
        self._check_size()

    @property
    def is_external(self) -> bool:
        """Whether the elements are in a file of their own."""
        return bool(self.external)

    @property
    def file(self) -> Path | None:
        """The path of elements in a file of their own; None for others."""
        return self.folder / self.external.get("location", "") if self.folder is not None and self.external else None

    def _check_size(self) -> None:
        if self.dtype == TensorProto.STRING or (self._typed and self._raw is None):
            return
        try:
            expected = self.nbytes
        except KeyError:
            raise ModelError(
                f"tensor '{self.name}' has data type {self.dtype}, which ONNX does not define",
                "Export the model again.",
            ) from None
        if self._raw is not None and not self.external and len(self._raw) != expected:
            raise ModelError(
                f"tensor '{self.name}' {list(self.shape)} needs {expected} bytes but {len(self._raw)} are stored",
                "The file is damaged: fetch or export it again.",
            )
        if self._raw is None and not self.external and expected:
            raise ModelError(f"tensor '{self.name}' has no data", "The file is damaged: fetch or export it again.")

    def raw(self) -> Raw | None:
        """Return the packed elements as a view of the file, or None where a typed field holds them."""
        if self.external:
            return self._mapped()
        if self._raw is None and self.size and self.dtype != TensorProto.STRING:
            return ArrayTensor(self.numpy(), self.dtype).raw()
        return self._raw if self._raw is not None else (None if self.dtype == TensorProto.STRING else b"")

    def numpy(self) -> np.ndarray:
        """Return the elements as a read-only array, a view of the file where the type has whole bytes."""
        if self.dtype == TensorProto.STRING or (self._typed and self._raw is None):
            array = self._typed_numpy()
        elif self.dtype in SUB_BYTE_BITS:
            proto = TensorProto(dims=self.shape, data_type=self.dtype, raw_data=bytes(self.raw() or b""))
            array = onnx.numpy_helper.to_array(proto)
        else:
            dtype = onnx.helper.tensor_dtype_to_np_dtype(self.dtype)
            array = np.frombuffer(self.raw() or b"", dtype).reshape(self.shape)
        array.setflags(write=False)
        return array

    def encode(self, name: str, *, number: int) -> list[Chunk]:
        """Write the tensor unchanged, but for the name and for data that was external."""
        if self.external:
            return super().encode(name, number=number)
        if name == self.name:
            return message_field(number, [self.encoded])
        kept: list[Chunk] = [self.encoded[start:end] for n, _, start, _, end in fields(self.encoded) if n != NAME]
        return message_field(number, [*kept, bytes_field(NAME, name)])

    def release(self) -> None:
        """Release the pages of the file that reading the elements brought into memory."""
        if self.external:
            release(self._mapped())
        elif self._raw is not None:
            release(self._raw)

    def _typed_numpy(self) -> np.ndarray:
        try:
            array = onnx.numpy_helper.to_array(TensorProto.FromString(bytes(self.encoded)))
            if array.shape == self.shape:
                return array
            reason = f"{array.size} elements are stored"
        except (DecodeError, ValueError, TypeError, KeyError) as error:
            reason = str(error)
        raise ModelError(
            f"tensor '{self.name}' {list(self.shape)} cannot be read: {reason}",
            "The file is damaged: fetch or export it again.",
        )

    def _mapped(self) -> memoryview:
        if self._view is not None:  # looked up once: the path may have another file by now, even one that we wrote
            return self._view
        path = external_path(self.folder, self.external.get("location", ""), self.name)
        try:
            offset = int(self.external.get("offset") or 0)
            length = int(self.external.get("length") or self.nbytes)
        except ValueError:
            raise ModelError(
                f"tensor '{self.name}' has an external data offset that is no number", "Export the model again."
            ) from None
        size = path.stat().st_size
        if length != self.nbytes or offset < 0 or offset + length > size:
            with path.open("rb") as file:
                pointer = pointer_error(file.read(len(POINTER)), str(path), ModelError, "external data")
            if pointer is not None:
                raise pointer
            found = f"which has {size}" if length == self.nbytes else f"where it is said to have {length}"
            raise ModelError(
                f"tensor '{self.name}' needs bytes {offset} to {offset + self.nbytes} of {path}, {found}",
                "The external data does not belong to this model, or is incomplete: fetch it again.",
            )
        if not length:
            return memoryview(b"")
        try:
            self._view = map_file(path)[offset : offset + length]
        except OSError as error:
            raise ModelError(
                f"tensor '{self.name}' needs the file {path}, which cannot be read ({error.strerror})",
                "Check its permissions.",
            ) from error
        return self._view


def _entry(data: memoryview) -> tuple[str, str]:
    key = value = ""
    for number, wire_type, _, payload, end in fields(data):
        if wire_type != LENGTH_DELIMITED:
            raise WireError("a key-value entry holds something that is not text")
        if number == 1:
            key = text(data[payload:end])
        elif number == 2:
            value = text(data[payload:end])
    return key, value
