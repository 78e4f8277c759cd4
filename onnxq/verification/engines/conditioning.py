"""The change of a node's output by the last bit of its inputs: two engines that are both right may differ by as much.

Normalising a channel that is the same everywhere magnifies the last bits of a mean without bound. A sum whose terms
cancel has no more digits than the terms.

Tests: `tests/verification/test_engines.py`.
"""

from __future__ import annotations

import itertools

import numpy as np

from onnxq.errors import OnnxqError
from onnxq.evaluator import Run, Step
from onnxq.ir import Value
from onnxq.verification.engines.tolerance import gap, is_float

TRIALS = 3  # compared with one another
TIMES = 8.0  # what engines add up in another order differs in a few bits
LAST_BITS = 1e-5  # of a tensor's largest magnitude: 84 steps of float32


def is_in_the_last_bits(step: Step, value: Value, run: Run, largest: float) -> bool:
    """Whether an output of a node changes so much when each of its inputs changes in the last bit.

    Args:
        step: The node.
        value: The output.
        run: Holds what the node reads, and what it gave; as it was, afterwards.
        largest: The largest difference.

    """
    read = {each: run.values[each] for each in step.node.reads if is_float(run.values.get(each))}
    made = {each: run.values[each] for each in step.node.makes if each in run.values}
    random = np.random.default_rng(0)
    shaken = []
    try:
        for _ in range(TRIALS if read else 0):
            run.values.update({each: _shaken(array, random) for each, array in read.items()})
            run.compute(step)
            shaken.append(run.values[value])
    except OnnxqError:
        return False
    finally:
        run.values.update(read)
        run.values.update(made)
    apart = max((gap(one, other).max_abs for one, other in itertools.pairwise(shaken)), default=0.0)
    return bool(np.isfinite(apart)) and largest <= TIMES * apart


def differ_in_the_last_bits(step: Step, one: Run, other: Run) -> bool:
    """Whether what a node reads in two runs differs, but in nothing but the last bits."""
    pairs = [(one.values.get(read), other.values.get(read)) for read in step.node.reads]
    gaps = [gap(first, second) for first, second in pairs if first is not None and second is not None]
    return any(found.differing for found in gaps) and all(found.relative <= LAST_BITS for found in gaps)


def _shaken(array: np.ndarray, random: np.random.Generator) -> np.ndarray:
    ends = np.where(random.random(array.shape) < 0.5, array.dtype.type(-np.inf), array.dtype.type(np.inf))
    return np.where(np.isfinite(array), np.nextafter(array, ends), array).astype(array.dtype)
