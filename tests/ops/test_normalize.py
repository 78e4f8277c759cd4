"""Normalisation against onnxruntime, and by hand where it has no such version."""

import numpy as np
import pytest
from float_support import check, evaluate_single, normal, single

from onnxq import evaluate
from onnxq.errors import ModelError


def statistics(channels, seed=0):
    rng = np.random.default_rng(seed)
    return [*(normal(channels, seed=seed + i) for i in range(3)), rng.random(channels, dtype=np.float32) + 0.1]


@pytest.mark.parametrize("opset", [7, 8, 9, 13, 14, 15])
@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 7), (2, 3, 4, 5), (1, 3, 2, 3, 4)])
def test_batch_normalization_agrees_with_onnxruntime_in_every_version(opset, shape):
    check("BatchNormalization", [normal(*shape), *statistics(3)], opset=opset, epsilon=1e-3, atol=1e-5)


def test_batch_normalization_of_each_element():
    x, element = normal(4, 2, 3), [s.reshape(2, 3) for s in statistics(6)]
    (y,) = evaluate_single("BatchNormalization", [x, *element], opset=7, spatial=0)
    scale, shift, mean, var = element
    np.testing.assert_allclose(y, (x - mean) / np.sqrt(var + 1e-5) * scale + shift, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("opset", [9, 15])
def test_batch_normalization_in_training_uses_the_batch(opset):
    x, (scale, shift, mean, var) = normal(4, 3, 5), statistics(3)
    given = {"training_mode": 1} if opset >= 14 else {}
    found = evaluate_single("BatchNormalization", [x, scale, shift, mean, var], 3, opset=opset, momentum=0.8, **given)
    batch_mean, batch_var = x.mean(axis=(0, 2)), x.var(axis=(0, 2))
    column = (slice(None), None)
    normalised = (x - batch_mean[column]) / np.sqrt(batch_var[column] + 1e-5) * scale[column] + shift[column]
    np.testing.assert_allclose(found[0], normalised, atol=1e-5)
    np.testing.assert_allclose(found[1], mean * 0.8 + batch_mean * 0.2, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found[2], var * 0.8 + batch_var * 0.2, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("axis", [-1, 1, 2])
def test_layer_normalization_agrees_with_onnxruntime(axis):
    x = normal(2, 3, 8) * 3 + 1
    inner = x.shape[axis:]
    check("LayerNormalization", [x, normal(*inner), normal(*inner, seed=1)], axis=axis, epsilon=1e-4, atol=1e-5)
    check("LayerNormalization", [x, normal(*inner)], 3, axis=axis, atol=1e-5)


def test_layer_normalization_of_float16_is_worked_out_in_float32():
    x = (normal(2, 64) * 100).astype(np.float16)
    (y,) = evaluate_single("LayerNormalization", [x, np.ones(64, np.float16)])
    assert y.dtype == np.float16
    wide = x.astype(np.float64)
    exact = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(y.astype(np.float64), exact, atol=2e-3)


@pytest.mark.parametrize("shape", [(2, 3, 5), (2, 3, 5, 4)])
def test_instance_normalization_agrees_with_onnxruntime(shape):
    check("InstanceNormalization", [normal(*shape), normal(3), normal(3, seed=1)], atol=1e-5)


@pytest.mark.parametrize(("opset", "length"), [(18, 2), (21, 6)])
def test_group_normalization_agrees_with_onnxruntime(opset, length):
    check(
        "GroupNormalization",
        [normal(2, 6, 4), normal(length), normal(length, seed=1)],
        opset=opset,
        num_groups=2,
        atol=1e-5,
    )


@pytest.mark.parametrize("size", [1, 3, 4, 5])
@pytest.mark.parametrize("beta", [0.75, 0.5])
def test_lrn_agrees_with_onnxruntime(size, beta):
    if size % 2:  # onnxruntime takes odd sizes only
        check("LRN", [normal(2, 7, 3, 3)], size=size, alpha=0.1, beta=beta, bias=2.0)
    else:
        x = normal(1, 3, 1, 1)
        (y,) = evaluate_single("LRN", [x], size=size, alpha=0.1, beta=beta, bias=2.0)
        squares = (x**2).reshape(3)  # one channel before, two behind
        total = np.array([squares.sum(), squares.sum(), squares[1:].sum()]).reshape(1, 3, 1, 1)
        np.testing.assert_allclose(y, x / (2 + 0.1 / size * total) ** beta, rtol=1e-5)


@pytest.mark.parametrize("p", [1, 2])
def test_lp_normalization_agrees_with_onnxruntime(p):
    x = normal(3, 4, 5)
    x[0, :, 0] = 0
    check("LpNormalization", [x], axis=1, p=p)


def test_mean_variance_normalization_agrees_with_onnxruntime():
    check("MeanVarianceNormalization", [normal(2, 3, 4, 5)], axes=[0, 2, 3], atol=1e-5)


@pytest.mark.parametrize("opset", [7, 10, 12, 13])
def test_dropout_gives_its_input(opset):
    check("Dropout", [normal(3, 4)], opset=opset)
    if opset >= 10:
        check("Dropout", [normal(3, 4)], 2, opset=opset)


def test_training_with_a_mean_for_each_element_is_refused():
    x = normal(4, 2, 3)
    model, feeds = single("BatchNormalization", [x, *(s.reshape(2, 3) for s in statistics(6))], 5, opset=7, spatial=0)
    with pytest.raises(ModelError, match="BatchNormalization"):
        evaluate(model, feeds)
