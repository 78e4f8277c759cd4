"""MatMul and Gemm with calibrated activations, written as MatMulInteger: what `auto` takes for onnxruntime."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from helpers import ALL, F, build, floats, node, quantize_in_memory, recipe_of, sqnr
from integer_products import BIASED, FULL, SHAPES, gemm, quantize_matrix
from saturating_product import product_here

from onnxq.planning.recipe import Rule

ONE_KERNEL = {"QuantizeLinear": 1, "DequantizeLinear": 1, "MatMulIntegerToFloat": 1}


def integer(proto, samples, **settings):
    return quantize_in_memory(proto, "static-int8", samples, form="integer", **FULL | settings)


def static_product(a: np.ndarray, w: np.ndarray, alpha: float = 1.0) -> np.ndarray:
    """What `alpha * a @ w` gives with calibrated codes of `a` and codes of `w` by column."""
    low, high = min(a.min(), 0), max(a.max(), 0)
    scale = F((F(high) - F(low)) / F(255))
    zero = np.rint(-F(low) / scale)
    x = np.clip(np.rint(a / scale) + zero, 0, 255).astype(np.int64)
    codes, w_scale = quantize_matrix(w, -2)
    return product_here(x, int(zero), codes).astype(F) * (scale * (w_scale * F(alpha)))


@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
def test_a_static_product_is_integer_arithmetic_to_the_bit(shapes):
    a, w = (floats(*shape, seed=seed) for seed, shape in enumerate(shapes))
    proto = build([node("MatMul", "x w", "y")], {"x": [None] * a.ndim}, ["y"], {"w": w})
    made = integer(proto, [{"x": a}])
    assert made.ops == {"QuantizeLinear": 1, "DequantizeLinear": 1, "MatMulInteger": 1, "Cast": 1, "Mul": 2}
    np.testing.assert_array_equal(made.run({"x": a})[0], static_product(a, w))
    assert sqnr(static_product(a, w), made.run({"x": a}, ALL)[0]) > 60  # one kernel: float factors in another order


@pytest.mark.parametrize("trans_a", [0, 1])
@pytest.mark.parametrize("trans_b", [0, 1])
@pytest.mark.parametrize("alpha", [1.0, -2.0])
def test_a_static_gemm_is_integer_arithmetic_to_the_bit(trans_a, trans_b, alpha):
    for kind, shape, computed, beta in BIASED:
        bias = None if shape is None else np.asarray(floats(*shape, seed=3) * 4, F)
        proto, feeds, a, b = gemm(1, trans_a, trans_b, bias, computed, alpha=alpha, beta=beta)
        made = integer(proto, [feeds])
        expected = static_product(a, b, alpha)
        if bias is not None and beta:
            expected = expected + (bias * F(beta) if beta != 1 else bias)
        label = f"bias {kind}, computed {computed}, beta {beta}"
        np.testing.assert_array_equal(made.run(feeds)[0], expected, err_msg=label)
        assert made.decision("n_y").scheme == "static-int8", label
        assert sqnr(expected, made.run(feeds, ALL)[0]) > 60, label


@pytest.mark.parametrize("terms", ["p b", "b p"])
@pytest.mark.parametrize("shape", [[8, 32], [None, 32], [1, 8, 32], [1, None, 32]], ids=str)
def test_the_bias_is_computed_with_the_product(shape, terms):
    """Of Q/DQ pairs onnxruntime makes the same kernel without the bias; of matrices, of fixed shapes, a float Gemm."""
    x, w, b = floats(*[size or 8 for size in shape]), floats(32, 16, seed=1), floats(16, seed=2)
    nodes = [node("MatMul", "x w", "p"), node("Add", terms, "y")]
    made = integer(build(nodes, {"x": shape}, ["y"], {"w": w, "b": b}), [{"x": x}])
    assert made.optimized() == ONE_KERNEL
    np.testing.assert_allclose(made.run({"x": x}, ALL)[0], static_product(x, w) + b, rtol=1e-5, atol=1e-5)


def test_a_gemm_with_its_bias_is_one_kernel():
    x = floats(8, 32)
    weights = {"w": floats(16, 32, seed=1), "c": floats(16, seed=2)}
    proto = build([node("Gemm", "x w c", "y", transB=1, beta=2.0, alpha=0.5)], {"x": [8, 32]}, ["y"], weights)
    made = integer(proto, [{"x": x}])
    assert made.optimized() == ONE_KERNEL
    assert made.sqnr({"x": x}, ALL) > 30


def test_readers_of_one_value_share_its_codes():
    x = floats(8, 32)
    weights = {name: floats(32, 16, seed=seed) for seed, name in enumerate("qkv")}
    proto = build(
        [node("MatMul", f"x {name}", f"{name}p") for name in "qkv"], {"x": [8, 32]}, ["qp", "kp", "vp"], weights
    )
    made = integer(proto, [{"x": x}])
    assert made.ops["QuantizeLinear"] == 1
    assert made.optimized()["QuantizeLinear"] == 1
    for name, got in zip("qkv", made.run({"x": x}), strict=True):
        np.testing.assert_array_equal(got, static_product(x, weights[name]))


def test_a_product_reads_the_codes_of_a_quantized_output():
    """No second QuantizeLinear behind the one that a Conv's output has."""
    x, c, w = floats(2, 4, 6, 8), floats(4, 4, 1, 1, seed=1), floats(8, 16, seed=2)
    proto = build([node("Conv", "x c", "h"), node("MatMul", "h w", "y")], {"x": [2, 4, 6, 8]}, ["y"], {"c": c, "w": w})
    made = integer(proto, [{"x": x}], target="cpu")
    assert made.ops["QuantizeLinear"] == 2
    assert made.sqnr({"x": x}, ALL) > 28


