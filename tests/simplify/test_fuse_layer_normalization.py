"""Layer normalization however it is spelled out, and what only looks like it."""

from __future__ import annotations

import re

import numpy as np
import onnx
import pytest
from helpers import ALL, floats, run, session
from hypothesis import given, settings
from hypothesis import strategies as st
from spelled_support import assert_same, model_of, ops, simplified

from onnxq import simplify as simplifying
from onnxq.errors import ModelError
from onnxq.simplify import simplify

F = np.float32
EPSILON = F(1e-5)
WEIGHTS = {
    "g": F([1, -2, 0.5, 3, 1e-3, 1, 0.25, 7]),
    "b": F([0, 1, -1, 0.5, 2, 0, 0, -3]),
    "eps": EPSILON,
    "two": F(2),
    "unit": F(1),
    "minus_half": F(-0.5),
    "zero": F(0),
    "high": F(1e6),
    "eighth": F(0.125),
    "eight": F(8),
    "more": F(8 / 7),
    "last": np.int64([2]),
    "one": F([1]),
    "i0": np.int64([0]),
    "i2": np.int64([2]),
    "sizes": np.int64([3, 1]),
}
TAIL = "ve = Add(v, eps) d = Sqrt(ve) q = Div(c, d) f = Mul(q, g) y = Add(f, b)"
HEAD = "m = ReduceMean <axes = [-1]> (x) c = Sub(x, m)"
# name → (operator set, body from x [N, 3, 8] to y)
SPELLINGS = {
    "pow": (17, f"{HEAD} s = Pow(c, two) v = ReduceMean <axes = [2]> (s) {TAIL}"),
    "old": (9, f"{HEAD} s = Mul(c, c) v = ReduceMean <axes = [2]> (s) {TAIL}"),
    "two subtractions": (
        17,
        "m = ReduceMean <axes = [2]> (x) e = Sub(x, m) s = Mul(e, e) v = ReduceMean <axes = [2]> (s)"
        f" c = Sub(x, m) {TAIL}",
    ),
    "axes as input": (18, f"m = ReduceMean(x, last) c = Sub(x, m) s = Mul(c, c) v = ReduceMean(s, last) {TAIL}"),
    "sums": (
        13,
        "t = ReduceSum(x, last) m = Mul(t, eighth) c = Sub(x, m) s = Mul(c, c) u = ReduceSum(s, last)"
        f" v = Div(u, eight) {TAIL}",
    ),
    "square of a norm": (13, f"{HEAD} l = ReduceL2 <axes = [2]> (c) k = Mul(l, l) v = Mul(eighth, k) {TAIL}"),
    "norm": (
        13,
        f"{HEAD} n = ReduceSumSquare <axes = [2]> (c) o = Div(n, eight) ve = Add(eps, o) d = Pow(ve, minus_half)"
        " q = Mul(d, c) f = Mul(g, q) y = Add(b, f)",
    ),
    "difference of squares": (
        13,
        "m = ReduceMean <axes = [2]> (x) k = Mul(x, x) n = ReduceMean <axes = [2]> (k) o = Mul(m, m) w = Sub(n, o)"
        f" v = Max(zero, w) c = Sub(x, m) {TAIL}",
    ),
    "difference of squares, clipped": (
        13,
        "m = ReduceMean <axes = [2]> (x) k = Mul(x, x) n = ReduceMean <axes = [2]> (k) o = Mul(m, m) w = Sub(n, o)"
        f" v = Clip(w, zero) c = Sub(x, m) {TAIL}",
    ),
    "batch normalization": (
        13,
        f"{HEAD} s = Mul(c, c) v = ReduceMean <axes = [2]> (s) ve = Add(v, eps) d = Sqrt(ve) r = Reciprocal(d)"
        " k = Mul(r, g) o = Mul(x, k) n = Mul(m, k) w = Sub(b, n) y = Add(o, w)",
    ),
    "root of the scale": (
        13,
        f"{HEAD} s = Mul(c, c) v = ReduceMean <axes = [2]> (s) ve = Add(v, eps) d = Sqrt(ve) k = Div(g, d)"
        " q = Mul(k, c) y = Add(q, b)",
    ),
    "without keeping axes": (
        13,
        "n = ReduceMean <axes = [2], keepdims = 0> (x) m = Unsqueeze(n, last) c = Sub(x, m) s = Mul(c, c)"
        " w = ReduceMean <axes = [2], keepdims = 0> (s) a = Add(w, eps) r = Sqrt(a) d = Unsqueeze(r, last)"
        " q = Div(c, d) f = Mul(q, g) y = Add(f, b)",
    ),
    "broadcast to a computed shape": (
        14,
        "n = ReduceMean <axes = [2], keepdims = 0> (x) h = Shape(x) o = Slice(h, i0, i2, i0)"
        " k = Concat <axis = 0> (o, i1)"
        " p = Reshape(n, k) m = Expand(p, h) c = Sub(x, m) s = Mul(c, c)"
        " w = ReduceMean <axes = [2], keepdims = 0> (s) u = Reshape(w, k) v = Expand(u, k)" + TAIL,
    ),
    "the variance of n - 1": (
        13,
        f"{HEAD} s = Mul(c, c) w = ReduceMean <axes = [2]> (s) v = Mul(w, more) {TAIL}",
    ),
    "the length from Shape": (
        13,
        "t = ReduceSum(x, last) h = Shape(x) i = Gather(h, last) j = ReduceProd <keepdims = 0> (i)"
        " k = Cast <to = 1> (j) m = Div(t, k) c = Sub(x, m) s = Mul(c, c) u = ReduceMean <axes = [2]> (s) l = Mul(u, k)"
        f" p = Sub(k, unit) v = Div(l, p) {TAIL}",
    ),
    "means as pools, the shift of the mean apart": (
        13,
        "m = GlobalAveragePool(x) c = Sub(x, m) s = Mul(c, c) v = GlobalAveragePool(s) ve = Add(v, eps) d = Sqrt(ve)"
        " r = Reciprocal(d) f = Mul(r, g) h = Mul(x, f) o = Neg(m) i = Mul(o, f) j = Add(i, b) y = Add(h, j)",
    ),
    "in a wider shape": (
        13,
        f"{HEAD} s = Mul(c, c) u = ReduceMean <axes = [2]> (s) h = Shape(x) v = Expand(u, h) {TAIL}",
    ),
}  # fmt: skip

