"""The search for factors and outliers: what is estimated, and what has to be gained."""

from __future__ import annotations

import numpy as np
import pytest

from onnxq.calibration.channel_stats import ChannelStats
from onnxq.rescaling.factor_search import QuantizedRead, best


def test_the_exponent_leaves_room_where_batches_disagree():
    """Channels whose range comes from a single batch get headroom; those that every batch fills are made equal."""
    random = np.random.default_rng(5)
    weight = random.standard_normal((1, 64, 16, 1))
    size = np.exp2(np.arange(16) / 2)
    steady, spiky = ChannelStats(-1), ChannelStats(-1)
    for index in range(16):
        batch = random.uniform(-1, 1, (400, 16))
        batch[0], batch[1] = 1, -1
        steady.add((batch * size).astype(np.float32))
        batch[:2, index] *= 8  # of one channel in each batch
        spiky.add((batch * size).astype(np.float32))
    exponents = [best([QuantizedRead(stats, [weight], [None])])[0].exponent for stats in (steady, spiky)]
    assert exponents[0] is not None
    assert exponents[1] is None or exponents[1] < exponents[0]


def test_a_channel_that_is_always_zero_does_no_harm():
    stats = ChannelStats(-1)
    values = np.random.default_rng(6).standard_normal((50, 8)).astype(np.float32) * np.exp2(
        np.arange(8, dtype=np.float32)
    )
    values[:, 2] = 0
    stats.add(values)
    stats.add(values / 2)
    weight = np.random.default_rng(7).standard_normal((1, 4, 8, 1))
    weight[:, :, 5] = 0  # and one that nobody reads
    candidate, gain = best([QuantizedRead(stats, [weight], [np.ones(4)])])
    assert gain > 0
    assert np.isfinite(candidate.divisor).all()
    assert (candidate.divisor > 0).all()


def test_a_value_that_is_always_zero_changes_nothing():
    stats = ChannelStats(-1)
    stats.add(np.zeros((50, 8), np.float32))
    weight = np.random.default_rng(7).standard_normal((1, 40, 8, 1)) * 40  # some squares beyond 1000
    reading = QuantizedRead(stats, [weight], [None])
    assert (reading.energy == 0).all()
    candidate, gain = best([reading])
    assert (candidate.exponent, gain) == (None, 0.0)


def outlying(count: int, channels: int = 64) -> QuantizedRead:
    random = np.random.default_rng(8)
    size = np.where(np.arange(channels) < count, 200 - np.arange(channels), 1)
    stats = ChannelStats(-1)
    for part in np.split((random.uniform(-1, 1, (500, channels)) * size).astype(np.float32), 5):
        stats.add(part)
    return QuantizedRead(stats, [random.standard_normal((1, 64, channels, 1))], [None])


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_as_many_channels_are_added_as_tower(count):
    prices = {1: 2.0, 2: 3.0, 4: 5.0, 8: 9.0}
    candidate, gain = best([outlying(count)], price=100.0, outlier_prices=prices)
    wanted = next(number for number in prices if number >= count)
    assert len(candidate.outliers) == wanted
    assert set(range(count)) <= set(candidate.outliers)
    assert gain > prices[wanted]
    for one in range(1, wanted):  # fewer leave a channel that still decides the range
        assert best([outlying(count)], price=100.0, outlier_prices={one: 0.0})[1] < gain


def test_what_gains_less_than_its_price_is_not_done():
    reading = outlying(1)
    gain = best([reading], price=100.0, outlier_prices={1: 0.0})[1]
    assert best([reading], price=100.0, outlier_prices={1: gain - 0.1})[0].outliers == (0,)
    candidate, nothing = best([reading], price=100.0, outlier_prices={1: gain + 0.1})
    assert (candidate.exponent, candidate.outliers, nothing) == (None, (), 0.0)
    divided, gain = best([reading])
    assert divided.exponent is not None
    assert divided.outliers == ()
    assert best([reading], price=gain - 0.1)[0].exponent is not None
    assert best([reading], price=gain + 0.1)[0].exponent is None


def test_values_that_are_zero_but_for_outliers_are_no_trouble():
    random = np.random.default_rng(3)
    values = random.standard_normal((40, 32)).astype(np.float32) * (np.arange(32) == 2)
    stats = ChannelStats(-1)
    stats.add(values)
    reading = QuantizedRead(stats, [random.standard_normal((1, 8, 32, 1))], [None])
    candidate, gain = best([reading], price=1.0, outlier_prices={1: 1.0, 2: 1.5})
    assert np.isfinite(candidate.divisor).all()
    assert np.isfinite(gain)
