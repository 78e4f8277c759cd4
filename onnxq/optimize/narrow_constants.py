"""Constants stored in the narrowest type that holds every element of them exactly.

Exporters often write small numbers as int64 or float32: indices of a scatter, positions, masks of zeros and ones.
Weights may have been trained in 16 bits. A Cast restores the type. onnxruntime folds it when it loads the model, so a
run takes no longer. Two thirds of a speech enhancer's file were indices below 256.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from onnx import TensorProto

from onnxq.ir import Model, Patch, Value, commit

LEAST = 4096  # bytes that have to be spared, of which a Cast and a name take about a hundred
INTEGERS = tuple(np.dtype(name) for name in ("uint8", "int8", "uint16", "int16", "int32"))
FLOATS = (*INTEGERS[:2], np.dtype("float16"))
NARROWER: dict[int, tuple[np.dtype[Any], ...]] = {
    TensorProto.INT64: INTEGERS,
    TensorProto.INT32: INTEGERS[:4],
    TensorProto.FLOAT: FLOATS,
}


def narrow_constants(model: Model) -> int:
    """Store constants of the main graph in narrower types, behind a Cast.

    Args:
        model: A model; it is changed. Its results stay the same to the bit.

    Returns:
        How many constants are stored so.

    """
    patches = [_narrowed(value, narrow) for value, narrow in _found(model)]
    commit(patches)
    return len(patches)


def _found(model: Model) -> Iterator[tuple[Value, np.ndarray]]:
    for value in list(model.graph.values.values()):
        tensor = value.constant
        if tensor is None or tensor.dtype not in NARROWER or value.is_input or value.is_output or not value.uses:
            continue
        if tensor.nbytes <= LEAST:
            continue
        narrow = _exact(tensor.numpy(), NARROWER[tensor.dtype], tensor.nbytes - LEAST)
        if narrow is not None:
            yield value, narrow


def _exact(array: np.ndarray, types: tuple[np.dtype[Any], ...], most: int) -> np.ndarray | None:
    """Return an array in the first type that holds it bit by bit, in so many bytes at most; None where none does."""
    flat = np.ascontiguousarray(array)
    for kind in types:
        if flat.size * kind.itemsize > most:
            continue
        with np.errstate(all="ignore"):
            narrow = flat.astype(kind)
        if narrow.astype(flat.dtype).tobytes() == flat.tobytes():
            return narrow
    return None


def _narrowed(value: Value, narrow: np.ndarray) -> Patch:
    patch = Patch(value.graph, reason=f"all of {value.name} fits into {narrow.dtype}")
    stored = patch.constant(narrow, f"{value.name}_{narrow.dtype}")
    wide = int(value.dtype or 0)
    patch.replace(value, patch.op("Cast", stored, hint=f"{value.name}_cast", to=wide))
    return patch
