"""Upsampling of codes by powers of two: the same to the bit, and in the kernel that doubles."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from helpers import Quantized, applied, changed_alike, count_ops, floats, node, typed
from hypothesis import given, settings
from hypothesis import strategies as st
from integer_conv_support import Convs

from onnxq.ir import load
from onnxq.optimize.nearest_upsampling import double_codes, doublings
from onnxq.pipeline.quantize import quantize
from onnxq.planning.cost_model import node_times
from onnxq.planning.decision import Plan
from onnxq.planning.recipe import load_recipe
from onnxq.targets import load_costs

EXACT = [("asymmetric", "floor"), ("half_pixel", "round_prefer_floor"), ("pytorch_half_pixel", "round_prefer_ceil")]
F = np.float32


def upsampling(*factors: float, channels: int = 8, sides: tuple[int, int] = (3, 5), **attributes: str) -> Convs:
    """A Conv, a Resize, a Conv, all in 8 bit."""
    net = Convs(2, 4, *sides)
    read = net.conv(net.quantize("x"), "a", channels, 4, 1, 1)
    net.weights["factors"] = np.array(factors, F)
    net.nodes.append(node("Resize", f"{read} - factors", "r", **attributes))
    net.conv(net.quantize("r"), "y", 4, channels, 3, 3, pads=[1] * 4)
    return net


def doubled(proto: onnx.ModelProto, *, batch: int = 2) -> tuple[onnx.ModelProto, int]:
    sides = [d.dim_value or 3 for d in proto.graph.input[0].type.tensor_type.shape.dim][1:]
    return changed_alike(proto, double_codes, {"x": floats(batch, *sides, seed=3)})


@settings(max_examples=40)
@given(
    times=st.integers(1, 3),
    channels=st.integers(1, 20),
    sides=st.tuples(st.integers(1, 6), st.integers(1, 6)),
    how=st.sampled_from(EXACT),
)
def test_the_same_codes_come_out(times: int, channels: int, sides: tuple[int, int], how: tuple[str, str]) -> None:
    where, nearest = how
    factor = float(2**times)
    net = upsampling(
        1, 1, factor, factor, channels=channels, sides=sides, coordinate_transformation_mode=where, nearest_mode=nearest
    )
    made, count = doubled(net.model("y_d"))
    assert count == 1
    assert count_ops(made)["Resize"] == times
    assert count_ops(made)["Reshape"] == 2


def test_an_operator_without_inputs_stays() -> None:
    """Random numbers next to a Conv in 8 bit ended in an IndexError."""
    net = upsampling(1, 1, 2, 2)
    net.nodes.append(node("RandomUniform", "", "random", shape=[2]))
    assert applied(double_codes, typed(net.model("y_d"))) == 1


def test_sizes_may_be_open() -> None:
    proto = upsampling(1, 1, 2, 2, coordinate_transformation_mode="asymmetric", nearest_mode="floor").model("y_d")
    for axis, name in ((0, "batch"), (2, "height"), (3, "width")):
        proto.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = name
    assert doubled(proto, batch=3)[1] == 1


def test_sizes_may_be_given_in_place_of_factors() -> None:
    net = upsampling(1, 1, 2, 2)
    net.weights["sizes"] = np.array([2, 8, 6, 10])
    net.nodes = [node("Resize", "a_d - - sizes", "r") if n.op_type == "Resize" else n for n in net.nodes]
    assert doubled(net.model("y_d"))[1] == 1


def test_onnxruntime_doubles_one_channel_at_a_time() -> None:
    proto = upsampling(1, 1, 4, 4, coordinate_transformation_mode="asymmetric", nearest_mode="floor").model("y_d")
    made, _ = doubled(proto)
    optimized = Quantized(b"", made.SerializeToString(), Plan(load_recipe("auto"))).optimized()
    assert optimized["Resize"] == 2
    assert optimized["QLinearConv"] == 2
    assert optimized["DequantizeLinear"] == 1, "codes all the way to the output"


@pytest.mark.parametrize(
    ("factors", "attributes"),
    [
        ((1, 1, 3, 3), {}),
        ((1, 1, 2, 4), {}),
        ((1, 2, 2, 2), {}),
        ((1, 1, 0.5, 0.5), {}),
        ((1, 1, 1, 1), {}),
        ((1, 1, 2, 2), {"mode": "linear"}),
        ((1, 1, 4, 4), {"coordinate_transformation_mode": "asymmetric"}),
        ((1, 1, 2, 2), {"coordinate_transformation_mode": "align_corners"}),
        ((1, 1, 2, 2), {"nearest_mode": "ceil"}),
    ],
)
def test_others_stay(factors: tuple[float, ...], attributes: dict[str, str]) -> None:
    net = upsampling(*factors, **attributes)
    model = typed(net.model("r" if 2 in factors[:2] else "y_d")) if factors[1] == 1 else typed(net.model("r"))
    assert applied(double_codes, model) == 0


def test_one_that_others_read_or_that_has_no_pair_stays() -> None:
    net = upsampling(1, 1, 2, 2)
    assert applied(double_codes, typed(net.model("y_d", "r"))) == 0
    net.nodes = [n for n in net.nodes if "r_q" not in n.output]
    net.nodes = [node("Relu", "r", "r_d") if "r_d" in n.output else n for n in net.nodes]
    assert applied(double_codes, typed(net.model("y_d"))) == 0


def test_a_quantized_model_comes_out_so_and_is_priced_so(tmp_path) -> None:
    """Looked up one by one, codes take ten times as long as floats."""
    convs = {f"w{i}": floats(32, 32, 3, 3, seed=i) / F(17) for i in range(2)}
    nodes = [
        node("Conv", "x w0", "a", pads=[1] * 4),
        node(
            "Resize",
            "a - factors",
            "r",
            name="resize",
            coordinate_transformation_mode="asymmetric",
            nearest_mode="floor",
        ),
        node("Conv", "r w1", "y", pads=[1] * 4),
    ]
    times = {}
    for factor in (2, 3):
        net = Convs(1, 32, 24, 24)
        net.nodes, net.weights = nodes, convs | {"factors": np.array([1, 1, factor, factor], F)}
        path = tmp_path / f"{factor}.onnx"
        onnx.save(net.model("y"), path)
        report = quantize(path, samples=[{"x": floats(1, 32, 24, 24, seed=i)} for i in range(4)], fast=True)
        assert {n.name: n.scheme for n in report.nodes}["resize"] == ("static-int8" if factor == 2 else None)
        assert count_ops(onnx.load(report.output))["Reshape"] == (2 if factor == 2 else 0)
        model = typed(onnx.load(path))
        resize = next(n for n in model.graph.nodes if n.op_type == "Resize")
        assert doublings(resize) == (1 if factor == 2 else 0)
        in_float, in_integers = node_times(resize, load_costs())
        times[factor] = in_integers / in_float
    assert times[2] < 2 < 4 < times[3]
    assert load(report.output).opset >= 11
