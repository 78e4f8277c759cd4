"""When two results of one node are the same: integers to the bit, floats to a part of the largest number.

Tests: `tests/verification/test_engines.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from onnxq.verification.error_stats import arrays

# Relative to a tensor's largest magnitude. Engines sum in different orders, and their exp, erf and tanh differ in the
# last bits. On six real models and their quantized forms, the largest difference of one node on equal inputs was 2e-5.
RELATIVE = 1e-4
# Larger numbers stand for infinity, such as a mask's -1e9: they would make any other difference look small.
LARGEST_NUMBER = 1e6
MOST_TIES = 0.01  # share of codes: another way of rounding would change far more


@dataclass(frozen=True)
class Gap:
    """How far two values of one tensor are apart.

    Attributes:
        problem: Why they cannot be compared at all, such as another shape; else empty.
        elements: Number of elements.
        differing: How many are not the same to the bit; NaN is NaN.
        max_abs: Largest absolute difference; infinite where one is finite and the other is not.
        relative: That difference by the largest magnitude.
        within: Whether floats are within the tolerance and everything else is equal.
        one_step: Whether integers differ by one at most.

    """

    problem: str
    elements: int
    differing: int
    max_abs: float
    relative: float
    within: bool
    one_step: bool


EQUAL = Gap("", 0, 0, 0.0, 0.0, True, True)


def gap(expected: Any, got: Any) -> Gap:
    """Compare two values of one tensor: arrays, sequences of them, None for an empty optional."""
    first, second = list(arrays(expected)), list(arrays(got))
    if len(first) != len(second):
        return _incomparable(f"holds {len(second)} arrays instead of {len(first)}")
    result = EQUAL
    for one, other in zip(first, second, strict=True):
        found = _of_arrays(one, other)
        if found.problem:
            return found
        result = Gap(
            "",
            result.elements + found.elements,
            result.differing + found.differing,
            max(result.max_abs, found.max_abs),
            max(result.relative, found.relative),
            result.within and found.within,
            result.one_step and found.one_step,
        )
    return result


def is_float(array: Any) -> bool:
    """Whether something is an array of floats that NumPy has itself, hence not bfloat16."""
    return isinstance(array, np.ndarray) and array.dtype.kind == "f"


def _incomparable(problem: str) -> Gap:
    return Gap(problem, 0, 0, np.inf, np.inf, False, False)


def _of_arrays(expected: np.ndarray, got: np.ndarray) -> Gap:
    if expected.shape != got.shape:
        return _incomparable(f"has shape {list(got.shape)} instead of {list(expected.shape)}")
    is_text = expected.dtype.kind in "OUS"
    if expected.dtype != got.dtype and not (is_text and got.dtype.kind in "OUS"):
        return _incomparable(f"is {got.dtype} instead of {expected.dtype}")
    if is_text or expected.dtype.kind in "b":
        differing = int((expected != got).sum())
        return Gap(
            "", expected.size, differing, float(differing > 0), float(differing > 0), not differing, not differing
        )
    if np.array_equal(expected, got):
        return Gap("", expected.size, 0, 0.0, 0.0, True, True)
    return _of_numbers(expected, got)


def _of_numbers(expected: np.ndarray, got: np.ndarray) -> Gap:
    is_integer = expected.dtype.kind in "iu"
    expected, got = np.atleast_1d(expected, got)
    plain = _of_plain_floats(expected, got)
    if plain is not None:
        return plain
    # float64 holds every small integer and float; of large int64 it keeps 53 bits, which is enough to measure
    a, b = expected.astype(np.float64), got.astype(np.float64)
    with np.errstate(invalid="ignore"):
        same = (expected == got) | (np.isnan(a) & np.isnan(b))
        off = np.abs(a - b)
    off[same] = 0
    off[np.isnan(off)] = np.inf
    differing = int(off.size - same.sum())
    largest = float(off.max(initial=0.0))
    finite = np.abs(a[np.isfinite(a)])
    scale = float(finite.max(initial=0.0))
    if is_integer:
        return Gap("", off.size, differing, largest, _ratio(largest, scale), not differing, largest <= 1)
    relative = _relative(expected.dtype)
    ordinary = float(finite[finite <= LARGEST_NUMBER].max(initial=0.0)) if scale > LARGEST_NUMBER else scale
    allowed = relative * np.maximum(ordinary, np.where(np.isfinite(a), np.abs(a), 0.0))
    return Gap("", off.size, differing, largest, _ratio(largest, scale), bool((off <= allowed).all()), one_step=False)


def _of_plain_floats(expected: np.ndarray, got: np.ndarray) -> Gap | None:
    """Compare float32 or float64 arrays of ordinary numbers in few passes; None where they are something else."""
    if expected.dtype not in (np.float32, np.float64) or not expected.size:
        return None
    with np.errstate(all="ignore"):
        off = np.abs(expected - got)
        largest = float(off.max())
    scale = max(float(expected.max()), -float(expected.min()))
    if not np.isfinite(largest) or not scale <= LARGEST_NUMBER:
        return None
    differing = int(np.count_nonzero(off))
    within = largest <= _relative(expected.dtype) * scale
    return Gap("", off.size, differing, largest, _ratio(largest, scale), within, one_step=False)


def _relative(dtype: np.dtype[Any]) -> float:
    return max(RELATIVE, 2 * float(np.finfo(dtype).eps)) if dtype.kind == "f" else 1e-2  # of bfloat16


def _ratio(largest: float, scale: float) -> float:
    return largest / scale if scale else (np.inf if largest else 0.0)
