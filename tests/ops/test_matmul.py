"""MatMul and Gemm: the dynamic form to the bit, the static form and stored weights within what 8 bit can do."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import pytest
from helpers import ALL, F, build, every_node, floats, graph, node, quantize_in_memory, session, sqnr
from onnx import TensorProto, helper

# -- a NumPy model of the dynamic form, independent of the code under test ------------------------------------------


def quantize_activation(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """DynamicQuantizeLinear: codes, scale, zero point."""
    low, high = min(x.min(), F(0)), max(x.max(), F(0))
    scale = F((high - low) / F(255)) if high > low else F(1)
    zero = int(np.rint(np.clip(-low / scale, 0, 255)))
    return np.clip(np.rint(x / scale) + zero, 0, 255).astype(np.int64), scale, zero


def quantize_matrix(w: np.ndarray, axis: int | tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Symmetric int8 codes with one scale for each index that is left after `axis`."""
    most = np.abs(w).max(axis=axis, keepdims=True)
    scale = np.where(most == 0, F(1), (most / F(127)).astype(F)).astype(F)
    return np.rint(w / scale).astype(np.int64), scale


def dynamic_product(a: np.ndarray, b: np.ndarray, weight: int, alpha: float = 1.0) -> np.ndarray:
    """What the integer form of `alpha * a @ b` gives, with input `weight` the constant one."""
    w, w_scale = quantize_matrix((a, b)[weight], -1 if weight == 0 else -2)
    x, x_scale, zero = quantize_activation((a, b)[1 - weight])
    w_scale = w_scale * F(alpha)
    if weight == 0:
        total = (w @ (x - zero)).astype(F)
        return total * w_scale * x_scale if w_scale.size > 1 else total * (x_scale * w_scale)
    return ((x - zero) @ w).astype(F) * (x_scale * w_scale)


def dynamic(proto: onnx.ModelProto):
    made = quantize_in_memory(proto)
    assert {n.domain for n in every_node(made.proto.graph)} <= {"", "ai.onnx"}, "standard operators only"
    assert {w.dtype for w in made.weights.values() if w.size > 64} <= {np.dtype(np.int8), np.dtype(np.uint8)}
    return made


# -- dynamic MatMul ---------------------------------------------------------------------------------------------------

SHAPES = {
    "matrix": ([5, 6], [6, 7]),
    "row": ([1, 6], [6, 7]),
    "one_column": ([5, 6], [6, 1]),
    "3d": ([2, 5, 6], [6, 7]),
    "4d": ([2, 3, 5, 6], [6, 7]),
    "batched": ([3, 5, 6], [3, 6, 7]),
    "broadcast": ([5, 6], [3, 6, 7]),
    "broadcast_batches": ([2, 1, 5, 6], [3, 6, 7]),
    "batch_of_one": ([5, 6], [1, 6, 7]),
}


@pytest.mark.parametrize("weight", [0, 1], ids=["weight_left", "weight_right"])
@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
def test_dynamic_matmul_is_integer_arithmetic_to_the_bit(shapes, weight):
    a, b = (floats(*shape, seed=seed) for seed, shape in enumerate(shapes))
    given, constant = ("xw", (a, b)[1]) if weight == 1 else ("wx", (a, b)[0])
    x = (a, b)[1 - weight]
    made = dynamic(build([node("MatMul", " ".join(given), "y")], {"x": [None] * x.ndim}, ["y"], {"w": constant}))
    (y,) = made.run({"x": x})
    np.testing.assert_array_equal(y, dynamic_product(a, b, weight), strict=True)
    assert sqnr(a @ b, y) > 30  # two 8-bit factors of normal numbers, with min-max ranges: about 38 dB
    assert sqnr(a @ b, made.run({"x": x}, ALL)[0]) > 30
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
    made = quantize_in_memory(build([node("MatMul", "x w", "y")], {"x": [4, 6]}, ["y"], {"w": w}), granularity="tensor")
    codes, scale = quantize_matrix(w.reshape(-1, 1), 0)
    q, x_scale, zero = quantize_activation(x)
    expected = ((q - zero) @ codes.reshape(w.shape)).astype(F) * (x_scale * scale.item())
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
    made = quantize_in_memory(build([node("MatMul", "x w", "y")], {"x": [4, 6]}, ["y", "w"], {"w": w}))
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
    expected = x
    for transposed in (True, False, True, False):
        expected = dynamic_product(expected, w.T.copy() if transposed else w, 1)
    np.testing.assert_array_equal(made.run({"x": x})[0], expected)
    assert made.sqnr({"x": x}) > 25  # four products in a row
    assert sum(array.shape == (16, 16) for array in made.weights.values()) == 2, "the weight and its transpose"


