"""The evaluator with sums and functions in float64: what it computes so, what not, and that processors agree."""

from __future__ import annotations

import math

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, parser

from onnxq.evaluator import Evaluator
from onnxq.evaluator.wide import COMPARING, MOVING, ROUNDED_ONCE
from onnxq.ops.kernels.registry import _KERNELS, find_kernel, load_families

F = np.float32


def model(text: str, opset: int = 20) -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: 9, opset_import: ["": {opset}, "com.microsoft": 1]>\nagraph {text}')


def run(text: str, feeds: dict[str, np.ndarray], opset: int = 20) -> dict[str, np.ndarray]:
    return Evaluator(model(text, opset), wide=True).run(feeds)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(F)


def rounded(exact: np.ndarray) -> np.ndarray:
    """Numbers of float64 with 18 bits of mantissa, as `onnxq.evaluator.wide` says."""
    mantissa, exponent = np.frexp(exact.astype(F).astype(float))
    steps = np.sign(mantissa) * np.floor(np.abs(mantissa) * 2**18 + 0.5)
    return np.ldexp(steps, exponent - 18).astype(F)


SUMS = {
    "MatMul": ("(float[4, 300] x, float[300, 5] w) => (float[4, 5] y) { y = MatMul (x, w) }", lambda x, w: x @ w),
    "Gemm": (
        "(float[4, 300] x, float[5, 300] w) => (float[4, 5] y) { y = Gemm <transB = 1, alpha = 0.5> (x, w) }",
        lambda x, w: 0.5 * (x @ w.T),
    ),
    "Einsum": (
        '(float[4, 300] x, float[300, 5] w) => (float[4, 5] y) { y = Einsum <equation = "ab,bc->ac"> (x, w) }',
        lambda x, w: x @ w,
    ),
    "Conv": (
        "(float[1, 4, 9] x, float[3, 4, 3] w) => (float[1, 3, 7] y) { y = Conv (x, w) }",
        lambda x, w: np.stack([np.tensordot(w, x[0, :, i : i + 3], ((1, 2), (0, 1))) for i in range(7)], -1)[None],
    ),
}


@pytest.mark.parametrize("operator", SUMS)
def test_sums_of_products_are_those_of_float64_rounded_to_18_bits(operator: str) -> None:
    text, expected = SUMS[operator]
    shapes = [tuple(d.dim_value for d in i.type.tensor_type.shape.dim) for i in model(text).graph.input]
    x, w = normal(*shapes[0]), normal(*shapes[1], seed=1)
    found = run(text, {"x": x, "w": w})["y"]
    assert found.dtype == F
    assert found.tolist() == rounded(expected(x.astype(float), w.astype(float))).tolist()


CONVOLUTIONS = {
    "one element": ([2, 6, 9, 70], [8, 6, 1, 1], "strides = [1, 1]"),
    "one element, in parts": ([1, 40, 120, 100], [30, 40, 1, 1], "strides = [1, 1]"),
    "one element, strides and groups": ([2, 6, 9, 7], [8, 3, 1, 1], "strides = [2, 2], group = 2"),
    "windows": ([1, 3, 40, 40], [8, 3, 3, 3], "pads = [1, 1, 1, 1]"),
    "windows in parts": ([1, 32, 60, 60], [4, 32, 3, 3], "strides = [2, 2], pads = [1, 1, 1, 1]"),
}


@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_convolutions_are_summed_in_float64_and_rounded_once(case: str) -> None:
    shape, kernel, attributes = CONVOLUTIONS[case]
    text = f"(float{shape} x, float{kernel} w, float[{kernel[0]}] b) => (TYPE[n, m, h, v] y)"
    text += f" {{ y = Conv <{attributes}> (x, w, b) }}"
    feeds = {"x": normal(*shape), "w": normal(*kernel, seed=1), "b": normal(kernel[0], seed=2)}
    found = run(text.replace("TYPE", "float"), feeds)["y"]
    double = {name: array.astype(np.float64) for name, array in feeds.items()}
    exact = Evaluator(model(text.replace("float", "double").replace("TYPE", "double"))).run(double)["y"]
    assert found.dtype == F
    np.testing.assert_array_equal(found, rounded(exact))


