"""Codes whose products of neighbours stay within 16 bits, against the arithmetic and the order of the kernels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers import build, floats, node, quantize_in_memory, recipe_of, run
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxq import quantize
from onnxq.calibration.gram import Gram
from onnxq.calibration.im2col import Unfolding
from onnxq.calibration.second_moments import LayerMoments
from onnxq.ir import parse
from onnxq.ops.forms.saturating_pairs import inner_rows, saturating_pairs
from onnxq.rounding.jobs import RoundingJob, WeightRows, solve_all
from onnxq.rounding.saturation_limits import (
    FULL,
    PairLimits,
    SummationOrder,
    largest_codes,
    largest_row_codes,
    least_pair_scales,
    pair_limits,
)
from onnxq.verification.families import evaluated_sqnrs
from onnxq.verification.int8_saturation import read_saturation

PRODUCT = SummationOrder("product", 0)


def most_sum(codes: np.ndarray, largest: np.ndarray, pairing: np.ndarray) -> int:
    """The largest sum of two products of one sign, whatever activations up to `largest` come together."""
    sums = [0]
    for sign in (-1, 1):
        products = np.maximum(sign * codes.astype(int), 0) * largest.astype(int)
        sums.append(int((products[:, pairing[:, 0]] + products[:, pairing[:, 1]]).max(initial=0)))
    return max(sums)


def moments_of(x: np.ndarray) -> LayerMoments:
    made = LayerMoments(Unfolding(x.shape[1]), x.shape[1])
    made.add(x[None])
    return made


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 9999), st.integers(1, 12), st.booleans(), st.booleans())
def test_no_sum_of_two_products_leaves_16_bits(seed: int, n: int, measured: bool, skewed: bool) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((5, n)) if not skewed else rng.gamma(0.3, size=(5, n))
    largest = rng.integers(1, 256, n).astype(float) if measured else None
    pairs = pair_limits((n, 5), (0,), PRODUCT, largest)
    x = rng.standard_normal((40, n)).astype(np.float32)
    job = RoundingJob(rows, moments_of(x) if measured else None, pairs=pairs)
    (found,) = solve_all({0: job}).values()
    assert most_sum(found.codes, pairs.largest[0], pairs.pairings[0]) <= 32767
    assert np.abs(found.codes.astype(int)).max() <= 127


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 9999), st.integers(1, 9), st.floats(0.3, 3))
def test_codes_at_their_bounds_do_not_saturate_at_any_scale(seed: int, n: int, factor: float) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((4, n))
    pairs = pair_limits((n, 4), (0,), PRODUCT, rng.integers(0, 256, n).astype(float))
    steps = np.broadcast_to(np.abs(rows).max(axis=1, keepdims=True) / 127 * factor, rows.shape)
    low, high = pairs.bounds(rows, steps)
    assert (low <= 0).all()
    assert (high >= 0).all()
    assert most_sum(np.where(rows < 0, low, high), pairs.largest[0], pairs.pairings[0]) <= 32767
    assert most_sum(low, pairs.largest[0], pairs.pairings[0]) <= 32767
    assert most_sum(high, pairs.largest[0], pairs.pairings[0]) <= 32767


def test_neighbours_that_want_more_than_16_bits_share_all_of_them() -> None:
    rows = np.random.default_rng(7).uniform(70, 127, (50, 8))
    pairs = pair_limits((8, 50), (0,), PRODUCT)
    _, high = pairs.bounds(rows, np.ones_like(rows))
    np.testing.assert_array_equal(high[:, ::2] + high[:, 1::2], 32767 // 255)
    wanted = 32767 / 255 * rows[:, ::2] / (rows[:, ::2] + rows[:, 1::2])
    assert np.abs(high[:, ::2] - wanted).max() < 0.51


def test_at_the_covering_scale_rounding_to_nearest_clips_nothing() -> None:
    rows = floats(8, 64, seed=3).astype(np.float64)
    pairs = pair_limits((64, 8), (0,), PRODUCT)
    covering = np.maximum(pairs.covering(rows), np.abs(rows).max(axis=1) / 127)
    codes = np.rint(rows / covering[:, None])
    assert most_sum(codes, pairs.largest[0], pairs.pairings[0]) <= 32767
    assert most_sum(np.rint(rows / (np.abs(rows).max(axis=1, keepdims=True) / 127)), *_first(pairs)) > 32767


def _first(pairs: PairLimits) -> tuple[np.ndarray, np.ndarray]:
    return pairs.largest[0], pairs.pairings[0]


def test_small_activations_limit_nothing() -> None:
    rows = floats(8, 64, seed=3).astype(np.float64)
    unlimited = solve_all({0: RoundingJob(rows)})[0]
    small = solve_all({0: RoundingJob(rows, pairs=pair_limits((64, 8), (0,), PRODUCT, np.full(64, 50.0)))})[0]
    np.testing.assert_array_equal(small.codes, unlimited.codes)
    np.testing.assert_array_equal(small.scales, unlimited.scales)


def test_limits_cost_less_than_a_bit() -> None:
    """On Gaussian weights and activations of any size: the squared error of 8, of limited and of 7 bits."""
    rows = floats(32, 256, seed=5).astype(np.float64)
    x = floats(2000, 256, seed=6)
    error = []
    for job in (
        RoundingJob(rows, moments_of(x)),
        RoundingJob(rows, moments_of(x), pairs=pair_limits((256, 32), (0,), PRODUCT)),
        RoundingJob(rows, moments_of(x), bits=7),
    ):
        found = solve_all({0: job})[0]
        gram: Gram = moments_of(x).total()
        error.append(gram.errors(found.dequantized().astype(np.float64) - rows).sum())
    assert error[0] < error[1] < error[2] / 1.5


@pytest.mark.parametrize(
    ("shape", "axes", "summed", "expected"),
    [
        ((4, 3), (0,), SummationOrder("product", 0), [[0, 1], [2, 3]]),
        ((3, 5), (1,), SummationOrder("product", 1), [[0, 1], [2, 3]]),
        ((2, 6, 3), (2,), SummationOrder("product", 2), [[0, 1]]),
        # two channels of two positions: channel 0 and 1 of each position are neighbours
        ((1, 2, 1, 2), (1, 2, 3), SummationOrder("conv", 1), [[0, 2], [1, 3]]),
    ],
)
def test_neighbours_are_those_that_kernels_add_first(shape, axes, summed, expected) -> None:
    (pairing,) = pair_limits(shape, axes, summed).pairings
    assert pairing.tolist() == expected


def test_a_conv_with_an_odd_number_of_channels_has_neighbours_on_both_sides() -> None:
    even, odd = pair_limits((2, 3, 1, 2), (1, 2, 3), SummationOrder("conv", 1)).pairings
    # positions outside, channels inside: channel c at position p is column 2 c + p
    assert even.tolist() == [[0, 2], [4, 1], [3, 5]]
    assert odd.tolist() == [[2, 4], [1, 3]]


@pytest.mark.parametrize("granularity", ["channel", "tensor"])
@pytest.mark.parametrize(("channels", "group"), [(4, 1), (3, 1), (8, 2), (1, 1)])
def test_the_order_is_that_of_the_kernels(channels: int, group: int, granularity: str) -> None:
    weight = floats(8, channels // group, 3, 3, seed=channels, scale=0.3)
    axes = (1, 2, 3) if granularity == "channel" else (0, 1, 2, 3)
    rows = WeightRows(weight, axes)
    pairs = pair_limits(weight.shape, axes, SummationOrder("conv", 1, group))
    found = solve_all({0: RoundingJob(rows, pairs=pairs)})[0]
    codes, _ = rows.restore(found.codes, found.scales)
    inner = inner_rows("Conv", codes, group=group)
    assert inner is not None
    assert saturating_pairs(inner) == 0


def pictures(count: int) -> list[dict[str, np.ndarray]]:
    """Smooth pictures: neighbours in a row are alike, so that their codes are large together."""
    noise = [floats(1, 3, 16, 16, seed=seed).repeat(4, axis=2).repeat(4, axis=3) for seed in range(count)]
    return [{"x": np.ascontiguousarray(one)} for one in noise]


@pytest.mark.parametrize("rounding", ["nearest", "output-error"])
def test_columns_that_become_channels_are_neighbours_then(tmp_path: Path, rounding: str) -> None:
    """The first Conv of a lane detector saturated, which took 11 dB off it: its columns are folded at the very end."""
    proto = build(
        [node("Conv", "x w", "c", strides=[2, 2], pads=[3] * 4), node("Relu", "c", "y")],
        {"x": [1, 3, 64, 64]},
        ["y"],
        {"w": np.abs(floats(16, 3, 7, 7, seed=3, scale=0.1))},
    )
    source, data = tmp_path / "m.onnx", pictures(6)
    source.write_bytes(proto.SerializeToString())
    lost = {}
    for target in ("cpu", "cpu-vnni"):
        recipe = recipe_of("static-int8", rounding=rounding, target=target)
        quantize(source, recipe, output=tmp_path / "q.onnx", samples=data, force=True)
        made = (tmp_path / "q.onnx").read_bytes()
        assert b"_blocks" in made
        exact, saturating = evaluated_sqnrs(parse(proto.SerializeToString()), made, data, ("exact", "saturating"))
        assert exact is not None
        assert saturating is not None
        lost[target] = exact - saturating
    assert lost["cpu"] == 0
    assert lost["cpu-vnni"] > 3


def test_largest_codes_have_headroom_and_end_at_the_type() -> None:
    high = np.array([-1.0, 0.0, 0.5, 100.0, -np.inf], np.float32)
    assert largest_codes(high, 0.01, 30).tolist() == [30, 30, 90, FULL, 30]


@pytest.mark.parametrize("recipe", ["static-int8", "dynamic-int8"])
@pytest.mark.parametrize("target", ["cpu", "cpu-vnni"])
def test_what_the_default_target_gets_saturates_nowhere(recipe: str, target: str) -> None:
    """A wide product of full-range activations; the target for VNNI alone uses all of its 8 bits."""
    weights = {"w": floats(64, 32, seed=7)}
    proto = build([node("MatMul", "x w", "y")], {"x": [16, 64]}, ["y"], weights)
    x = np.abs(floats(16, 64, seed=8))
    made = quantize_in_memory(proto, recipe_of(recipe, target=target), [{"x": x}] if recipe == "static-int8" else ())
    assert bool(read_saturation(parse(made.data))) == (target == "cpu-vnni")


def test_the_weights_of_an_lstm_are_limited_too() -> None:
    units = 32
    weights = {
        "w": floats(1, 4 * units, 16, seed=1),
        "r": floats(1, 4 * units, units, seed=2),
    }
    proto = build([node("LSTM", "x w r", "y", hidden_size=units)], {"x": [5, 1, 16]}, ["y"], weights)
    made = quantize_in_memory(proto, recipe_of("dynamic-int8", domain="com.microsoft"))
    stored = [array for array in made.weights.values() if array.dtype == np.int8 and array.ndim == 3]
    assert len(stored) == 2
    for codes in stored:
        assert saturating_pairs(codes) == 0
    assert run(made.data, {"x": floats(5, 1, 16)})


@pytest.mark.parametrize(
    ("shape", "axes", "summed"),
    [
        ((7, 5), (0,), SummationOrder("product", 0)),
        ((5, 8), (1,), SummationOrder("product", 1)),
        ((2, 6, 3), (2,), SummationOrder("product", 2)),
        ((3, 6, 4), (1,), SummationOrder("product", 1)),
        ((3, 6, 4), (0, 1, 2), SummationOrder("product", 1)),
        ((4, 3, 3, 3), (1, 2, 3), SummationOrder("conv", 1)),
        ((4, 4, 3, 3), (1, 2, 3), SummationOrder("conv", 1)),
        ((4, 4, 3), (0, 1, 2), SummationOrder("conv", 1)),
    ],
)
def test_large_weights_have_the_scales_of_small_ones(shape, axes, summed) -> None:
    weight = floats(*shape, seed=9)
    rows = WeightRows(weight, axes)
    covering = pair_limits(shape, axes, summed).covering(rows.array())
    np.testing.assert_array_equal(least_pair_scales(weight, axes, summed), covering.reshape(rows.scale_shape))
    assert covering.any()


def test_rows_scaled_at_run_time_are_limited_by_what_samples_show() -> None:
    """A column that is never above half of its row's largest magnitude has codes up to 128 + 1.2 * 64."""
    x = np.array([[1, 0.5, -0.25, 0], [-8, 4, 0, 2]], np.float32)
    share = moments_of(x).share
    assert share.tolist() == [1, 0.5, 0, 0.25]
    assert largest_row_codes(share, 127).tolist() == [255, 205, 128, 167]
    assert largest_row_codes(share, 255).tolist() == [255, 154, 0, 77]
