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


def test_what_is_merged_sample_by_sample_is_what_adding_each_gives() -> None:
    whole, merged = Difference(), Difference()
    pairs = [(floats(3, 5, seed=seed), floats(3, 5, seed=seed + 9)) for seed in range(4)]
    pairs.append((np.array([1, 2, 3]), np.array([1, 2, 4])))
    pairs.append((np.array([np.nan, 1, np.inf], np.float32), np.array([np.nan, np.nan, np.inf], np.float32)))
    for expected, got in pairs:
        one = Difference()
        for total in (whole, one):
            assert not total.add(expected, got)
        merged.merge(one)
    assert vars(merged) == vars(whole)
    assert merged.agreement == whole.agreement


@pytest.mark.parametrize(
    ("values", "decides"),
    [
        (np.tanh(floats(20, 12)), False),  # commands of a policy
        (floats(20, 384) / np.linalg.norm(floats(20, 384), axis=1, keepdims=True), False),  # embeddings
        (floats(20, 10) * 5, True),  # logits
        (np.abs(floats(20, 1000)) / 1000, True),  # probabilities
        (np.tanh(floats(20, 2) * 3), True),  # of two classes, one may be sure
    ],
)
def test_rows_that_choose_no_class_have_no_agreement(values: np.ndarray, decides: bool) -> None:
    difference = Difference()
    for row in values.astype(np.float32):
        difference.add(row[None], row[None])
    assert difference.agreement == (100.0 if decides else None)


@pytest.mark.parametrize("got", [floats(3, 1), floats(3).astype(np.float64), [floats(3), floats(3)]])
def test_what_cannot_be_compared_is_not_equal(got: object) -> None:
    difference = Difference(ratio_only=True)
    assert difference.add(floats(3), floats(3)) == ""
    assert difference.add(floats(3), got)
    assert (difference.equal, difference.sqnr) == (False, -np.inf)