def test_depthwise_convolutions_add_in_the_order_of_their_taps_whatever_makes_the_weight() -> None:
    constant = "(float[1, 4, 9, 9] x, float[4, 1, 3, 3] w) => (float[1, 4, 7, 7] y) { y = Conv <group = 4> (x, w) }"
    made = constant.replace("float[4, 1, 3, 3] w", "float[4, 1, 3, 3] half").replace("{ y", "{ w = Add (half, half) y")
    x, half = normal(1, 4, 9, 9), normal(4, 1, 3, 3, seed=1)
    expected = sum(
        x[:, :, i : i + 7, j : j + 7] * (2 * half)[:, 0, i, j, None, None] for i in range(3) for j in range(3)
    )
    np.testing.assert_array_equal(run(constant, {"x": x, "w": 2 * half})["y"], expected)
    np.testing.assert_array_equal(run(made, {"x": x, "half": half})["y"], expected)


@pytest.mark.parametrize(
    ("operator", "function"),
    [("Exp", np.exp), ("Tanh", np.tanh), ("Sigmoid", lambda x: 1 / (1 + np.exp(-x))), ("Log", np.log)],
)
def test_functions_are_those_of_float64_rounded_to_18_bits(operator: str, function: np.ufunc) -> None:
    x = np.abs(normal(1000))
    found = run(f"(float[1000] x) => (float[1000] y) {{ y = {operator} (x) }}", {"x": x})["y"]
    assert found.tolist() == rounded(function(x.astype(float))).tolist()


def test_reductions_and_normalisations_sum_in_float64() -> None:
    text = """
    (float[8, 500] x, float[500] g) => (float[8] m, float[8, 500] s, float[8, 500] n)
    { m = ReduceMean <axes = [1], keepdims = 0> (x) s = Softmax (x) n = LayerNormalization <epsilon = 0.0> (x, g) }
    """
    x, g = normal(8, 500), normal(500, seed=1)
    found, wide = run(text, {"x": x, "g": g}, opset=17), x.astype(float)
    assert found["m"].tolist() == rounded(wide.mean(1)).tolist()
    power = np.exp(wide - wide.max(1, keepdims=True))
    np.testing.assert_allclose(found["s"], power / power.sum(1, keepdims=True), rtol=4e-6)
    centred = wide - wide.mean(1, keepdims=True)
    normed = centred / np.sqrt((centred**2).mean(1, keepdims=True)) * g
    np.testing.assert_allclose(found["n"], normed, rtol=4e-6, atol=1e-12)


def test_infinity_and_nan_stay() -> None:
    text = "(float[3] x) => (float[3] y) { y = Exp (x) }"
    found = run(text, {"x": F([200, -np.inf, np.nan])})["y"]
    assert found[0] == np.inf
    assert found[1] == 0
    assert np.isnan(found[2])


def test_what_jumps_sees_the_numbers_of_float32() -> None:
    # Ten times float32's 0.1 is 1.0000000149, which float32 rounds to 1
    text = "(float[1] x) => (float[1] y) <float[1] w = {10.0}> { p = Mul (x, w) y = Ceil (p) }"
    assert run(text, {"x": F([0.1])})["y"] == 1
    product = "(float[1, 1] x, float[1, 1] w) => (float[1, 1] y) { p = MatMul (x, w) y = Ceil (p) }"
    assert run(product, {"x": F([[0.1]]), "w": F([[10]])})["y"] == 1