POW = SPELLINGS["pow"][1]


def text(body: str, shape: str = "N,3,8", out: str | None = None) -> str:
    return f"g (float[{shape}] x) => (float[{out or shape}] y) {{ {body} }}"


def rows(*shape: int, seed: int = 1) -> np.ndarray:
    """Rows of different means and variances."""
    spread = 10.0 ** np.arange(-2, shape[0] - 2).reshape(-1, *[1] * (len(shape) - 1))
    return (floats(*shape, seed=seed) * spread + spread).astype(F)


@pytest.mark.parametrize(("opset", "body"), SPELLINGS.values(), ids=SPELLINGS)
def test_every_spelling_is_one_operator(opset, body):
    found = simplified(text(body), {**WEIGHTS, "i1": np.int64([1])}, "fuse_layer_normalization", opset)
    raised = () if opset >= 17 else (f"opset raised from {opset} to 17",)
    assert found.notes == ("fused 1 decomposed LayerNormalization", *raised)
    assert ops(found.model) == ["LayerNormalization"]
    node = found.model.graph.nodes[0]
    _, scale, shift = node.inputs
    bessel = 7 / 8 if "more" in body or "unit" in body else 1
    np.testing.assert_allclose(scale.constant.numpy(), WEIGHTS["g"] * bessel**0.5, rtol=3e-7)
    np.testing.assert_array_equal(shift.constant.numpy(), WEIGHTS["b"])
    assert node.attributes() == {"axis": 2, "epsilon": pytest.approx(float(EPSILON) * bessel, rel=3e-7)}
    assert_same(found, {"x": rows(4, 3, 8)}, 1e-5)


