"""Find token ids that a language model never expects: those of another tokenizer, or in another order.

A model that gives a score for each token of its vocabulary at each place predicts the next token, or the one that
stands there. If it does neither better than a guess among all tokens, the ids are not those of its own texts.

Tests: `tests/data/test_expected_tokens.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from onnxq.data.text.table_rows import table_rows
from onnxq.data.validation import Sample
from onnxq.ir import Model
from onnxq.warning import WarningLine

CODE = "unexpected-tokens"
# nats above a guess; a character GPT has 2.8 less on its texts, 1.2 more on them backwards, and 4.2 on other ids
WORSE = 1.0
LEAST_VOCABULARY, LEAST_TOKENS = 16, 64  # tokens of a vocabulary, and of all samples
MOST_TOKENS = 64  # of a sample: scores of a large vocabulary take much memory


def token_warnings(
    model: Model, samples: Sequence[Sample], columns: Sequence[Sequence[np.ndarray]]
) -> Iterator[WarningLine]:
    """Yield which token ids a language model expects less than a guess does.

    Args:
        model: The float model.
        samples: A few samples.
        columns: For each output what the samples gave.

    """
    for name in samples[0] if samples else ():
        rows = table_rows(model, name) if samples[0][name].dtype.kind in "iu" else None
        if rows is None or rows < LEAST_VOCABULARY:
            continue
        masks = [other for other in samples[0] if other.lower().endswith("mask")]
        for column in columns:
            surprises = _surprises(samples, name, masks, column, rows)
            if surprises is not None and min(surprises) > np.log(rows) + WORSE:
                message = f"the model expects the tokens of '{name}' less than a guess among its {rows} does"
                remedy = "Give texts like those of training, by the model's own tokenizer."
                yield WarningLine(CODE, message, remedy)
                return


def _surprises(
    samples: Sequence[Sample], name: str, masks: Sequence[str], column: Sequence[np.ndarray], rows: int
) -> tuple[float, float] | None:
    """Return -log of the mean probability of the next token and of the one at its place, in nats.

    None where an output does not hold scores of all tokens, or tokens are few.
    """
    found: tuple[list[float], list[float]] = ([], [])
    for sample, scores in zip(samples, column, strict=True):
        ids = sample[name]
        if not isinstance(scores, np.ndarray) or scores.dtype.kind != "f" or scores.shape != (*ids.shape, rows):
            return None
        if ids.ndim != 2 or not ids.size or ids.min() < 0 or ids.max() >= rows:
            continue
        shown = np.ones(ids.shape, bool)
        for mask in masks:
            if sample[mask].shape == ids.shape:
                shown &= sample[mask] != 0
        ids, shown = ids[:, :MOST_TOKENS].astype(np.int64), shown[:, :MOST_TOKENS]
        logs = scores[:, :MOST_TOKENS].astype(np.float64)
        logs -= logs.max(axis=-1, keepdims=True)
        logs -= np.log(np.exp(logs).sum(axis=-1, keepdims=True))
        ahead = np.take_along_axis(logs[:, :-1], ids[:, 1:, None], -1)[..., 0]
        here = np.take_along_axis(logs, ids[..., None], -1)[..., 0]
        found[0].extend((-ahead[shown[:, 1:]]).tolist())
        found[1].extend((-here[shown]).tolist())
    if len(found[0]) < LEAST_TOKENS:
        return None
    return float(np.mean(found[0])), float(np.mean(found[1]))
