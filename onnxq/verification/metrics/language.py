"""Perplexity of language models: exp(mean(-log p(next token))); lower is better.

Tests: `tests/verification/test_metrics_by_name.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onnxq.data.labels import Labels
from onnxq.data.validation import InputSpec
from onnxq.errors import DataError
from onnxq.verification.metrics.named_metric import NAME_ONE, Arrays, MetricRun, find_label, find_logits, label_rows

NAME = "perplexity"
PIECE = 1 << 20  # elements of logits that are in memory in float64
USUAL = ("_next", "_labels", "_target", "_targets")


def _holds_tokens(array: np.ndarray) -> bool:
    return array.dtype.kind in "iu" and array.ndim >= 2


def check_tokens(labels: Labels, inputs: Sequence[InputSpec]) -> None:
    """Refuse data without next tokens for a model that takes no token ids either."""
    ids = [one for one in inputs if one.numpy_dtype is not None and one.numpy_dtype.kind in "iu"]
    if find_label(labels, USUAL, _holds_tokens) is None and not any(
        one.shape is None or len(one.shape) == 2 for one in ids
    ):
        raise DataError(f"{NAME} needs next tokens, and no input holds token ids", f"Add them as '_next'. {NAME_ONE}")


class Perplexity(MetricRun):
    """Sums the losses of next tokens, which are labels or the token ids one place further on."""

    def __init__(self, labels: Labels) -> None:
        super().__init__(labels)
        arrays = find_label(labels, USUAL, _holds_tokens)
        self._following = None if arrays is None else list(label_rows(arrays, 2, NAME))
        self._seen = 0
        self._loss, self._count = 0.0, 0

    def add(self, inputs: Arrays, outputs: Arrays) -> None:
        """Add the losses of one sample."""
        logits = find_logits(NAME, outputs)
        rows = len(logits)
        if self._following is None:
            following = _shifted(inputs, logits)
        else:
            listed = self._following[self._seen : self._seen + rows]
            if len(listed) < rows or any(row.shape != (logits.shape[1],) for row in listed):
                told = f"next tokens do not fit logits of shape {list(logits.shape)}"
                raise DataError(f"{NAME}: {told}", "Give one row of next tokens for each row of token ids.")
            following = np.stack(listed).astype(np.int64)
        self._seen += rows
        losses = token_losses(logits, following)
        self._loss, self._count = self._loss + float(losses.sum()), self._count + losses.size

    def score(self, reference: MetricRun) -> float:
        """Return the perplexity over all tokens that count."""
        if not self._count:
            raise DataError(f"{NAME}: no token has a next one", "Give texts of two tokens at least.")
        with np.errstate(over="ignore"):
            return float(np.exp(self._loss / self._count))


def _shifted(inputs: Arrays, logits: np.ndarray) -> np.ndarray:
    """Return the token ids one place further on; -1 where there is none."""
    whole = {
        name: array for name, array in inputs.items() if array.dtype.kind in "iu" and array.shape == logits.shape[:2]
    }
    masks = [name for name in whole if "mask" in name.lower()]
    ids = [name for name in whole if name not in masks and not any(one in name.lower() for one in ("type", "pos"))]
    if len(ids) != 1:
        raise DataError(f"{NAME} needs next tokens: which input holds token ids is not clear", "Add them as '_next'.")
    following = np.full(logits.shape[:2], -1, np.int64)
    following[:, :-1] = whole[ids[0]][:, 1:]
    if masks:
        following[:, :-1][(whole[masks[0]][:, 1:] == 0) | (whole[masks[0]][:, :-1] == 0)] = -1
    return following


def token_losses(logits: np.ndarray, following: np.ndarray) -> np.ndarray:
    """Return minus the log probability of each next token that counts.

    Args:
        logits: `[rows, length, tokens]`, of floats; some places at a time are computed in float64.
        following: Next token ids, `[rows, length]`; negative ones do not count.

    Raises:
        DataError: A token id is too high.

    """
    if following.max(initial=0) >= logits.shape[-1]:
        told = f"a next token is {int(following.max())}, and the model has {logits.shape[-1]} tokens"
        raise DataError(f"{NAME}: {told}", "Use the tokenizer of the model.")
    flat, told = logits.reshape(-1, logits.shape[-1]), np.maximum(following, 0).reshape(-1)
    losses = np.empty(len(flat))
    height = max(PIECE // max(flat.shape[1], 1), 1)
    for start in range(0, len(flat), height):
        part = flat[start : start + height].astype(np.float64)
        highest = part.max(axis=-1)
        chosen = part[np.arange(len(part)), told[start : start + height]]
        with np.errstate(invalid="ignore"):  # infinite logits give NaN
            part -= highest[:, None]
            losses[start : start + height] = highest + np.log(np.exp(part, out=part).sum(axis=-1)) - chosen
    return np.asarray(losses.reshape(following.shape)[following >= 0])
