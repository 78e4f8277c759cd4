"""Feeds of a language model: a number for each token, and empty caches.

Tests: `tests/data/test_generated_text.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from onnx.helper import tensor_dtype_to_np_dtype

from onnxq.ir import Value


def text_feeds(
    inputs: Iterable[Value], rows: Mapping[str, np.ndarray], batch: int = 1, past: int = 0
) -> dict[str, np.ndarray]:
    """Return an array for each input whose type is known: its row, or zeros.

    Args:
        inputs: Of the model.
        rows: By name, a number for each token, `[length]` or `[batch, length]`.
        batch: How many texts there are, where an input leaves that open.
        past: Size of all other axes that are open, as those of caches for the tokens before.

    """
    made = {}
    for value in inputs:
        if value.dtype is None:
            continue
        sizes = [
            size if isinstance(size, int) and size > 0 else past if axis else batch
            for axis, size in enumerate(value.shape or ())
        ]
        row = rows.get(value.name)
        if row is None:
            row = np.zeros(sizes)
        elif sizes:
            row = np.broadcast_to(row, (*sizes[:-1], row.shape[-1]))
        made[value.name] = row.astype(tensor_dtype_to_np_dtype(value.dtype))
    return made
