"""MatMul in the static form, and weights of MatMul and Gemm stored in 8 bit."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import ALL, F, build, floats, node, quantize_in_memory, unlike
from integer_products import SHAPES, quantize_matrix


@pytest.mark.parametrize("granularity", ["channel", "tensor"])
@pytest.mark.parametrize("shapes", [s for s in SHAPES.values() if len(s[1]) == 2 or s[1][0] == 3])
def test_static_matmul_keeps_its_output_in_float(shapes, granularity):
    a, w = (floats(*shape, seed=seed) for seed, shape in enumerate(shapes))
    w = unlike(w)
    proto = build([node("MatMul", "x w", "y")], {"x": [None] * a.ndim}, ["y"], {"w": w})
    made = quantize_in_memory(proto, "static-int8", [{"x": a}], granularity=granularity)
    assert made.ops == {"QuantizeLinear": 1, "DequantizeLinear": 2, "MatMul": 1}
    low, high = min(a.min(), 0), max(a.max(), 0)
    scale = F((F(high) - F(low)) / F(255))
    zero = np.rint(-F(low) / scale)
    x = (np.clip(np.rint(a / scale) + zero, 0, 255) - zero) * scale
    per_column = granularity == "channel" and w.ndim == 2  # onnxruntime fails on stacks with one scale per column
    codes, w_scale = quantize_matrix(w.reshape(-1, w.shape[-1]), 0 if per_column else (0, 1))
    expected = x.astype(F) @ (codes * w_scale).astype(F).reshape(w.shape)
    np.testing.assert_allclose(made.run({"x": a})[0], expected, rtol=1e-5, atol=1e-5)  # float sums, other orders
    assert made.sqnr({"x": a}) > 30


def test_static_matmul_runs_as_one_integer_kernel():
    x = floats(8, 32)
    proto = build([node("MatMul", "x w", "y")], {"x": [8, 32]}, ["y"], {"w": unlike(floats(32, 16, seed=1))})
    made = quantize_in_memory(proto, "static-int8", [{"x": x}])
    assert made.optimized() == {"QuantizeLinear": 1, "MatMulIntegerToFloat": 1}
    assert made.sqnr({"x": x}, ALL) > 30


@pytest.mark.parametrize("terms", ["p b", "b p"])
@pytest.mark.parametrize(
    ("shape", "kernels"),
    [
        ([8, 32], {"QuantizeLinear": 1, "QGemm": 1}),
        ([1, 8, 32], {"QuantizeLinear": 1, "MatMulIntegerToFloat": 1, "Add": 1}),
        ([1, None, 32], {"QuantizeLinear": 1, "MatMulIntegerToFloat": 1, "Add": 1}),
    ],
    ids=["matrices", "fixed", "open"],
)
def test_a_bias_behind_a_product_does_not_bring_it_back_into_float(shape, kernels, terms):
    """onnxruntime makes a float Gemm of MatMul and Add where the shapes are fixed, which takes five times as long."""
    x, w, b = floats(*[size or 8 for size in shape]), unlike(floats(32, 16, seed=1)), floats(16, seed=2)
    nodes = [node("MatMul", "x w", "p"), node("Add", terms, "y")]
    made = quantize_in_memory(build(nodes, {"x": shape}, ["y"], {"w": w, "b": b}), "static-int8", [{"x": x}])
    assert made.optimized() == kernels
    assert made.sqnr({"x": x}, ALL) > 30


@pytest.mark.parametrize("rows", [8, None])
def test_a_residual_behind_a_product_of_matrices_does_not_bring_it_back_into_float(rows):
    x, w = floats(8, 32), unlike(floats(32, 32, seed=1))
    nodes = [node("MatMul", "x w", "p"), node("Add", "x p", "y")]
    made = quantize_in_memory(build(nodes, {"x": [rows, 32]}, ["y"], {"w": w}), "static-int8", [{"x": x}])
    assert made.optimized() == {"QuantizeLinear": 1, "QGemm": 1, "Add": 1}
    assert made.sqnr({"x": x}, ALL) > 30


@pytest.mark.parametrize("opset", [10, 13, 17])
@pytest.mark.parametrize(("clamp", "kept"), [("Relu", {"Max": 1}), ("Clip", {"Max": 1, "Min": 1})])
@pytest.mark.parametrize(
    ("product", "kernel"),
    [("Gemm", "QGemm"), ("MatMul", "MatMulIntegerToFloat"), ("MatMul Add", "QGemm")],
)
def test_a_clamp_behind_a_product_does_not_bring_it_back_into_float(product, kernel, clamp, kept, opset):
    """onnxruntime looks for a QuantizeLinear behind a clamp, and leaves the product float where there is none."""
    x, b = floats(8, 32), floats(16, seed=2)
    first = {"Gemm": "x w b", "MatMul": "x w", "MatMul Add": "x w"}[product]
    nodes = [node(product.split()[0], first, "p"), *([node("Add", "p b", "g")] if " " in product else [])]
    bounds = {} if clamp == "Relu" else {"min": 0.0, "max": 6.0} if opset < 11 else {"inputs": "low high"}
    inputs = f"{'g' if ' ' in product else 'p'} {bounds.pop('inputs', '')}".strip()
    nodes += [node(clamp, inputs, "r", **bounds), node("Sqrt", "r", "y")]
    weights = {"w": unlike(floats(32, 16, seed=1)), "b": b, "low": np.array(0, F), "high": np.array(6, F)}
    proto = build(nodes, {"x": [8, 32]}, ["y"], weights, opset=opset)
    granularity = "tensor" if opset < 13 else "channel"  # DequantizeLinear has an axis from 13 on
    made = quantize_in_memory(proto, "static-int8", [{"x": x}], granularity=granularity)
    assert made.optimized() == {"QuantizeLinear": 1, kernel: 1, **kept, "Sqrt": 1}
    assert made.sqnr({"x": x}, ALL) > 20  # the root of a number near zero


def test_a_clamp_that_a_quantized_product_reads_stays_and_vanishes():
    x, b = floats(8, 32), floats(16, seed=2)
    nodes = [node("Gemm", "x w b", "g"), node("Relu", "g", "r"), node("Gemm", "r v b", "y")]
    weights = {"w": unlike(floats(32, 16, seed=1)), "v": unlike(floats(16, 16, seed=3)), "b": b}
    made = quantize_in_memory(build(nodes, {"x": [8, 32]}, ["y"], weights), "static-int8", [{"x": x}])
    assert made.ops["Relu"] == 1
    assert made.optimized() == {"QuantizeLinear": 1, "QGemm": 2}


def test_tied_square_weights_in_the_static_form():
    w, x = unlike(floats(16, 16)), floats(4, 16, seed=5)
    proto = build(
        [node("Gemm", "x w", "a", transB=1), node("MatMul", "a w", "b"), node("MatMul", "b w", "y")],
        {"x": [4, 16]},
        ["y"],
        {"w": w},
    )
    made = quantize_in_memory(proto, "static-int8", [{"x": x}])
    assert made.sqnr({"x": x}) > 25
    assert sum(array.shape == (16, 16) for array in made.weights.values()) <= 2


# -- weights in 8 bit -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["cast-mul", "qdq"])
@pytest.mark.parametrize(
    "made_of",
    [
        ("MatMul", "x w", {}, [4, 96], [96, 128]),
        ("MatMul", "w x", {}, [96, 4], [128, 96]),
        ("MatMul", "x w", {}, [3, 4, 96], [3, 96, 64]),
        ("Gemm", "x w", {"transB": 1}, [4, 96], [128, 96]),
        ("Gemm", "w x", {"transA": 1, "alpha": 0.5}, [96, 4], [96, 128]),
    ],
    ids=["right", "left", "batched", "gemm_transB", "gemm_left_transA"],
)
def test_stored_weights_are_a_quarter_of_the_size(made_of, form):
    op, names, attributes, x_shape, w_shape = made_of
    w, x = floats(*w_shape), floats(*x_shape, seed=1)
    proto = build([node(op, names, "y", **attributes)], {"x": x_shape}, ["y"], {"w": w})
    made = quantize_in_memory(proto, "weight-int8", form=form)
    assert len(made.data) < 0.29 * len(made.source)  # 0.25, the scales, and half a kB of graph
    assert made.ops[op] == 1
    assert made.sqnr({"x": x}) > 40  # only the weight is rounded: 7 bits of a normal channel's extreme
    expected = {"cast-mul": {"Cast": 1, "Mul": 1, op: 1}, "qdq": {"DequantizeLinear": 1, op: 1}}
    assert made.ops == expected[form], "the form that was asked for"
    if form == "cast-mul":
        folded = made.optimized()
        assert not folded.keys() & {"Cast", "Mul", "DequantizeLinear"}, "onnxruntime folds it when it loads the model"


def test_stored_weights_share_one_scale_where_asked():
    w = unlike(floats(32, 32))
    proto = build([node("MatMul", "x w", "y")], {"x": [4, 32]}, ["y"], {"w": w})
    made = quantize_in_memory(proto, "weight-int8", granularity="tensor")
    assert made.weights["w_scale"] == np.abs(w).max() / F(127)
    np.testing.assert_array_equal(made.weights["w_quantized"], np.rint(w / made.weights["w_scale"]).astype(np.int8))


def test_a_stored_weight_with_several_readers_is_stored_once():
    w = unlike(floats(32, 32))
    nodes = [node("MatMul", "x w", "a"), node("MatMul", "a w", "b"), node("Gemm", "b w", "y")]
    made = quantize_in_memory(build(nodes, {"x": [4, 32]}, ["y"], {"w": w}), "weight-int8")
    assert made.ops == {"Cast": 1, "Mul": 1, "MatMul": 2, "Gemm": 1}
    assert [name for name, array in made.weights.items() if array.shape == (32, 32)] == ["w_quantized"]
