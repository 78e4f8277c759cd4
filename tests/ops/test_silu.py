"""SiLU between quantized neighbours: one operator in float, from codes to codes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from helpers import ALL, NONE, applied, build, count_ops, floats, node, quantize_in_memory, run, session, typed
from onnx import TensorProto, helper

from onnxq.ir import parse
from onnxq.ops.forms.silu import quick_gelu
from onnxq.optimize.optimize import optimize_for_target
from onnxq.optimize.quick_gelu import write_silu
from onnxq.verification.engines.check import check_engines
from onnxq.verification.ort_graph import read_fusion

X = [1, 4, 8, 8]
W = {"w": floats(8, 4, 3, 3, scale=0.3), "v": floats(4, 8, 1, 1, seed=2)}
SILU = [node("Sigmoid", "c", "g"), node("Mul", "c g", "m")]
CODES = {"s": np.float32(0.05), "z": np.uint8(100), "t": np.float32(0.03), "u": np.uint8(9)}


def between(*nodes: onnx.NodeProto, relu: bool = False, outputs: tuple[str, ...] = ("y",)) -> onnx.ModelProto:
    """Nodes from Conv, or the Relu behind it, c to Conv y, which reads m."""
    first = [node("Conv", "x w", "a"), node("Relu", "a", "c")] if relu else [node("Conv", "x w", "c")]
    return build([*first, *nodes, node("Conv", "m v", "y")], {"x": X}, list(outputs), W)


@pytest.mark.parametrize("relu", [False, True], ids=["conv", "conv_relu"])
@pytest.mark.parametrize("swapped", [False, True])
def test_between_convolutions_it_reads_codes_and_gives_codes(swapped, relu):
    nodes, x = [SILU[0], node("Mul", "g c" if swapped else "c g", "m")], {"x": floats(*X)}
    made = quantize_in_memory(between(*nodes, relu=relu), "static-int8", [x])
    assert made.decision("n_m").reason == "computes SiLU in float, from codes to codes"
    assert (made.decision("n_m").scheme, made.decision("n_g").scheme) == ("static-int8", None)
    assert made.decision("n_g").reason == "the Mul after it computes both"
    assert [value.name for value in made.plan.calibrated()] == ["x", "c", "m", "y"], "the gate is not rounded"
    assert min(made.sqnr(x), made.sqnr(x, ALL)) > 30


def test_onnxruntime_keeps_channels_last_and_one_kernel(tmp_path):
    made = quantize_in_memory(between(*SILU), "static-int8", [{"x": floats(*X)}])
    model = parse(made.data)
    optimize_for_target(model, "cpu")
    session(model.serialize(), ALL, keep=str(tmp_path / "o.onnx"))
    ops = count_ops(onnx.load(tmp_path / "o.onnx"))
    assert (ops["QLinearConv"], ops["QuickGelu"], ops["Sigmoid"], ops["Mul"]) == (2, 1, 0, 0)
    assert (ops["QuantizeLinear"], ops["DequantizeLinear"]) == (2, 2)
    assert ops["Transpose"] <= 2, "at both ends"


def test_others_stay_as_they_are():
    """A gate that others read, one of another value, and codes that this is not known to be faster for."""
    x = {"x": floats(*X)}
    several = quantize_in_memory(between(*SILU, outputs=("y", "g")), "static-int8", [x])
    other = quantize_in_memory(
        between(node("Sigmoid", "c", "h"), node("Sigmoid", "h", "g"), SILU[1]), "static-int8", [x]
    )
    signed = quantize_in_memory(between(*SILU), "static-int8", [x], activations="int8")
    generic = quantize_in_memory(between(*SILU), "static-int8", [x], target="generic")
    for made in (several, other, signed, generic):
        assert made.decision("n_g").scheme == made.decision("n_m").scheme == "static-int8"
        assert made.decision("n_m").reason == "computes in 8 bit"


def test_between_float_neighbours_it_stays_float():
    nodes = [node("Tanh", "x", "c"), *SILU, node("Tanh", "m", "y")]
    made = quantize_in_memory(build(nodes, {"x": X}, ["y"]), "static-int8", [{"x": floats(*X)}])
    assert made.data == made.source


def converted(*nodes: onnx.NodeProto, outputs: tuple[str, ...] = ("y",)) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """Nodes behind a DequantizeLinear that makes c of x, before and after; how far they are apart."""
    ends = [node("QuantizeLinear", "m t u", "r"), node("DequantizeLinear", "r t u", "y")]
    pair = [node("QuantizeLinear", "x s z", "q"), node("DequantizeLinear", "q s z", "c")]
    proto = build([*pair, *nodes, *ends], {"x": X}, list(outputs), CODES)
    model = typed(proto)
    applied(write_silu, model)
    made = onnx.ModelProto.FromString(model.serialize())
    onnx.checker.check_model(made, full_check=True)
    for level in (NONE, ALL):
        x = {"x": floats(*X, scale=4)}
        results = [run(each.SerializeToString(), x, level) for each in (proto, made)]
        for before, after in zip(*results, strict=True):
            np.testing.assert_allclose(before, after, atol=0.031)  # one step, where the last bit of a float decides
            assert (before == after).mean() > 0.99
    return proto, made


@pytest.mark.parametrize("swapped", [False, True])
def test_it_is_written_as_one_operator(swapped):
    _, made = converted(SILU[0], node("Mul", "g c" if swapped else "c g", "m"))
    ops = count_ops(made)
    assert (ops["QuickGelu"], ops["Sigmoid"], ops["Mul"]) == (1, 0, 0)
    assert {opset.domain: opset.version for opset in made.opset_import}["com.microsoft"] == 1
    kernels = read_fusion(made.SerializeToString())
    assert kernels.unfused == ()
    assert kernels.kernels == {"QuantizeLinear": 2, "DequantizeLinear": 2}


def test_other_products_are_not():
    for nodes in (
        [SILU[0], node("Mul", "g g", "m")],
        [node("Tanh", "c", "d"), node("Sigmoid", "d", "g"), node("Mul", "d g", "m")],
        [*SILU, node("Relu", "g", "k")],
    ):
        before, after = converted(
            *nodes, outputs=("y", "k") if len(nodes) == 3 and nodes[-1].op_type == "Relu" else ("y",)
        )
        assert count_ops(before) == count_ops(after)


def test_both_engines_compute_it_alike():
    _, made = converted(*SILU)
    assert not check_engines(made.SerializeToString(), [{"x": floats(*X)}]).objection


@pytest.mark.parametrize("alpha", [{}, {"alpha": 1.0}])
def test_the_kernel(alpha):
    made = helper.make_graph(
        [helper.make_node("QuickGelu", ["x"], ["y"], domain="com.microsoft", **alpha)],
        "one",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, X)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, X)],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    x, proto = floats(*X, scale=5), helper.make_model(made, opset_imports=opsets, ir_version=8)
    np.testing.assert_allclose(quick_gelu(x, **alpha), run(proto.SerializeToString(), {"x": x})[0], atol=2e-6)
