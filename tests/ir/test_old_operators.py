"""Operators and attributes that only old exporters write are written as newer operator sets have them."""

from __future__ import annotations

import numpy as np
from ir_support import X, model_of, normalised, ops, run

from onnxq.ir.opset import raise_opset

RNG = np.random.default_rng


def test_image_scaler_becomes_what_newer_opsets_have():
    """A tiny YOLO of CoreML's converter was refused: the version converter knows no ImageScaler."""
    text = "g (float[1,3,2,2] x) => (float[1,3,2,2] y) { y = ImageScaler <scale = 0.5, bias = [1.0, -2.0, 3.0]> (x) }"
    model = model_of(text, opset=8)
    feeds = {"x": RNG(0).standard_normal((1, 3, 2, 2)).astype(np.float32)}
    before = run(model.serialize(), feeds)[0]
    assert normalised(model) == ["wrote 1 ImageScaler as Mul and Add"]
    assert ops(raise_opset(model, 13).graph) == ["Mul", "Add"]
    np.testing.assert_array_equal(run(model.serialize(), feeds)[0], before)


def test_batchnorm_of_rows_for_every_element_is_one_for_every_channel():
    """As MXNet wrote it behind fully connected layers: no opset from 9 on has the attribute."""
    body = "a = Relu(x) y = BatchNormalization <spatial = 0> (a, s, b, m, v)"
    model = model_of(
        f"g (float[2,4] x) => (float[2,4] y) {{ {body} }}",
        {name: RNG(0).uniform(0.5, 2, 4).astype(np.float32) for name in "sbmv"},
        opset=8,
    )
    before = run(model.serialize(), {"x": X})[0]
    assert normalised(model) == ["took 1 BatchNormalization for every element as one for every channel"]
    assert ops(raise_opset(model, 13).graph) == ["Relu", "BatchNormalization"]
    np.testing.assert_array_equal(run(model.serialize(), {"x": X})[0], before)


def test_batchnorm_for_every_element_of_a_map_stays():
    weights = {name: RNG(0).uniform(0.5, 2, (3, 2, 2)).astype(np.float32) for name in "sbmv"}
    text = "g (float[1,3,2,2] x) => (float[1,3,2,2] y) { y = BatchNormalization <spatial = 0> (x, s, b, m, v) }"
    assert normalised(model_of(text, weights, opset=8)) == []
