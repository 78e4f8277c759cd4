"""Few rows: the codes of a search on the whole H, without a product or a decomposition of all columns."""

from __future__ import annotations

import numpy as np
import pytest

from onnxq.calibration.gram import Gram
from onnxq.calibration.im2col import Unfolding
from onnxq.calibration.second_moments import LayerMoments
from onnxq.rounding import few_rows, gptq
from onnxq.rounding.coordinate_descent import Feedback, damped, descend, largest_first, limit, nearest
from onnxq.rounding.few_rows import FewRowsFeedback, FewRowsGram, descend_few_rows, with_noise
from onnxq.rounding.jobs import RoundingJob, solve_all
from onnxq.rounding.saturation_limits import SummationOrder, pair_limits

BOUNDS = (-127.0, 127.0)


def gram(rows=4, n=160, block=160, seed=0, groups=1):
    random = np.random.default_rng(seed)
    x = np.maximum(random.standard_normal((rows, groups * n)) + 0.2, 0)
    x[:, 7] = 0
    blocks = -(-n // block)
    cut = np.zeros((rows, groups, blocks * block))
    cut[:, :, :n] = x.reshape(rows, groups, n)
    cut = cut.reshape(rows, groups * blocks, block).transpose(1, 0, 2)
    return Gram(cut.transpose(0, 2, 1) @ cut / rows, np.zeros((groups, n)), rows)


def same(found, expected):
    assert (found == expected).mean() > 0.999  # one code may lie in the middle of two, to the last bits


@pytest.mark.parametrize("size", [1.0, 1e40, 1e-40])
def test_columns_are_ordered_by_what_they_carry_however_large_that_is(size):
    assert largest_first(size * np.array([[1.0, 3.0, 2.0], [2.0, 2.0, 5.0]])).tolist() == [[1, 2, 0], [2, 0, 1]]


@pytest.mark.parametrize("noise", [0.0, 0.01])
def test_products_and_errors_are_those_of_the_whole_matrix(noise):
    whole = gram(n=200, block=160, groups=2)
    few = with_noise(gram(n=200, block=160, groups=2), noise)
    assert isinstance(few, FewRowsGram)
    H = whole.matrix + noise * np.eye(160)
    change = np.random.default_rng(1).standard_normal((6, 200))
    cut = whole.split(change)
    np.testing.assert_allclose(few.product(few.split(change)), cut @ H, atol=1e-10)
    np.testing.assert_allclose(few.errors(change), Gram(H, whole.mean, 4).errors(change), atol=1e-10)
    np.testing.assert_allclose(few.diagonal(), np.einsum("pbb->pb", H), atol=1e-10)
    np.testing.assert_allclose(few.damped(0.2).diagonal(), np.einsum("pbb->pb", damped(H, 0.2)), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("damping", [1e-4, 0.2])
def test_feedback_and_descent_find_the_same_codes(damping):
    few = with_noise(gram(n=320, block=160), 0.001)
    assert isinstance(few, FewRowsGram)
    few = few.damped(damping)
    H = few.factor @ few.factor.transpose(0, 2, 1)
    np.einsum("pbb->pb", H)[:] += few.ridge
    random = np.random.default_rng(2)
    weight, steps = random.standard_normal((2, 160, 24)), np.full((2, 160, 24), 0.04)
    low = np.where(random.random(weight.shape) < 0.1, -20.0, -127.0)
    whole, one = Feedback(H), FewRowsFeedback(few)
    np.testing.assert_allclose(one.weights, whole.weights, rtol=1e-8)
    for bounds in (BOUNDS, (low, -low)):
        same(one.round(weight, steps, bounds), whole.round(weight, steps, bounds))
        start = nearest(weight, steps, bounds)
        found, expected = (
            descend_few_rows(weight, start, steps, few, bounds, 4),
            descend(weight, start, steps, H, bounds, 4),
        )
        same(found.codes, expected.codes)
        assert (found.codes != start).any()
        assert (found.codes == limit(found.codes.copy(), bounds)).all()
        np.testing.assert_allclose(found.slope, H @ (found.codes * steps - weight), atol=1e-9)


def test_moments_of_more_rows_than_they_say_are_not_factorised():
    whole = gram(rows=40)
    claimed = Gram(whole.matrix, whole.mean, 4)
    assert with_noise(claimed, 0.0) is claimed
    assert isinstance(with_noise(gram(rows=11, n=160), 0.0), Gram)  # no gain


def test_a_weight_of_few_rows_takes_no_product_with_all_columns(monkeypatch):
    """Work is counted: nothing is decomposed, and codes are those of the usual search."""
    random = np.random.default_rng(3)
    moments = LayerMoments(Unfolding(384), 384)
    for _ in range(12):
        moments.add(np.maximum(random.standard_normal((1, 1, 384)) + 0.3, 0).astype(np.float32))
    job = RoundingJob(random.standard_normal((60, 384)).astype(np.float32), moments, noise=1e-4)
    monkeypatch.setattr(few_rows, "FEW", 10**9)
    usual = solve_all({0: job})[0]
    monkeypatch.undo()
    monkeypatch.setattr(gptq, "Feedback", None)
    monkeypatch.setattr(gptq, "descend", None)
    found = solve_all({0: job})[0]
    assert found.method == usual.method == "output error"
    same(found.codes, usual.codes)
    np.testing.assert_allclose(found.gain, usual.gain, rtol=1e-6)


@pytest.mark.parametrize(("quick", "expected"), [(True, 1), (False, 2)])
def test_a_quick_search_descends_once(quick, expected, monkeypatch):
    """Work is counted: scales are fitted to the codes that it found, and these stay as they are."""
    random, went = np.random.default_rng(5), []
    moments = LayerMoments(Unfolding(32), 32)
    for _ in range(8):
        moments.add(np.maximum(random.standard_normal((1, 40, 32)) + 0.3, 0).astype(np.float32))
    before = gptq.descend
    monkeypatch.setattr(gptq, "descend", lambda *given: [went.append(given[5]), before(*given)][1])
    job = RoundingJob(random.standard_normal((20, 32)).astype(np.float32), moments, quick=quick)
    assert solve_all({0: job})[0].method == "output error"
    assert len(went) == expected
    assert all(went)


@pytest.mark.parametrize("odd", [False, True])
def test_bounds_of_neighbours_are_the_same_some_rows_at_a_time(odd, monkeypatch):
    shape = (9, 5 if odd else 6, 3, 3)
    random = np.random.default_rng(4)
    limits = pair_limits(shape, (1, 2, 3), SummationOrder("conv", 1), random.integers(50, 256, shape[1] * 9))
    rows = random.standard_normal(shape).reshape(9, -1)
    steps = np.broadcast_to(np.abs(rows).max(axis=1, keepdims=True) / 127, rows.shape)
    together = limits.bounds(rows, steps)
    monkeypatch.setattr("onnxq.rounding.saturation_limits.IN_CACHE", 2 * rows.shape[1])
    for one, other in zip(together, limits.bounds(rows, steps), strict=True):
        np.testing.assert_array_equal(one, other)
    assert (together[1] < 127).any()
