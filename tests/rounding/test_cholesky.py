"""Factors of positive definite matrices by matrix products."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import floats

from onnxq.rounding import cholesky
from onnxq.rounding.cholesky import factored, inverted


def definite(n, dtype):
    rows = floats(2 * n, n, seed=n).astype(np.float64)
    return (rows.T @ rows / len(rows) + 0.01 * np.eye(n)).astype(dtype)


@pytest.mark.parametrize("n", [1, 4, 5, 31, 64])
@pytest.mark.parametrize(("dtype", "error"), [(np.float64, 1e-11), (np.float32, 1e-3)])
def test_a_matrix_is_factored_and_inverted(monkeypatch, n, dtype, error):
    monkeypatch.setattr(cholesky, "LEAF", 4)
    monkeypatch.setattr(cholesky, "STRIP", 7)
    matrix = definite(n, dtype)
    lower, inverse = factored(matrix)
    assert lower.dtype == inverse.dtype == inverted(matrix).dtype == dtype
    np.testing.assert_array_equal(lower, np.tril(lower))
    np.testing.assert_array_equal(inverse, np.tril(inverse))
    np.testing.assert_allclose(lower, np.linalg.cholesky(matrix.astype(np.float64)), atol=error)
    np.testing.assert_allclose(inverse @ lower, np.eye(n), atol=error)
    np.testing.assert_allclose(inverted(matrix) @ matrix, np.eye(n), atol=error)


def test_a_matrix_that_is_not_positive_definite_is_refused(monkeypatch):
    monkeypatch.setattr(cholesky, "LEAF", 4)
    matrix = definite(16, np.float64)
    matrix[12, 12] = -1
    with pytest.raises(np.linalg.LinAlgError):
        factored(matrix)
