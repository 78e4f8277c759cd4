"""Logarithms and powers of 2, by operations that every processor rounds alike.

Those of NumPy and of C libraries differ in their last bits from processor to processor. A plan follows times, and
rescaled weights follow powers.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TypeVar

import numpy as np

LN2, SERIES, TERMS = 0.6931471805599453, tuple(1 / k for k in range(21, 0, -2)), 16
LEAST_MANTISSA = math.sqrt(0.5)
Real = TypeVar("Real", float, np.ndarray)


@lru_cache(maxsize=1 << 14)
def log2(x: float) -> float:
    """Return the logarithm of a positive number to base 2."""
    mantissa, exponent = math.frexp(x)
    small = mantissa < LEAST_MANTISSA
    return _log2(2 * mantissa if small else mantissa, float(exponent - small))


def log2_array(x: np.ndarray) -> np.ndarray:
    """Return the logarithms of positive numbers to base 2, float64."""
    mantissa, exponent = np.frexp(x)
    small = mantissa < LEAST_MANTISSA
    return np.asarray(_log2(np.where(small, 2 * mantissa, mantissa), (exponent - small).astype(np.float64)))


def _log2(mantissa: Real, exponent: Real) -> Real:
    """Add the series of the inverse hyperbolic tangent, for a mantissa near 1."""
    ratio = (mantissa - 1) / (mantissa + 1)
    total, square = ratio * 0, ratio * ratio
    for term in SERIES:
        total = total * square + term
    found: Real = exponent + 2 * ratio * total / LN2
    return found


def exp2(x: float) -> float:
    """Return a power of 2."""
    whole = round(x)
    return math.ldexp(_exp2((x - whole) * LN2), whole)


def exp2_array(x: np.ndarray) -> np.ndarray:
    """Return powers of 2, float64."""
    whole = np.rint(x)
    return np.asarray(np.ldexp(_exp2((x - whole) * LN2), whole.astype(np.int32)))


def _exp2(part: Real) -> Real:
    """Add the series of the exponential, for a number near 0."""
    total = part * 0 + 1
    for term in range(TERMS, 0, -1):
        total = 1 + part / term * total
    return total
