"""The part of an axis that a Slice takes, as onnxruntime reads its bounds.

Tests: `tests/ops/test_shape.py`.
"""

from __future__ import annotations

FAR_ENDS = ((1 << 31) - 1, (1 << 63) - 1)  # up to there means to the far end, backwards too; to ONNX that is nothing


def slice_bounds(start: int, end: int, step: int, size: int) -> slice:
    """Clamp as the operator's page says: NumPy clamps a start before the first element differently when going back."""
    first, last = (place + size if place < 0 else place for place in (start, end))
    if step > 0:
        return slice(min(max(first, 0), size), min(max(last, 0), size), step)
    first, last = min(max(first, 0), size - 1), -1 if end in FAR_ENDS else min(last, size - 1)
    return slice(first, None if last < 0 else last, step) if first >= 0 else slice(0, 0)
