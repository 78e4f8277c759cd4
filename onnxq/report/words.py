"""How figures are written for people, wherever they show."""

from __future__ import annotations

import math

FLOAT = "float"


def decibels(value: float) -> str:
    """Write an SQNR for people."""
    if math.isinf(value):
        return "equal" if value > 0 else "none"
    return f"{value:.1f} dB"
