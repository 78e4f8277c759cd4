"""Large arrays that are rarely read go out of memory: to a file without a name, or back to the model's own."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import numpy as np

from onnxq.calibration.stats import Stats
from onnxq.errors import OutputError
from onnxq.ir import ArrayTensor, DeferredTensor, Model
from onnxq.ir.storage.scratch_file import SPOOLED, Spool
from onnxq.runtime.memory import trim_heap

WORTH_IT = 64 << 20  # bytes that are kept in memory all the same


def spill_moments(stats: Stats, scratch: Path) -> None:
    """Move second moments to a file in a folder with room for it; few codes are chosen again once all are chosen."""
    halves = list(stats.halves())
    size = sum(half.gram.nbytes for half in halves)
    if size < WORTH_IT:
        return
    with suppress(OutputError), Spool(scratch) as spool:  # without room they stay where they are
        for half in halves:
            half.put_away(spool)
    trim_heap(size)


def spill_weights(model: Model, source: Model, scratch: Path) -> None:
    """Move new weights of a model to such a file, and free the original ones.

    Args:
        model: A model that was changed.
        source: The same as it was before.
        scratch: A folder with room for the file.

    """
    made = [value.tensor for value in model.initializers() if isinstance(value.tensor, ArrayTensor)]
    large = [tensor for tensor in made if tensor.nbytes >= SPOOLED]
    size = sum(tensor.nbytes for tensor in large)
    if size >= WORTH_IT:
        with suppress(OutputError), Spool(scratch) as spool:
            for tensor in large:
                tensor.array = spool.keep(tensor.array)
        trim_heap(size)
    release_pages(source)


def store_computed(model: Model, scratch: Path) -> None:
    """Move large constants that are computed at each reading, such as a transposed head, to such a file.

    Args:
        model: A model that is about to be run.
        scratch: A folder with room for the file.

    """
    with suppress(OutputError), Spool(scratch) as spool:  # without room they are computed again and again
        for value in model.initializers():
            tensor = value.tensor
            if isinstance(tensor, DeferredTensor) and tensor.nbytes >= SPOOLED and tensor.shape:
                array = tensor.view()
                height = max(SPOOLED * len(array) // tensor.nbytes, 1)
                parts = (np.ascontiguousarray(array[start : start + height]) for start in range(0, len(array), height))
                value.tensor = ArrayTensor(spool.fill(parts, array.dtype, array.shape), tensor.dtype)
                del array
                tensor.release()


def release_pages(model: Model) -> None:
    """Release the pages of files that reading a model's weights brought into memory."""
    for value in model.initializers():
        if value.tensor is not None:
            value.tensor.release()
