"""Relu and Clip of what others read as well: codes are clamped, the same to the bit as floats between conversions."""

from __future__ import annotations

import numpy as np
import onnx
from helpers import applied, build, changed_alike, count_ops, graph, node, typed
from hypothesis import given
from hypothesis import strategies as st

from onnxq.optimize.integer_clip import clamp_codes

PAIR = [node("QuantizeLinear", "x s z", "q"), node("DequantizeLinear", "q s z", "h")]
BEHIND = [node("QuantizeLinear", "c s z", "r"), node("DequantizeLinear", "r s z", "y")]
RELU = node("Relu", "h", "c")
CLIP = node("Clip", "h low high", "c")
FIXED = {"s": np.float32(0.05), "z": np.uint8(100), "low": np.float32(-2), "high": np.float32(6)}


def clamped(nodes: list[onnx.NodeProto], outputs=("y",), x: np.ndarray | None = None, **weights) -> onnx.ModelProto:
    known = FIXED | weights
    read = {name for one in nodes for name in one.input}
    feed = np.linspace(-6, 9, 64, dtype=np.float32) if x is None else x
    used = {name: array for name, array in known.items() if name in read}
    model = build(nodes, {"x": [1, len(feed)]}, outputs, used, 17)
    made, count = changed_alike(model, clamp_codes, {"x": feed[None]})
    assert count == sum(one.op_type in ("Relu", "Clip") and "h" in one.input for one in nodes) - count_ops(made)["Relu"]
    return made


@given(
    low=st.floats(-10, 0, width=32),
    high=st.floats(0.0625, 10, width=32),
    scale=st.floats(0.0078125, 0.25, width=32),
    zero=st.integers(0, 255),
    signed=st.booleans(),
    relu=st.booleans(),
)
def test_every_code_is_clamped_alike(low, high, scale, zero, signed, relu):
    kind, lowest = (np.int8, -128) if signed else (np.uint8, 0)
    every = (np.arange(256, dtype=np.float32) - zero) * np.float32(scale)
    changes = {"low": np.float32(low), "high": np.float32(high), "s": np.float32(scale)}
    made = clamped([*PAIR, RELU if relu else CLIP, *BEHIND], x=every, z=np.array(zero + lowest, kind), **changes)
    assert count_ops(made)["QuantizeLinear"] == 1
    assert count_ops(made)["Relu"] == 0


def test_bounds_beyond_all_codes_leave_nothing_to_clamp():
    wide = {"low": np.float32(-100), "high": np.float32(100)}
    assert count_ops(clamped([*PAIR, CLIP, *BEHIND], **wide)) == {"QuantizeLinear": 1, "DequantizeLinear": 1}


def unchanged(nodes: list[onnx.NodeProto], outputs=("y",), **weights) -> bool:
    known = FIXED | {"t": np.float32(0.06), "u": np.uint8(101), "v": np.uint16(100)} | weights
    used = {name: array for name, array in known.items() if name in {name for one in nodes for name in one.input}}
    return applied(clamp_codes, typed(build(nodes, {"x": [1, 64]}, outputs, used, 21))) == 0


def test_what_is_not_the_same_stays():
    other_scale = [node("QuantizeLinear", "c t z", "r"), node("DequantizeLinear", "r t z", "y")]
    other_zero = [node("QuantizeLinear", "c s u", "r"), node("DequantizeLinear", "r s u", "y")]
    other_type = [node("QuantizeLinear", "c s v", "r"), node("DequantizeLinear", "r s v", "y")]
    wide = [node("QuantizeLinear", "x s v", "q"), node("DequantizeLinear", "q s v", "h")]
    assert not unchanged([*PAIR, RELU, *BEHIND])
    assert unchanged([*PAIR, RELU, *other_scale])
    assert unchanged([*PAIR, RELU, *other_zero])
    assert unchanged([*PAIR, RELU, *other_type])
    assert unchanged([*wide, RELU, *other_type]), "Clip takes no 16 bit in onnxruntime"
    assert unchanged([*PAIR, RELU, *BEHIND], ["y", "c"]), "others read the floats"
    assert unchanged([node("Relu", "x", "c"), *BEHIND]), "it reads floats"
    assert unchanged([*PAIR, CLIP, *BEHIND], low=np.float32(1)), "zero is not within its bounds"


def test_what_a_body_quantizes_stays():
    then = graph([*BEHIND], {}, ["y"], {})
    other = graph([node("Neg", "x", "e")], {}, ["e"], {})
    choice = node("If", "taken", "o", then_branch=then, else_branch=other)
    inputs = {"x": [1, 64], "taken": (onnx.TensorProto.BOOL, [])}
    weights = {name: FIXED[name] for name in "sz"}
    assert applied(clamp_codes, typed(build([*PAIR, RELU, choice], inputs, ["o"], weights, 17))) == 0
