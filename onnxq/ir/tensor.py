"""A tensor that is still on disk: its dtype and shape are known, its numbers are mapped when somebody asks."""

from __future__ import annotations

import math
import mmap
import os
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto

from onnxq.errors import ModelError
from onnxq.ir.protos import DATA_LOCATION, DATA_TYPE, DIMS, EXTERNAL_DATA, NAME, RAW_DATA
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

TYPED_DATA = frozenset((4, 5, 6, 7, 10, 11))
# Bits of an element where NumPy has no packed form; source: onnx.proto, TensorProto.DataType
SUB_BYTE_BITS: dict[int, int] = {
    TensorProto.UINT4: 4,
    TensorProto.INT4: 4,
    TensorProto.FLOAT4E2M1: 4,
    **({TensorProto.UINT2: 2, TensorProto.INT2: 2} if hasattr(TensorProto, "UINT2") else {}),
    **({TensorProto.FLOAT6E2M3: 6, TensorProto.FLOAT6E3M2: 6} if hasattr(TensorProto, "FLOAT6E2M3") else {}),
}


class Tensor:
    """A constant of the model.

    Attributes:
        dtype: A value of `onnx.TensorProto.DataType`.
        shape: Its dimensions; empty for a scalar.

    """

    dtype: int
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the packed elements, as `raw_data` holds them (strings count as zero)."""
        if self.dtype == TensorProto.STRING:
            return 0
        return (self.size * item_bits(self.dtype) + 7) // 8

    def numpy(self) -> np.ndarray:
        """Give the elements as a read-only array of `shape`, without a copy where the file allows it."""
        raise NotImplementedError

    def raw(self) -> Chunk | None:
        """Give the packed little-endian elements, or None where only a typed field or strings hold them."""
        raise NotImplementedError

    def encode(self, name: str, *, number: int) -> list[Chunk]:
        """Write a TensorProto with its elements inside, as field `number` of the message around it."""
        raw = self.raw()
        if raw is None:
            raise ModelError(
                f"tensor '{name}' cannot be stored as raw data", "Report this model: strings are expected as they came."
            )
        return message_field(number, [*self._header(name), *message_field(RAW_DATA, [raw])])

    def encode_external(self, name: str, *, number: int, location: str, offset: int) -> list[Chunk]:
        """Write a TensorProto that points into an external data file."""
        entries = [
            entry_field(EXTERNAL_DATA, "location", location),
            entry_field(EXTERNAL_DATA, "offset", str(offset)),
            entry_field(EXTERNAL_DATA, "length", str(self.nbytes)),
        ]
        return message_field(number, [*self._header(name), *entries, integer_field(DATA_LOCATION, 1)])

    def _header(self, name: str) -> list[Chunk]:
        dims = b"".join(integer_field(DIMS, d) for d in self.shape)
        return [dims + integer_field(DATA_TYPE, self.dtype) + bytes_field(NAME, name)]


class ArrayTensor(Tensor):
    """A constant that onnxq made and that lives in memory."""

    def __init__(self, array: np.ndarray, dtype: int | None = None) -> None:
        self.array = np.ascontiguousarray(array).reshape(np.shape(array))
        self.array.setflags(write=False)
        self.dtype = dtype if dtype is not None else int(onnx.helper.np_dtype_to_tensor_dtype(self.array.dtype))
        self.shape = self.array.shape

    def numpy(self) -> np.ndarray:
        """Give the array itself, which is read-only."""
        return self.array

    def raw(self) -> Chunk:
        """Give the packed elements."""
        if self.dtype in SUB_BYTE_BITS:
            return bytes(onnx.numpy_helper.from_array(self.array).raw_data)
        return self.array.reshape(-1).view(np.uint8).data if self.array.size else b""


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

    def raw(self) -> Chunk | None:
        """Give the packed elements as a view of the file, or None where a typed field holds them."""
        if self.external:
            return self._mapped()
        if self._raw is None and self.size and self.dtype != TensorProto.STRING:
            return bytes(onnx.numpy_helper.from_array(self.numpy()).raw_data)
        return self._raw if self._raw is not None else (None if self.dtype == TensorProto.STRING else b"")

    def numpy(self) -> np.ndarray:
        """Give the elements as a read-only array, a view of the file where the type has whole bytes."""
        if self._typed and self._raw is None:
            array = onnx.numpy_helper.to_array(TensorProto.FromString(bytes(self.encoded)))
        elif self.dtype in SUB_BYTE_BITS:
            proto = TensorProto(dims=self.shape, data_type=self.dtype, raw_data=bytes(self.raw() or b""))
            array = onnx.numpy_helper.to_array(proto)
        else:
            dtype = onnx.helper.tensor_dtype_to_np_dtype(self.dtype)
            array = np.frombuffer(self.raw() or b"", dtype).reshape(self.shape)
        array.setflags(write=False)
        return array

    def encode(self, name: str, *, number: int) -> list[Chunk]:
        """Write the tensor; as it came when nothing about it changed."""
        if not self.external and name == self.name:
            return message_field(number, [self.encoded])
        return super().encode(name, number=number)

    def _mapped(self) -> memoryview:
        path = external_path(self.folder, self.external.get("location", ""), self.name)
        try:
            offset = int(self.external.get("offset") or 0)
            length = int(self.external.get("length") or self.nbytes)
            size = path.stat().st_size
        except ValueError:
            raise ModelError(
                f"tensor '{self.name}' has an external data offset that is no number", "Export the model again."
            ) from None
        except OSError as error:
            raise ModelError(
                f"tensor '{self.name}' needs the file {path}, which cannot be read ({error.strerror})",
                "Put the external data file beside the model.",
            ) from error
        if length != self.nbytes or offset < 0 or offset + length > size:
            raise ModelError(
                f"tensor '{self.name}' needs bytes {offset} to {offset + self.nbytes} of {path}, which has {size}",
                "The external data does not belong to this model, or is incomplete: fetch it again.",
            )
        return _map_file(path)[offset : offset + length] if length else memoryview(b"")


def item_bits(dtype: int) -> int:
    """Bits of one packed element; KeyError for a type that ONNX does not define."""
    if dtype in SUB_BYTE_BITS:
        return SUB_BYTE_BITS[dtype]
    return int(onnx.helper.tensor_dtype_to_np_dtype(dtype).itemsize) * 8


def external_path(folder: Path | None, location: str, tensor: str) -> Path:
    """Resolve an external data path, refusing whatever is not a plain file inside the model's folder."""
    hint = "Use a model whose external data lies in its own folder."
    if folder is None or not location:
        raise ModelError(f"tensor '{tensor}' has external data without a location", hint)
    base = folder.resolve()
    path = (base / location).resolve()
    if os.path.isabs(location) or not path.is_relative_to(base):
        raise ModelError(f"tensor '{tensor}' points outside the model's folder: {location}", hint)
    return path


_MAPPED: dict[tuple[str, int, int], memoryview] = {}


def _map_file(path: Path) -> memoryview:
    status = path.stat()
    key = (str(path), status.st_mtime_ns, status.st_size)
    if key not in _MAPPED:
        with path.open("rb") as file:
            _MAPPED[key] = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    return _MAPPED[key]


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
