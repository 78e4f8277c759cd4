"""Gemm: alpha, beta, transposes and every bias, in the dynamic and in the static form."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import ALL, F, build, floats, node, quantize_in_memory, sqnr, unlike
from integer_products import BIASED, FULL, K, M, N, dynamic_product, gemm


@pytest.mark.parametrize("weight", [0, 1], ids=["weight_left", "weight_right"])
@pytest.mark.parametrize("trans_a", [0, 1])
@pytest.mark.parametrize("trans_b", [0, 1])
@pytest.mark.parametrize("alpha", [1.0, -0.5])
def test_dynamic_gemm_is_integer_arithmetic_to_the_bit(weight, trans_a, trans_b, alpha):
    """Other quantizers leave Gemm float where alpha or beta is not 1, or compute it wrongly."""
    for kind, shape, computed, beta in BIASED:
        bias = None if shape is None else np.asarray(floats(*shape, seed=3) * 4, F)
        proto, feeds, a, b = gemm(weight, trans_a, trans_b, bias, computed, alpha=alpha, beta=beta)
        made = quantize_in_memory(proto, **FULL)
        expected = dynamic_product(a, b, weight, alpha)
        if bias is not None and beta:
            expected = expected + (bias * F(beta) if beta != 1 else bias)
        label = f"bias {kind}, computed {computed}, beta {beta}"
        np.testing.assert_array_equal(made.run(feeds)[0], expected, err_msg=label)
        assert made.decision("n_y").scheme == "dynamic-int8", label
        assert made.ops["Gemm"] == 0, label
        if beta == 0.5:
            assert sqnr(expected, made.run(feeds, ALL)[0]) > 60, label  # fused kernels: float sums in another order


def test_dynamic_gemm_shares_the_codes_before_it_transposes_them():
    w1, w2 = floats(K, N), floats(K, N, seed=1)
    proto = build(
        [node("Gemm", "x w1", "a", transA=1), node("Gemm", "x w2", "b", transA=1), node("Add", "a b", "y")],
        {"x": [K, M]},
        ["y"],
        {"w1": w1, "w2": w2},
    )
    made = quantize_in_memory(proto, **FULL)
    assert made.ops["DynamicQuantizeLinear"] == 1
    x = floats(K, M, seed=3)
    xt = x.T.copy()
    np.testing.assert_array_equal(made.run({"x": x})[0], dynamic_product(xt, w1, 1) + dynamic_product(xt, w2, 1))


@pytest.mark.parametrize("granularity", ["channel", "tensor"])
@pytest.mark.parametrize("trans_a", [0, 1])
@pytest.mark.parametrize("trans_b", [0, 1])
@pytest.mark.parametrize("alpha", [1.0, -0.5])
def test_static_gemm_is_right_for_every_alpha_beta_and_bias(trans_a, trans_b, alpha, granularity):
    """Other quantizers multiply the bias scale by beta and then forget beta: 2 C instead of C / 2, 0 dB."""
    for kind, shape, computed, beta in BIASED:
        bias = None if shape is None else np.asarray(floats(*shape, seed=3) * 4, F)
        proto, feeds, _, _ = gemm(1, trans_a, trans_b, bias, computed, alpha=alpha, beta=beta)
        made = quantize_in_memory(proto, "static-int8", [feeds], granularity=granularity)
        label = f"bias {kind}, computed {computed}, beta {beta}"
        assert made.decision("n_y").scheme == "static-int8", label
        # two 8-bit factors of normal numbers, K = 6; a wrong alpha, beta or bias gives less than 10 dB
        assert made.sqnr(feeds) > 30, label
        if not computed:
            assert made.sqnr(feeds, ALL) > 30, label


@pytest.mark.parametrize("shape", [(M, 1), (M, N)], ids=["rows", "elements"])
@pytest.mark.parametrize("operator", ["Gemm", "MatMul"])
def test_operator_sets_whose_gemm_has_no_optional_bias(operator, shape):
    """A Gemm whose bias is added behind it, and one in the place of a MatMul, have a bias of zeros there."""
    nodes = (
        [node("Gemm", "x w c", "y")] if operator == "Gemm" else [node("MatMul", "x w", "p"), node("Add", "p c", "y")]
    )
    proto = build(nodes, {"x": [M, K]}, ["y"], {"w": unlike(floats(K, N)), "c": floats(*shape, seed=1)}, opset=10)
    feeds = {"x": floats(M, K, seed=2)}
    made = quantize_in_memory(proto, "static-int8", [feeds], granularity="tensor")
    assert made.ops["Gemm"] == 1
    assert made.sqnr(feeds) > 30
    assert made.optimized()["QGemm"] == 1


def test_static_gemm_runs_as_one_integer_kernel():
    x = floats(8, 32)
    weights = {"w": floats(16, 32, seed=1), "c": floats(16, seed=2)}
    proto = build([node("Gemm", "x w c", "y", transB=1, beta=2.0, alpha=0.5)], {"x": [8, 32]}, ["y"], weights)
    made = quantize_in_memory(proto, "static-int8", [{"x": x}])
    assert made.optimized() == {"QuantizeLinear": 1, "QGemm": 1}
    assert made.sqnr({"x": x}, ALL) > 30


def test_static_gemm_with_a_bias_far_larger_than_its_weights():
    """An int32 bias that overflows wraps around; only the channel that needs it may get coarser."""
    x, w, c = floats(16, 8), unlike(floats(8, 4, seed=1)), floats(4, seed=2)
    w[:, 1] *= 1e-7
    c[1] = 1000
    proto = build([node("Gemm", "x w c", "y")], {"x": [16, 8]}, ["y"], {"w": w, "c": c})
    made = quantize_in_memory(proto, "static-int8", [{"x": x}])
    expected, got = made.float_run({"x": x})[0], made.run({"x": x})[0]
    np.testing.assert_allclose(got[:, 1], 1000, rtol=1e-6)
    others = [0, 2, 3]
    assert sqnr(expected[:, others], got[:, others]) > 30
    np.testing.assert_array_equal(
        made.weights["w_scale"][others], np.abs(w[:, others]).max(axis=0) / F(127), "the others are as fine as ever"
    )


def test_static_gemm_with_a_channel_of_zeros_keeps_its_bias():
    x, w, c = floats(16, 8, scale=1000), floats(8, 4, seed=1), floats(4, seed=2)
    w[:, 1] = 0
    proto = build([node("Gemm", "x w c", "y")], {"x": [16, 8]}, ["y"], {"w": w, "c": c})
    made = quantize_in_memory(proto, "static-int8", [{"x": x}])
    np.testing.assert_allclose(made.run({"x": x})[0][:, 1], c[1], rtol=1e-6)


def test_static_gemm_with_tiny_activations_and_weights():
    """The product of the scales underflows to zero: no bias code may come from a division by it."""
    x, w, c = floats(16, 8, scale=1e-25), floats(8, 4, seed=1, scale=1e-25), floats(4, seed=2)
    c[0] = 0
    proto = build([node("Gemm", "x w c", "y")], {"x": [16, 8]}, ["y"], {"w": w, "c": c})
    made = quantize_in_memory(proto, "static-int8", [{"x": x}])
    np.testing.assert_allclose(made.run({"x": x})[0], np.broadcast_to(c, (16, 4)), rtol=1e-6, atol=1e-30)
