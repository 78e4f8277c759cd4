"""Minus the perplexity, as a function of outputs and labels: `onnxq.verification.perplexity:negative_perplexity`.

Tests: `tests/verification/test_perplexity.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from onnxq.verification.metrics.language import token_losses


def negative_perplexity(outputs: Mapping[str, Sequence[Any]], labels: Mapping[str, Sequence[np.ndarray]]) -> float:
    """Return minus the perplexity, since of a metric more is better: `-exp(mean(-log p(next token)))`.

    Args:
        outputs: For each output a list of what each sample gives; the first one of rank 3 holds the logits
            `[batch, length, tokens]`.
        labels: For each array of labels a list of one a file; the first one of integers holds next tokens
            `[rows, length]`, a row for each row of the batches. Negative numbers are places that do not count.

    Raises:
        ValueError: There are no logits, no next tokens, or not as many rows of either.

    """
    logits = next((found for found in outputs.values() if found and np.ndim(found[0]) == 3), None)
    if logits is None:
        raise ValueError("no output holds logits [batch, length, tokens]")
    told = next((found for found in labels.values() if found and found[0].dtype.kind in "iu"), None)
    if told is None:
        raise ValueError("the data hold no next tokens: name an array such as _next, [rows, length]")
    following = np.concatenate([part.reshape(-1, part.shape[-1]) for part in told])
    rows = sum(len(part) for part in logits)
    if len(following) != rows:
        raise ValueError(f"the data hold next tokens for {len(following)} rows, and the samples have {rows}")
    losses, start = [], 0
    for part in logits:
        losses.append(_losses(np.asarray(part), following[start : start + len(part)]))
        start += len(part)
    return -float(np.exp(np.concatenate(losses).mean()))


def _losses(logits: np.ndarray, following: np.ndarray) -> np.ndarray:
    """Return minus the log probability of each next token that counts."""
    if following.shape != logits.shape[:2]:
        raise ValueError(f"next tokens are {list(following.shape)}, and logits {list(logits.shape)}")
    return token_losses(logits, following)
