"""Scales and zero points of blocks, and codes of least error on them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxq.calibration.gram import Gram
from onnxq.calibration.im2col import Unfolding
from onnxq.calibration.second_moments import LayerMoments
from onnxq.rounding.block_grids import BlockGrid, best_grid, exported, few_scales
from onnxq.rounding.block_solver import _by_weight, refit_scales, solve_blocks
from onnxq.rounding.coordinate_descent import nearest


def weight(channels=24, n=96, seed=0):
    random = np.random.default_rng(seed)
    return random.standard_normal((channels, n)) ** 3 + 0.3 * random.standard_normal((channels, 1))


def measured(n=96, items=40, seed=0):
    """Inputs of one kind: a few directions carry most."""
    mixing = np.random.default_rng(9).standard_normal((n // 6, n))
    random = np.random.default_rng(seed)
    moments = LayerMoments(Unfolding(n), n)
    noise = random.standard_normal((items, 16, n)) / 5
    moments.add((random.standard_normal((items, 16, n // 6)) @ mixing + noise).astype(np.float32))
    return moments


def change(solution, rows, block_size):
    return solution.codes.dequantized(1, block_size).astype(np.float64) - rows


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 9999), st.sampled_from([2, 4, 8]), st.sampled_from([16, 32]), st.sampled_from([1, 16, 33, 80]))
def test_codes_and_zero_points_are_of_so_many_bits_and_zero_stays_zero(seed, bits, block_size, n):
    rows = weight(4, n, seed)
    rows[:, ::5] = 0
    found = solve_blocks(rows, None, bits, block_size)
    blocks = -(-n // block_size)
    assert (found.codes.codes.shape, found.codes.scales.shape, found.codes.zeros.shape) == (
        (4, n),
        (4, blocks),
        (4, blocks),
    )
    assert max(found.codes.codes.max(), found.codes.zeros.max()) <= 2**bits - 1
    assert (found.codes.scales > 0).all()
    assert not found.codes.dequantized(1, block_size)[:, ::5].any()


@pytest.mark.parametrize(("bits", "share"), [(2, 0.85), (4, 0.95)])
def test_a_grid_of_least_error_beats_the_one_that_covers_the_block(bits, share):
    rows = weight()
    plain = np.ones((1, rows.shape[1]))
    found = best_grid(rows, plain, bits, 32, "nearest")
    low, high = (limit(rows.reshape(24, 3, 32).clip(*clip), axis=2) for limit, clip in _ends())
    scales = exported((high - low) / (2**bits - 1))
    covering = BlockGrid(scales, np.clip(np.rint(-low / scales), 0, 2**bits - 1), 32, 2**bits - 1)

    def error(grid):
        steps = grid.steps(96)
        return np.square(nearest(rows, steps, grid.bounds(96)) * steps - rows).sum()

    assert error(found) < share * error(covering)


def _ends():
    return (np.min, (None, 0)), (np.max, (0, None))


def test_zero_points_serve_blocks_of_one_sign():
    rows = np.abs(weight()) + 1
    rows[:, 0] = 0
    found = solve_blocks(rows, None, 4, 32)
    assert np.median(found.codes.zeros) == 0
    assert np.sqrt(np.square(change(found, rows, 32)).mean()) < 0.4 * found.codes.scales.mean()


@pytest.mark.parametrize("bits", [2, 4])
def test_samples_choose_codes_of_far_less_error_on_other_samples(bits):
    rows, others = weight(), measured(seed=5).total()
    alone = others.errors(change(solve_blocks(rows, None, bits, 32), rows, 32))
    found = solve_blocks(rows, measured(), bits, 32)
    chosen = others.errors(change(found, rows, 32))
    assert found.method == "output error"
    assert found.gain > 3
    assert chosen.sum() < 0.3 * alone.sum()


def test_inputs_that_show_nothing_leave_the_weights_own_error():
    moments = LayerMoments(Unfolding(96), 96)
    moments.add(np.zeros((4, 3, 96), np.float32))
    rows = weight()
    found, plain = solve_blocks(rows, moments, 4, 32), solve_blocks(rows, None, 4, 32)
    assert found.method == "weight error"
    np.testing.assert_array_equal(found.codes.codes, plain.codes.codes)


def test_block_diagonal_moments_are_one_matrix_of_blocks():
    random = np.random.default_rng(3)
    values = random.standard_normal((40, 16, 96)).astype(np.float32)
    cut, full = LayerMoments(Unfolding(96), 32), LayerMoments(Unfolding(96), 96)
    cut.add(values)
    full.add(values)
    rows = weight()
    found = solve_blocks(rows, cut, 4, 32)
    plain = solve_blocks(rows, None, 4, 32)
    judge = full.total()
    assert judge.errors(change(found, rows, 32)).sum() < judge.errors(change(plain, rows, 32)).sum()


def test_refit_scales_are_those_of_least_squares():
    random = np.random.default_rng(1)
    rows, x = random.standard_normal((3, 40)), random.standard_normal((200, 40))
    gram = Gram((x.T @ x / 200)[None], x.mean(axis=0)[None], 200)
    grid = best_grid(rows, np.ones((1, 40)), 4, 16, "nearest")
    codes = nearest(rows, grid.steps(40), grid.bounds(40))
    codes[1, 16:32] = 0  # says nothing about its scale
    found = refit_scales(rows, codes, grid, gram)
    assert found[1, 1] == grid.scales[1, 1]
    for channel in (0, 2):
        parts = np.stack([np.where(np.arange(40) // 16 == block, codes[channel], 0) for block in range(3)], axis=1)
        expected = np.linalg.lstsq(x @ parts, x @ rows[channel], rcond=None)[0]
        np.testing.assert_allclose(found[channel], expected, rtol=2e-3)


def test_exported_scales_keep_few_bits_and_are_floats():
    scales = np.random.default_rng(0).random(1000) * 10.0 ** np.arange(-20, 20).repeat(25)
    found = exported(scales)
    np.testing.assert_array_equal(found.astype(np.float32).astype(np.float64), found)
    np.testing.assert_allclose(found, scales, rtol=2**-10)
    assert exported(np.zeros(1))[0] == 1


@pytest.mark.parametrize("bits", [2, 4])
def test_codes_of_few_bits_have_few_scales(bits):
    random = np.random.default_rng(2)
    rows = random.standard_normal((512, 256)) * np.exp(random.standard_normal((512, 1)))
    rows[0, :32] = 0  # a block of zeros has a scale of 1
    found = solve_blocks(rows, None, bits, 32).codes.scales
    before = _by_weight(rows, bits, 32).scales
    assert len(np.unique(before)) > 256 >= len(np.unique(found))
    np.testing.assert_allclose(found, before, rtol=0.02)
    assert np.sqrt(np.square(found / before - 1).mean()) < 0.007


def test_scales_of_8_bits_and_of_few_blocks_stay():
    scales = np.abs(np.random.default_rng(3).standard_normal((512, 8))).astype(np.float32) + np.float32(0.1)
    assert few_scales(scales, 8) is scales
    assert few_scales(scales[:9], 4).shape == (9, 8)
    np.testing.assert_array_equal(few_scales(scales[:9], 4), scales[:9])
    few = few_scales(scales, 4)
    np.testing.assert_array_equal(few_scales(few, 4), few)
    order = np.argsort(scales.ravel())
    assert (np.diff(few.ravel()[order]) >= 0).all()
