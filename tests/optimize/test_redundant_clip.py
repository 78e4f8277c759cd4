"""Clips in front of QuantizeLinear go where the codes stay the same to the bit, and nowhere else."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from helpers import build, changed_alike, count_ops, graph, node
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from onnxq.optimize.redundant_clip import drop_clips

SCALE, ZERO = np.float32(0.05), np.uint8(100)
INSIDE = {"low": np.float32(-5.01), "high": np.float32(7.76)}  # codes go from -5 to 7.75
TIGHT = {"low": np.float32(-4), "high": np.float32(7.76)}
QUANTIZE = [node("QuantizeLinear", "c s z", "q"), node("DequantizeLinear", "q s z", "y")]
CLIP = node("Clip", "h low high", "c")
FAR = np.array([-np.inf, -1e30, -9, -5.024, -4, -0.0, 0.3, 7.7, 7.776, 9, 1e30, np.inf, np.nan], np.float32)


def model(nodes, bounds, outputs=("y",), opset=17, **weights) -> onnx.ModelProto:
    known = {"s": SCALE, "z": ZERO, **bounds, **weights}
    read = {name for one in nodes for name in one.input}
    known = {name: array for name, array in known.items() if name in read}
    return build(nodes, {"x": [1, len(FAR)]}, outputs, known, opset)


def dropped(nodes, bounds, outputs=("y",), opset=17, feed=FAR, **weights) -> int:
    made, count = changed_alike(model(nodes, bounds, outputs, opset, **weights), drop_clips, {"x": feed[None]})
    before = sum(one.op_type == "Clip" for one in nodes)
    assert count_ops(made)["Clip"] == before - count
    return count


def behind(*steps: onnx.NodeProto) -> list[onnx.NodeProto]:
    return [*steps, CLIP, *QUANTIZE]


def around(low: float, high: float, scale: float) -> np.ndarray:
    """Numbers at two bounds and a little beyond and before, negated as `h` is of `x`."""
    near = [bound + steps * scale for bound in (low, high) for steps in (-1, -0.4, 0, 0.4, 1)]
    return -np.array([*near, -np.inf, np.inf, np.nan], np.float32)


FLOAT = node("Abs", "x", "h")


@given(
    low=st.floats(-10, 0, width=32),
    high=st.floats(0.0625, 10, width=32),
    scale=st.floats(0.0078125, 0.25, width=32),
    zero=st.integers(0, 255),
    signed=st.booleans(),
)
def test_codes_stay_the_same_to_the_bit(low, high, scale, zero, signed):
    """A Clip stays exactly where some number beyond its bounds has a code of its own."""
    kind, lowest = (np.int8, -128) if signed else (np.uint8, 0)
    nodes = behind(node("Neg", "x", "h"))
    bounds = {"low": np.float32(low), "high": np.float32(high)}
    count = dropped(nodes, bounds, feed=around(low, high, scale), s=np.float32(scale), z=np.array(zero + lowest, kind))
    first, last = np.rint(np.array([low, high], np.float32) / np.float32(scale)) + zero
    assert count == int(first <= 0 and last >= 255)


@given(low=st.floats(-50, 0, width=32), high=st.floats(0.0625, 50, width=32))
def test_the_range_that_codes_were_chosen_for_needs_no_clip(low, high):
    """A zero point is rounded, so that one end lies up to half a step beyond; but for a tie, no code stands there."""
    scale = np.float32((np.float64(high) - low) / 255)
    if abs(low / scale % 1 - 0.5) < 1e-3:
        return
    zero = np.uint8(np.clip(np.rint(-np.float32(low) / scale), 0, 255))
    bounds = {"low": np.float32(low), "high": np.float32(high)}
    assert dropped(behind(node("Neg", "x", "h")), bounds, feed=around(low, high, scale), s=scale, z=zero) == 1


@pytest.mark.parametrize("bounds", [INSIDE, {"low": np.float32(-np.inf), "high": np.float32(np.inf)}, INSIDE | TIGHT])
def test_bounds_that_are_infinite_clip_nothing(bounds):
    low = float(bounds["low"])
    assert dropped(behind(FLOAT), bounds) == int(low != -4)


def test_a_clip_without_bounds_goes():
    assert dropped([FLOAT, node("Clip", "h", "c"), *QUANTIZE], {}) == 1


@pytest.mark.parametrize("attributes", [{"min": -5.01, "max": 7.76}, {"min": -4.0, "max": 7.76}, {"max": 7.76}, {}])
def test_bounds_that_are_attributes(attributes):
    """Before operator set 11."""
    clip = node("Clip", "h", "c", **attributes)
    wanted = attributes.get("min") != -4.0
    finite = np.clip(np.nan_to_num(FAR), -1e30, 1e30)
    assert dropped([FLOAT, clip, *QUANTIZE], {}, opset=10, feed=finite) == int(wanted)


def test_one_bound_may_be_left_out():
    assert dropped([FLOAT, node("Clip", "h - high", "c"), *QUANTIZE], INSIDE) == 1
    assert dropped([FLOAT, node("Clip", "h - high", "c"), *QUANTIZE], {"high": np.float32(7)}) == 0


def test_what_is_an_output_stays():
    assert dropped(behind(FLOAT), INSIDE, outputs=("y", "c")) == 0


@pytest.mark.parametrize("reader", [node("Neg", "c", "y2"), node("Mul", "c c", "y2")])
def test_what_is_read_in_float_stays(reader):
    assert dropped([*behind(FLOAT), reader], INSIDE, outputs=("y", "y2")) == 0


def test_all_that_quantize_have_to_agree():
    other = [node("QuantizeLinear", "c s2 z", "q2"), node("DequantizeLinear", "q2 s2 z", "y2")]
    nodes = [*behind(FLOAT), *other]
    assert dropped(nodes, INSIDE, outputs=("y", "y2"), s2=np.float32(0.04)) == 1
    assert dropped(nodes, INSIDE, outputs=("y", "y2"), s2=np.float32(0.06)) == 0


def test_what_is_computed_together_with_what_comes_before_stays():
    width = len(FAR)
    random = np.random.default_rng(0)
    square = random.standard_normal((width, width)).astype(np.float32)
    finite = random.standard_normal(width).astype(np.float32)
    for made in (
        [node("MatMul", "x w", "h")],
        [node("Gemm", "x w", "h")],
        [node("Add", "x b", "h")],
        [node("Unsqueeze", "x axes", "e"), node("Conv", "e k", "h")],
    ):
        weights = {"w": square, "b": square[:1], "k": square[:4, :1, None], "axes": np.array([1])}
        assert dropped(behind(*made), INSIDE, feed=finite, **weights) == 0
        others = [*behind(*made), node("Neg", "h", "y2")]
        assert dropped(others, INSIDE, outputs=("y", "y2"), feed=finite, **weights) == 1, "it cannot be fused there"


def test_what_is_computed_stays():
    """Bounds that are no constants, and scales that are none."""
    steep = np.linspace(1, 9, len(FAR), dtype=np.float32)
    greatest = [FLOAT, node("ReduceMax", "x", "high", keepdims=0), CLIP, *QUANTIZE]
    assert dropped(greatest, {"low": np.float32(-6)}, feed=steep) == 0
    scale = [node("ReduceMax", "x", "m", keepdims=0), node("QuantizeLinear", "c m z", "q")]
    assert dropped([FLOAT, CLIP, *scale, node("DequantizeLinear", "q m z", "y")], INSIDE, feed=steep) == 0


def test_one_scale_for_each_channel_stays():
    scales = {"s": np.full(len(FAR), SCALE), "z": np.full(len(FAR), ZERO)}
    assert dropped(behind(FLOAT), INSIDE, **scales) == 0


def test_a_range_without_zero_stays():
    assert dropped(behind(FLOAT), {"low": np.float32(1), "high": np.float32(99)}) == 0


def test_a_clip_that_a_body_reads():
    """In a body as in front of one."""
    then = graph([node("QuantizeLinear", "c s z", "tq"), node("DequantizeLinear", "tq s z", "t")], {}, ["t"], {})
    inner = [
        node("Clip", "h low high", "d"),
        node("QuantizeLinear", "d s z", "eq"),
        node("DequantizeLinear", "eq s z", "e"),
    ]
    other = graph(inner, {}, ["e"], {})
    choose = helper.make_node("If", ["yes"], ["y"], then_branch=then, else_branch=other)
    for yes in (True, False):
        nodes = [FLOAT, CLIP, choose]
        known = {"s": SCALE, "z": ZERO, **INSIDE, "yes": np.array(yes)}
        proto = build(nodes, {"x": [1, len(FAR)]}, {"y": TensorProto.FLOAT}, known)
        made, count = changed_alike(proto, drop_clips, {"x": FAR[None]})
        assert (count, count_ops(made)["Clip"]) == (2, 0)
