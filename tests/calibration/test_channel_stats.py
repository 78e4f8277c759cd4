"""Statistics by channel: exact extremes whatever the order, and what they would have been without one batch."""

from __future__ import annotations

from functools import reduce

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxq.calibration.channel_stats import ChannelStats


def measure(axis: int, *batches: np.ndarray) -> ChannelStats:
    stats = ChannelStats(axis)
    for batch in batches:
        stats.add(batch.astype(np.float32))
    return stats


def same(one: ChannelStats, other: ChannelStats) -> None:
    assert (one.axis, one.count, one.batches) == (other.axis, other.count, other.batches)
    np.testing.assert_array_equal(one.high, other.high)
    np.testing.assert_array_equal(one.low, other.low)
    np.testing.assert_allclose(one.total, other.total, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(one.squares, other.squares, rtol=1e-12)


def test_the_two_greatest_come_from_different_batches():
    stats = measure(-1, np.array([[1, -5], [9, 0], [8, 2]]), np.array([[3, 7]]))
    np.testing.assert_array_equal(stats.high, [[9, 7], [3, 2]])
    np.testing.assert_array_equal(stats.low, [[1, -5], [3, 7]])
    np.testing.assert_array_equal(stats.mean, [21 / 4, 1])
    np.testing.assert_array_equal(stats.second_moment, [(1 + 81 + 64 + 9) / 4, (25 + 4 + 49) / 4])
    assert (stats.channels, stats.count, stats.batches) == (2, 4, 2)


@pytest.mark.parametrize(("axis", "shape"), [(-1, (2, 5, 3)), (1, (2, 3, 4, 5)), (0, (3,)), (-2, (4, 3, 2))])
def test_any_axis_can_hold_the_channels(axis, shape):
    values = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    stats = measure(axis, values)
    rows = np.moveaxis(values, axis, 0).reshape(3, -1)
    np.testing.assert_array_equal(stats.high[0], rows.max(axis=1))
    np.testing.assert_array_equal(stats.low[0], rows.min(axis=1))
    np.testing.assert_allclose(stats.mean, rows.mean(axis=1, dtype=np.float64), rtol=1e-6)
    np.testing.assert_allclose(stats.second_moment, np.square(rows.astype(np.float64)).mean(axis=1), rtol=1e-12)
    assert np.isneginf(stats.high[1]).all()  # there is no second batch


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.lists(st.integers(1, 4), min_size=1, max_size=6), st.data())
def test_neither_order_nor_merging_changes_anything(seed, sizes, data):
    random = np.random.default_rng(seed)
    batches = [np.rint(random.standard_normal((size, 4)) * 4) for size in sizes]
    whole = measure(-1, *batches)
    order = data.draw(st.permutations(range(len(batches))))
    same(measure(-1, *(batches[i] for i in order)), whole)
    cut = data.draw(st.integers(0, len(batches)))
    same(measure(-1, *batches[:cut]).merge(measure(-1, *batches[cut:])), whole)
    same(reduce(ChannelStats.merge, (measure(-1, batch) for batch in batches), ChannelStats(-1)), whole)


@pytest.mark.parametrize("last", [np.zeros((2, 5)), np.zeros(())])
def test_a_tensor_without_a_constant_number_of_channels_has_none(last):
    stats = measure(-1, np.ones((2, 4)), last, np.ones((2, 4)))
    assert stats.channels == stats.count == 0
    assert stats.merge(measure(-1, np.ones((2, 4)))).channels == 0
    assert measure(-1, np.ones((2, 4))).merge(stats).channels == 0
    assert measure(-1, np.ones((2, 4))).merge(measure(-1, np.ones((2, 5)))).channels == 0


def test_the_state_survives_a_file():
    stats = measure(1, np.random.default_rng(0).standard_normal((2, 3, 4)), np.ones((1, 3, 2)))
    same(ChannelStats.from_arrays(stats.arrays()), stats)
    same(ChannelStats.from_arrays(ChannelStats(1).arrays()), ChannelStats(1))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_dividing_the_statistics_is_measuring_the_divided(seed):
    random = np.random.default_rng(seed)
    batches = [random.standard_normal((3, 5, 4)) for _ in range(3)]
    divisor = np.exp2(random.integers(-6, 6, 4)).astype(np.float64)  # powers of two divide without rounding
    same(measure(-1, *batches).divided(divisor), measure(-1, *(batch / divisor for batch in batches)))


def test_a_flattened_map_has_the_channels_of_the_map():
    random = np.random.default_rng(3)
    maps = [random.standard_normal((2, 3, 2, 2)) for _ in range(2)]
    joined = measure(-1, *(m.reshape(2, 12) for m in maps)).joined(4)
    direct = measure(1, *maps)
    np.testing.assert_array_equal(joined.high[0], direct.high[0])
    np.testing.assert_array_equal(joined.low[0], direct.low[0])
    assert (joined.high[1] <= direct.high[1]).all()  # cautious: which batch was greatest where is not known
    np.testing.assert_allclose(joined.mean, direct.mean)
    np.testing.assert_allclose(joined.second_moment, direct.second_moment)
    assert joined.count == direct.count
