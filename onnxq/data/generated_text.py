"""Let a decoder generate token sequences to calibrate on, if there are no data.

The text that a language model writes is distributed as the text that it reads: https://arxiv.org/abs/2305.17888.
Sampling adds Gumbel noise that depends on the sequence and the place alone, and takes the greatest sum. onnxruntime
drafts the tokens, and the evaluator checks all of them in one run. If its sums in float64 choose another token, the
draft goes on from there. So the tokens are the same on every processor.

A model that runs in segments reads its weights at every run. Its runs choose all tokens of a sequence at once, each by
those that the run before has chosen: Jacobi iteration (https://arxiv.org/abs/2305.10427), stopped early. A token then
follows from the last few in front of it, as many as there were runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from onnx import TensorProto

from onnxq.data.text.feeds import text_feeds
from onnxq.data.text.table_rows import table_rows
from onnxq.errors import OnnxqError
from onnxq.evaluator import wide_evaluator
from onnxq.ir import Model, Value
from onnxq.ir.shape_inference.cache_width import is_sliding_cache
from onnxq.runtime.session import InMemory, InSegments, SessionError, open_session, run_session

LENGTH, LONGEST = 64, 512  # of sequences where the model leaves it open, and that is tried otherwise
MOST_SEQUENCES, FEWEST_SEQUENCES = 64, 8
WORK = 1 << 18  # tokens to run in all
ROUNDS = 8  # of drafts that the evaluator corrects
PASSES = 8  # of Jacobi iteration
PRODUCTS = 6.4e12  # multiplications for sequences of a large model: about two minutes on two cores
LOGITS = 1 << 24  # elements of logits that are computed at a time: 64 MB
TOLERANCE = 1e-3  # of the largest logit, within which logits in float32 are the same
INTEGERS = (TensorProto.INT64, TensorProto.INT32)
FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16)
MASK, PLACES = "attention_mask", "position_ids"
RunModel = Callable[[list[str], dict[str, np.ndarray]], list[Any]]


@dataclass(frozen=True)
class TextInput:
    """The inputs of a decoder, and its logits.

    Attributes:
        ids: Token ids `[batch, length]`.
        others: A mask of ones and numbers of places, if there are any.
        caches: Keys and values of earlier tokens `[batch, heads, past, head]`: there are none.
        logits: `[batch, length, tokens]`.
        tokens: How many tokens there are.
        length: Of sequences.

    """

    ids: Value
    others: tuple[Value, ...]
    caches: tuple[Value, ...]
    logits: Value
    tokens: int
    length: int

    def feeds(self, ids: np.ndarray, past: int = 0) -> dict[str, np.ndarray]:
        """Return what the model takes for token ids `[batch, length]` behind so many others, which were all zeros."""
        batch, length = ids.shape
        rows = {MASK: np.ones(past + length), PLACES: np.arange(past, past + length)}
        inputs = (self.ids, *self.others, *self.caches)
        return text_feeds(inputs, {self.ids.name: ids, **rows}, batch, past)

    def logits_of(self, ids: np.ndarray, run: RunModel) -> np.ndarray:
        """Return logits of token ids `[batch, length]`, one row at a time where the model takes no more.

        Some exports state an open batch, and tables of rotations for one row (RotaryEmbedding of opset 23).
        """

        def of(part: np.ndarray) -> np.ndarray:
            return np.asarray(run([self.logits.name], self.feeds(part))[0])

        if not isinstance((self.ids.shape or ())[0], int):
            try:
                return of(ids)
            except SessionError:
                if len(ids) == 1:
                    raise
        return np.concatenate([of(part) for part in np.split(ids, len(ids))])


def text_input(model: Model) -> TextInput | None:
    """Find the token ids and the logits of a decoder whose cache, if it has one, can be empty; None for another.

    Its batch is open, or 1.
    """
    inputs = [value for value in model.graph.inputs if value.tensor is None]
    others = tuple(value for value in inputs if value.name in (MASK, PLACES))
    caches = tuple(value for value in inputs if _is_cache(value))
    named = [value for value in inputs if value not in others + caches]
    logits = model.graph.outputs[0] if model.graph.outputs else None
    if len(named) != 1 or logits is None or any(value.dtype not in INTEGERS for value in (*named, *others)):
        return None
    ids, shape, given = named[0], logits.shape, named[0].shape
    if shape is None or given is None or len(shape) != 3 or len(given) != 2:
        return None
    tokens, batch, length = shape[2], given[0], given[1]
    if not isinstance(tokens, int) or logits.dtype not in FLOATS or not _is_batch(batch):
        return None
    if tokens != table_rows(model, ids.name):
        return None
    if isinstance(length, int) and not 2 <= length <= LONGEST:
        return None
    if isinstance(shape[1], int) and shape[1] != length:  # of the last token alone, as some exports have them
        return None
    return TextInput(ids, others, caches, logits, tokens, length if isinstance(length, int) else LENGTH)


def _is_cache(value: Value) -> bool:
    """Tell whether an input is of floats `[batch, heads, past, head]` for any past, and any batch or one of 1.

    A cache of the last tokens has a row for each of them.
    """
    shape = value.shape
    if value.dtype not in FLOATS or shape is None or len(shape) != 4:
        return False
    known = [isinstance(size, int) for size in shape[1:]]
    return _is_batch(shape[0]) and (known == [True, False, True] or (all(known) and is_sliding_cache(value)))


def _is_batch(size: object) -> bool:
    """Tell whether one sequence can be the whole batch."""
    return size == 1 or not isinstance(size, int)


def generated_text(model: Model, seed: int = 0) -> list[dict[str, np.ndarray]]:
    """Let a decoder generate token sequences.

    Args:
        model: The float model, types inferred.
        seed: Of the first tokens and of the choice of all others.

    Returns:
        A sample for each sequence, its batch 1; none where the model is no decoder, or cannot be run.

    """
    found = text_input(model)
    if found is None:
        return []
    count = int(np.clip(WORK // found.length**2, FEWEST_SEQUENCES, MOST_SEQUENCES))
    random = np.random.default_rng(seed)
    ids = np.zeros((count, found.length), np.int64)
    ids[:, 0] = random.integers(0, found.tokens, count)
    try:
        evaluator = wide_evaluator(model, [found.logits])
        if evaluator is None:
            return []
        name = found.logits.name

        def exact(ids: np.ndarray) -> np.ndarray:
            rows = (evaluator.run(found.feeds(row[None]), [name])[name] for row in ids)
            return np.concatenate(list(rows))

        if not is_causal(found, ids[:1], exact, tolerance=0.0):
            return []
        run = partial(run_session, open_session(InMemory(model)))
        draft = partial(found.logits_of, run=run)
        ids = _decode(found, ids, _Sampler(seed), draft, exact)
    except (OnnxqError, SessionError):  # what is wrong with the model is said by those that have to run it
        return []
    return [found.feeds(row[None]) for row in ids]


def drafted_text(model: Model, seed: int = 0) -> list[dict[str, np.ndarray]]:
    """Let a large decoder generate token sequences in few runs, which go through its segments.

    Args:
        model: The float model, types inferred.
        seed: Of the tokens to begin with and of the choice of all others.

    Returns:
        As `generated_text`; fewer sequences the larger the model is.

    """
    found = text_input(model)
    if found is None:
        return []
    work = PASSES * found.length * max(model.weight_bytes // np.dtype(np.float32).itemsize, 1)
    count = int(np.clip(PRODUCTS // work, FEWEST_SEQUENCES, MOST_SEQUENCES))
    random = np.random.default_rng(seed)
    first = random.integers(0, found.tokens, (count, 1))
    ids = np.concatenate([first, random.integers(0, found.tokens, (count, found.length - 1))], axis=1)
    try:
        run = partial(run_session, open_session(InSegments(model)))
        logits = partial(found.logits_of, run=run)
        if not is_causal(found, ids[:1], logits):
            return []
        for _ in range(PASSES):
            ids = _redrafted(found, ids, _Sampler(seed), logits)
    except (OnnxqError, SessionError):  # what is wrong with the model is said by those that have to run it
        return []
    return [found.feeds(row[None]) for row in ids]


def _redrafted(found: TextInput, ids: np.ndarray, sampler: _Sampler, logits: RunLogits) -> np.ndarray:
    """Return sequences in which each token but the first is chosen again, by the old ones in front of it."""
    chosen = ids.copy()
    together = max(LOGITS // (found.length * found.tokens), 1)
    for start in range(0, len(ids), together):
        for row, scores in enumerate(logits(ids[start : start + together]), start):
            for place in range(found.length - 1):
                chosen[row, place + 1] = sampler.next(scores[place], place, row)
    return chosen


def is_causal(found: TextInput, one: np.ndarray, logits: RunLogits, tolerance: float = TOLERANCE) -> bool:
    """Tell whether each token has logits, and the last leaves those in front of it as they are.

    Args:
        found: The inputs of a decoder.
        one: Token ids `[1, length]`.
        logits: Runs the model on token ids.
        tolerance: By how much of the largest logit those in front may change, as rounding does.

    """
    other = one.copy()
    other[:, -1] = (other[:, -1] + 1) % found.tokens
    before, after = logits(one), logits(other)
    if before.shape[1] != one.shape[1]:
        return False
    most = np.abs(before).max()
    return bool(np.isfinite(most)) and bool(np.abs(before[:, :-1] - after[:, :-1]).max() <= tolerance * most)


@dataclass(frozen=True)
class _Sampler:
    """The Gumbel noise of every sequence and place."""

    seed: int

    def next(self, logits: np.ndarray, place: int, sequence: int) -> int:
        """Choose the token behind a place from its logits `[tokens]`."""
        noise = np.random.default_rng([self.seed, sequence, place]).gumbel(size=len(logits))
        return int((logits.astype(np.float64) + noise).argmax())


RunLogits = Callable[[np.ndarray], np.ndarray]


def _decode(found: TextInput, ids: np.ndarray, sampler: _Sampler, draft: RunLogits, exact: RunLogits) -> np.ndarray:
    """Write sequences behind their first tokens: as the drafts say, as long as the exact logits agree."""
    known = dict.fromkeys(range(len(ids)), 0)  # the last place of each sequence that is settled
    for _ in range(ROUNDS):
        _write(found, ids, known, sampler, draft)
        left = {}
        for row in known:
            logits = exact(ids[row : row + 1])[0]
            for place in range(known[row], found.length - 1):
                token = sampler.next(logits[place], place, row)
                if token != ids[row, place + 1]:
                    ids[row, place + 1], left[row] = token, place + 1
                    break
        known = left
        if not known:
            break
    return np.delete(ids, list(known), axis=0)


def _write(found: TextInput, ids: np.ndarray, known: Mapping[int, int], sampler: _Sampler, draft: RunLogits) -> None:
    rows = np.array(list(known))
    fixed = isinstance((found.ids.shape or ())[1], int)
    for place in range(min(known.values()), found.length - 1):
        logits = draft(ids[rows] if fixed else ids[rows, : place + 1])[:, place]
        for row, scores in zip(rows, logits, strict=True):
            if place >= known[int(row)]:
                ids[row, place + 1] = sampler.next(scores, place, int(row))
