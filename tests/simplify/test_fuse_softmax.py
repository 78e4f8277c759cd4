"""Softmax and LogSoftmax however they are spelled out, and what only looks like them."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import floats, run
from hypothesis import given, settings
from hypothesis import strategies as st
from spelled_support import assert_same, model_of, ops, simplified

from onnxq.simplify import simplify

F = np.float32
WEIGHTS = {
    "low": F(-np.inf),
    "tiny": F(1e-12),
    "zero": F(0),
    "low_end": F(-100),
    "high": F(1e37),
    "small": F(1e-3),
    "half": F(0.5),
    "last": np.int64([2]),
    "i0": np.int64([0]),
    "i1": np.int64([1]),
    "i2": np.int64([2]),
    "ten": F(10),
    "mask": F([1, 1, 1, 1, 0]),
}
HEAD = "m = ReduceMax <axes = [2]> (x) c = Sub(x, m)"
SUM = "e = Exp(c) t = ReduceSum(e, last)"
WITHOUT_MAX = "e = Exp(x) t = ReduceSum(e, last) y = Div(e, t)"
# name → (operator set, body from x [N, 3, 5] to y, operator that it is)
SPELLINGS = {
    "plain": (13, f"{HEAD} {SUM} y = Div(e, t)", "Softmax"),
    "old": (
        9,
        "m = ReduceMax <axes = [-1]> (x) c = Sub(x, m) e = Exp(c) t = ReduceSum <axes = [-1]> (e) y = Div(e, t)",
        "Softmax",
    ),
    "without the maximum": (13, WITHOUT_MAX, "Softmax"),
    "times the reciprocal": (13, f"{HEAD} {SUM} r = Reciprocal(t) y = Mul(e, r)", "Softmax"),
    "exp of the difference": (13, f"{HEAD} {SUM} l = Log(t) o = Sub(c, l) y = Exp(o)", "Softmax"),
    "by the logarithm of the sum": (13, "l = ReduceLogSumExp <axes = [2]> (x) o = Sub(x, l) y = Exp(o)", "Softmax"),
    "an epsilon that is lost": (13, f"{HEAD} {SUM} u = Add(t, tiny) y = Div(e, u)", "Softmax"),
    "without keeping axes": (
        13,
        "n = ReduceMax <axes = [2], keepdims = 0> (x) o = Max(low, n) m = Unsqueeze(o, last) c = Sub(x, m) e = Exp(c)"
        " u = ReduceSum <keepdims = 0> (e, last) t = Unsqueeze(u, last) y = Div(e, t)",
        "Softmax",
    ),
    "broadcast to a computed shape": (
        14,
        "n = ReduceMax <axes = [2], keepdims = 0> (x) h = Shape(x) a = Slice(h, i0, i2, i0)"
        " k = Concat <axis = 0> (a, i1) p = Reshape(n, k) m = Expand(p, h) c = Sub(x, m) e = Exp(c)"
        " u = ReduceSum <keepdims = 0> (e, last) q = Reshape(u, k) t = Expand(q, h) y = Div(e, t)",
        "Softmax",
    ),
    "logarithm": (13, f"{HEAD} {SUM} l = Log(t) y = Sub(c, l)", "LogSoftmax"),
    "logarithm without the maximum": (13, "e = Exp(x) t = ReduceSum(e, last) l = Log(t) y = Sub(x, l)", "LogSoftmax"),
    "logarithm of the quotient": (13, f"{HEAD} {SUM} q = Div(e, t) y = Log(q)", "LogSoftmax"),
    "logarithm and maximum added": (13, f"{HEAD} {SUM} l = Log(t) n = Add(l, m) y = Sub(x, n)", "LogSoftmax"),
    "a maximum that may be infinite": (
        13,
        "m = ReduceMax <axes = [2]> (x) i = IsInf(m) j = IsNaN(m) k = Or(i, j) n = Where(k, zero, m) c = Sub(x, n)"
        f" {SUM} l = Log(t) o = Add(l, n) y = Sub(x, o)",
        "LogSoftmax",
    ),
    "a sum that may be zero": (
        13,
        "e = Exp(x) t = ReduceSum(e, last) i = Equal(t, zero) q = Div(e, t) y = Where(i, zero, q)",
        "Softmax",
    ),
    "ReduceLogSumExp": (18, "l = ReduceLogSumExp(x, last) y = Sub(x, l)", "LogSoftmax"),
}
PLAIN = SPELLINGS["plain"][1]


def text(body: str, shape: str = "N,3,5", more: str = "") -> str:
    return f"g (float[{shape}] x) => (float[{shape}] y{more}) {{ {body} }}"


@pytest.mark.parametrize(("opset", "body", "op_type"), SPELLINGS.values(), ids=SPELLINGS)
def test_every_spelling_is_one_operator(opset, body, op_type):
    found = simplified(text(body), WEIGHTS, "fuse_softmax", opset)
    assert found.notes == ("fused 1 decomposed Softmax",)
    assert ops(found.model) == [op_type]
    assert found.model.graph.nodes[0].attributes() == {"axis": 2}
    assert_same(found, {"x": floats(4, 3, 5, scale=8)}, 1e-5)


def test_the_numbers():
    found = simplified(text(PLAIN, "1,1,2"), WEIGHTS, "fuse_softmax", 13)
    x = np.log(F([[[1, 3]]]))
    np.testing.assert_allclose(run(found.model.serialize(), {"x": x})[0], [[[0.25, 0.75]]], rtol=1e-6)


def test_without_the_maximum_nothing_overflows_any_more():
    found = simplified(text(WITHOUT_MAX, "1,1,2"), WEIGHTS, "fuse_softmax", 13)
    x = F([[[100, 100]]])
    before, after = (run(model.serialize(), {"x": x})[0] for model in (found.original, found.model))
    assert np.isnan(before).all()
    np.testing.assert_array_equal(after, [[[0.5, 0.5]]])


@pytest.mark.parametrize(("opset", "raised"), [(11, ("opset raised from 11 to 13",)), (13, ()), (17, ())])
def test_another_axis_needs_operator_set_13(opset, raised):
    """Before, the operator takes all axes behind together."""
    body = "m = ReduceMax <axes = [1]> (x) c = Sub(x, m) e = Exp(c) l = ReduceLogSumExp <axes = [1]> (c) "
    found = simplified(text(body + "k = Exp(l) y = Div(e, k)", "N,16,5"), WEIGHTS, "fuse_softmax", opset)
    assert found.notes == ("fused 1 decomposed Softmax", *raised)
    assert ops(found.model) == ["Softmax"]
    assert found.model.graph.nodes[0].attribute("axis") == 1
    assert_same(found, {"x": floats(4, 16, 5, scale=8)}, 1e-5)


@pytest.mark.parametrize("shape", ["N,15,5", "N,16,H,5", "N,C,5"])
def test_along_another_axis_it_is_written_where_that_is_faster(shape):
    """Not for few elements, nor where several axes behind have no known length, nor along one of unknown length."""
    body = "m = ReduceMax <axes = [1]> (x) c = Sub(x, m) e = Exp(c) t = ReduceSum(e, i1) y = Div(e, t)"
    assert simplified(text(body, shape), WEIGHTS, "fuse_softmax", 13).notes == ()


def test_a_length_that_is_not_known():
    found = simplified(text(PLAIN, "N,3,K"), WEIGHTS, "fuse_softmax", 13)
    assert ops(found.model) == ["Softmax"]
    assert_same(found, {"x": floats(4, 3, 9, scale=8)}, 1e-5)


def test_axes_of_length_1_beside():
    body = "m = ReduceMax <axes = [1, 2, 3]> (x) c = Sub(x, m) e = Exp(c) t = ReduceSum(e, all) y = Div(e, t)"
    found = simplified(text(body, "N,5,1,1"), {**WEIGHTS, "all": np.int64([1, 2, 3])}, "fuse_softmax", 13)
    assert ops(found.model) == ["Softmax"]
    assert found.model.graph.nodes[0].attribute("axis") == 1
    assert_same(found, {"x": floats(4, 5, 1, 1)}, 1e-5)


def test_what_comes_before_and_behind_stays():
    body = f"d = Mul(x, half) {PLAIN.replace('(x', '(d').replace('y = ', 's = ')} y = Mul(s, mask)"
    found = simplified(text(body), WEIGHTS, "fuse_softmax", 13)
    assert ops(found.model) == ["Mul", "Softmax", "Mul"]
    assert_same(found, {"x": floats(4, 3, 5)}, 1e-5)


def test_exponents_with_a_limit():
    body = f"{HEAD} l = Max(c, low_end) e = Exp(l) t = ReduceSum(e, last) y = Div(e, t)"
    found = simplified(text(body), WEIGHTS, "fuse_softmax", 13)
    assert ops(found.model) == ["ReduceMax", "Sub", "Max", "Softmax"]
    assert_same(found, {"x": floats(4, 3, 5, scale=100)}, 1e-5)


def test_a_maximum_along_another_axis_is_a_value_like_any_other():
    found = simplified(
        text(f"{HEAD} e = Exp(c) t = ReduceSum(e, i1) y = Div(e, t)", "N,16,5"), WEIGHTS, "fuse_softmax", 13
    )
    assert ops(found.model) == ["ReduceMax", "Sub", "Softmax"]
    assert found.model.graph.nodes[2].attribute("axis") == 1
    assert_same(found, {"x": floats(4, 16, 5)}, 1e-5)


# name → (shape of x, body, outputs besides y)
NOT_ONE = {
    "another reader inside": ("N,3,5", f"{PLAIN} z = Neg(e)", ", float[N,3,5] z"),
    "an output inside": ("N,3,5", PLAIN, ", float[N,3,1] t"),
    "an epsilon that is not lost": (
        "N,3,5",
        WITHOUT_MAX.replace("Div(e, t)", "Div(e, u)").replace("y =", "u = Add(t, tiny) y ="),
        "",
    ),
    "an epsilon beside the sum": ("N,3,5", f"{HEAD} {SUM} u = Add(t, small) y = Div(e, u)", ""),
    "a mask": ("N,3,5", f"{HEAD} o = Exp(c) e = Mul(o, mask) t = ReduceSum(e, last) y = Div(e, t)", ""),
    "a sum with a limit": ("N,3,5", "e = Exp(x) s = ReduceSum(e, last) t = Min(s, high) y = Div(e, t)", ""),
    "powers of ten": ("N,3,5", f"{HEAD} e = Pow(ten, c) t = ReduceSum(e, last) y = Div(e, t)", ""),
    "divided the wrong way round": ("N,3,5", f"{HEAD} {SUM} y = Div(t, e)", ""),
    "the maximum for the sum": ("N,3,5", f"{HEAD} e = Exp(c) t = ReduceMax <axes = [2]> (e) y = Div(e, t)", ""),
    "over two axes": ("N,3,5", "e = Exp(x) t = ReduceSum(e, both) y = Div(e, t)", ""),
    "axes paired otherwise by broadcasting": (
        "5,5",
        "e = Exp(x) t = ReduceSum <keepdims = 0> (e, i1) y = Div(e, t)",
        "",
    ),
}


@pytest.mark.parametrize(("shape", "body", "outputs"), NOT_ONE.values(), ids=NOT_ONE)
def test_what_is_no_softmax_stays(shape, body, outputs):
    model = model_of(text(body, shape, outputs), {**WEIGHTS, "both": np.int64([1, 2])}, 13)
    before = model.serialize()
    found = simplify(model, ["fuse_softmax"])
    assert found.notes == ()
    assert found.model.serialize() == before


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_any_axis(data):
    """Whatever is drawn, onnxruntime gives the same for both to 1e-5 of the largest element."""
    rank = data.draw(st.integers(1, 4), "rank")
    shape = [data.draw(st.sampled_from([1, 2, 3, 16]), f"length {axis}") for axis in range(rank)]
    axis = data.draw(st.integers(0, rank - 1), "axis")
    keep = data.draw(st.booleans(), "axis kept")
    scale = data.draw(st.sampled_from([0.1, 1, 10, 40]), "spread")
    flat = f"keepdims = {int(keep)}"
    back = "Identity(" if keep else f"Unsqueeze <axes = [{axis}]> ("
    largest = data.draw(st.booleans(), "maximum taken off") or scale > 10
    first = f"n = ReduceMax <axes = [{axis}], {flat}> (x) m = {back}n) c = Sub(x, m)" if largest else "c = Identity(x)"
    end, op_type = data.draw(
        st.sampled_from([("y = Div(e, t)", "Softmax"), ("l = Log(t) y = Sub(c, l)", "LogSoftmax")]), "end"
    )
    body = f"{first} e = Exp(c) u = ReduceSum <axes = [{axis}], {flat}> (e) t = {back}u) {end}"
    found = simplified(text(body, ",".join(map(str, shape))), WEIGHTS, "fuse_softmax", 11)
    last = all(size == 1 for size in shape[axis + 1 :])
    assert bool(found.notes) == (shape[axis] >= (2 if last else 16))
    if found.notes:
        assert [op for op in ops(found.model) if op != "Identity"] == [op_type]
        assert_same(found, {"x": floats(*shape, scale=scale)}, 1e-5)
