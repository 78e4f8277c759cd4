"""A weight compensates for the error of the layers before it as far as its own input tells that error."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import build, floats, node

from onnxq.calibration.im2col import Unfolding
from onnxq.calibration.second_moments import LayerMoments
from onnxq.ir import infer_types, parse
from onnxq.rounding import prefix_error
from onnxq.rounding.prefix_error import PrefixError, compensated, residual_of

WEIGHT = floats(12, 24, seed=3)


def corrected(pairs, residuals=None):
    moments, error = LayerMoments(Unfolding(24), 24), PrefixError(WEIGHT)
    for index, (quantized, exact) in enumerate(pairs):
        moments.add(quantized)
        error.add(quantized, exact, None if residuals is None else residuals[index])
    return error.corrected(moments)[0]


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
    noise = [floats(1, 20, 12, seed=500 + index) for index in range(12)]
    change = corrected(pairs, noise) - WEIGHT
    assert np.square(change).mean() < 0.01
    np.testing.assert_array_equal(corrected(pairs), WEIGHT)


def test_the_error_of_what_the_output_is_added_to_is_compensated():
    pairs = [(each, each) for each, _ in distorted(300)]
    wanted = floats(12, 24, seed=40, scale=0.2)
    weight = corrected(pairs, [exact @ wanted.T for _, exact in pairs])
    np.testing.assert_allclose(weight, WEIGHT + wanted, atol=0.02)


def test_one_half_without_rows_changes_nothing():
    error = PrefixError(WEIGHT)
    weight, ridge = error.corrected(LayerMoments(Unfolding(24), 24))
    assert weight is WEIGHT
    assert ridge is None


@pytest.mark.parametrize("blocks", [8, 12])
def test_blocks_of_second_moments_are_solved_alone(blocks):
    moments, error = LayerMoments(Unfolding(24), blocks), PrefixError(WEIGHT)
    for quantized, exact in distorted(100):
        moments.add(quantized)
        error.add(quantized, exact, None)
    unseen = distorted(900)
    assert error_left(error.corrected(moments)[0], unseen) < 0.9 * error_left(WEIGHT, unseen)


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ([node("MatMul", "x w", "a"), node("Add", "a h", "y")], "h"),
        ([node("MatMul", "x w", "a"), node("Add", "b a", "c"), node("Add", "h c", "y")], "h"),
        ([node("MatMul", "x w", "a"), node("Sum", "a h", "y")], "h"),
        ([node("MatMul", "x w", "a"), node("Sum", "a h x", "y")], None),
        ([node("MatMul", "x w", "a"), node("Add", "b a", "y")], None),
        ([node("MatMul", "x w", "a"), node("Mul", "a h", "y")], None),
        ([node("MatMul", "x w", "a"), node("Relu", "a", "c"), node("Add", "a c", "y")], None),
    ],
)
def test_what_an_output_is_added_to(nodes, expected):
    shapes, weights = {"x": [1, 6, 24], "h": [1, 6, 24]}, {"w": floats(24, 24), "b": floats(24)}
    model = parse(build(nodes, shapes, ["y"], weights, 21).SerializeToString())
    infer_types(model)
    found = residual_of(model.graph.nodes[0])
    assert (None if found is None else found.name) == expected


def test_channels_in_slabs_are_those_of_one(monkeypatch):
    moments, pairs = LayerMoments(Unfolding(24), 24), distorted(100)
    for quantized, _ in pairs:
        moments.add(quantized)
    triples = [(quantized, exact, exact @ floats(12, 24, seed=8).T) for quantized, exact in pairs]
    whole = compensated(WEIGHT, lambda: triples, moments)
    monkeypatch.setattr(prefix_error, "SLAB", 5 * 24)
    before = WEIGHT.copy()
    np.testing.assert_allclose(compensated(WEIGHT, lambda: triples, moments), whole, atol=2e-3)
    np.testing.assert_array_equal(WEIGHT, before)