def test_the_numbers():
    body = "m = ReduceMean <axes = [1]> (x) c = Sub(x, m) s = Mul(c, c) v = ReduceMean <axes = [1]> (s) ve = Add(v, k)"
    body += " d = Sqrt(ve) q = Div(c, d) f = Mul(q, g) y = Add(f, b)"
    weights = {"k": F(0.75), "g": F([1, 2, 3, 4]), "b": F([0, 0, 0, 1])}
    found = simplified(text(body, "2,4"), weights, "fuse_layer_normalization")
    assert found.model.graph.nodes[0].attribute("epsilon") == 0.75
    x = F([[1, 2, 3, 4], [7, 7, 7, 7]])  # variances 1.25 and 0
    expected = np.float64([[-1.5, -1, 1.5, 6], [0, 0, 0, 0]]) / np.sqrt(2) + [0, 0, 0, 1]
    np.testing.assert_allclose(run(found.model.serialize(), {"x": x})[0], expected, rtol=1e-6)


def test_it_is_nearer_to_the_truth_than_a_difference_of_squares():
    opset, body = SPELLINGS["difference of squares"]
    found = simplified(text(body), WEIGHTS, "fuse_layer_normalization", opset)
    x = (floats(64, 3, 8) + 100).astype(F)
    wide = x.astype(np.float64)
    expected = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + EPSILON)
    expected = expected * WEIGHTS["g"] + WEIGHTS["b"]
    before, after = (np.abs(run(m.serialize(), {"x": x})[0] - expected).max() for m in (found.original, found.model))
    assert after < before / 10


def normalised(axes: list[int]) -> str:
    return f"m = ReduceMean <axes = {axes}> (x) c = Sub(x, m) s = Mul(c, c) v = ReduceMean <axes = {axes}> (s) {TAIL}"


@pytest.mark.parametrize(
    ("shape", "axes", "scale", "expected", "axis", "perms"),
    [
        ((2, 3, 8), [1, 2], (3, 8), ["LayerNormalization"], 1, []),
        ((2, 16, 8), [1], (16, 1), ["Transpose", "LayerNormalization", "Transpose"], 2, [[0, 2, 1], [0, 2, 1]]),
        (
            (2, 4, 3, 5),
            [1, 3],
            (4, 1, 5),
            ["Transpose", "LayerNormalization", "Transpose"],
            2,
            [[0, 2, 1, 3], [0, 2, 1, 3]],
        ),
        ((16, 2, 3), [0], (16, 1, 1), ["Transpose", "LayerNormalization", "Transpose"], 2, [[1, 2, 0], [2, 0, 1]]),
        ((2, 6, 1, 1), [1], (6, 1, 1), ["LayerNormalization"], 1, []),
    ],
)
def test_axes(shape, axes, scale, expected, axis, perms):
    """Axes that are not the last ones are turned to the end, unless all behind them have length 1."""
    weights = {**WEIGHTS, "g": floats(*scale, seed=3), "b": floats(*scale, seed=4)}
    found = simplified(text(normalised(axes), ",".join(map(str, shape))), weights, "fuse_layer_normalization")
    assert ops(found.model) == expected
    made = found.model.graph.nodes
    assert [node.attribute("axis") for node in made if node.op_type == "LayerNormalization"] == [axis]
    assert [node.attribute("perm") for node in made if node.op_type == "Transpose"] == perms
    assert_same(found, {"x": rows(*shape)}, 1e-5)


def test_a_few_elements_are_not_worth_turning():
    weights = {**WEIGHTS, "g": floats(15, 1), "b": floats(15, 1)}
    assert simplified(text(normalised([1]), "2,15,8"), weights, "fuse_layer_normalization").notes == ()


def test_the_operator_has_the_name_of_the_last_node():
    """By it recipes and people know what computes the result."""
    model = model_of(text(POW), WEIGHTS, 17)
    model.graph.nodes[-1].name = "encoder.norm"
    found = simplify(model, ["fuse_layer_normalization"])
    assert [node.name for node in found.model.graph.nodes] == ["encoder.norm"]


def test_shapes_that_shape_inference_cannot_tell():
    """Before operator set 14 the result of a computed Reshape has no rank for ONNX: sizes are followed."""
    body = SPELLINGS["broadcast to a computed shape"][1]
    model = model_of(text(body), {**WEIGHTS, "i1": np.int64([1])}, 13)
    found = simplify(model, ["eliminate_no_ops", "fuse_layer_normalization"])
    assert found.notes[-2:] == ("fused 1 decomposed LayerNormalization", "opset raised from 13 to 17")
    assert ops(found.model) == ["LayerNormalization"]
    assert_same(found, {"x": rows(4, 3, 8)}, 1e-5)


