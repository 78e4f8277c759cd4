"""MatMul: the dynamic form to the bit, inside bodies as well."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from helpers import ALL, F, build, floats, graph, node, quantize_in_memory, sqnr
from integer_products import (
    FULL,
    SHAPES,
    dynamic,
    dynamic_product,
    exact_product,
    quantize_activation,
    quantize_matrix,
)
from onnx import TensorProto, helper
from saturating_product import product_here


@pytest.mark.parametrize("weight", [0, 1], ids=["weight_left", "weight_right"])
@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
def test_dynamic_matmul_is_integer_arithmetic_to_the_bit(shapes, weight):
    a, b = (floats(*shape, seed=seed) for seed, shape in enumerate(shapes))
    given, constant = ("xw", (a, b)[1]) if weight == 1 else ("wx", (a, b)[0])
    x = (a, b)[1 - weight]
    made = dynamic(build([node("MatMul", " ".join(given), "y")], {"x": [None] * x.ndim}, ["y"], {"w": constant}))
    (y,) = made.run({"x": x})
    np.testing.assert_array_equal(y, dynamic_product(a, b, weight), strict=True)
    assert sqnr(y, made.run({"x": x}, ALL)[0]) > 100  # the same integers
    # two 8-bit factors of normal numbers, with min-max ranges: about 38 dB
    assert sqnr(a @ b, dynamic_product(a, b, weight, product=exact_product)) > 30
    assert made.ops == {"DynamicQuantizeLinear": 1, "MatMulInteger": 1, "Cast": 1, "Mul": 2}


@pytest.mark.parametrize("granularity", ["channel", "tensor"])
@pytest.mark.parametrize("weight", [0, 1], ids=["weight_left", "weight_right"])
@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
def test_what_onnxruntime_fuses_with_a_bias_behind_is_right(shapes, weight, granularity):
    """onnxruntime's fused kernel adds the bias before it applies scales of rows: 5 dB where that form is written."""
    a, b = (floats(*shape, seed=seed) for seed, shape in enumerate(shapes))
    given, constant = ("xw", b) if weight == 1 else ("wx", a)
    x = (a, b)[1 - weight]
    nodes = [node("MatMul", " ".join(given), "p"), node("Add", "p c", "y")]
    weights = {"w": constant, "c": floats(b.shape[-1], seed=5, scale=4)}
    proto = build(nodes, {"x": [None] * x.ndim}, ["y"], weights)
    for recipe, samples in (("dynamic-int8", []), ("static-int8", [{"x": x}])):
        made = quantize_in_memory(proto, recipe, samples, granularity=granularity)
        # the same integers, float sums in another order; float products where the static form is not fused
        assert sqnr(made.run({"x": x})[0], made.run({"x": x}, ALL)[0]) > 100, recipe


def test_dynamic_matmul_runs_as_one_integer_kernel():
    nodes = [node("MatMul", "x w", "p"), node("Add", "p c", "y")]
    weights = {"w": floats(32, 16), "c": floats(16, seed=1)}
    made = quantize_in_memory(build(nodes, {"x": [8, 32]}, ["y"], weights))
    assert made.optimized() == {"DynamicQuantizeMatMul": 1}


def test_dynamic_matmul_with_one_scale_for_the_whole_weight():
    x, w = floats(4, 6), floats(6, 7, seed=1)
    made = quantize_in_memory(
        build([node("MatMul", "x w", "y")], {"x": [4, 6]}, ["y"], {"w": w}), granularity="tensor", **FULL
    )
    codes, scale = quantize_matrix(w.reshape(-1, 1), 0)
    q, x_scale, zero = quantize_activation(x)
    expected = product_here(q, zero, codes.reshape(w.shape)).astype(F) * (x_scale * scale.item())
    np.testing.assert_array_equal(made.run({"x": x})[0], expected)
    assert made.weights["w_scale"].shape == ()


@pytest.mark.parametrize("x", [np.zeros((2, 6), F), np.full((2, 6), 3, F), np.full((2, 6), -3, F)])
def test_dynamic_matmul_of_constant_activations(x):
    w = floats(6, 7)
    made = dynamic(build([node("MatMul", "x w", "y")], {"x": [2, 6]}, ["y"], {"w": w}))
    np.testing.assert_array_equal(made.run({"x": x})[0], dynamic_product(x, w, 1))


def test_dynamic_matmul_with_a_channel_of_zeros():
    x, w = floats(4, 6), floats(6, 7)
    w[:, 3] = 0
    made = dynamic(build([node("MatMul", "x w", "y")], {"x": [4, 6]}, ["y"], {"w": w}))
    (y,) = made.run({"x": x})
    np.testing.assert_array_equal(y, dynamic_product(x, w, 1))
    np.testing.assert_array_equal(y[:, 3], 0)


