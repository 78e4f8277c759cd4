"""Doubts about texts: the tokenizer of another model, tokens that it does not know, a table without names of columns.

Tests: `tests/data/test_text_doubts.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from onnxq.data.reading import ModelFacts
from onnxq.data.text.table_rows import table_rows
from onnxq.data.text.tokenizer import EncodedText, TextTokenizer
from onnxq.errors import DataError
from onnxq.text import counted
from onnxq.warning import WarningLine

FEW_TOKENS = 1024  # of all texts for a decoder: its widest layers mostly read more numbers
MANY_UNKNOWN = 0.2  # share of tokens: English text has next to none, in the tokenizer of its model


def refuse_foreign_tokens(encoded: Sequence[EncodedText], name: str, path: Path, facts: ModelFacts) -> None:
    """Refuse tokens that the model has no embedding for.

    Args:
        encoded: Tokens of all texts.
        name: Of the input that takes them.
        path: Of the tokenizer.
        facts: Of the model.

    Raises:
        DataError: The highest token lies beyond the table that is looked up.

    """
    rows = None if facts.model is None else table_rows(facts.model, name)
    highest = max((max(text.ids) for text in encoded), default=0)
    if rows is not None and highest >= rows:
        message = f"{path} makes token {highest}, and the model knows {rows} tokens: it belongs to another model"
        raise DataError(message, "Give the model's own: --tokenizer tokenizer.json.")


def text_warnings(
    doubt: str, encoded: Sequence[EncodedText], tokenizer: TextTokenizer, *, decodes: bool = False
) -> Iterator[WarningLine]:
    """Yield what looks wrong about texts and their tokens.

    Args:
        doubt: About the names of columns; empty where there is none.
        encoded: Tokens of all texts.
        tokenizer: What made them.
        decodes: Whether they are for a decoder, whose weights are rounded on each token.

    """
    if doubt:
        remedy = "Begin a table with a line such as text,label, or name the column by --text-key."
        yield WarningLine("no-header", doubt, remedy)
    unknown, total = tokenizer.unknown, sum(len(text.ids) for text in encoded)
    if decodes and total < FEW_TOKENS:
        message = (
            f"the texts have only {counted(total, 'token')}, on which neither weights nor perplexity can be judged"
        )
        yield WarningLine("few-tokens", message, "Give some pages of text: 10,000 tokens and more.")
    share = sum(text.ids.count(unknown) for text in encoded) / total if unknown is not None and total else 0.0
    if share >= MANY_UNKNOWN:
        message = f"{100 * share:.0f} % of all tokens are unknown to {tokenizer.path.name}"
        yield WarningLine("unknown-tokens", message, "Give the model's own tokenizer, and texts in its language.")