def test_a_large_constant_behind_does_not_matter():
    body = POW.replace("y =", "o =") + " y = Add(o, positions)"
    weights = {**WEIGHTS, "positions": floats(40000, 8)}
    found = simplified(text(body, "1,40000,8"), weights, "fuse_layer_normalization")
    assert ops(found.model) == ["LayerNormalization", "Add"]


def test_without_scale_and_shift():
    body = f"{HEAD} s = Mul(c, c) v = ReduceMean <axes = [2]> (s) ve = Add(v, eps) d = Sqrt(ve) y = Div(c, d)"
    found = simplified(text(body), WEIGHTS, "fuse_layer_normalization")
    (node,) = found.model.graph.nodes
    assert len(node.inputs) == 2
    np.testing.assert_allclose(node.inputs[1].constant.numpy(), np.ones(8), rtol=1e-6)
    assert_same(found, {"x": rows(4, 3, 8)}, 1e-5)


@pytest.mark.parametrize(
    ("shape", "body", "weights", "expected"),
    [
        ("4,3,8", POW, {"b": floats(3, 8)}, ["LayerNormalization", "Add"]),  # as where positions are added
        ("1,3,8", POW, {"g": floats(4, 1, 8)}, ["LayerNormalization", "Mul", "Add"]),  # larger than its input
        ("4,3,8", f"k = Abs(x) {POW.replace('(q, g)', '(q, k)')}", {}, ["Abs", "Add", "LayerNormalization", "Mul"]),
        ("4,3,8", POW, {"g": np.zeros(8, F)}, ["LayerNormalization", "Mul", "Add"]),
        ("4,3,8", POW.replace("y =", "r =") + " y = Clip(r, zero, high)", {}, ["LayerNormalization", "Clip"]),
        ("4,3,8", POW.replace("y =", "r =") + " y = Relu(r)", {"b": np.full(8, 99, F)}, ["LayerNormalization", "Relu"]),
        ("4,3,8", "r = Min(x, high) " + POW.replace("(x", "(r"), {}, ["Min", "LayerNormalization"]),
    ],
)
def test_what_is_not_the_same_for_all_rows_stays_behind(shape, body, weights, expected):
    found = simplified(text(body, shape, "A,B,C"), {**WEIGHTS, **weights}, "fuse_layer_normalization")
    assert sorted(ops(found.model)) == sorted(expected)
    assert_same(found, {"x": rows(*map(int, shape.split(",")))}, 1e-5)


@pytest.mark.parametrize(("wide", "left"), [("b", ["Add"]), ("g", ["Mul", "Add"])])
def test_a_constant_that_adds_an_axis_stays_behind(wide, left):
    found = simplified(text(POW, "4,3,8", "A,B,C,D"), {**WEIGHTS, wide: floats(1, 1, 1, 8)}, "fuse_layer_normalization")
    assert ops(found.model) == ["LayerNormalization", *left]
    assert_same(found, {"x": rows(4, 3, 8)}, 1e-5)


def test_a_dropout_behind_it_is_none_in_inference():
    """Its kernel gives a mask as well, which ended in a ValueError."""
    body = POW.replace("y =", "r =") + " y = Dropout(r)"
    found = simplified(text(body, "4,3,8"), WEIGHTS, "fuse_layer_normalization")
    assert ops(found.model) == ["LayerNormalization"]
    assert_same(found, {"x": rows(4, 3, 8)}, 1e-5)


def test_two_in_a_row():
    first = POW.replace("y =", "r =")
    second = re.sub(r"\b(m|c|s|v|ve|d|q|f)\b", r"\g<1>2", POW).replace("(x", "(r")
    found = simplified(text(f"{first} {second}"), WEIGHTS, "fuse_layer_normalization")
    assert found.notes == ("fused 2 decomposed LayerNormalization",)
    assert ops(found.model) == ["LayerNormalization"] * 2
    assert_same(found, {"x": rows(4, 3, 8)}, 1e-5)