def test_readers_of_a_value_share_one_dynamic_quantize_linear():
    weights = {"q": floats(6, 6), "k": floats(6, 6, seed=1), "v": floats(6, 6, seed=2), "o": floats(6, 6, seed=3)}
    proto = build(
        [
            node("MatMul", "x q", "a"),
            node("MatMul", "x k", "b"),
            node("Gemm", "x v", "c"),
            node("Add", "a b", "s"),
            node("Add", "s c", "t"),
            node("MatMul", "t o", "y"),
            node("MatMul", "t q", "z"),
        ],
        {"x": [4, 6]},
        ["y", "z", "a"],
        weights,
    )
    made = dynamic(proto)
    assert made.ops["DynamicQuantizeLinear"] == 2
    assert made.ops["MatMulInteger"] == 5
    x = floats(4, 6, seed=9)
    a, b, c = (dynamic_product(x, weights[name], 1) for name in "qkv")
    t = (a + b) + c
    expected = dynamic_product(t, weights["o"], 1), dynamic_product(t, weights["q"], 1), a
    for got, wanted in zip(made.run({"x": x}), expected, strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_a_chain_where_every_result_is_an_output():
    w = [floats(6, 6, seed=i) for i in range(3)]
    proto = build(
        [node("MatMul", "x w0", "a"), node("MatMul", "a w1", "b"), node("MatMul", "b w2", "c")],
        {"x": [4, 6]},
        ["a", "b", "c"],
        {f"w{i}": w[i] for i in range(3)},
    )
    made = dynamic(proto)
    x = floats(4, 6)
    assert [o.name for o in made.proto.graph.output] == ["a", "b", "c"]
    for got, weight in zip(made.run({"x": x}), w, strict=True):
        x = dynamic_product(x, weight, 1)
        np.testing.assert_array_equal(got, x)


def test_a_weight_that_several_nodes_read_is_stored_once():
    w = floats(32, 32)
    proto = build([node("MatMul", "x w", "a"), node("MatMul", "a w", "y")], {"x": [4, 32]}, ["y"], {"w": w})
    made = dynamic(proto)
    assert sum(array.shape == (32, 32) for array in made.weights.values()) == 1
    x = floats(4, 32)
    np.testing.assert_array_equal(made.run({"x": x})[0], dynamic_product(dynamic_product(x, w, 1), w, 1))


def test_a_weight_that_is_an_output_as_well_stays_exact():
    w, x = floats(6, 7), floats(4, 6)
    made = quantize_in_memory(build([node("MatMul", "x w", "y")], {"x": [4, 6]}, ["y", "w"], {"w": w}), **FULL)
    y, same = made.run({"x": x})
    np.testing.assert_array_equal(same, w)
    np.testing.assert_array_equal(y, dynamic_product(x, w, 1))


def test_tied_square_weights_of_matmul_and_transposed_gemm():
    """Other quantizers transpose a tied Gemm weight once for each use: -1.9 dB on a square one, without a word."""
    w = floats(16, 16)
    proto = build(
        [
            node("Gemm", "x w", "a", transB=1),
            node("MatMul", "a w", "b"),
            node("Gemm", "b w", "c", transB=1),
            node("Gemm", "c w", "y"),
        ],
        {"x": [4, 16]},
        ["y"],
        {"w": w},
    )
    made = dynamic(proto)
    x = floats(4, 16, seed=5)
    expected = exact = x
    for transposed in (True, False, True, False):
        matrix = w.T.copy() if transposed else w
        expected = dynamic_product(expected, matrix, 1)
        exact = dynamic_product(exact, matrix, 1, product=exact_product)
    np.testing.assert_array_equal(made.run({"x": x})[0], expected)
    assert sqnr(made.float_run({"x": x})[0], exact) > 25  # four products in a row
    assert sum(array.shape == (16, 16) for array in made.weights.values()) == 2, "the weight and its transpose"


# -- bodies -----------------------------------------------------------------------------------------------------------


def if_model(inside: bool) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """An If whose branches multiply a captured value by weights that stand inside or outside of them."""
    w = {"wt": floats(6, 7, seed=1), "we": floats(6, 7, seed=2)}
    then = graph([node("MatMul", "h wt", "t")], {}, ["t"], {"wt": w["wt"]} if inside else {}, "then")
    other = graph(
        [node("MatMul", "h we", "e1"), node("MatMul", "h we", "e2"), node("Add", "e1 e2", "e")],
        {},
        ["e"],
        {"we": w["we"]} if inside else {},
        "else",
    )
    proto = build(
        [node("Relu", "x", "h"), helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)],
        {"x": [4, 6], "c": (TensorProto.BOOL, [])},
        ["y"],
        {} if inside else w,
    )
    return proto, w


@pytest.mark.parametrize("inside", [True, False], ids=["weights_inside", "weights_outside"])
def test_bodies_of_if_are_quantized(inside):
    """Other quantizers leave bodies alone without saying so, and their file grows."""
    proto, w = if_model(inside)
    made = quantize_in_memory(proto, **FULL)
    assert made.ops["MatMulInteger"] == 3
    assert made.ops["DynamicQuantizeLinear"] == 2, "one in each branch"
    x = floats(4, 6, seed=3)
    h = np.maximum(x, 0)
    (y,) = made.run({"x": x, "c": np.array(True)})
    np.testing.assert_array_equal(y, dynamic_product(h, w["wt"], 1))
    (y,) = made.run({"x": x, "c": np.array(False)})
    np.testing.assert_array_equal(y, dynamic_product(h, w["we"], 1) * F(2))
    assert not made.weights.keys() & w.keys(), "no float weight is left"


def test_an_outer_weight_that_both_branches_read_does_not_make_the_file_grow():
    w = floats(64, 64)
    branches = {
        f"{side}_branch": graph([node("MatMul", "h w", side)], {}, [side], {}, side) for side in ("then", "else")
    }
    proto = build(
        [node("Relu", "x", "h"), helper.make_node("If", ["c"], ["y"], **branches)],
        {"x": [4, 64], "c": (TensorProto.BOOL, [])},
        ["y"],
        {"w": w},
    )
    made = quantize_in_memory(proto, **FULL)
    assert len(made.data) < 0.5 * len(made.source)
    x = floats(4, 64, seed=3)
    for c in (True, False):
        (y,) = made.run({"x": x, "c": np.array(c)})
        np.testing.assert_array_equal(y, dynamic_product(np.maximum(x, 0), w, 1))
