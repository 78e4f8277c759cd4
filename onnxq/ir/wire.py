"""The protobuf wire format: walk the fields of a message without parsing it, and write fields back.

onnxq works on spans of the file, not on parsed messages. Weights stay on disk, and parts that no patch touches keep
their exact bytes. Source: https://protobuf.dev/programming-guides/encoding.

Tests: `tests/ir/test_hostile.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

VARINT, FIXED64, LENGTH_DELIMITED, FIXED32 = 0, 1, 2, 5
Raw = bytes | memoryview


class Pending:
    """Bytes of a known length that are made when they are written.

    Args:
        size: How many.
        make: Gives them.

    """

    __slots__ = ("make", "size")

    def __init__(self, size: int, make: Callable[[], Raw | None]) -> None:
        self.size = size
        self.make = make

    def __len__(self) -> int:
        return self.size

    def get(self) -> Raw:
        """Make them."""
        made = self.make()
        assert isinstance(made, bytes | memoryview)
        assert len(made) == self.size
        return made


Chunk = Raw | Pending


class WireError(ValueError):
    """Bytes that are not a protobuf message; the caller names the file."""


def read_varint(data: memoryview, position: int, end: int) -> tuple[int, int]:
    """Return the unsigned value of the varint at `position` and the position behind it."""
    value = shift = 0
    while position < end:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, position
        shift += 7
        if shift > 63:
            raise WireError(f"a number of more than 64 bits at byte {position}")
    raise WireError(f"the file ends inside a number at byte {position}")


def fields(data: memoryview, most: int | None = None) -> list[tuple[int, int, int, int, int]]:
    """List the fields of one message.

    Args:
        data: The bytes of exactly one message.
        most: So many fields are enough: a list of numbers, as a tree has, may hold millions.

    Returns:
        For each field `(number, wire type, start, payload start, end)`, positions within `data`. The payload of a
        length-delimited field excludes its length.

    Raises:
        WireError: The bytes are truncated or are no protobuf message.

    """
    found: list[tuple[int, int, int, int, int]] = []
    position, size = 0, len(data)
    while position < size and len(found) != most:
        start = position
        tag = data[position]
        position += 1
        if tag >= 0x80:
            tag, position = read_varint(data, start, size)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == LENGTH_DELIMITED:
            length = data[position] if position < size else 0x80
            if length < 0x80:
                position += 1
            else:
                length, position = read_varint(data, position, size)
            payload, position = position, position + length
        elif wire_type == VARINT:
            payload = position
            _, position = read_varint(data, position, size)
        elif wire_type == FIXED32:
            payload, position = position, position + 4
        elif wire_type == FIXED64:
            payload, position = position, position + 8
        else:
            raise WireError(f"wire type {wire_type} at byte {start} does not occur in ONNX")
        if number == 0 or position > size:
            raise WireError(f"the field at byte {start} runs past the end of its message")
        found.append((number, wire_type, start, payload, position))
    return found


def text(data: memoryview) -> str:
    """Decode a string field, refusing what is not UTF-8."""
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise WireError(f"a name is not UTF-8 ({error.reason})") from error


def signed(value: int) -> int:
    """Read an unsigned 64-bit varint as int64, which is how protobuf stores negative integers."""
    return value - (1 << 64) if value >= 1 << 63 else value


_SHORT = [bytes((value,)) for value in range(0x80)]
_TAGS = [bytes((number << 3 | LENGTH_DELIMITED,)) for number in range(16)]  # of the fields that a message has most


def _tag(number: int) -> bytes:
    return _TAGS[number] if number < len(_TAGS) else varint(number << 3 | LENGTH_DELIMITED)


def varint(value: int) -> bytes:
    """Encode an integer; negative ones as their 64-bit two's complement."""
    if 0 <= value < len(_SHORT):
        return _SHORT[value]
    value &= 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def integer_field(number: int, value: int) -> bytes:
    """Encode an int32, int64 or enum field."""
    return varint(number << 3 | VARINT) + varint(value)


def bytes_field(number: int, payload: bytes | str) -> bytes:
    """Encode a string, bytes or embedded message field whose payload is at hand."""
    raw = payload.encode() if isinstance(payload, str) else payload
    return _tag(number) + varint(len(raw)) + raw


def length(chunks: Iterable[Chunk]) -> int:
    """Count the bytes of a list of chunks."""
    return sum(map(len, chunks))


def join(chunks: Iterable[Chunk]) -> bytes:
    """Put chunks together."""
    return b"".join([chunk.get() if isinstance(chunk, Pending) else chunk for chunk in chunks])


def message_field(number: int, chunks: list[Chunk]) -> list[Chunk]:
    """Frame chunks as an embedded message, without joining them: weights stay views of the file."""
    return [_tag(number) + varint(length(chunks)), *chunks]


def entry_field(number: int, key: str, value: str) -> bytes:
    """Encode a StringStringEntryProto, the key-value pair of metadata and external data."""
    return bytes_field(number, bytes_field(1, key) + bytes_field(2, value))
