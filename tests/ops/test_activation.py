"""Activations and the Softmax family against onnxruntime, and Erf against the C library."""

import math

import numpy as np
import pytest
from float_support import check, evaluate_single, normal
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxq.ops.kernels.activation import erf, gelu, sigmoid
from onnxq.ops.kernels.softmax import softmax

SPECIAL = np.array([0.0, -0.0, 1e-30, -1e-30, 0.5, -0.5, 3.9, -4.1, 20, -20, 88, -88, np.inf, -np.inf], np.float32)
PLAIN = {
    "Celu": {"alpha": 1.5},
    "Elu": {"alpha": 0.7},
    "HardSigmoid": {"alpha": 0.3, "beta": 0.4},
    "HardSwish": {},
    "LeakyRelu": {"alpha": 0.2},
    "Relu": {},
    "Selu": {},
    "Shrink": {"bias": 0.2, "lambd": 0.6},
    "Sigmoid": {},
    "Softplus": {},
    "Softsign": {},
    "Tanh": {},
    "ThresholdedRelu": {"alpha": 0.3},
}


@pytest.mark.parametrize("op_type", PLAIN)
def test_activations_agree_with_onnxruntime(op_type):
    check(op_type, [normal(3, 50) * 4], atol=2e-6, **PLAIN[op_type])
    finite = SPECIAL[np.isfinite(SPECIAL)]
    check(op_type, [finite], atol=2e-6, **PLAIN[op_type])


def test_erf_is_within_two_units_of_the_last_place():
    x = np.concatenate([np.linspace(-6, 6, 200_001), SPECIAL]).astype(np.float32)
    exact = np.array([math.erf(v) for v in x.tolist()])
    got = erf(x)
    assert got.dtype == np.float32
    assert np.abs(got - exact).max() <= 1.1e-7
    near = np.abs(x) < 1e-3  # small arguments keep their relative precision
    np.testing.assert_allclose(got[near], exact[near], rtol=5e-7)


def test_erf_of_nan_wide_narrow_and_no_elements():
    assert np.isnan(erf(np.array([np.nan], np.float32)))[0]
    assert erf(np.zeros((0, 3), np.float32)).shape == (0, 3)
    wide = np.linspace(-7, 7, 1001)
    np.testing.assert_allclose(erf(wide), [math.erf(v) for v in wide], rtol=0, atol=3e-16)
    assert erf(np.array([0.5], np.float16)).dtype == np.float16


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_agrees_with_onnxruntime(approximate):
    check("Gelu", [normal(7, 33) * 3], opset=20, approximate=approximate, atol=2e-6)
    x = np.linspace(-5, 5, 101)
    np.testing.assert_allclose(
        gelu(x.astype(np.float32), approximate=approximate), gelu(x, approximate=approximate), atol=1e-6, rtol=1e-5
    )


def test_large_tensors_in_chunks_and_threads_are_what_small_ones_are():
    x = normal(700_001)
    whole = sigmoid(x)
    assert np.array_equal(whole[-5:], sigmoid(x[-5:]))
    assert np.array_equal(sigmoid(x.reshape(-1, 1)[::2])[:, 0], whole[::2])  # not contiguous


def test_prelu_broadcasts_its_slope():
    check("PRelu", [normal(2, 3, 4, 5), normal(3, 1, 1, seed=1)])
    check("PRelu", [normal(2, 3, 4, 5), normal(1, seed=1)])
    x = -np.ones((1, 2, 2), np.float32)
    (y,) = evaluate_single("PRelu", [x, np.array([2, 3], np.float32)], opset=6)
    assert y.tolist() == [[[-2, -2], [-3, -3]]]


@st.composite
def tensors_with_axis(draw):
    shape = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    return normal(*shape) * 5, draw(st.integers(0, len(shape) - 1))


@pytest.mark.parametrize("opset", [8, 11, 12, 13, 17])
@pytest.mark.parametrize("op_type", ["Softmax", "LogSoftmax", "Hardmax"])
@settings(max_examples=20, deadline=None)
@given(tensors_with_axis(), st.booleans())
def test_the_softmax_family_agrees_with_onnxruntime_in_every_version(op_type, opset, case, from_the_end):
    x, axis = case
    axis = axis - x.ndim if from_the_end and opset >= 11 else axis
    check(op_type, [x], opset=opset, axis=axis, atol=2e-6)


def test_softmax_before_13_spans_all_axes_behind_its_own():
    (y,) = evaluate_single("Softmax", [np.zeros((2, 4, 5), np.float32)], opset=12)
    assert np.array_equal(y, np.full((2, 4, 5), np.float32(0.05)))
    (y,) = evaluate_single("Softmax", [np.zeros((2, 4, 5), np.float32)], opset=13)
    assert np.array_equal(y, np.full((2, 4, 5), np.float32(0.2)))


def test_softmax_of_large_numbers_and_of_none():
    assert softmax(np.array([1e30, 0], np.float32)).tolist() == [1, 0]
    assert softmax(np.zeros((2, 0), np.float32)).shape == (2, 0)
