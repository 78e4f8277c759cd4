"""Convolutions in float that read the same codes: one conversion, and one change of layout."""

from __future__ import annotations

import numpy as np
import onnx
from helpers import ALL, NONE, Quantized, applied, count_ops, floats, run, typed
from helpers import node as step
from integer_conv_support import Convs

from onnxq.optimize.share_dequantize import share_conversions
from onnxq.planning.decision import Plan
from onnxq.planning.recipe import load_recipe


def shared(proto: onnx.ModelProto) -> tuple[onnx.ModelProto, int]:
    model = typed(proto)
    count = applied(share_conversions, model)
    made = onnx.ModelProto.FromString(model.serialize())
    onnx.checker.check_model(made, full_check=True)
    feeds = {"x": floats(*[d.dim_value for d in proto.graph.input[0].type.tensor_type.shape.dim], seed=3)}
    for level in (NONE, ALL):
        expected = run(proto.SerializeToString(), feeds, level)
        for before, after in zip(expected, run(made.SerializeToString(), feeds, level), strict=True):
            np.testing.assert_allclose(before, after, atol=1e-5)
    return made, count


def heads(count: int) -> onnx.ModelProto:
    """A Conv in 8 bit, and float convolutions that read what it makes."""
    net = Convs(1, 16, 12, 12)
    body = net.conv(net.quantize("x"), "a", 16, 16, 3, 3, pads=[1] * 4)
    for index in range(count):
        net.weights[f"h{index}"] = floats(16, 16, 1, 1, seed=index)
        net.nodes.append(step("Conv", f"{body} h{index}", f"y{index}"))
    return net.model(*(f"y{index}" for index in range(count)))


def test_several_convolutions_read_one_copy() -> None:
    made, count = shared(heads(3))
    assert count == 1
    copies = [node.output[0] for node in made.graph.node if node.op_type == "Max"]
    assert [node.input[0] for node in made.graph.node if node.output[0].startswith("y")] == copies * 3
    optimized = Quantized(b"", made.SerializeToString(), Plan(load_recipe("auto"))).optimized()
    assert optimized["DequantizeLinear"] == 1


def test_onnxruntime_would_convert_for_each() -> None:
    """If it no longer does, the copies can go."""
    proto = heads(3)
    optimized = Quantized(b"", proto.SerializeToString(), Plan(load_recipe("auto"))).optimized()
    assert optimized["DequantizeLinear"] == 3


def test_a_single_one_reads_on_as_it_does() -> None:
    made, count = shared(heads(1))
    assert count == 0
    assert not count_ops(made)["Max"]


def test_convolutions_in_8_bit_share_codes_already() -> None:
    net = Convs(1, 16, 12, 12)
    body = net.conv(net.quantize("x"), "a", 16, 16, 3, 3, pads=[1] * 4)
    _, count = shared(net.model(*(net.conv(body, name, 16, 16, 1, 1) for name in "bc")))
    assert count == 0
