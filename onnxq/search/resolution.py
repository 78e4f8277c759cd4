"""The resolution at which variants of a model are told apart.

onnxruntime computes them in float32, whose last bits are others on every processor: by some 1e-4 dB of what is judged.
Ratios are rounded before they are compared; of variants that are equal then, the simpler one is taken.

Tests: `tests/search/test_held_out.py`.
"""

from __future__ import annotations

import math

RESOLUTION = 0.01  # dB


def round_to_resolution(ratio: float) -> float:
    """Round a ratio in dB down."""
    return math.floor(ratio / RESOLUTION + 1e-9) * RESOLUTION if math.isfinite(ratio) else ratio


def gained(before: float, after: float) -> float:
    """Return how many dB the second of two ratios is higher; 0 for two that are infinite alike."""
    return 0.0 if before == after else after - before


def resolved_noise(noise: float) -> float:
    """Round a squared error by its squared size up in the same way."""
    return 10 ** (-round_to_resolution(-10 * math.log10(noise)) / 10) if 0 < noise < math.inf else noise
