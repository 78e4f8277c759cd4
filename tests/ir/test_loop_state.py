"""State that a Loop carries, and constants that it need not carry."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import run
from ir_support import X, assert_consistent, model_of, node_of, normalised, ops, value_of

from onnxq.ir import Use, infer_types

COUNT = {"n": np.int64(3), "go": np.array(True), "w": np.float32([[1, -2, 0.5, 3]]), "v": np.float32([[0.5, 1, 2, -1]])}
LOOP = """g (float[2,4] x) => (float[2,4] y, float[1,4] z) {{
  {behind}h, k, m, all = Loop (n, go, x, w, v) <body = b (int64 i, bool g, float[2,4] s, float[1,4] a, float[1,4] c)
      => (bool g2, float[2,4] t, float[1,4] a2, float[1,4] c2, float[2,4] o)
    {{ g2 = Identity(g) p = Mul(s, a) t = Add(p, c) {inside} o = Neg(t) }}>
  y = Identity(h) z = {last} }}"""
HANDED_ON = LOOP.format(behind="", inside="a2 = Identity(a) c2 = Identity(c)", last="Mul(k, m)")
CHANGED = LOOP.format(behind="", inside="a2 = Neg(a) c2 = Identity(c)", last="Mul(k, m)")


def loop_of(model):
    return node_of(model.graph, "Loop")


def test_constants_that_a_loop_hands_on_are_read_from_outside():
    model = model_of(HANDED_ON, COUNT)
    before = run(model.serialize(), {"x": X})
    assert "hoisted 2 constants out of Loop state" in normalised(model)
    assert_consistent(model)
    loop = loop_of(model)
    body = loop.bodies["body"][0]
    assert [value.name for value in loop.inputs] == ["n", "go", "x"]
    assert [value.name for value in loop.outputs] == ["h", "all"]
    assert [value.name for value in body.inputs] == ["i", "g", "s"]
    assert [value.name for value in body.outputs] == ["g2", "t", "o"]
    assert ops(body) == ["Identity", "Mul", "Add", "Neg"]
    assert next(iter(value_of(model.graph, "w").uses)) == Use(body.nodes[1], 1)
    infer_types(model)
    for got, expected in zip(run(model.serialize(), {"x": X}), before, strict=True):
        np.testing.assert_array_equal(got, expected)


def test_state_that_changes_stays():
    model = model_of(CHANGED, COUNT)
    assert "hoisted 1 constant out of Loop state" in normalised(model)
    assert_consistent(model)
    assert [value.name for value in loop_of(model).inputs] == ["n", "go", "x", "w"]


@pytest.mark.parametrize("start", ["x", "w"])
def test_state_that_is_no_constant_or_an_output_stays(start):
    text = HANDED_ON.replace("(n, go, x, w, v)", "(n, go, x, r, v)").replace("h, k,", "r = Relu(w) h, k,")
    if start == "w":
        text = HANDED_ON.replace("float[1,4] z)", "float[1,4] k)").replace("z = Mul(k, m)", "")
    else:
        text = text.replace("Relu(w)", "Clip(w, x0)").replace("(float[2,4] x)", "(float[2,4] x, float x0)")
    model = model_of(text, COUNT)
    assert "hoisted 1 constant out of Loop state" in normalised(model)
    assert_consistent(model)
    assert len(loop_of(model).inputs) == 4


def test_state_that_is_stacked_too_stays():
    """As an input of the body, which would go, it is listed twice among its outputs."""
    text = HANDED_ON.replace("a2 = Identity(a)", "").replace("float[1,4] a2", "float[1,4] a")
    text = text.replace("float[2,4] o)", "float[1,4] a)").replace("o = Neg(t)", "")
    model = model_of(text, COUNT)
    before = run(model.serialize(), {"x": X})
    assert "hoisted 1 constant out of Loop state" in normalised(model)
    assert_consistent(model)
    for got, expected in zip(run(model.serialize(), {"x": X}), before, strict=True):
        np.testing.assert_array_equal(got, expected)