def test_quantized_operators_give_the_very_codes_of_float32() -> None:
    text = """
    (float[64] x) => (uint8[64] q, float[64] y, uint8[64] d)
    <float scale = {0.037}, uint8 zero = {7}>
    { q = QuantizeLinear (x, scale, zero) y = DequantizeLinear (q, scale, zero) d, s, z = DynamicQuantizeLinear (x) }
    """
    x = normal(64)
    wide, narrow = run(text, {"x": x}), Evaluator(model(text)).run({"x": x})
    assert {name: array.tolist() for name, array in wide.items()} == {n: a.tolist() for n, a in narrow.items()}


def test_products_with_stored_weights_sum_in_float64() -> None:
    random = np.random.default_rng(2)
    codes, scales = random.integers(0, 256, (8, 10, 32), np.uint8), random.random((8, 10), F)
    x = normal(4, 320)
    found = find_kernel("MatMulNBits", "com.microsoft", 1)(x, codes, scales, K=320, N=8, bits=8, block_size=32)
    weight = ((codes.astype(F) - 128) * scales[..., None]).reshape(8, 320)
    assert found.tolist() == (x.astype(float) @ weight.T.astype(float)).astype(F).tolist()


def test_bodies_compute_so_too() -> None:
    text = """
    (int64 trips, float[1, 300] start, float[300, 300] w) => (float[1, 300] last) {
        yes = Constant <value = bool {1}> ()
        last = Loop (trips, yes, start) <body = turn
            (int64 i, bool c, float[1, 300] state) => (bool on, float[1, 300] next) {
                on = Identity (c)
                next = MatMul (state, w)
            }>
    }
    """
    start, w = normal(1, 300), normal(300, 300, seed=1) / F(16)
    found = run(text, {"trips": np.array(2), "start": start, "w": w})["last"]
    once = rounded(start.astype(float) @ w.astype(float))
    assert found.tolist() == rounded(once.astype(float) @ w.astype(float)).tolist()


@pytest.mark.parametrize("operator", ["ScatterND", "ScatterElements"])
def test_elements_that_are_scattered_keep_all_bits(operator: str) -> None:
    """The lowest float32, with which masks are made, would become -inf, and a row that it masks NaN."""
    text = f"(float[2, 3] x, int64[2, 1] i, float[2, n] v) => (float[2, 3] y) {{ y = {operator} (x, i, v) }}"
    x, lowest = normal(2, 3), np.full((2, 3 if operator == "ScatterND" else 1), np.finfo(F).min)
    found = run(text, {"x": x, "i": np.array([[0], [1]]), "v": lowest})["y"]
    x[:, : lowest.shape[1]] = lowest
    assert found.tolist() == x.tolist()


def test_a_model_of_float64_stays_one() -> None:
    text = "(double[1, 2] x, double[2, 1] w) => (double[1, 1] y, double[1, 2] z) { y = MatMul (x, w) z = Exp (x) }"
    found = run(text, {"x": np.array([[1.0, 2.0**-40]]), "w": np.array([[1.0], [1.0]])})
    assert found["y"] == 1 + 2.0**-40
    assert found["z"].dtype == np.float64
    assert found["z"][0, 0] == math.e


def test_operators_taken_to_be_the_same_everywhere_have_kernels() -> None:
    load_families()
    known = {op_type for domain, op_type in _KERNELS if not domain}
    assert {name for name in MOVING | COMPARING | ROUNDED_ONCE if name not in known} == set()


def test_an_evaluator_says_for_which_tensors_it_has_all_kernels() -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("GridSample", ["r", "g"], ["s"]),
        helper.make_node("Neg", ["s"], ["y"]),
    ]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, 2, 2]),
        helper.make_tensor_value_info("g", TensorProto.FLOAT, [1, 2, 2, 2]),
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    proto = helper.make_model(
        helper.make_graph(nodes, "g", inputs, outputs), opset_imports=[helper.make_opsetid("", 20)]
    )
    evaluator = Evaluator(proto, wide=True)
    assert evaluator.has_kernels(["r"])
    assert not evaluator.has_kernels(["r", "y"])
