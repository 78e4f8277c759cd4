"""How much of a sample is measured for choices: some of its elements and rows, fewer where there are many samples."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import floats

from onnxq.calibration.histogram import Histogram
from onnxq.calibration.im2col import Unfolding
from onnxq.calibration.second_moments import LayerMoments
from onnxq.calibration.thinning import EVERYTHING, LEAST_ROWS, Thinning, counted_places
from onnxq.calibration.weighted_histogram import WeightedHistogram


def test_many_samples_are_measured_less_each():
    few, many = Thinning.of(10), Thinning.of(1000)
    assert few.elements > many.elements > 0
    assert 1024 >= few.rows(64, 1024) > many.rows(64, 1024) == LEAST_ROWS
    assert Thinning.of(None) == EVERYTHING
    assert EVERYTHING.rows(64, 1024) == 1024


@pytest.mark.parametrize("size", [1, 999, 1000, 2000, 12_345])
def test_places_are_spread_over_a_tensor_and_stand_for_all_of_it(size):
    places, times = counted_places(size, 1000)
    if places is None:
        assert times == 1
        assert size < 2000
        return
    assert len(places) >= 1000
    assert size - times < len(places) * times <= size
    assert (np.diff(places) > 0).all()
    assert places[-1] < size


def test_a_histogram_of_some_elements_is_that_of_all_but_for_chance():
    values = floats(2, 8, 60, 60)
    weights = np.arange(8)
    for all_of_it, some in (
        (Histogram(), Histogram(5000)),
        (WeightedHistogram(weights, 1), WeightedHistogram(weights, 1, 5000)),
    ):
        all_of_it.add(values)
        some.add(values)
        assert (some.exponent, some.first, len(some.counts)) == (
            all_of_it.exponent,
            all_of_it.first,
            len(all_of_it.counts),
        )
        assert some.counts.sum() == pytest.approx(all_of_it.counts.sum(), rel=0.02)
        off = np.abs(np.cumsum(some.counts) / some.counts.sum() - np.cumsum(all_of_it.counts) / all_of_it.counts.sum())
        assert off.max() < 0.03


def test_moments_of_some_rows_are_those_of_all_but_for_chance():
    unfolding = Unfolding(4, axis=1, kernel=(1, 1), strides=(1, 1), dilations=(1, 1), pads=(0, 0, 0, 0))
    every, some = LayerMoments(unfolding, 4), LayerMoments(unfolding, 4, thinning=Thinning.of(64))
    for seed in range(64):
        values = floats(1, 4, 32, 32, seed=seed)
        every.add(values)
        some.add(values)
    assert some.total().rows * 3 < every.total().rows
    np.testing.assert_allclose(some.total().matrix, every.total().matrix, atol=0.1)
