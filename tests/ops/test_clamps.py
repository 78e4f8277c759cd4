"""Relu and Clip of what others read as well stay in 8 bit between quantized neighbours."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from helpers import Quantized, build, floats, node, quantize_in_memory, typed

from onnxq.optimize.optimize import optimize_for_target

X = [1, 4, 8, 8]


def residual(*, clamp: str = "Relu", opset: int = 17, moved: bool = False) -> onnx.ModelProto:
    """A sum that a branch clamps first and a second sum reads as it is, as in Xception and RefineNet."""
    weights = {name: floats(8, 4 if name == "a" else 8, 3, 3, seed=seed, scale=0.2) for seed, name in enumerate("abcd")}
    weights |= {"low": np.float32(0), "high": np.float32(0.75)}
    pads = {"pads": [1] * 4}
    read = "u low high" if clamp == "Clip" else "u"
    nodes = [
        node("Conv", "x a", "m", **pads),
        node("Conv", "m b", "n", **pads),
        node("Add", "m n", "u"),
        node(clamp, "p" if moved else read, "r", name="clamp"),
        node("Conv", "r c", "v", **pads),
        node("Add", "p v" if moved else "u v", "w"),
        node("Conv", "w d", "y", **pads),
    ]
    if moved:
        nodes.insert(3, node("MaxPool", "u", "p", kernel_shape=[2, 2], strides=[2, 2]))
    return build(nodes, {"x": X}, ["y"], {k: v for k, v in weights.items() if k in "abcd" or clamp == "Clip"}, opset)


def in_codes(proto: onnx.ModelProto, **settings) -> Quantized:
    samples = [{"x": floats(*X, seed=seed)} for seed in range(4)]
    return quantize_in_memory(proto, "static-int8", samples, **settings)


@pytest.mark.parametrize("changes", [{}, {"clamp": "Clip"}, {"moved": True}])
def test_a_branch_that_clamps_what_others_read_stays_in_8_bit(changes):
    proto = residual(**changes)
    made = in_codes(proto)
    assert made.decision("clamp").reason == "clamps 8-bit values"
    before = made.run({"x": floats(*X, seed=9)})[0]
    tuned = onnx.ModelProto.FromString(optimize_for_target(typed(made.proto), "cpu").serialize())
    after = Quantized(made.source, tuned.SerializeToString(), made.plan)
    assert after.ops["Clip"] == 1
    assert after.ops["Relu"] == 0
    np.testing.assert_array_equal(after.run({"x": floats(*X, seed=9)})[0], before)
    assert after.sqnr({"x": floats(*X, seed=9)}) > 25
    assert after.optimized()["DequantizeLinear"] == 1, "nothing but the output is a float"


@pytest.mark.parametrize(
    ("proto", "settings", "reason"),
    [
        (residual(opset=11), {"granularity": "tensor"}, "Clip works on 8 bit from opset 12 on"),
        (residual(), {"activations": "uint16"}, "its int8 form is for onnxruntime only"),
        (residual(), {"target": "generic"}, "its int8 form is for onnxruntime only"),
    ],
)
def test_what_onnxruntime_cannot_clamp_in_codes_stays_float(proto, settings, reason):
    assert in_codes(proto, **settings).decision("clamp").reason == reason


def test_bounds_without_zero_stay_float():
    proto = residual(clamp="Clip")
    next(w for w in proto.graph.initializer if w.name == "low").CopyFrom(
        onnx.numpy_helper.from_array(np.float32(0.125), "low")
    )
    assert in_codes(proto).decision("clamp").reason == "its bounds are computed, or zero is not between them"
