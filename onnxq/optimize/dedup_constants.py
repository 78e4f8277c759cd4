"""Constants that a model holds more than once, stored once.

Exporters write one for every reader: the prior boxes of a detector, tables of positions in every layer. Constants are
told apart by a digest: copies of all weights of one shape would take the memory of a model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable

import numpy as np

from onnxq.ir import Model, Patch, Tensor, Value, commit

LEAST = 4096  # bytes of a constant that is worth it


def merge_equal(model: Model) -> int:
    """Let all readers of equal constants of the main graph read the first of them.

    Args:
        model: A model; it is changed. Its results stay the same.

    Returns:
        How many constants are gone.

    """
    alike: dict[Hashable, list[Value]] = {}
    for value in model.graph.values.values():
        tensor = value.constant
        if tensor is not None and tensor.nbytes >= LEAST and not value.is_input and not value.is_output:
            alike.setdefault((tensor.dtype, tensor.shape), []).append(value)
    patches = []
    for group in (values for values in alike.values() if len(values) > 1):
        first: dict[bytes, Value] = {}
        for value in group:
            assert value.constant is not None
            kept = first.setdefault(_digest(value.constant), value)
            if kept is not value and value.uses:
                patches.append(_read(kept, value))
    commit(patches)
    return len(patches)


def _digest(tensor: Tensor) -> bytes:
    array = np.ascontiguousarray(tensor.numpy())
    held = array.tobytes() if array.dtype.hasobject or not array.size else array.reshape(-1).view(np.uint8).data
    found = hashlib.sha256(held).digest()
    tensor.release()
    return found


def _read(kept: Value, other: Value) -> Patch:
    patch = Patch(kept.graph, None, f"read {kept.name} in place of {other.name}")
    for use in list(other.uses):
        patch.rewire(use.node, use.slot, kept)
    return patch
