"""Spearman's rank correlation of scores: of a model's own, or of the cosine of two embeddings.

Source: Reimers and Gurevych, 2019, "Sentence-BERT", section 4.1.

Tests: `tests/verification/test_metrics_by_name.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from onnxq.data.labels import Labels
from onnxq.data.validation import InputSpec
from onnxq.errors import DataError
from onnxq.verification.metrics.named_metric import (
    Arrays,
    MetricRun,
    choose_label,
    label_rows,
    numbers,
    refuse_outputs,
)

NAME = "spearman"
USUAL = ("_score", "_scores", "_similarity", "_label", "_y")
PAIR = "_pair"
EMBEDDING = re.compile(r"sentence|embed|pool")


def _scores(labels: Labels) -> list[np.ndarray]:
    given = {name: arrays for name, arrays in labels.items() if name not in (PAIR, "_length", "_next")}
    return choose_label(given, USUAL, lambda array: array.dtype.kind in "fiu", NAME, "a score for each pair")


def check_scores(labels: Labels, inputs: Sequence[InputSpec]) -> None:
    """Refuse data without scores."""
    _scores(labels)


class RankCorrelation(MetricRun):
    """Collects an embedding or a score for each row."""

    def __init__(self, labels: Labels) -> None:
        super().__init__(labels)
        self._wanted = [
            float(np.asarray(one).item()) for one in label_rows([_flat(a) for a in _scores(labels)], 1, NAME)
        ]
        self._pairs = [int(one) for one in label_rows([_flat(a) for a in labels.get(PAIR, [])], 1, NAME)]
        self._rows: list[np.ndarray] = []

    def add(self, inputs: Arrays, outputs: Arrays) -> None:
        """Keep a vector for each row of the batch."""
        self._rows.extend(_vectors(inputs, outputs))

    def score(self, reference: MetricRun) -> float:
        """Return the correlation, -1 to 1."""
        given, wanted = self._given()
        if len(given) < 2:
            raise DataError(f"{NAME} needs two pairs at least", "Give more.")
        first, second = _ranks(np.array(given)), _ranks(np.array(wanted))
        first, second = first - first.mean(), second - second.mean()
        size = float(np.sqrt((first**2).sum() * (second**2).sum()))
        return float((first * second).sum() / size) if size else 0.0

    def _given(self) -> tuple[list[float], list[float]]:
        """Return the model's scores and those of the data."""
        rows, wanted = self._rows, self._wanted
        if rows and rows[0].size == 1 and len(rows) == len(wanted):
            return [float(row.item()) for row in rows], wanted
        if self._pairs and len(self._pairs) == len(rows):
            members: dict[int, list[int]] = {}
            for index, pair in enumerate(self._pairs):
                members.setdefault(pair, []).append(index)
            couples = [tuple(indices) for indices in members.values() if len(indices) == 2]
            scores = [wanted[one] for one, _ in couples] if len(wanted) == len(rows) else wanted
        else:
            half = len(rows) // 2
            couples, scores = [(one, half + one) for one in range(half)], wanted
        if len(couples) != len(scores) or 2 * len(couples) != len(rows):
            told = f"there are {len(wanted)} scores for {len(rows)} rows, and pairs are not clear"
            raise DataError(f"{NAME}: {told}", f"Say with '{PAIR}' which pair each row belongs to.")
        return [_similarity(rows[one], rows[other]) for one, other in couples], scores


def _flat(array: np.ndarray) -> np.ndarray:
    found = np.asarray(array)
    return found[..., 0] if found.ndim == 2 and found.shape[1] == 1 else found


def _vectors(inputs: Arrays, outputs: Mapping[str, Any]) -> np.ndarray:
    """Return `[rows, size]`: an embedding or a score, or else the mean of the embeddings of tokens."""
    found = {name: array for name, array in numbers(outputs).items() if array.dtype.kind == "f"}
    flat = [name for name, array in found.items() if array.ndim in (1, 2)]
    named = [name for name in flat if EMBEDDING.search(name.lower())]
    if flat:
        array = found[(named or flat)[0]]
        return np.asarray(array.reshape(len(array), -1), np.float64)
    tokens = next((array for array in found.values() if array.ndim == 3), None)
    if tokens is None:
        raise refuse_outputs(NAME, "embeddings or scores", outputs)
    masks = [a for name, a in inputs.items() if "mask" in name.lower() and a.shape == tokens.shape[:2]]
    weights = masks[0].astype(np.float64) if masks else np.ones(tokens.shape[:2])
    total = np.maximum(weights.sum(axis=1), 1)[:, None]
    return np.asarray((tokens.astype(np.float64) * weights[..., None]).sum(axis=1) / total)


def _similarity(first: np.ndarray, second: np.ndarray) -> float:
    size = float(np.sqrt((first**2).sum() * (second**2).sum()))
    return float((first * second).sum() / size) if size else 0.0


def _ranks(values: np.ndarray) -> np.ndarray:
    """Return the ranks of values; equal ones share their mean."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray(((last - counts + last - 1) / 2)[place])