def test_the_shape_of_a_value_inside_is_that_of_the_entry():
    found = simplified(
        f"g (float[N,3,8] x, float[1] z) => (float[N,3,8] y, float[N,3,8] w) {{{POW} h = Shape(c) w = Expand(z, h) }}",
        WEIGHTS,
        "fuse_layer_normalization",
    )
    assert sorted(ops(found.model)) == ["Expand", "LayerNormalization", "Shape"]
    assert_same(found, {"x": rows(4, 3, 8), "z": F([3])}, 1e-5)


def test_in_a_body():
    whole = (
        "g (float[N,3,8] x, bool p) => (float[N,3,8] z) { z = If (p) <"
        f"then_branch = t () => (float[N,3,8] y) {{ {POW} }},"
        "else_branch = e () => (float[N,3,8] o) { o = Neg(x) }> }"
    )
    found = simplified(whole, WEIGHTS, "fuse_layer_normalization")
    assert [node.op_type for node in found.model.graph.walk()] == ["If", "LayerNormalization", "Neg"]
    for choice in (True, False):
        assert_same(found, {"x": rows(4, 3, 8), "p": np.array(choice)}, 1e-5)


def test_double():
    weights = {name: array.astype(np.float64) if array.dtype == F else array for name, array in WEIGHTS.items()}
    found = simplified(text(POW).replace("float[", "double["), weights, "fuse_layer_normalization")
    assert ops(found.model) == ["LayerNormalization"]
    assert_same(found, {"x": rows(4, 3, 8).astype(np.float64)}, 1e-6)


# name → (shape of x, body, outputs besides y, weights)
NOT_ONE = {
    "another reader inside": ("N,3,8", f"{POW} z = Neg(c)", ", float[N,3,8] z", {}),
    "an output inside": ("N,3,8", POW, ", float[N,3,1] d", {}),
    "another axis in the variance": ("8,8,8", POW.replace("axes = [2]", "axes = [1]"), "", {}),
    "other axes in the mean": ("4,8,8", POW.replace("axes = [-1]", "axes = [1, 2]"), "", {}),
    "no epsilon": ("N,3,8", POW.replace("Add(v, eps)", "Identity(v)"), "", {}),
    "epsilon of nothing": ("N,3,8", POW, "", {"eps": F(0)}),
    "epsilon outside the root": (
        "N,3,8",
        POW.replace("ve = Add(v, eps) d = Sqrt(ve)", "ve = Sqrt(v) d = Add(ve, eps)"),
        "",
        {},
    ),
    "an epsilon for each element": ("N,3,8", POW, "", {"eps": F([[1e-5] * 7 + [1e-3]])}),
    "cube for square": ("N,3,8", POW, "", {"two": F(3)}),
    "mean of squares without the mean": ("N,3,8", POW.replace("Sub(x, m)", "Identity(x)"), "", {}),
    "divided by another number": ("N,3,8", SPELLINGS["sums"][1], "", {"eighth": F(0.1)}),
    "another value normalised": ("N,3,8", POW.replace("Div(c, d)", "Div(x, d)"), "", {}),
    "axes paired otherwise by broadcasting": (
        "8,8",
        "m = ReduceMean <axes = [1], keepdims = 0> (x) c = Sub(x, m) s = Mul(c, c)"
        " v = ReduceMean <axes = [1], keepdims = 0> (s)" + TAIL,
        "",
        {},
    ),
    "a batch that grows": (
        "1,8",
        "m = ReduceMean <axes = [1]> (x) k = Expand(m, sizes) c = Sub(x, k) s = Mul(c, c)"
        " v = ReduceMean <axes = [1]> (s)" + TAIL,
        "",
        {},
    ),
    "unknown length": ("N,3,K", POW, "", {}),
    "a limit to the variance": ("N,3,8", POW.replace("ve = Add(v,", "l = Min(v, high) ve = Add(l,"), "", {}),
    "a limit for the mean alone": ("N,3,8", f"l = Min(x, high) {POW.replace('> (x)', '> (l)')}", "", {}),
    "one element": ("N,3,1", POW, "", {"g": F([2]), "b": F([1])}),
}  # fmt: skip


