"""Differences between outputs, added up."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import floats

from onnxq.runtime.blas_threads import _openblas
from onnxq.verification.error_stats import Difference


def test_sums_are_the_same_however_many_threads_there_are() -> None:
    found = _openblas()
    if found is None:
        pytest.skip("NumPy has another BLAS")
    get, put = found
    expected = floats(700, 701)
    got = expected + floats(700, 701, seed=1, scale=0.01)
    before, sums = get(), []
    try:
        for threads in (1, 2, 4):
            put(threads)
            difference = Difference()
            difference.add(expected, got)
            sums.append((difference.signal, difference.noise, difference.cross, difference.power))
    finally:
        put(before)
    assert sums[0] == sums[1] == sums[2]
    np.testing.assert_allclose(sums[0][0], np.square(expected.astype(np.float64)).sum(), rtol=1e-12)
