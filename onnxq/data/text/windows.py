"""The text of a decoder: lines joined and cut into windows of equal length.

A corpus has its lines where its author broke them. A decoder reads text of hundreds of tokens, and so does its user.

Tests: `tests/data/test_text_windows.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onnxq.data.reading import ModelFacts
from onnxq.data.text.roles import TextInputs
from onnxq.data.text.sentences import Sentences
from onnxq.data.text.tokenizer import EncodedText, TextTokenizer
from onnxq.text import counted

FEWEST, MOST = 16, 256  # windows: so many where the text allows it, and no more
SHORTEST = 32  # tokens of a window, if the model leaves that open
ONE_BY_ONE = 64  # tokens of a window, if each is a step of its own
CHARACTERS = 8  # of a token at most, to take pieces of a long text
BYTES = 256  # codes of a model that reads bytes
PADDED = 1.25  # logits for each code at most: some exports have logits for codes that are not used
MARKS = 1  # tokens at most that a decoder's tokenizer adds to a text


def joined_windows(
    sentences: Sentences, wanted: TextInputs, facts: ModelFacts, tokenizer: TextTokenizer, most: int
) -> tuple[list[EncodedText], str] | None:
    """Cut the joined texts of a corpus into windows.

    Args:
        sentences: The texts; None is returned for pairs, and for texts with labels.
        wanted: What the model takes.
        facts: Of the model; None is returned unless it is a decoder, by its caches or logits.
        tokenizer: Of the model.
        most: Tokens of a window.

    Returns:
        The windows, and a sentence about them; None where texts stay apart, or have too few tokens.

    """
    apart = sentences.numbers or sentences.words or sentences.pairs is not None or wanted.types or wanted.lengths
    if apart or any(len(row) != 1 for row in sentences.rows) or not is_decoder(wanted, facts, tokenizer):
        return None
    marks = tokenizer.marks()
    if len(marks) > MARKS:
        return None
    fixed = wanted.length if wanted.length != 1 else None
    most = min(most, ONE_BY_ONE) if wanted.length == 1 else most
    pieces = _pieces([row[0] for row in sentences.rows], MOST * most * CHARACTERS)
    tokens = [tokenizer.encode((piece,), 4 * len(piece) + MARKS)[0].ids[len(marks) :] for piece in pieces]
    total = sum(map(len, tokens))
    size = (fixed or min(most, max(total // FEWEST, SHORTEST))) - len(marks)
    if total < 2 * SHORTEST or size < 1:
        return None
    parts = [ids[start : start + size] for ids in tokens for start in range(0, len(ids), size)]
    whole = [part for part in parts if len(part) == size] or parts[:1]
    every = max(len(whole) / MOST, 1)
    chosen = [whole[int(index * every)] for index in range(min(len(whole), MOST))]
    told = f"{sentences.label}: {counted(len(sentences.rows), 'text')} joined, and cut into "
    told += f"{counted(len(chosen), 'window')} of {size + len(marks)} tokens"
    return [EncodedText((*marks, *ids), (0,) * (len(marks) + len(ids))) for ids in chosen], told


def is_decoder(wanted: TextInputs, facts: ModelFacts, tokenizer: TextTokenizer) -> bool:
    """Tell whether a model has caches, or gives logits for each code of its tokenizer."""
    if wanted.caches:
        return True
    count: Any = getattr(tokenizer.encoder, "get_vocab_size", lambda: BYTES)()
    for output in facts.outputs:
        last = output.shape[-1] if output.shape is not None and len(output.shape) == 3 else None
        if isinstance(last, int) and (count <= last <= PADDED * count or ("logit" in output.name and last >= count)):
            return True
    return False


def _pieces(lines: Sequence[str], most: int) -> list[str]:
    """Join lines; of a long text, take as many pieces as windows, spread over all of it."""
    total = sum(len(line) + 1 for line in lines)
    if total <= most:
        return ["\n".join(lines)]
    pieces: list[list[str]] = [[] for _ in range(MOST)]
    room, place = most // MOST, 0
    left = [room] * MOST
    for line in lines:
        index = place * MOST // total
        if left[index] > 0:
            pieces[index].append(line)
            left[index] -= len(line) + 1
        place += len(line) + 1
    return ["\n".join(piece)[: 2 * room] for piece in pieces if piece]