# -- dynamic Gemm -----------------------------------------------------------------------------------------------------

M, K, N = 5, 6, 7
BIASES = {
    "absent": None,
    "[N]": [N],
    "[1,N]": [1, N],
    "[M,N]": [M, N],
    "[M,1]": [M, 1],
    "[1]": [1],
    "scalar": [],
}


def gemm(weight: int, trans_a: int, trans_b: int, bias: np.ndarray | None, computed: bool, **scalars: float):
    """A Gemm, its feeds and its factors as the product reads them."""
    a, b = floats(M, K, seed=1), floats(K, N, seed=2)
    stored = [a.T.copy() if trans_a else a, b.T.copy() if trans_b else b]
    inputs, weights = {"x": list(stored[1 - weight].shape)}, {"w": stored[weight]}
    names = "x w" if weight == 1 else "w x"
    feeds = {"x": stored[1 - weight]}
    if bias is not None:
        names += " c"
        if computed:
            inputs["c"], feeds["c"] = list(bias.shape), bias
        else:
            weights["c"] = bias
    proto = build([node("Gemm", names, "y", transA=trans_a, transB=trans_b, **scalars)], inputs, ["y"], weights)
    return proto, feeds, a, b


@pytest.mark.parametrize("weight", [0, 1], ids=["weight_left", "weight_right"])
@pytest.mark.parametrize("trans_a", [0, 1])
@pytest.mark.parametrize("trans_b", [0, 1])
@pytest.mark.parametrize("alpha", [1.0, 0.5, -2.0])
def test_dynamic_gemm_is_integer_arithmetic_to_the_bit(weight, trans_a, trans_b, alpha):
    """Other quantizers leave Gemm float where alpha or beta is not 1, or compute it wrongly."""
    for (kind, shape), computed, beta in itertools.product(BIASES.items(), [False, True], [0.0, 0.5, 1.0, 3.0]):
        bias = None if shape is None else np.asarray(floats(*shape, seed=3) * 4, F)
        proto, feeds, a, b = gemm(weight, trans_a, trans_b, bias, computed, alpha=alpha, beta=beta)
        made = quantize_in_memory(proto)
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
    made = quantize_in_memory(proto)
    assert made.ops["DynamicQuantizeLinear"] == 1
    x = floats(K, M, seed=3)
    xt = x.T.copy()
    np.testing.assert_array_equal(made.run({"x": x})[0], dynamic_product(xt, w1, 1) + dynamic_product(xt, w2, 1))


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
    made = quantize_in_memory(proto)
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
    made = quantize_in_memory(proto)
    assert len(made.data) < 0.5 * len(made.source)
    x = floats(4, 64, seed=3)
    for c in (True, False):
        (y,) = made.run({"x": x, "c": np.array(c)})
        np.testing.assert_array_equal(y, dynamic_product(np.maximum(x, 0), w, 1))


# -- static -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("granularity", ["channel", "tensor"])
@pytest.mark.parametrize("shapes", [s for s in SHAPES.values() if len(s[1]) == 2 or s[1][0] == 3])
def test_static_matmul_keeps_its_output_in_float(shapes, granularity):
    a, w = (floats(*shape, seed=seed) for seed, shape in enumerate(shapes))
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
    proto = build([node("MatMul", "x w", "y")], {"x": [8, 32]}, ["y"], {"w": floats(32, 16, seed=1)})
    made = quantize_in_memory(proto, "static-int8", [{"x": x}])
    assert made.optimized() == {"QuantizeLinear": 1, "MatMulIntegerToFloat": 1}
    assert made.sqnr({"x": x}, ALL) > 30


