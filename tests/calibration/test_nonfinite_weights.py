"""A weight that is not finite is named in place of the samples that meet it."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import build, node, typed

from onnxq.calibration.nonfinite_weights import blaming_weights, spoilt_sentence
from onnxq.errors import DataError, ModelError


def model(weight: float = 1.0, mask: float = 0.0):
    weights = {"w": np.array([[weight, 1]], np.float32), "m": np.array([mask, 0], np.float32)}
    return typed(build([node("MatMul", "x w", "p"), node("Add", "p m", "y")], {"x": [1, 1]}, weights=weights))


@pytest.mark.parametrize(
    ("weight", "mask", "sentence"),
    [
        (np.nan, 0, "weight 'w' (read by n_p) holds NaN"),
        (np.inf, 0, "weight 'w' (read by n_p) holds infinity"),
        (1, np.nan, "weight 'm' (read by n_y) holds NaN"),
        (1, -np.inf, ""),  # a mask
        (1, 0, ""),
    ],
)
def test_a_weight_that_is_not_finite_is_named(weight: float, mask: float, sentence: str) -> None:
    assert spoilt_sentence(model(weight, mask)) == sentence


def test_samples_are_refused_only_where_all_weights_are_finite() -> None:
    with pytest.raises(ModelError, match=r"weight 'w' .* holds NaN"), blaming_weights(model(np.nan)):
        raise DataError("sample 0 gives NaN")
    with pytest.raises(DataError, match="sample 0"), blaming_weights(model()):
        raise DataError("sample 0 gives NaN")
    with pytest.raises(DataError, match="has rank 3"), blaming_weights(model(np.nan)):
        raise DataError("sample 0 has rank 3")
