"""How far single samples go, and how far beyond all of them a range reaches."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from helpers import floats

from onnxq.calibration.activation_qparams import scheme_qparams
from onnxq.calibration.ranges import add_headroom, extrapolate_range
from onnxq.calibration.sample_extremes import KEPT, MOST_BATCHES, ChannelPeaks, SampleExtremes
from onnxq.calibration.stats import Extremes, Histogram, Moments, Stats, TensorStats
from onnxq.calibration.stats_file import load_stats, save_stats
from onnxq.ops.forms.scheme import Scheme

RNG = np.random.default_rng(7)


def batches(count: int, size: int, spread: float) -> list[np.ndarray]:
    """Samples after a Relu, each as large as it happens to be."""
    heights = np.exp(RNG.normal(0, spread, count))
    return [(h * RNG.uniform(0, 1, size)).astype(np.float32) for h in heights]


def test_peaks_of_both_sides_are_those_of_single_batches_and_merge_exactly():
    given = [RNG.normal(size=9).astype(np.float32) for _ in range(80)]
    whole, left, right = SampleExtremes(), SampleExtremes(), SampleExtremes()
    for index, batch in enumerate(given):
        whole.add(batch)
        (left if index % 3 else right).add(batch)
    assert whole.above.tolist() == sorted((float(max(b.max(), 0)) for b in given), reverse=True)[:KEPT]
    assert whole.below.tolist() == sorted((float(max(-b.min(), 0)) for b in given), reverse=True)[:KEPT]
    for merged in (left.merge(right), right.merge(left)):
        assert (merged.batches, merged.elements) == (80, 720)
        assert np.array_equal(merged.above, whole.above)
        assert np.array_equal(merged.below, whole.below)


def test_peaks_survive_a_file(tmp_path):
    stats = Stats()
    for batch in batches(10, 20, 0.3):
        stats.add("a", batch)
        stats.samples += 1
    save_stats(tmp_path / "s.npz", stats, "f")
    one, two = stats["a"], load_stats(tmp_path / "s.npz")[0]["a"]
    assert extrapolate_range(one, 0.0, one.max) == extrapolate_range(two, 0.0, two.max) != (0.0, one.max)


def test_a_small_tensor_whose_samples_differ_gets_room_that_saves_samples_to_come():
    seen, unseen = batches(64, 64, 0.5), batches(512, 64, 0.5)
    stats = TensorStats.of(*seen)
    low, high = extrapolate_range(stats, 0.0, stats.max)
    assert low == 0.0
    assert high > 1.1 * stats.max

    def error(end: float) -> float:
        scale = end / 255
        codes = [np.clip(np.rint(b / scale), 0, 255) * scale - b for b in unseen]
        return float(np.square(codes).sum())

    assert error(high) < 0.5 * error(stats.max)


@pytest.mark.parametrize(("count", "size", "spread"), [(64, 100_000, 0.05), (64, 64, 0.0), (7, 64, 0.5)])
def test_a_range_stays_where_more_room_costs_more_than_it_saves(count, size, spread):
    """A large tensor, peaks that are alike, and too few samples to tell."""
    stats = TensorStats.of(*batches(count, size, spread))
    low, high = extrapolate_range(stats, 0.0, stats.max)
    assert low == 0.0
    assert stats.max <= high < 1.03 * stats.max


def test_the_more_elements_the_less_room():
    peaks = batches(64, 16, 0.5)
    ends = []
    for size in (16, 1 << 10, 1 << 16):
        stats = TensorStats.of(*(np.append(b, np.zeros(size - 16, np.float32)) for b in peaks))
        ends.append(extrapolate_range(stats, 0.0, stats.max)[1])
    assert all(one > two for one, two in pairwise(ends))


def test_an_end_that_clips_on_purpose_and_statistics_without_peaks_stay_as_they_are():
    given = batches(64, 64, 0.5)
    stats = TensorStats.of(*given)
    for share in (0.5, 1e-4):  # what is far below the greatest peaks asks for no exponential of it
        assert extrapolate_range(stats, 0.0, share * stats.max)[1] == np.float32(share * stats.max)
    bare = TensorStats([Extremes(), Moments(), Histogram()])
    for batch in given:
        bare.add(batch)
    assert extrapolate_range(bare, 0.0, bare.max) == (0.0, bare.max)


def test_only_a_range_that_is_left_open_is_widened_and_never_beyond_what_its_maker_can_give():
    stats = TensorStats.of(*batches(64, 64, 0.5))
    exact = scheme_qparams(stats, Scheme("static-int8", ranges="minmax"))[0]
    assert exact == pytest.approx(stats.max / 255)
    assert scheme_qparams(stats, Scheme("static-int8"))[0] > 1.1 * exact
    assert scheme_qparams(stats, Scheme("static-int8"), (0.0, stats.max))[0] == exact


@pytest.mark.parametrize("method", ["minmax", "output-error", "mse", "percentile", "auto"])
def test_headroom_is_what_both_ends_are_multiplied_by(method):
    stats = TensorStats.of(*(np.append(b, -b) for b in batches(64, 64, 0.5)))
    tight, roomy = (scheme_qparams(stats, Scheme("static-int8", ranges=method, headroom=room)) for room in (1.0, 1.5))
    assert roomy[0] == pytest.approx(1.5 * tight[0], rel=1e-6)
    assert abs(int(roomy[1]) - int(tight[1])) <= 1
    assert scheme_qparams(stats, Scheme("static-int8", ranges="minmax", headroom=1.5), (stats.min, stats.max)) == (
        scheme_qparams(stats, Scheme("static-int8", ranges="minmax"), (stats.min, stats.max))
    )


def test_an_end_that_samples_reach_alike_gets_no_headroom():
    """Pictures end at white: with other steps, codes would hit none of the values that pixels have."""
    stats = TensorStats.of(*(np.append(-b, np.float32(0.25)) for b in batches(64, 64, 0.5)))
    low, high = add_headroom(stats, stats.min, stats.max, 1.2)
    assert low == pytest.approx(1.2 * stats.min)
    assert high == stats.max
    few = TensorStats.of(*(np.full(4, 2.0, np.float32) for _ in range(3)))  # which may be chance
    assert add_headroom(few, 0.0, 2.0, 1.2) == (0.0, pytest.approx(2.4))
    bare = TensorStats([Extremes()])
    bare.add(np.ones(4, np.float32))
    assert add_headroom(bare, 0.0, 1.0, 1.2) == (0.0, pytest.approx(1.2))


def test_extremes_of_samples_follow_where_channels_are_shifted_divided_and_clipped() -> None:
    batches = [floats(2, 4, 5, seed=seed) for seed in range(6)]
    divisor, shift, bounds = np.array([0.5, 1.0, 2.0, 4.0]), np.array([1.0, 0.0, -2.0, 0.5]), (-1.0, 1.5)
    first, second, expected = ChannelPeaks(1), ChannelPeaks(1), SampleExtremes()
    for number, batch in enumerate(batches):
        (first, second)[number % 2].add(batch)
        changed = np.clip((batch + shift[:, None]) / divisor[:, None], *bounds).astype(np.float32)
        expected.add(changed)
    found = first.merge(second).changed(divisor, shift, bounds)
    again = ChannelPeaks.from_arrays(found.arrays())
    for peaks in (found.sample_extremes(), again.sample_extremes()):
        assert peaks is not None
        for key, array in expected.arrays().items():
            np.testing.assert_allclose(peaks.arrays()[key], array, rtol=1e-6)


def test_of_channels_that_differ_in_number_and_of_many_batches_nothing_is_known() -> None:
    peaks = ChannelPeaks(1)
    assert peaks.sample_extremes() is None
    peaks.add(floats(1, 4))
    assert peaks.sample_extremes() is not None
    peaks.add(floats(1, 5))
    other = ChannelPeaks(3)
    other.add(floats(1, 4))
    many = ChannelPeaks(1)
    for _ in range(MOST_BATCHES + 1):
        many.add(floats(1, 4))
    for unknown in (peaks, other, many, peaks.merge(many), ChannelPeaks.from_arrays(many.arrays())):
        assert unknown.sample_extremes() is None


@pytest.mark.parametrize(("ranges", "headroom"), [("minmax", 1.2), ("auto", 1.0), ("output-error", 1.0)])
def test_a_range_never_goes_beyond_what_float32_holds(ranges, headroom):
    largest = np.finfo(np.float32).max
    stats = TensorStats.of(*(np.array([-largest / 2 ** (i % 8), 1], np.float32) for i in range(32)))
    scale, _ = scheme_qparams(stats, Scheme("static-int8", ranges=ranges, headroom=headroom))
    assert scale == largest / np.float32(255)
