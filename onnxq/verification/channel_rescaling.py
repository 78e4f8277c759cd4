"""Channels that a quantized model holds multiplied by constants, which its readers undo.

Tests: `tests/verification/test_layerwise.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onnxq.runtime.blas_threads import single_threaded_blas

# Channels multiplied by constants: the tensor is off by more than a tenth of its size (20 dB). One factor for each
# channel, least squares over at least four elements, explains all of that but a thirtieth (15 dB). Rounding does not.
LEAST_SHARE, MOST_LEFT, LEAST_ELEMENTS = 1e-2, 1 / 30, 4


def channel_factors(exact: Sequence[np.ndarray], given: Sequence[np.ndarray]) -> np.ndarray | None:
    """Find the positive factors by which the channels of a tensor were multiplied, along whatever axis fits best.

    Take a channel with f of `exact` and q of `given`. Least squares give the factor Σ fq / Σ q², and leave the noise Σ
    f² − (Σ fq)² / Σ q².

    Args:
        exact: Float arrays of one rank, one for each sample.
        given: The same as the quantized model holds them.

    Returns:
        What to multiply `given` by, float64 with 1 along all axes but one, or None where factors explain little of
        the difference, or there is little to explain.

    """
    pairs = list(zip(exact, given, strict=True))
    if not exact[0].ndim or not all(np.isfinite(array).all() for pair in pairs for array in pair):
        return None
    signal, plain = np.sum([_squares(f, q) for f, q in pairs], axis=0)
    if plain <= LEAST_SHARE * signal:
        return None
    fits = [_Fit(exact[0], axis) for axis, size in enumerate(exact[0].shape) if size > 1]
    for one, other in pairs:
        f, q = one.astype(np.float64), other.astype(np.float64)
        products = f * q, q * q, f * f
        for fit in fits:
            fit.add(*products)
    found = [(fit.left(), fit) for fit in fits if fit.elements >= LEAST_ELEMENTS * fit.channels]
    left, best = min(found, key=lambda item: item[0], default=(np.inf, None))
    return best.factors() if best is not None and left <= MOST_LEFT * plain else None


def _squares(f: np.ndarray, q: np.ndarray) -> tuple[float, float]:
    """Return Σ f² and Σ (f − q)²."""
    exact = f.astype(np.float64).reshape(-1)
    off = exact - q.reshape(-1)
    with single_threaded_blas():
        return float(exact @ exact), float(off @ off)


class _Fit:
    """Least squares for one factor for each channel along an axis: Σ fq, Σ q² and Σ f² of the channels."""

    def __init__(self, first: np.ndarray, axis: int) -> None:
        self.channels = first.shape[axis]
        self.elements = 0
        self._axis, self._rank = axis, first.ndim
        self._others = tuple(other for other in range(first.ndim) if other != axis)
        self._cross, self._power, self._signal = np.zeros((3, self.channels))

    def add(self, cross: np.ndarray, power: np.ndarray, signal: np.ndarray) -> None:
        """Add fq, q² and f² of a sample; an axis whose size changes is none of channels."""
        if cross.shape[self._axis] != self.channels:
            self.elements = -np.iinfo(np.int64).max
            return
        self._cross += cross.sum(axis=self._others)
        self._power += power.sum(axis=self._others)
        self._signal += signal.sum(axis=self._others)
        self.elements += cross.size

    def _factors(self) -> np.ndarray:
        sound = (self._power > 0) & (self._cross > 0)
        return np.divide(self._cross, self._power, out=np.ones(self.channels), where=sound)

    def left(self) -> float:
        """Return the squared difference that is left with the factors."""
        factors = self._factors()
        return float((self._signal - 2 * factors * self._cross + factors**2 * self._power).sum())

    def factors(self) -> np.ndarray:
        """Return the factors with a 1 for every other axis."""
        return self._factors().reshape([self.channels if at == self._axis else 1 for at in range(self._rank)])
