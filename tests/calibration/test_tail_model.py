"""What the peaks of samples say of samples to come: where they differ by factors, others go much further."""

from __future__ import annotations

import math

import numpy as np
import pytest

from onnxq.calibration.ranges import extrapolate_range
from onnxq.calibration.stats import TensorStats
from onnxq.calibration.tail_model import WIDEST, LognormalTail, fit_lognormal


def peaks(count: int, spread: float, seed: int = 0) -> np.ndarray:
    """Peaks of samples that differ by factors, the greatest first."""
    return np.sort(np.exp(np.random.default_rng(seed).normal(0, spread, count)))[::-1].astype(np.float32)


@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e30])
@pytest.mark.parametrize("end", [1.0, 3.0, 8.0])
def test_what_goes_beyond_an_end_is_what_is_drawn(end, scale):
    drawn = np.exp(np.random.default_rng(1).normal(0, 0.8, 4_000_000))
    expected = float(np.square(np.maximum(drawn - end, 0)).mean())
    found = LognormalTail(math.log(scale), 0.8).beyond(np.array([end * scale]))[0] / scale**2
    assert found == pytest.approx(expected, rel=0.1)


def test_no_more_is_made_of_peaks_than_they_are_sure_to_show():
    found = [fit_lognormal(peaks(32, 1.0, seed), 32) for seed in range(100)]
    widths = [one.width for one in found if one is not None]
    assert len(widths) > 75
    assert 0.7 < float(np.median(widths)) < 0.9  # 1 and its standard error less


@pytest.mark.parametrize("spread", [0.0, 0.2, 0.4])
def test_samples_that_are_much_alike_do_not_differ_by_factors(spread):
    assert sum(fit_lognormal(peaks(32, spread, seed), 32) is not None for seed in range(100)) <= 5


def test_one_sample_far_beyond_all_others_is_no_sign_of_more():
    alike = peaks(32, 0.1)
    alike[0] *= 4
    assert fit_lognormal(alike, 32) is None


def test_too_few_peaks_and_peaks_of_zero_say_nothing():
    assert fit_lognormal(peaks(7, 1.0), 7) is None
    assert fit_lognormal(np.append(peaks(5, 1.0), np.zeros(27, np.float32)), 32) is None


def test_absurd_peaks_are_no_trouble():
    found = fit_lognormal(np.logspace(30, -40, 32, dtype=np.float32), 32)
    assert found is not None
    assert found.width == WIDEST
    assert np.isfinite(found.beyond(np.array([1e30, 2e30]))).all()


def loud(count: int, seed: int) -> list[np.ndarray]:
    """Samples of noise that differ by factors."""
    rng = np.random.default_rng(seed)
    return [(h * rng.uniform(0, 1, 256)).astype(np.float32) for h in np.exp(rng.normal(0, 1.2, count))]


@pytest.mark.parametrize("cut", [1.0, 0.96])
def test_a_range_of_samples_that_differ_by_factors_reaches_far_beyond_them(cut):
    """Also where a little of the loudest is cut off: that was weighed on samples that were seen."""
    gains = []
    for seed in range(20):
        stats, others = TensorStats.of(*loud(32, seed)), loud(500, 100 + seed)

        def error(end: float, others: list[np.ndarray] = others) -> float:
            return float(sum(np.square(np.clip(np.rint(x / end * 255), 0, 255) * end / 255 - x).sum() for x in others))

        low, high = extrapolate_range(stats, 0.0, cut * stats.max)
        assert low == 0.0
        assert cut * stats.max <= high <= np.float32(2 * stats.max)
        gains.append(10 * math.log10(error(cut * stats.max) / error(high)))
    assert min(gains) > -6.5  # what twice the range costs, where the loudest of all was among those that were seen
    assert np.mean(gains) > 2
