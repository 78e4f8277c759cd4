"""Texts as the bytes of UTF-8, for models that read bytes and have no tokenizer.

Tests: `tests/data/test_text_bytes.py`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from onnxq.data.beside import BYTES, makes_bytes
from onnxq.data.reading import ModelFacts, Reading
from onnxq.data.text.tokenizer import NAME, Padding, TextTokenizer
from onnxq.data.validation import InputSpec

NAMED = re.compile(r"(^|[^a-z])bytes?([^a-z]|$)")


@dataclass
class ByteEncoding:
    """The bytes of one text, or of a pair one after the other.

    Attributes:
        ids: The bytes, 0 to 255.
        type_ids: 0 for the first text, 1 for the second.

    """

    ids: list[int]
    type_ids: list[int]


class ByteEncoder:
    """Turns texts into bytes; it has what onnxq calls of an object of the library tokenizers."""

    def __init__(self) -> None:
        self._most: int | None = None

    def enable_truncation(self, most: int) -> None:
        """Cut texts from now on."""
        self._most = most

    def no_truncation(self) -> None:
        """Leave texts whole from now on."""
        self._most = None

    def encode(self, *row: str) -> ByteEncoding:
        """Return the bytes of a text or a pair."""
        parts = [text.encode() for text in row]
        types = [kind for kind, part in enumerate(parts) for _ in part]
        return ByteEncoding([*b"".join(parts)][: self._most], types[: self._most])


def byte_tokenizer(ids: InputSpec, facts: ModelFacts, reading: Reading) -> TextTokenizer | None:
    """Return what makes bytes of texts, if the model reads bytes; None if it needs a tokenizer.

    A model reads bytes if the user says so. Without a tokenizer, it also does if its input is of type uint8 or is
    called bytes.

    Args:
        ids: The input for token ids.
        facts: Of the model.
        reading: What the user asks for.

    """
    if reading.tokenizer is not None:
        chosen = makes_bytes(Path(reading.tokenizer))
    else:
        small = ids.numpy_dtype is not None and ids.numpy_dtype.name == "uint8"
        chosen = (small or NAMED.search(ids.name.lower()) is not None) and facts.beside(NAME) is None
    return TextTokenizer(Path(BYTES), ByteEncoder(), Padding(), None) if chosen else None
