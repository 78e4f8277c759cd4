"""Constants: their dtype and shape are known, their elements are mapped or computed when they are read."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cache, cached_property

import numpy as np
import onnx
from onnx import TensorProto

from onnxq.ir.proto_fields import DATA_LOCATION, DATA_TYPE, DIMS, EXTERNAL_DATA, NAME, RAW_DATA
from onnxq.ir.storage.external import release
from onnxq.ir.wire import (
    Chunk,
    Pending,
    Raw,
    bytes_field,
    entry_field,
    integer_field,
    message_field,
)

# Bits of an element where NumPy has no packed form; source: onnx.proto, TensorProto.DataType
SUB_BYTE_BITS: dict[int, int] = {
    TensorProto.UINT4: 4,
    TensorProto.INT4: 4,
    TensorProto.FLOAT4E2M1: 4,
    **({TensorProto.UINT2: 2, TensorProto.INT2: 2} if hasattr(TensorProto, "UINT2") else {}),
    **({TensorProto.FLOAT6E2M3: 6, TensorProto.FLOAT6E3M2: 6} if hasattr(TensorProto, "FLOAT6E2M3") else {}),
}


class Tensor(ABC):
    """A constant of the model.

    Attributes:
        dtype: A value of `onnx.TensorProto.DataType`.
        shape: Its dimensions; empty for a scalar.

    """

    dtype: int
    shape: tuple[int, ...]

    @cached_property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @cached_property
    def nbytes(self) -> int:
        """Bytes of the packed elements, as `raw_data` holds them (strings count as zero)."""
        if self.dtype == TensorProto.STRING:
            return 0
        return (self.size * item_bits(self.dtype) + 7) // 8

    @abstractmethod
    def numpy(self) -> np.ndarray:
        """Return the elements as a read-only array of `shape`, without a copy where the file allows it."""

    @abstractmethod
    def raw(self) -> Raw | None:
        """Return the packed little-endian elements, or None where only a typed field or strings hold them."""

    def encode(self, name: str, *, number: int) -> list[Chunk]:
        """Write a TensorProto with its elements inside, as field `number` of the message around it."""
        raw = self.raw()
        if raw is None:
            array = np.vectorize(_as_bytes, otypes=[object])(self.numpy()) if self.size else self.numpy()
            return [bytes_field(number, onnx.numpy_helper.from_array(array, name).SerializeToString())]
        return message_field(number, [*self._header(name), *message_field(RAW_DATA, [raw])])

    def encode_external(self, name: str, *, number: int, location: str, offset: int) -> list[Chunk]:
        """Write a TensorProto that points into an external data file."""
        entries = [
            entry_field(EXTERNAL_DATA, "location", location),
            entry_field(EXTERNAL_DATA, "offset", str(offset)),
            entry_field(EXTERNAL_DATA, "length", str(self.nbytes)),
        ]
        return message_field(number, [*self._header(name), *entries, integer_field(DATA_LOCATION, 1)])

    def view(self) -> np.ndarray:
        """Return the elements as `numpy`, but in any order in memory: of a transposed constant without a copy."""
        return self.numpy()

    def release(self) -> None:  # noqa: B027  (most constants have nothing to let go of)
        """Release the memory of the elements if the file can provide them again."""

    def _header(self, name: str) -> list[Chunk]:
        dims = b"".join(integer_field(DIMS, d) for d in self.shape)
        return [dims + integer_field(DATA_TYPE, self.dtype) + bytes_field(NAME, name)]


class ArrayTensor(Tensor):
    """A constant that onnxq made and that lives in memory.

    Args:
        array: The elements.
        dtype: Element type to store them as; that of the array without it.

    """

    def __init__(self, array: np.ndarray, dtype: int | None = None) -> None:
        if dtype is not None:
            array = array.astype(onnx.helper.tensor_dtype_to_np_dtype(dtype), copy=False)
        self.array = np.ascontiguousarray(array).reshape(np.shape(array)).view()
        self.array.setflags(write=False)
        self.dtype = dtype if dtype is not None else int(onnx.helper.np_dtype_to_tensor_dtype(self.array.dtype))
        self.shape = self.array.shape

    def numpy(self) -> np.ndarray:
        """Return the array itself, which is read-only."""
        return self.array

    def raw(self) -> Raw | None:
        """Return the packed elements; None for strings."""
        if self.dtype == TensorProto.STRING:
            return None
        if self.dtype in SUB_BYTE_BITS:
            return bytes(onnx.numpy_helper.from_array(self.array).raw_data)
        return self.array.reshape(-1).view(np.uint8).data if self.array.size else b""

    def release(self) -> None:
        """Release the pages of a scratch file under the array."""
        if self.array.nbytes:
            release(self.array.reshape(-1).view(np.uint8).data)


class DeferredTensor(Tensor):
    """A constant that is computed when it is needed and not kept: a large model is written weight by weight.

    Args:
        dtype: `onnx.TensorProto.DataType` of the elements.
        shape: Their dimensions.
        compute: Gives the elements, the same each time.
        sources: Constants that it reads, whose pages are released with those of the tensor.

    """

    def __init__(
        self, dtype: int, shape: tuple[int, ...], compute: Callable[[], np.ndarray], sources: Sequence[Tensor] = ()
    ) -> None:
        self.dtype = dtype
        self.shape = tuple(shape)
        self.compute = compute
        self.sources = tuple(sources)

    def numpy(self) -> np.ndarray:
        """Compute the elements.

        Raises:
            ValueError: They do not have the shape that was announced.

        """
        return ArrayTensor(self.view(), self.dtype).array

    def view(self) -> np.ndarray:
        """Compute the elements; they stay those of the constant that they are a view of.

        Raises:
            ValueError: They do not have the shape that was announced.

        """
        array = self.compute()
        if array.shape != self.shape:
            raise ValueError(f"a constant announced as {list(self.shape)} came out as {list(array.shape)}")
        return array

    def release(self) -> None:
        """Release the pages of the constants that the elements come from."""
        for source in self.sources:
            source.release()

    def raw(self) -> Raw | None:
        """Compute the packed elements; None for strings."""
        return ArrayTensor(self.numpy(), self.dtype).raw()

    def encode(self, name: str, *, number: int) -> list[Chunk]:
        """Write the tensor with its elements as a `Pending` chunk."""
        if self.dtype == TensorProto.STRING:
            return super().encode(name, number=number)
        return message_field(number, [*self._header(name), *message_field(RAW_DATA, [Pending(self.nbytes, self.raw)])])


@cache
def item_bits(dtype: int) -> int:
    """Bits of one packed element; KeyError for a type that ONNX does not define."""
    if dtype in SUB_BYTE_BITS:
        return SUB_BYTE_BITS[dtype]
    return int(onnx.helper.tensor_dtype_to_np_dtype(dtype).itemsize) * 8


def _as_bytes(item: str | bytes) -> bytes:
    return item if isinstance(item, bytes) else item.encode()
