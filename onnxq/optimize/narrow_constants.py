"""Constants stored in the narrowest type that holds every element of them exactly.

Exporters often write small numbers as int64 or float32: indices of a scatter, positions, masks of zeros and ones.
Weights may have been trained in 16 bits. A Cast restores the type. Scales of weights in few bits have at most 256
different values (`few_scales`), which a Gather takes from a table. onnxruntime folds both when it loads the model, so a
run takes no longer. Two thirds of a speech enhancer's file were indices below 256.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from onnx import TensorProto

from onnxq.ir import ArrayTensor, Model, Patch, Value, commit

LEAST = 4096  # bytes that have to be spared, of which a Cast and a name take about a hundred
TABLE, PROBED = 256, 4096  # elements that a byte tells apart; elements of which the first have more, mostly
INTEGERS = tuple(np.dtype(name) for name in ("uint8", "int8", "uint16", "int16", "int32"))
FLOATS = (*INTEGERS[:2], np.dtype("float16"))
NARROWER: dict[int, tuple[np.dtype[Any], ...]] = {
    TensorProto.INT64: INTEGERS,
    TensorProto.INT32: INTEGERS[:4],
    TensorProto.FLOAT: FLOATS,
}


def narrow_constants(model: Model, keep: Callable[[np.ndarray], np.ndarray] = np.asarray) -> int:
    """Store constants of the main graph in narrower types, behind a Cast.

    Args:
        model: A model; it is changed. Its results stay the same to the bit. Of a large one, constants that come from
            its files stay as they are: to read all of them takes long.
        keep: Puts an array out of memory.

    Returns:
        How many constants are stored so.

    """
    patches = [_narrowed(value, keep(narrow), table) for value, (narrow, table) in _found(model)]
    commit(patches)
    return len(patches)


Narrow = tuple[np.ndarray, np.ndarray | None]  # elements, or their places in a table, and that table


def _found(model: Model) -> Iterator[tuple[Value, Narrow]]:
    copies = model.residency.copies
    for value in list(model.graph.values.values()):
        tensor = value.constant
        if tensor is None or tensor.dtype not in NARROWER or value.is_input or value.is_output or not value.uses:
            continue
        if tensor.nbytes <= LEAST or not (copies or isinstance(tensor, ArrayTensor)):
            continue
        array = tensor.numpy()
        narrow = _exact(array, NARROWER[tensor.dtype], tensor.nbytes - LEAST)
        if narrow is None or narrow.itemsize > 1:
            most = (tensor.nbytes if narrow is None else narrow.nbytes) - LEAST // 4
            listed = _listed(array, most) if tensor.dtype == TensorProto.FLOAT else None
            if listed is not None:
                yield value, listed
                continue
        if narrow is not None:
            yield value, (narrow, None)


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


def _listed(array: np.ndarray, most: int) -> Narrow | None:
    """Return a float32 array as places in a table, in so many bytes at most; None where it has too many values."""
    bits = np.ascontiguousarray(array).view(np.uint32)
    if bits.size + 4 > most or len(np.unique(bits.reshape(-1)[:PROBED])) > TABLE:
        return None
    table = np.unique(bits)
    if len(table) > TABLE or bits.size + table.nbytes > most:
        return None
    return np.searchsorted(table, bits).astype(np.uint8), table.view(np.float32)


def _narrowed(value: Value, narrow: np.ndarray, table: np.ndarray | None) -> Patch:
    how = f"all of {value.name} fits into {narrow.dtype}" if table is None else f"{value.name} has few values"
    patch = Patch(value.graph, reason=how)
    stored = patch.constant(narrow, f"{value.name}_{narrow.dtype}")
    wide = int(value.dtype or 0) if table is None else int(TensorProto.INT32)
    made = patch.op("Cast", stored, hint=f"{value.name}_cast", to=wide)
    if table is not None:
        made = patch.op("Gather", patch.constant(table, f"{value.name}_values"), made, hint=f"{value.name}_listed")
    patch.replace(value, made)
    return patch
