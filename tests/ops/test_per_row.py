"""A scale for every row: exact values, rows that do not know of one another, and what onnxruntime makes of it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from helpers import ALL, NONE, F, build, floats, node, quantize_in_memory, recipe_of, session, sqnr, typed
from hypothesis import given, settings
from hypothesis import strategies as st
from integer_products import BIASES, FULL, SHAPES, Product, exact_product, gemm, quantize_matrix
from saturating_product import product_here

from onnxq.evaluator import Evaluator
from onnxq.ops.forms.per_row import LEAST
from onnxq.ops.quantized import host_arithmetic
from onnxq.planning.planner import make_plan

ROW = {"activation_granularity": "row"}


def quantize_rows(x: np.ndarray, axis: int, *, unsigned: bool = False) -> tuple[np.ndarray, np.ndarray, int]:
    """Codes without zero point, largest magnitudes, and how many steps of a code they are."""
    steps = 255 if unsigned else 127
    maxima = np.maximum(np.abs(x).max(axis=axis, keepdims=True), LEAST)
    low = 0 if unsigned else -128
    return np.clip(np.rint(x * (F(steps) / maxima)), low, low + 255).astype(np.int64), maxima, steps


def row_product(
    a: np.ndarray,
    b: np.ndarray,
    weight: int,
    *,
    alpha: float = 1.0,
    unsigned: bool = False,
    product: Product = product_here,
) -> np.ndarray:
    """What the form with a scale for every row gives for `alpha * a @ b`, with input `weight` the constant one.

    Codes are written as uint8, with 128 for zero unless they are unsigned anyway.
    """
    w, w_scale = quantize_matrix((a, b)[weight], -1 if weight == 0 else -2)
    x, maxima, steps = quantize_rows((a, b)[1 - weight], -2 if weight == 0 else -1, unsigned=unsigned)
    zero = 0 if unsigned else 128
    total = (w @ x if weight == 0 else product(x + zero, zero, w)).astype(F)
    return total * (w_scale * F(alpha) / F(steps)) * maxima


def rows(proto: onnx.ModelProto):
    return quantize_in_memory(proto, **ROW, **FULL)


@pytest.mark.parametrize("weight", [0, 1], ids=["weight_left", "weight_right"])
@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
def test_matmul_is_integer_arithmetic_to_the_bit(shapes, weight):
    a, b = (floats(*shape, seed=seed) for seed, shape in enumerate(shapes))
    names, constant = ("xw", b) if weight == 1 else ("wx", a)
    x = (a, b)[1 - weight]
    made = rows(build([node("MatMul", " ".join(names), "y")], {"x": [None] * x.ndim}, ["y"], {"w": constant}))
    expected = row_product(a, b, weight)
    np.testing.assert_array_equal(made.run({"x": x})[0], expected, strict=True)
    # one more pair of factors may be swapped by an optimisation: a last bit, no more
    np.testing.assert_allclose(made.run({"x": x}, ALL)[0], expected, rtol=1e-6)
    evaluator = Evaluator(made.proto, host_arithmetic())
    np.testing.assert_array_equal(evaluator.run({"x": x})["y"], expected, strict=True)
    # two factors of 8 bits and normal numbers
    assert sqnr(a @ b, row_product(a, b, weight, product=exact_product)) > 34


@pytest.mark.parametrize("shape", BIASES.values(), ids=BIASES)
@pytest.mark.parametrize("computed", [False, True], ids=["constant", "computed"])
@pytest.mark.parametrize("trans_b", [0, 1])
@pytest.mark.parametrize("trans_a", [0, 1])
@pytest.mark.parametrize("weight", [0, 1])
def test_gemm_is_integer_arithmetic_to_the_bit(weight, trans_a, trans_b, computed, shape):
    bias = None if shape is None else floats(*shape, seed=3) if shape else np.array(0.75, F)
    proto, feeds, a, b = gemm(weight, trans_a, trans_b, bias, computed, alpha=0.5, beta=2.0)
    made = rows(proto)
    expected = row_product(a, b, weight, alpha=0.5)
    if bias is not None:
        expected = expected + bias * F(2.0)
    np.testing.assert_array_equal(made.run(feeds)[0], expected, strict=True)
    np.testing.assert_allclose(made.run(feeds, ALL)[0], expected, rtol=1e-5, atol=1e-6)


MATRIX = floats(24, 16, seed=7)
PRODUCT = build(
    [node("MatMul", "x w", "p"), node("Add", "p c", "y")],
    {"x": [None, 24]},
    ["y"],
    {
        "w": MATRIX,
        "c": floats(16, seed=8),
    },
)
MADE = rows(PRODUCT)
SESSIONS = [session(MADE.data, level) for level in (NONE, ALL)]


@given(st.integers(1, 9), st.integers(0, 2**31), st.lists(st.integers(-30, 30), min_size=9, max_size=9))
@settings(max_examples=60, deadline=None)
def test_the_result_of_a_row_does_not_depend_on_the_others(count, seed, exponents):
    x = floats(count, 24, seed=seed) * np.exp2(np.array(exponents[:count], F))[:, None]
    for one in SESSIONS:
        (together,) = one.run(None, {"x": x})
        for row in range(count):
            np.testing.assert_array_equal(one.run(None, {"x": x[row : row + 1]})[0][0], together[row])


@given(st.lists(st.integers(-36, 36), min_size=6, max_size=6), st.integers(0, 2**31))
@settings(max_examples=40, deadline=None)
def test_rows_of_any_magnitude_are_as_accurate_as_each_other(exponents, seed):
    x = floats(6, 24, seed=seed) * np.exp2(np.array(exponents, F))[:, None]
    made = quantize_in_memory(build([node("MatMul", "x w", "y")], {"x": [6, 24]}, ["y"], {"w": MATRIX}), **ROW)
    got = made.run({"x": x})[0]
    weight = made.weights["w_quantized"] * (made.weights["w_scale_by_127"] * F(127))
    for row in range(6):
        # the weight as quantized: at most half a step off in each of the 24 elements of the row
        limit = 0.5 / 127 * np.abs(x[row]).max() * np.abs(weight).sum(axis=0) * 1.001
        assert (np.abs(x[row] @ weight - got[row]) <= limit + 1e-6 * np.abs(got[row])).all()


@pytest.mark.parametrize("level", [NONE, ALL])
def test_a_row_of_zeros_gives_zeros_and_leaves_the_others_alone(level):
    x = floats(4, 24)
    x[1] = 0
    x[2] *= F(1e-38)  # below the least range
    made = rows(build([node("MatMul", "x w", "y")], {"x": [4, 24]}, ["y"], {"w": MATRIX}))
    (y,) = made.run({"x": x}, level)
    np.testing.assert_array_equal(y[1:3], 0)
    np.testing.assert_allclose(y[[0, 3]], row_product(x, MATRIX, 1)[[0, 3]], rtol=1e-6)


@pytest.mark.parametrize("shape", [(0, 24), (0, 3, 24), (2, 0, 24)])
def test_no_rows_at_all(shape):
    made = rows(build([node("MatMul", "x w", "y")], {"x": [None] * len(shape)}, ["y"], {"w": MATRIX}))
    for level in (NONE, ALL):
        assert made.run({"x": np.zeros(shape, F)}, level)[0].shape == (*shape[:-1], 16)


def test_an_input_of_unknown_rank_stays_float():
    nodes = [node("Reshape", "x s", "r"), node("MatMul", "r w", "p"), node("Reshape", "p k", "y")]
    inputs = {"x": [2, 24], "s": (onnx.TensorProto.INT64, [None])}
    proto = build(nodes, inputs, ["y"], {"w": MATRIX, "k": np.array([2, 16])})
    model = typed(proto)
    plan = make_plan(model, recipe_of("dynamic-int8", **ROW), with_data=False)
    assert plan.decisions[1].reason == "a scale for every row needs an input of known rank"


def test_what_is_never_negative_has_255_steps():
    nodes = [node("Relu", "x", "r"), node("Reshape", "r s", "f"), node("MatMul", "f w", "y")]
    made = rows(build(nodes, {"x": [5, 24]}, ["y"], {"w": MATRIX, "s": np.array([5, 24])}))
    x = floats(5, 24)
    expected = row_product(np.maximum(x, 0), MATRIX, 1, unsigned=True)
    np.testing.assert_array_equal(made.run({"x": x})[0], expected, strict=True)
    assert made.ops["Abs"] == 0


def test_readers_share_the_codes():
    nodes = [node("MatMul", "x q", "a"), node("MatMul", "x k", "b"), node("Gemm", "x v", "c")]
    weights = {name: floats(24, 8, seed=seed) for seed, name in enumerate("qkv")}
    made = rows(build(nodes, {"x": [5, 24]}, ["a", "b", "c"], weights))
    assert (made.ops["QuantizeLinear"], made.ops["ReduceMax"], made.ops["MatMulInteger"]) == (1, 1, 3)


@pytest.mark.parametrize("opset", [11, 13, 18, 21])
def test_every_operator_set_has_the_form(opset):
    x, w = floats(3, 24), MATRIX
    made = rows(build([node("MatMul", "x w", "y")], {"x": [3, 24]}, ["y"], {"w": w}, opset))
    np.testing.assert_array_equal(made.run({"x": x})[0], row_product(x, w, 1))


def test_onnxruntime_multiplies_integers_and_fuses_nothing_wrongly():
    """The weight's scales go into the product, those of the rows stay outside."""
    x = floats(5, 24) * np.exp2(np.arange(5, dtype=F) * 4)[:, None]
    made = quantize_in_memory(PRODUCT, **ROW)
    optimized = made.optimized()
    assert (optimized["MatMulIntegerToFloat"], optimized["MatMulInteger"], optimized["Cast"]) == (1, 0, 0)
    for row, expected in zip(made.run({"x": x}, ALL)[0], made.float_run({"x": x})[0], strict=True):
        assert sqnr(expected, row) > 30


def test_static_int8_has_no_scales_for_rows():
    proto = build([node("MatMul", "x w", "y")], {"x": [3, 24]}, ["y"], {"w": MATRIX})
    made = quantize_in_memory(proto, recipe_of("static-int8", **ROW), [{"x": floats(3, 24)}])
    assert made.plan.decisions[0].reason == "a scale for every row is computed at run time, which static-int8 is not"
