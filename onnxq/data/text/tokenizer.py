"""Tokenizers of Hugging Face: find `tokenizer.json`, encode, and read its settings of padding and length.

Tests: `tests/data/test_text_source.py`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnxq.data.extras import need
from onnxq.data.reading import ModelFacts, Reading
from onnxq.data.text_file import read_object, read_text
from onnxq.errors import DataError
from onnxq.text import counted

NAME = "tokenizer.json"
LONGEST = 512  # tokens, by default: calibration on longer texts takes long and tells little more
PADS = ("[PAD]", "<pad>", "<|endoftext|>", "</s>", "<|end_of_text|>", "<unk>", "[UNK]")
MAX_LENGTHS = ("model_max_length", "max_position_embeddings", "n_positions", "max_len")


@dataclass(frozen=True)
class EncodedText:
    """One text, or one pair, as tokens.

    Attributes:
        ids: Of its tokens.
        types: 0 for tokens of the first text, 1 for those of the second.

    """

    ids: tuple[int, ...]
    types: tuple[int, ...]


@dataclass(frozen=True)
class Padding:
    """How a text is made longer.

    Attributes:
        id: Of the token that fills up.
        type: Its token type.
        left: Whether it goes in front.

    """

    id: int = 0
    type: int = 0
    left: bool = False


@dataclass(frozen=True)
class TextTokenizer:
    """A tokenizer, and what its files say.

    Attributes:
        path: Its file.
        encoder: The object of the library.
        padding: How texts are made longer.
        longest: Most tokens that the model takes; None where nothing says it.

    """

    path: Path
    encoder: Any
    padding: Padding
    longest: int | None

    def encode(self, row: Sequence[str], most: int) -> tuple[EncodedText, int]:
        """Turn a text or a pair into at most so many tokens.

        Returns:
            The tokens that are used, and how many there were before the text was cut.

        Raises:
            DataError: The text gives no token, or `most` leaves no room for one.

        """
        whole = self._encode(row)
        if len(whole.ids) <= most:
            used = whole
        else:
            added = len(self._encode([""] * len(row)).ids)
            if added >= most:
                told = f"{self.path} adds {counted(added, 'token')} to each text"
                raise DataError(f"{told}, and at most {most} leaves no room for its own", "Allow more of them.")
            self.encoder.enable_truncation(most)
            used = self._encode(row)
            self.encoder.no_truncation()
        if not used.ids:
            raise DataError(f"{self.path} makes no token of '{row[0][:40]}'", "Is it the tokenizer of the model?")
        return used, len(whole.ids)

    def marks(self) -> tuple[int, ...]:
        """Return the tokens that are added to every text, such as a mark of its beginning."""
        return tuple(self.encoder.encode("").ids)

    @property
    def unknown(self) -> int | None:
        """The token that stands for whatever the tokenizer does not know; None where it has none."""
        name = getattr(getattr(self.encoder, "model", None), "unk_token", None)
        found = self.encoder.token_to_id(name) if isinstance(name, str) else None
        return None if found is None else int(found)

    def _encode(self, row: Sequence[str]) -> EncodedText:
        try:
            found = self.encoder.encode(*row)
        except Exception as error:  # the library raises nothing more specific
            raise DataError(f"{self.path} cannot read '{row[0][:40]}': {error}", "Check the text.") from error
        return EncodedText(tuple(found.ids), tuple(found.type_ids))


def find_tokenizer(facts: ModelFacts, reading: Reading, label: str) -> TextTokenizer:
    """Load the tokenizer that the user names, or the one next to the model.

    Raises:
        DataError: There is none, it is broken, or the library is not installed.

    """
    path = facts.beside(NAME)
    if reading.tokenizer is not None:
        path = Path(reading.tokenizer)
        path = path / NAME if path.is_dir() else path
        if not path.exists():
            raise DataError(f"{path} does not exist", f"--tokenizer takes a {NAME}, or the folder that holds one.")
    if path is None:
        where = f"next to {facts.path}" if facts.path is not None else "given"
        hint = f"Give it with --tokenizer {NAME}: models of Hugging Face come with one. For bytes: --tokenizer bytes."
        raise DataError(f"{label} holds sentences, and no {NAME} is {where}", hint)
    text = _read(path)
    library = need("tokenizers", "text", "reading sentences")
    try:
        encoder = library.Tokenizer.from_str(text)
    except Exception as error:  # the library raises nothing more specific
        reason = _lacks(text) or (str(error).splitlines()[0] if str(error) else type(error).__name__)
        hint = f"Give a {NAME} of Hugging Face; other files of tokenizers are not read."
        raise DataError(f"{path} is no tokenizer: {reason}", hint) from error
    own = encoder.padding or {}
    limit = (encoder.truncation or {}).get("max_length")
    encoder.no_padding()
    encoder.no_truncation()
    config, special, model = (read_object(path.parent / f"{name}.json") for name in CONFIGS)
    longest = [limit, *(table.get(key) for table in (config, model) for key in MAX_LENGTHS)]
    known = [int(one) for one in longest if isinstance(one, int | float) and 0 < one < 1e6]
    side = str(config.get("padding_side") or own.get("direction") or "right").lower()
    padding = Padding(_pad_id(encoder, own, [config, special, model]), int(own.get("pad_type_id") or 0), side == "left")
    return TextTokenizer(path, encoder, padding, min(known, default=None))


def _lacks(text: str) -> str:
    """Say what a file lacks that every tokenizer has; empty where the library has to say what is wrong."""
    try:
        found = json.loads(text)
    except ValueError:
        return "it is no JSON"
    return "" if isinstance(found, dict) and "model" in found else "it has no key 'model'"


def _read(path: Path) -> str:
    try:
        return read_text(path)
    except DataError as error:
        raise DataError(error.message, f"Give a {NAME} of Hugging Face, or the folder that holds one.") from error


CONFIGS = ("tokenizer_config", "special_tokens_map", "config")


def _pad_id(encoder: Any, own: dict[str, Any], tables: Sequence[dict[str, Any]]) -> int:
    """Return the id of the token that fills up; masks keep models from reading it."""
    if isinstance(own.get("pad_id"), int):
        return int(own["pad_id"])
    tokens = [table.get("pad_token") for table in tables]
    tokens = [token.get("content") if isinstance(token, dict) else token for token in tokens]
    for token in (*tokens, *PADS):
        found = encoder.token_to_id(token) if isinstance(token, str) else None
        if found is not None:
            return int(found)
    given = next((table["pad_token_id"] for table in tables if isinstance(table.get("pad_token_id"), int)), 0)
    return int(given)
