"""Operators and attributes that only old exporters write are written as newer operator sets have them."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import run
from ir_support import X, model_of, normalised, ops

from onnxq.errors import ModelError
from onnxq.ir.opset import raise_opset

RNG = np.random.default_rng


@pytest.mark.parametrize("opset", [6, 8])
@pytest.mark.parametrize(("written", "shape", "expected"), [
    ("ImageScaler <scale = 0.5, bias = [1.0, -2.0, 3.0]> (x)", "1,3,6,5", ["Mul", "Add"]),
    ("Crop <border = [1, 2, 0, 1]> (x)", "1,3,3,4", ["Slice"]),
    ("Crop <border = [1, 2, 0, 0], scale = [3, 2]> (x)", "1,3,3,2", ["Slice"]),
    ("Affine <alpha = 2.0, beta = -0.5> (x)", "1,3,6,5", ["Mul", "Add"]),
    ("ScaledTanh <alpha = 1.5, beta = 0.5> (x)", "1,3,6,5", ["Mul", "Tanh", "Mul"]),
    ("ParametricSoftplus <alpha = 1.5, beta = 0.5> (x)", "1,3,6,5", ["Mul", "Softplus", "Mul"]),
])  # fmt: skip
def test_experimental_operators_become_what_newer_opsets_have(written, shape, expected, opset):
    """A tiny YOLO of CoreML's converter and a style transfer were refused: the version converter knows none of them."""
    model = model_of(f"g (float[1,3,6,5] x) => (float[{shape}] y) {{ y = {written} }}", opset=opset)
    feeds = {"x": RNG(0).standard_normal((1, 3, 6, 5)).astype(np.float32)}
    before = run(model.serialize(), feeds)[0]
    assert normalised(model) == ["rewrote 1 experimental operator as standard ones"]
    newer = raise_opset(model, 13)
    assert [op for op in ops(newer.graph) if op in expected] == expected
    for made in (newer, *([model] if opset >= 7 else [])):  # onnxruntime has no kernel for Mul of opset 6
        np.testing.assert_allclose(run(made.serialize(), feeds)[0], before, rtol=2e-6)


def test_batchnorm_of_rows_for_every_element_is_one_for_every_channel():
    """As MXNet wrote it behind fully connected layers: no opset from 9 on has the attribute."""
    body = "a = Relu(x) y = BatchNormalization <spatial = 0> (a, s, b, m, v)"
    model = model_of(
        f"g (float[2,4] x) => (float[2,4] y) {{ {body} }}",
        {name: RNG(0).uniform(0.5, 2, 4).astype(np.float32) for name in "sbmv"},
        opset=8,
    )
    before = run(model.serialize(), {"x": X})[0]
    assert normalised(model) == ["rewrote 1 BatchNormalization per element as one per channel"]
    assert ops(raise_opset(model, 13).graph) == ["Relu", "BatchNormalization"]
    np.testing.assert_array_equal(run(model.serialize(), {"x": X})[0], before)


def test_batchnorm_for_every_element_of_a_map_stays():
    weights = {name: RNG(0).uniform(0.5, 2, (3, 2, 2)).astype(np.float32) for name in "sbmv"}
    text = "g (float[1,3,2,2] x) => (float[1,3,2,2] y) { y = BatchNormalization <spatial = 0> (x, s, b, m, v) }"
    assert normalised(model_of(text, weights, opset=8)) == []


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize(("op", "axis", "shape"), [
    ("Add", 1, (4,)), ("Sub", 1, (4,)), ("Mul", 1, (4, 3)), ("Div", 0, (2, 4)), ("Mul", 3, (5,)), ("Add", 1, (1,)),
    ("Add", -1, (3, 5)), ("Add", -3, (4,)), ("Sub", 0, (2, 4, 3, 5)),
])  # fmt: skip
def test_an_axis_to_repeat_from_is_kept(op, axis, shape, constant):
    """The converter gave a bias of four channels the shape [4, 1, 1, 1], and the result four times as many samples."""
    a, b = RNG(1).standard_normal((2, 4, 3, 5)).astype(np.float32), RNG(2).uniform(1, 2, shape).astype(np.float32)
    given = "" if constant else f", float[{','.join(map(str, shape))}] b"
    text = f"g (float[2,4,3,5] a{given}) => (float[2,4,3,5] y) {{ y = {op} <broadcast = 1, axis = {axis}> (a, b) }}"
    model = raise_opset(model_of(text, {"b": b} if constant else {}, opset=6), 7)
    first = 1 if axis == -3 else axis if axis >= 0 and b.size > 1 else 4 - b.ndim
    aligned = b.reshape(b.shape + (1,) * (4 - first - b.ndim))
    expected = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide}[op](a, aligned)
    (got,) = run(model.serialize(), {"a": a} if constant else {"a": a, "b": b})
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("shape", [(4,), (1,), (4, 1, 1)])
def test_slopes_of_prelu_stay_those_of_channels(shape):
    """The converter left them as they were, and they became slopes along the last axis where it is as long."""
    x, slope = RNG(1).standard_normal((2, 4, 3, 4)).astype(np.float32), RNG(2).uniform(0, 1, shape).astype(np.float32)
    text = "g (float[2,4,3,4] x) => (float[2,4,3,4] y) { y = PRelu (x, s) }"
    (got,) = run(raise_opset(model_of(text, {"s": slope}, opset=6), 7).serialize(), {"x": x})
    np.testing.assert_array_equal(got, np.where(x < 0, x * slope.reshape(-1, 1, 1), x))


def test_a_rank_that_is_not_known_is_refused():
    text = "g (float[2,4,3,5] a, float[4] b) => (float[] y) { r = Unknown(b) y = Add <broadcast = 1, axis = 1> (a, r) }"
    with pytest.raises(ModelError, match=r"cannot be converted from opset 6 to 7: the axes that node .* are not known"):
        raise_opset(model_of(text.replace("Unknown", "my.Unknown"), opset=6), 7)
