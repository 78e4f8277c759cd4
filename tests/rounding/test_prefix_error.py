"""A weight compensates for the error of the layers before it as far as its own input tells that error."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import floats

from onnxq.calibration.im2col import Unfolding
from onnxq.calibration.second_moments import LayerMoments
from onnxq.rounding import prefix_error
from onnxq.rounding.prefix_error import InputErrors, OutputErrors, PrefixError, compensated

WEIGHT = floats(12, 24, seed=3)


def corrected(pairs):
    moments, error = LayerMoments(Unfolding(24), 24), PrefixError(WEIGHT)
    for quantized, exact in pairs:
        moments.add(quantized)
        error.add(quantized, exact)
    return error.corrected(moments)


def error_left(weight, pairs):
    return sum(float(np.square(quantized @ weight.T - exact @ WEIGHT.T).sum()) for quantized, exact in pairs)


def distorted(first, count=24):
    distortion = np.eye(24, dtype=np.float32) + floats(24, 24, seed=7, scale=0.1)
    exact = [floats(1, 20, 24, seed=first + index) for index in range(count)]
    return [(each @ distortion, each) for each in exact]


def test_a_linear_error_is_compensated():
    weight, unseen = corrected(distorted(100)), distorted(900)
    assert weight.dtype == np.float32
    assert error_left(weight, unseen) < 0.01 * error_left(WEIGHT, unseen)


def test_an_error_that_the_input_does_not_tell_leaves_the_weight_alone():
    pairs = [(floats(1, 20, 24, seed=index), floats(1, 20, 24, seed=index)) for index in range(12)]
    noisy = [(quantized, exact + floats(1, 20, 24, seed=500 + index)) for index, (quantized, exact) in enumerate(pairs)]
    assert np.square(corrected(noisy) - WEIGHT).mean() < 0.05
    np.testing.assert_array_equal(corrected(pairs), WEIGHT)


def test_one_half_without_rows_changes_nothing():
    error = PrefixError(WEIGHT)
    moments = LayerMoments(Unfolding(24), 24)
    assert error.corrected(moments) is WEIGHT
    assert error.choice(moments) is None


@pytest.mark.parametrize("blocks", [8, 12])
def test_blocks_of_second_moments_are_solved_alone(blocks):
    moments, error = LayerMoments(Unfolding(24), blocks), PrefixError(WEIGHT)
    for quantized, exact in distorted(100):
        moments.add(quantized)
        error.add(quantized, exact)
    unseen = distorted(900)
    assert error_left(error.corrected(moments), unseen) < 0.9 * error_left(WEIGHT, unseen)


def shared(monkeypatch, blocks, dtype=np.float64):
    """Compensate in a weight that shares sums with others; return it, and how often the samples were read."""
    moments, pairs, read = LayerMoments(Unfolding(24), blocks, dtype), distorted(100), []
    for quantized, _ in pairs:
        moments.add(quantized)

    def samples():
        read.append(None)
        return pairs

    monkeypatch.setattr(prefix_error, "SLAB", 5 * 24)
    weight = WEIGHT.copy()
    return compensated(weight, samples, moments, lambda: InputErrors(samples, moments, np.asarray)), len(read)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("blocks", [24, 8])
@pytest.mark.parametrize("least", [7, 128])
def test_shared_sums_compensate_as_those_of_a_weight_alone(monkeypatch, blocks, dtype, least):
    monkeypatch.setattr(prefix_error, "TOGETHER", 1)
    monkeypatch.setattr(prefix_error, "LEAST_ROWS", least)
    moments, error = LayerMoments(Unfolding(24), blocks), PrefixError(WEIGHT)
    for quantized, exact in distorted(100):
        moments.add(quantized)
        error.add(quantized, exact)
    found, _ = shared(monkeypatch, blocks, dtype)
    np.testing.assert_allclose(found, error.corrected(moments), atol=2e-3)


def test_shared_sums_read_the_samples_once_for_each_range(monkeypatch):
    """Guard of the time: neither the number of channels nor that of weights counts."""
    assert shared(monkeypatch, 24)[1] == 1
    assert shared(monkeypatch, 8)[1] == 3


def test_channels_that_choose_speak_for_all(monkeypatch):
    monkeypatch.setattr(prefix_error, "PROBED", 4 * 24)
    found, _ = shared(monkeypatch, 24)
    assert error_left(found, distorted(900)) < 0.02 * error_left(WEIGHT, distorted(900))


def test_shared_sums_leave_the_weight_alone_where_nothing_is_lost():
    moments, pairs = LayerMoments(Unfolding(24), 24), [(each, each) for _, each in distorted(100)]
    for quantized, _ in pairs:
        moments.add(quantized)
    weight = WEIGHT.copy()
    found = compensated(weight, lambda: pairs, moments, lambda: InputErrors(lambda: pairs, moments, np.asarray))
    np.testing.assert_array_equal(found, WEIGHT)
    none = InputErrors(list, moments, np.asarray)
    assert none.choice(WEIGHT, slice(None)) is None


@pytest.mark.parametrize(("blocks", "most"), [(24, 4), (8, 24)])
def test_weights_that_read_the_same_share_inverses(monkeypatch, blocks, most):
    """Guard of the time: an inverse takes as long as a product of as many channels as there are columns."""
    counted, plain = [], prefix_error.inverted
    monkeypatch.setattr(prefix_error, "inverted", lambda matrix: counted.append(None) or plain(matrix))
    moments, pairs = LayerMoments(Unfolding(24), blocks), distorted(100)
    for quantized, _ in pairs:
        moments.add(quantized)
    errors = InputErrors(lambda: pairs, moments, np.asarray)
    alone, again = (compensated(WEIGHT.copy(), lambda: pairs, moments, lambda: errors) for _ in range(2))
    assert len(counted) <= most
    np.testing.assert_array_equal(alone, again)


@pytest.mark.parametrize("blocks", [24, 8])
def test_outputs_of_the_float_model_compensate_as_inputs_do(blocks):
    moments, pairs, few = LayerMoments(Unfolding(24), blocks, np.float32), distorted(100), WEIGHT[:7]
    for quantized, _ in pairs:
        moments.add(quantized)
    given = [(quantized, exact @ few.T) for quantized, exact in pairs]
    by_output = compensated(few.copy(), list, moments, lambda: OutputErrors(few, lambda: given, moments, np.asarray))
    by_input = compensated(few.copy(), list, moments, lambda: InputErrors(lambda: pairs, moments, np.asarray))
    np.testing.assert_allclose(by_output, by_input, atol=1e-4)
    assert not np.array_equal(by_output, few)
