"""The Cholesky factor of a positive definite matrix and its inverse, by matrix products in the type of the matrix.

NumPy factors float32 matrices in float64, and at a tenth of the rate of products. Halves of the matrix are factored in
turn here: all work but that on small blocks of the diagonal is products.

Tests: `tests/rounding/test_cholesky.py`.
"""

from __future__ import annotations

import numpy as np

LEAF = 96  # columns that NumPy factors: from 48 to 192 the time is the same within a fifth
STRIP = 192  # columns of an inverse that are computed together


def factored(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return `L`, lower triangular with `L Lᵀ = matrix`, and its inverse.

    Args:
        matrix: float32 or float64 `[n, n]`, symmetric and positive definite; the least eigenvalue has to stand out
            from the rounding errors of sums.

    Raises:
        np.linalg.LinAlgError: It is not positive definite.

    """
    n = len(matrix)
    if n <= LEAF:
        lower = np.linalg.cholesky(matrix)
        return lower, np.linalg.inv(lower)
    half = n // 2
    lower, inverse = np.zeros_like(matrix), np.zeros_like(matrix)
    lower[:half, :half], inverse[:half, :half] = factored(matrix[:half, :half])
    below = np.matmul(matrix[half:, :half], inverse[:half, :half].T, out=lower[half:, :half])
    lower[half:, half:], inverse[half:, half:] = factored(matrix[half:, half:] - below @ below.T)
    np.matmul(inverse[half:, half:], below @ inverse[:half, :half], out=inverse[half:, :half])
    np.negative(inverse[half:, :half], out=inverse[half:, :half])
    return lower, inverse


def inverted(matrix: np.ndarray) -> np.ndarray:
    """Return the inverse of a matrix as of `factored`."""
    factor = factored(matrix)[1]
    inverse = np.empty_like(matrix)
    for start in range(0, len(matrix), STRIP):  # of zeros above the diagonal of the factor, no products are taken
        strip = slice(start, start + STRIP)
        inverse[strip, : strip.stop] = factor[start:, strip].T @ factor[start:, : strip.stop]
        inverse[:start, strip] = inverse[strip, :start].T
    return inverse
