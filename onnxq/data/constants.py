"""Inputs that have one value for all samples: `--preprocess NAME.value=0`.

Tests: `tests/data/test_picture_source.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from onnxq.data.pictures.settings import EXAMPLES, numbers, parse_settings
from onnxq.data.reading import Reading
from onnxq.data.validation import InputSpec
from onnxq.errors import DataError
from onnxq.text import as_list, counted


def constant_inputs(inputs: Sequence[InputSpec], reading: Reading) -> dict[str, np.ndarray]:
    """Return the inputs that the user gives a value, for data that have no other settings.

    Raises:
        DataError: A value does not fit, or something else is said than values.

    """
    names = [spec.name for spec in inputs]
    _, single = parse_settings(as_list(reading.preprocess), names, {"value": numbers}, EXAMPLES)
    return {spec.name: constant(spec, single[spec.name]["value"]) for spec in inputs if spec.name in single}


def constant(spec: InputSpec, values: Sequence[float]) -> np.ndarray:
    """Make the array of an input that is the same for all samples.

    Args:
        spec: The input; an axis in front whose size is open gets 1.
        values: One number for all elements, one for each, or one for each place of the last axis.

    Raises:
        DataError: They do not fit.

    """
    dtype = spec.numpy_dtype or np.dtype(np.float32)
    shape = [] if spec.shape is None else [spec.fixed(axis) for axis in range(len(spec.shape))]
    shape = [1 if size is None and axis == 0 else size for axis, size in enumerate(shape)]
    if shape and shape[-1] is None:
        shape[-1] = len(values)
    if None in shape:
        raise DataError(f"the size of '{spec.name}' ({spec}) is not known", "Give arrays: an .npz file.")
    sizes = [size for size in shape if size is not None]
    if len(values) not in (1, math.prod(sizes), sizes[-1] if sizes else 1):
        raise DataError(
            f"{spec.name}.value has {counted(len(values), 'number')}, and '{spec.name}' is {spec}",
            f"Give one, or {math.prod(sizes)}.",
        )
    wide = np.asarray(values, np.float64)
    wide = wide.reshape(sizes) if len(values) == math.prod(sizes) else np.broadcast_to(wide, sizes)
    made = wide.astype(dtype)
    if dtype.kind in "iub" and not (made == wide).all():
        raise DataError(f"{spec.name}.value does not fit its type {dtype.name}", "Give whole numbers in its range.")
    return np.ascontiguousarray(made)
