"""Inputs that have one value for all samples: `--preprocess NAME.value=0`.

Tests: `tests/data/test_picture_source.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from onnxq.data.pictures.settings import EXAMPLES, Readers, parse_numbers, parse_settings
from onnxq.data.reading import Reading
from onnxq.data.validation import InputSpec
from onnxq.errors import DataError
from onnxq.text import as_list, counted


def whole_number(text: str) -> int | None:
    """Read a whole number above 0; None if it is none."""
    return int(text) if text.isascii() and text.isdecimal() and int(text) > 0 else None


TEXT_KEYS: Readers = {"length": whole_number, "value": parse_numbers}
TEXT_EXAMPLES = {**EXAMPLES, "length": "length=256: shorter texts are filled up"}


def text_settings(inputs: Sequence[InputSpec], reading: Reading) -> tuple[dict[str, np.ndarray], int | None]:
    """Return the inputs that the user gives a value, and the length that texts are filled up to.

    Raises:
        DataError: A value does not fit, or something else is said.

    """
    names = [spec.name for spec in inputs]
    shared, single = parse_settings(as_list(reading.preprocess), names, TEXT_KEYS, TEXT_EXAMPLES)
    constants = {
        spec.name: constant(spec, single[spec.name]["value"]) for spec in inputs if "value" in single.get(spec.name, {})
    }
    lengths = [one["length"] for one in (shared, *single.values()) if "length" in one]
    return constants, lengths[-1] if lengths else None


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