@pytest.mark.parametrize("granularity", ["channel", "tensor"])
@pytest.mark.parametrize("trans_a", [0, 1])
@pytest.mark.parametrize("trans_b", [0, 1])
@pytest.mark.parametrize("alpha", [1.0, 0.5, -2.0])
def test_static_gemm_is_right_for_every_alpha_beta_and_bias(trans_a, trans_b, alpha, granularity):
    """Other quantizers multiply the bias scale by beta and then forget beta: 2 C instead of C / 2, 0 dB."""
    for (kind, shape), computed, beta in itertools.product(BIASES.items(), [False, True], [0.0, 0.5, 1.0, 3.0]):
        bias = None if shape is None else np.asarray(floats(*shape, seed=3) * 4, F)
        proto, feeds, _, _ = gemm(1, trans_a, trans_b, bias, computed, alpha=alpha, beta=beta)
        made = quantize_in_memory(proto, "static-int8", [feeds], granularity=granularity)
        label = f"bias {kind}, computed {computed}, beta {beta}"
        assert made.decision("n_y").scheme == "static-int8", label
        # two 8-bit factors of normal numbers, K = 6; a wrong alpha, beta or bias gives less than 10 dB
        assert made.sqnr(feeds) > 30, label
        if not computed:
            assert made.sqnr(feeds, ALL) > 30, label


def test_static_gemm_runs_as_one_integer_kernel():
    x = floats(8, 32)
    weights = {"w": floats(16, 32, seed=1), "c": floats(16, seed=2)}
    proto = build([node("Gemm", "x w c", "y", transB=1, beta=2.0, alpha=0.5)], {"x": [8, 32]}, ["y"], weights)
    made = quantize_in_memory(proto, "static-int8", [{"x": x}])
    assert made.optimized() == {"QuantizeLinear": 1, "QGemm": 1}
    assert made.sqnr({"x": x}, ALL) > 30


def test_static_gemm_with_a_bias_far_larger_than_its_weights():
    """An int32 bias that overflows wraps around; only the channel that needs it may get coarser."""
    x, w, c = floats(16, 8), floats(8, 4, seed=1), floats(4, seed=2)
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


def test_tied_square_weights_in_the_static_form():
    w, x = floats(16, 16), floats(4, 16, seed=5)
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
    w = floats(32, 32)
    proto = build([node("MatMul", "x w", "y")], {"x": [4, 32]}, ["y"], {"w": w})
    made = quantize_in_memory(proto, "weight-int8", granularity="tensor")
    assert made.weights["w_scale"] == np.abs(w).max() / F(127)
    np.testing.assert_array_equal(made.weights["w_quantized"], np.rint(w / made.weights["w_scale"]).astype(np.int8))


def test_a_stored_weight_with_several_readers_is_stored_once():
    w = floats(32, 32)
    nodes = [node("MatMul", "x w", "a"), node("MatMul", "a w", "b"), node("Gemm", "b w", "y")]
    made = quantize_in_memory(build(nodes, {"x": [4, 32]}, ["y"], {"w": w}), "weight-int8")
    assert made.ops == {"Cast": 1, "Mul": 1, "MatMul": 2, "Gemm": 1}
    assert [name for name, array in made.weights.items() if array.shape == (32, 32)] == ["w_quantized"]


def test_recurrent_nodes_stay_float_with_a_reason():
    weights = {"w": floats(1, 32, 8), "r": floats(1, 32, 8, seed=1)}
    proto = build([node("LSTM", "x w r", "y", hidden_size=8)], {"x": [3, 2, 8]}, ["y"], weights)
    made = quantize_in_memory(proto, "weight-int8")
    assert made.decision("n_y").scheme is None
    assert made.decision("n_y").reason == "LSTM has no quantized form"
    assert made.data == made.source
    assert session(made.data)