@pytest.mark.parametrize(("shape", "body", "outputs", "weights"), NOT_ONE.values(), ids=NOT_ONE)
def test_what_is_no_layer_normalization_stays(shape, body, outputs, weights):
    out = "a,b" if shape.count(",") == 1 else "a,b,c"
    whole = f"g (float[{shape}] x) => (float[{out}] y{outputs}) {{ {body} }}"
    opset = 13 if "ReduceSum(" in body else 17
    model = model_of(whole, {**WEIGHTS, "i1": np.int64([1]), **weights}, opset)
    before = model.serialize()
    found = simplify(model, ["fuse_layer_normalization"])
    assert found.notes == ()
    assert found.model.serialize() == before


def test_a_reader_in_a_body_keeps_everything():
    whole = (
        "g (float[N,3,8] x, bool p) => (float[N,3,8] y, float[N,3,8] z) {"
        f"{POW} z = If (p) <then_branch = t () => (float[N,3,8] o) {{ o = Neg(c) }},"
        "else_branch = e () => (float[N,3,8] o2) { o2 = Neg(x) }> }"
    )
    assert simplified(whole, WEIGHTS, "fuse_layer_normalization").notes == ()


def test_a_model_that_cannot_be_converted_keeps_it(monkeypatch):
    def refuse(model, minimum):
        raise ModelError("no way")

    monkeypatch.setattr(simplifying, "raise_opset", refuse)
    opset, body = SPELLINGS["old"]
    assert simplified(text(body), WEIGHTS, "fuse_layer_normalization", opset).notes == ()


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_axes_any_parameters(data):
    """Whatever is drawn, onnxruntime gives the same for both to 1e-5 of the largest element."""
    rank = data.draw(st.integers(1, 4), "rank")
    shape = [data.draw(st.sampled_from([1, 2, 3, 5, 8]), f"length {axis}") for axis in range(rank)]
    axes = sorted(data.draw(st.sets(st.integers(0, rank - 1), min_size=1), "axes"))
    seed = data.draw(st.integers(0, 100), "seed")
    constants = [size if axis in axes else 1 for axis, size in enumerate(shape)]
    weights = {
        **WEIGHTS,
        "g": floats(*constants, seed=seed) + F(0.1),
        "b": floats(*constants, seed=seed + 1),
        "eps": F(data.draw(st.sampled_from([1e-12, 1e-6, 1e-5, 1e-3, 0.5]), "epsilon")),
    }
    variance = data.draw(st.sampled_from(["s = Mul(c, c)", "s = Pow(c, two)"]), "square")
    keep = data.draw(st.booleans(), "axes kept")
    reduce = f"ReduceMean <axes = {axes}, keepdims = {int(keep)}>"
    keeps = "" if keep else f"<axes = {axes}>"
    whole = "Identity" if keep else "Unsqueeze"
    body = (
        f"a = {reduce} (x) m = {whole} {keeps} (a) c = Sub(x, m) {variance} w = {reduce} (s)"
        f" v = {whole} {keeps} (w) {TAIL}"
    )
    count = int(np.prod(constants))
    found = simplified(text(body, ",".join(map(str, shape))), weights, "fuse_layer_normalization", opset=11)
    last = all(axis in axes or shape[axis] == 1 for axis in range(axes[0], rank))
    assert bool(found.notes) == (count >= (2 if last else 16))
    if found.notes:
        assert {"LayerNormalization", "Transpose"} >= set(ops(found.model))
        assert_same(found, {"x": floats(*shape, seed=seed + 2, scale=3)}, 1e-5)


def test_onnxruntime_still_fuses_the_sum_before(tmp_path):
    """Add and LayerNormalization become SkipLayerNormalization, as from the spelling that onnxruntime knows itself."""
    body = POW.replace("(x", "(u")
    whole = f"g (float[2,3,8] x, float[2,3,8] z) => (float[2,3,8] y) {{ u = Add(x, z) {body} }}"
    found = simplified(whole, WEIGHTS, "fuse_layer_normalization")
    fused = []
    for model in (found.original, found.model):
        session(model.serialize(), ALL, str(tmp_path / "m.onnx"))
        fused.append([node.op_type for node in onnx.load(tmp_path / "m.onnx").graph.node])
    assert fused[0] == fused[1] == ["SkipLayerNormalization"]