def test_auto_takes_it_for_onnxruntime_alone_and_a_named_recipe_keeps_pairs():
    x = floats(64, 256)  # large enough for 8 bit to pay
    proto = build([node("MatMul", "x w", "y")], {"x": [64, 256]}, ["y"], {"w": floats(256, 256, seed=1)})
    ops = {
        (recipe, target): set(quantize_in_memory(proto, recipe, [{"x": x}], target=target).ops)
        for recipe, target in (("auto", "cpu"), ("static-int8", "cpu"), ("auto", "generic"), ("auto", "openvino"))
    }
    pairs = {"QuantizeLinear", "DequantizeLinear", "MatMul"}
    assert ops.pop(("auto", "cpu")) == {"QuantizeLinear", "DequantizeLinear", "MatMulInteger", "Cast", "Mul"}
    assert all(found == pairs for found in ops.values()), ops


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"activations": "uint16"}, "MatMulInteger takes activations of 8 bit, not uint16"),
        ({"domain": "com.microsoft"}, "MatMulInteger is of ai.onnx, and the recipe asks for com.microsoft"),
        ({"target": "tensorrt"}, "target tensorrt has no MatMulInteger"),
    ],
)
def test_what_it_refuses(settings, reason):
    x = floats(8, 32)
    proto = build([node("MatMul", "x w", "y")], {"x": [8, 32]}, ["y"], {"w": floats(32, 16, seed=1)}, opset=21)
    made = integer(proto, [{"x": x}], **settings)
    assert made.decision("n_y").reason == reason


@pytest.mark.parametrize("activations", ["uint16", "int8"])
def test_a_value_that_its_first_reader_wants_in_another_type(activations):
    """A value is quantized once: a product that shares it takes 16 bits by a pair, and signed codes as they are."""
    x, c, w = floats(2, 4, 6, 8), floats(4, 4, 1, 1, seed=1), floats(8, 16, seed=2)
    proto = build(
        [node("Conv", "x c", "h"), node("MatMul", "x w", "y")],
        {"x": [2, 4, 6, 8]},
        ["h", "y"],
        {"c": c, "w": w},
        opset=21 if activations == "uint16" else 17,
    )
    recipe = recipe_of("static-int8", form="integer")
    recipe = replace(recipe, rules=(Rule(op="Conv", settings=(("activations", activations),)),))
    made = quantize_in_memory(proto, recipe, [{"x": x}])
    assert made.ops["MatMulInteger"] == (activations == "int8")
    assert made.sqnr({"x": x}) > 28
