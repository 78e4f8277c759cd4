"""Operators without weights: in 8 bit between quantized neighbours where onnxruntime fuses them, float elsewhere."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from helpers import ALL, build, floats, node, quantize_in_memory

FLOAT_NEIGHBOURS = "neighbours are float: int8 would only add conversions"
X = [1, 4, 8, 8]
W = {
    "w": floats(8, 4, 3, 3, scale=0.3),
    "w2": floats(8, 4, 3, 3, seed=1, scale=0.3),
    "v": floats(4, 8, 1, 1, seed=2),
    "v2": floats(4, 2, 1, 1, seed=2),
    "shape": np.array([1, 8, 6, 6]),
    "flat": np.array([1, 8, 36, 1]),
    "axes": np.array([0]),
    "scales": np.array([1, 1, 2, 2], np.float32),
    "none": np.array([], np.float32),
    "halves": np.array([4, 4]),
    "parts": np.array([2, 2, 2, 2]),
    **{name: np.array([number]) for name, number in {"from": 1, "to": 5, "over": 2}.items()},
}
# A node between Conv c (and d) and Conv y; its result is m, of rank 4 and 8 channels (16 for Concat).
BETWEEN = {
    "MaxPool": [node("MaxPool", "c", "m", kernel_shape=[2, 2], strides=[2, 2])],
    "MaxPool_padded": [node("MaxPool", "c", "m", kernel_shape=[3, 3], pads=[1, 1, 1, 1])],
    "AveragePool": [node("AveragePool", "c", "m", kernel_shape=[2, 2], strides=[2, 2])],
    "AveragePool_padded": [node("AveragePool", "c", "m", kernel_shape=[2, 2], pads=[1, 1, 0, 0], count_include_pad=1)],
    "GlobalAveragePool": [node("GlobalAveragePool", "c", "m")],
    "LeakyRelu": [node("LeakyRelu", "c", "m", alpha=0.1)],
    "Sigmoid": [node("Sigmoid", "c", "m")],
    "Reshape": [node("Reshape", "c flat", "m")],
    "Transpose": [node("Transpose", "c", "m", perm=[0, 1, 3, 2])],
    "Flatten": [node("Flatten", "c", "f", axis=1), node("Reshape", "f shape", "m")],
    "Squeeze": [node("Squeeze", "c axes", "s"), node("Unsqueeze", "s axes", "m")],
    "Resize": [node("Resize", "c none scales", "m", mode="nearest", nearest_mode="floor")],
    "Add": [node("Add", "c d", "m")],
    "Mul": [node("Mul", "c d", "m")],
    "Concat": [node("Concat", "c d", "k", axis=2), node("MaxPool", "k", "m", kernel_shape=[2, 2])],
    "Slice": [node("Slice", "c from to over", "m")],
    "Split": [node("Split", "c halves", "k l", axis=1), node("Concat", "l k", "m", axis=1)],
    "Split_and_rest": [
        node("Split", "c parts", "k l n o", axis=1),
        node("Mul", "k l", "p"),
        node("Concat", "n o p l", "m", axis=1),
    ],
    "Split_of_one": [node("Split", "c", "m", axis=1, num_outputs=1)],
    "DepthToSpace": [node("DepthToSpace", "c", "m", blocksize=2)],
    "chain": [
        node("MaxPool", "c", "p", kernel_shape=[2, 2]),
        node("Transpose", "p", "t", perm=[0, 1, 3, 2]),
        node("Add", "t t", "m"),
    ],
}
TWO_CONVS = {"Add", "Mul", "Concat"}
AS_CONV = {"AveragePool", "AveragePool_padded"}  # see test_mean_pools.py


def between(name: str, *, relu: bool = False) -> onnx.ModelProto:
    first = [node("Conv", "x w", "a"), node("Relu", "a", "c")] if relu else [node("Conv", "x w", "c")]
    second = [node("Conv", "x w2", "d")] if name in TWO_CONVS else []
    opset = 18 if name == "Split_of_one" else 17
    nodes = [*first, *second, *BETWEEN[name], node("Conv", "m v2" if name == "DepthToSpace" else "m v", "y")]
    used = {given for n in nodes for given in n.input}
    weights = {key: value for key, value in W.items() if key in used}
    return build(nodes, {"x": X}, ["y"], weights, opset)


@pytest.mark.parametrize("relu", [False, True], ids=["conv", "conv_relu"])
@pytest.mark.parametrize("name", BETWEEN)
def test_between_convolutions_it_stays_in_integers(name, relu):
    x = {"x": floats(*X)}
    made = quantize_in_memory(between(name, relu=relu), "static-int8", [x])
    for one in BETWEEN[name]:
        assert made.decision(one.name).scheme == "static-int8", made.decision(one.name).reason
    limit = 20 if name == "Mul" else 24  # at least three 8-bit roundings; a product multiplies two errors
    assert made.sqnr(x) > limit
    assert made.sqnr(x, ALL) > limit
    fused = made.optimized()
    assert fused["QLinearConv"] == (3 if name in TWO_CONVS | AS_CONV else 2)
    assert fused["QuantizeLinear"] == fused["DequantizeLinear"] == 1, f"only at the borders: {fused}"


@pytest.mark.parametrize("name", ["MaxPool", "Reshape", "Transpose", "Resize", "DepthToSpace", "Slice"])
def test_what_moves_values_keeps_their_scale(name):
    x = {"x": floats(*X)}
    made = quantize_in_memory(between(name), "static-int8", [x])
    assert [value.name for value in made.plan.calibrated()] == ["x", "c", "y"]
    codes = made.run_taps(x, "c_quantized", "m_quantized")
    assert {*np.unique(codes[1])} <= {*np.unique(codes[0])} | {0}, "codes only move"


@pytest.mark.parametrize("name", BETWEEN)
def test_between_float_neighbours_it_stays_float(name):
    # a Tanh has no integer kernel, so nothing around is in 8 bit
    nodes = [node("Tanh", "x", "c"), node("Tanh", "x", "d"), *BETWEEN[name], node("Tanh", "m", "y")]
    used = {given for one in nodes for given in one.input}
    weights = {key: value for key, value in W.items() if key in used}
    proto = build(nodes, {"x": [1, 8, 6, 6]}, ["y"], weights, 18 if name == "Split_of_one" else 17)
    made = quantize_in_memory(proto, "static-int8", [{"x": floats(1, 8, 6, 6)}])
    assert made.data == made.source
    assert {d.reason for d in made.plan.decisions if d.node.op_type != "Tanh"} == {FLOAT_NEIGHBOURS}


def test_one_float_neighbour_is_enough_to_stay_float():
    weights = {"w": W["w"], "v": W["v"]}
    nodes = [
        node("Conv", "x w", "c"),
        node("Tanh", "c", "s"),
        node("Add", "c s", "m"),
        node("Conv", "m v", "y"),
    ]
    made = quantize_in_memory(build(nodes, {"x": X}, ["y"], weights), "static-int8", [{"x": floats(*X)}])
    assert made.decision("n_m").scheme is None
    assert made.decision("n_m").reason == FLOAT_NEIGHBOURS
    assert made.decision("n_s").reason == "onnxruntime has no fast integer kernel for it"


def test_nobody_downstream_wants_integers():
    weights = {"w": W["w"]}
    nodes = [node("Conv", "x w", "c"), node("MaxPool", "c", "m", kernel_shape=[2, 2]), node("Tanh", "m", "y")]
    made = quantize_in_memory(build(nodes, {"x": X}, ["y"], weights), "static-int8", [{"x": floats(*X)}])
    assert made.decision("n_m").reason == FLOAT_NEIGHBOURS


def test_a_value_that_is_read_in_float_and_in_integers():
    nodes = [
        node("Conv", "x w", "c"),
        node("MaxPool", "c", "m", kernel_shape=[2, 2]),
        node("Conv", "m v", "y"),
        node("Tanh", "m", "z"),
        node("GlobalMaxPool", "c", "u"),
    ]
    proto = build(nodes, {"x": X}, ["y", "z", "u", "m"], {"w": W["w"], "v": W["v"]})
    x = {"x": floats(*X)}
    made = quantize_in_memory(proto, "static-int8", [x])
    assert made.decision("n_m").scheme == "static-int8"
    assert [o.name for o in made.proto.graph.output] == ["y", "z", "u", "m"]
    assert made.sqnr(x) > 25
    assert made.sqnr(x, ALL) > 25


def test_a_matmul_behind_a_pool_reads_the_same_codes():
    nodes = [
        node("Conv", "x w", "c"),
        node("GlobalAveragePool", "c", "m"),
        node("Flatten", "m", "f"),
        node("Gemm", "f g b", "y"),
    ]
    weights = {"w": W["w"], "g": floats(8, 5, seed=4), "b": floats(5, seed=5)}
    x = {"x": floats(*X)}
    made = quantize_in_memory(build(nodes, {"x": X}, ["y"], weights), "static-int8", [x])
    fused = made.optimized()
    assert fused == {
        "QuantizeLinear": 1,
        "QLinearConv": 1,
        "QLinearGlobalAveragePool": 1,
        "Flatten": 1,
        "QGemm": 1,
    }
    assert made.sqnr(x) > 25


def test_resize_that_extrapolates_stays_float():
    """A value from outside the tensor need not lie in its range."""
    attributes = {"coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 100.0}
    weights = {"w": W["w"], "v": W["v"], "scales": W["scales"], "roi": np.array([0, 0, 0, 0, 1, 1, 2, 2], np.float32)}
    nodes = [
        node("Conv", "x w", "c"),
        node("Resize", "c roi scales", "m", mode="nearest", **attributes),
        node("Conv", "m v", "y"),
    ]
    x = {"x": floats(*X)}
    made = quantize_in_memory(build(nodes, {"x": X}, ["y"], weights), "static-int8", [x])
    assert made.decision("n_m").reason == "it extrapolates to a value outside of the input's range"
    assert made.sqnr(x) > 25


@pytest.mark.parametrize("opset", [12, 13, 18])
def test_a_split_shares_its_scale_with_all_its_parts(opset):
    nodes = [
        node("Conv", "x w", "c"),
        node("Split", "c halves" if opset > 12 else "c", "k l", axis=1),
        node("Conv", "k u", "y"),
        node("Tanh", "l", "z"),
    ]
    weights = {"w": W["w"], "u": floats(4, 4, 1, 1, seed=2), **({"halves": W["halves"]} if opset > 12 else {})}
    x = {"x": floats(*X)}
    made = quantize_in_memory(build(nodes, {"x": X}, ["y", "z"], weights, opset), "static-int8", [x])
    assert made.decision("n_k").scheme == "static-int8"
    assert [value.name for value in made.plan.calibrated()] == ["x", "c", "y"]
    whole, *parts = made.run_taps(x, "c_quantized", "k_quantized", "l_quantized")
    assert np.array_equal(whole, np.concatenate(parts, axis=1))
    assert made.sqnr(x, ALL) > 30
    assert made.optimized()["Split"] == 1
    assert made.optimized()["QuantizeLinear"] == 1, "what is split are codes"


def test_a_split_with_a_part_that_nobody_reads_stays_float():
    nodes = [node("Conv", "x w", "c"), node("Split", "c halves", "k l", axis=1), node("Conv", "k u", "y")]
    weights = {"w": W["w"], "u": floats(4, 4, 1, 1, seed=2), "halves": W["halves"]}
    x = {"x": floats(*X)}
    made = quantize_in_memory(build(nodes, {"x": X}, ["y"], weights), "static-int8", [x])
    assert made.decision("n_k").reason == "one of its outputs is not read, and onnxruntime then splits floats"
    assert made.sqnr(x, ALL) > 30


def test_shuffled_channels_stay_float() -> None:
    # A ShuffleNet took 1.35 of float's time: codes lie channels last, where groups are exchanged code by code
    nodes = [
        node("Conv", "x w", "c"),
        node("Reshape", "c apart", "g"),
        node("Transpose", "g", "t", perm=[0, 2, 1, 3, 4]),
        node("Reshape", "t together", "s"),
        node("Conv", "s u", "y"),
    ]
    sizes = {"apart": np.array([1, 2, 4, 6, 6]), "together": np.array([1, 8, 6, 6])}
    weights = {"w": W["w"], "u": W["v"], **sizes}
    x = {"x": floats(*X)}
    made = quantize_in_memory(build(nodes, {"x": X}, ["y"], weights), "static-int8", [x])
    reason = "it shuffles channels, and onnxruntime moves int8 channels one by one"
    assert made.decision("n_t").reason == reason
    assert made.sqnr(x, ALL) > 30
