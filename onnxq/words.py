"""How figures and names are written for people, wherever they show."""

from __future__ import annotations

import math

FLOAT = "float"


def decibels(value: float) -> str:
    """Write an SQNR for people."""
    if math.isinf(value):
        return "equal" if value > 0 else "none"
    return f"{value:.1f} dB"


def noise(value: float) -> str:
    """Write for people what a layer adds or inherits, as an SQNR; nothing at all is exact."""
    return "exact" if value == math.inf else decibels(value)


def size(count: float) -> str:
    """Write a number of bytes for people, in decimal units as file managers do."""
    for unit in ("bytes", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.2f} GB"


def size_change(before: int, after: int) -> str:
    """Say how much smaller or larger a file became."""
    if after <= before:
        return f"{before / max(after, 1):.1f} times smaller"
    return f"{after / max(before, 1):.1f} times larger"


def milliseconds(value: float) -> str:
    """Write a latency for people."""
    return f"{value:.3f} ms" if value < 10 else f"{value:.1f} ms"


def shortened(name: str, most: int) -> str:
    """Cut a long name in its middle: what tells names apart stands at their ends."""
    if len(name) <= most:
        return name
    behind = (most - 1) * 2 // 3
    return f"{name[: most - 1 - behind]}…{name[-behind:]}"


def printable(text: str) -> str:
    """Put a name or message from a file on one line: what could steer its reader is written as an escape."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in " ".join(text.split()))
