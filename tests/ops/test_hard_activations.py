"""HardSigmoid and HardSwish in 8 bit: a sum whose codes saturate where they clamp, and a product."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
import pytest
from helpers import ALL, NONE, Quantized, build, floats, graph, node, quantize_in_memory, recipe_of, run, typed
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

import onnxq
from onnxq.planning.decision import Plan
from onnxq.planning.planner import make_plan
from onnxq.planning.recipe import load_recipe
from onnxq.verification.engines.check import check_engines
from onnxq.verification.ort_graph import read_fusion

X = [1, 4, 8, 8]
W = {"w": floats(8, 4, 3, 3, scale=0.3), "v": floats(4, 8, 1, 1, seed=2)}
SWISH = [node("HardSigmoid", "c", "g", alpha=1 / 6), node("Mul", "c g", "m")]


def between(*nodes: onnx.NodeProto, opset: int = 17, shape: Any = X) -> onnx.ModelProto:
    """Nodes from Conv c to Conv y, which reads m."""
    return build([node("Conv", "x w", "c"), *nodes, node("Conv", "m v", "y")], {"x": shape}, ["y"], W, opset)


def quantized(*nodes: onnx.NodeProto, opset: int = 17, **settings: Any) -> Quantized:
    return quantize_in_memory(between(*nodes, opset=opset), "static-int8", [{"x": floats(*X)}], **settings)


@pytest.mark.parametrize(
    ("nodes", "opset", "sums", "products"),
    [
        ([node("HardSigmoid", "c", "m", alpha=0.3, beta=0.4)], 17, 1, 0),
        ([node("HardSigmoid", "c", "m")], 7, 1, 0),
        ([node("HardSigmoid", "c", "m", beta=0.0)], 13, 1, 0),
        ([node("HardSigmoid", "c", "m", beta=1.0)], 13, 1, 0),
        (SWISH, 11, 1, 1),
        ([node("HardSwish", "c", "m")], 17, 1, 1),
        ([node("HardSigmoid", "c", "g"), node("Relu", "g", "m")], 17, 1, 0),
        ([node("HardSigmoid", "c", "g"), node("HardSigmoid", "g", "h"), node("Add", "g h", "m")], 17, 3, 0),
    ],
)
def test_between_convolutions_onnxruntime_computes_them_on_codes(nodes, opset, sums, products):
    made, x = quantized(*nodes, opset=opset), {"x": floats(*X)}
    assert {d.scheme for d in made.plan.decisions} == {"static-int8"}
    assert min(made.sqnr(x), made.sqnr(x, ALL)) > 30
    kernels = made.optimized()
    assert (kernels["QLinearConv"], kernels["QLinearAdd"], kernels["QLinearMul"]) == (2, sums, products)
    assert (kernels["QuantizeLinear"], kernels["DequantizeLinear"]) == (1, 1), f"only at the borders: {kernels}"
    fused = read_fusion(made.data)
    assert fused.unfused == ()
    assert {group.kernel for group in fused.groups} >= {"QLinearConv", "QLinearAdd", *["QLinearMul"] * products}


def test_the_plan_says_how() -> None:
    made = quantized(node("HardSigmoid", "c", "g"), node("HardSwish", "g", "m"))
    assert made.decision("n_g").reason == "computes in int8, as a saturating sum"
    assert made.decision("n_m").reason == "computes in int8, as a saturating sum and a product"


@pytest.mark.parametrize(
    "attributes", [{"alpha": 0.0}, {"alpha": -0.2}, {"beta": -0.1}, {"beta": 1.1}, {"alpha": math.inf}]
)
def test_what_does_not_rise_from_0_to_1_stays_float(attributes):
    made = quantized(node("HardSigmoid", "c", "m", **attributes))
    assert made.decision("n_m").reason == "its int8 form needs alpha above 0 and beta from 0 to 1"
    assert made.ops["HardSigmoid"] == 1


@pytest.mark.parametrize("kind", ["HardSigmoid", "HardSwish"])
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"activations": "int8"}, "its int8 form needs uint8 activations, not int8"),
        ({"activations": "uint16", "domain": "com.microsoft"}, "its int8 form needs uint8 activations, not uint16"),
        ({"target": "generic"}, "its int8 form is for onnxruntime only"),
        ({"target": "tensorrt", "activations": "int8"}, "target tensorrt has no Q/DQ around it"),
    ],
)
def test_other_codes_and_other_runtimes_leave_them_float(kind, changes, reason):
    plan = make_plan(typed(between(node(kind, "c", "m"))), recipe_of("static-int8", **changes), with_data=True)
    assert {d.node.op_type: d.reason for d in plan.decisions}[kind] == reason


def test_qnn_has_a_hard_swish_of_its_own() -> None:
    made = quantized(node("HardSwish", "c", "m"), target="qnn")
    assert made.ops["HardSwish"] == 1
    assert made.decision("n_m").reason == "Q/DQ on inputs and output"


def test_half_precision_is_no_code() -> None:
    nodes = [node("HardSigmoid", "x", "y")]
    plan = make_plan(
        typed(build(nodes, {"x": (TensorProto.FLOAT16, [4])}, {"y": TensorProto.FLOAT16})),
        recipe_of("static-int8"),
        with_data=True,
    )
    assert plan.decisions[0].reason == "its input is float16, not float32"


def test_without_data_they_stay_float() -> None:
    plan = make_plan(typed(between(node("HardSwish", "c", "m"))), recipe_of("dynamic-int8"), with_data=False)
    assert {d.node.op_type: d.reason for d in plan.decisions}["HardSwish"] == ("neighbours are float")


def test_a_float_reader_gets_what_the_codes_stand_for() -> None:
    nodes = [
        node("Conv", "x w", "c"),
        *(node("HardSigmoid", "c", "g"), node("Tanh", "g", "z"), node("Conv", "g v", "y")),
    ]
    x = {"x": floats(*X)}
    made = quantize_in_memory(build(nodes, {"x": X}, ["y", "z"], W), "static-int8", [x])
    assert made.decision("n_g").scheme == "static-int8"
    assert made.sqnr(x, ALL) > 30


def test_a_clip_that_goes_further_clamps_at_1_all_the_same(tmp_path) -> None:
    """Its range must not be widened beyond what the HardSigmoid before it gives."""
    weights = W | {"lo": np.float32(-1), "hi": np.float32(6)}
    nodes = [
        node("Conv", "x w", "c"),
        *(node("HardSigmoid", "c", "g", alpha=2.0), node("Clip", "g lo hi", "m"), node("Conv", "m v", "y")),
    ]
    onnx.save(build(nodes, {"x": X}, ["y"], weights), tmp_path / "m.onnx")
    samples = [{"x": floats(*X, seed=seed)} for seed in range(4)]
    onnxq.quantize(tmp_path / "m.onnx", "static-int8", output=tmp_path / "q.onnx", samples=samples)
    made = onnx.load(tmp_path / "q.onnx")
    scale = next(onnx.numpy_helper.to_array(w) for w in made.graph.initializer if w.name == "m_scale")
    assert scale <= np.float32(1 / 255)
    assert not any(n.op_type == "Clip" for n in made.graph.node)


def test_in_a_body_they_work_on_codes_too(tmp_path) -> None:
    inside = [node("Conv", "c u", "d"), node("HardSigmoid", "d", "g"), node("HardSwish", "d", "h")]
    inside += [node("Mul", "g h", "k"), node("Conv", "k v", "t")]
    then = graph(inside, {}, ["t"], {}, "then")
    other = graph([node("Conv", "c v", "e")], {}, ["e"], {}, "else")
    holder = helper.make_node("If", ["b"], ["y"], name="holder", then_branch=then, else_branch=other)
    weights = W | {"u": floats(8, 8, 1, 1, seed=3, scale=0.3), "b": np.array(True)}
    proto, x = build([node("Conv", "x w", "c"), holder], {"x": X}, ["y"], weights, 17), {"x": floats(*X)}
    onnx.save(proto, tmp_path / "m.onnx")
    onnxq.quantize(tmp_path / "m.onnx", "static-int8", output=tmp_path / "q.onnx", samples=[x])
    made = Quantized(proto.SerializeToString(), (tmp_path / "q.onnx").read_bytes(), Plan(load_recipe("auto")))
    assert not {"HardSigmoid", "HardSwish"} & made.ops.keys()
    assert made.sqnr(x, ALL) > 25
    assert (made.optimized()["QLinearAdd"], made.optimized()["QLinearMul"]) == (2, 2)


def taps(data: bytes, feeds: Any, level: Any, *names: str) -> list[np.ndarray]:
    """Codes from inside a model, which may be optimised as far as it goes."""
    proto = onnx.ModelProto.FromString(data)
    proto.graph.output.extend(helper.make_tensor_value_info(name, TensorProto.UINT8, None) for name in names)
    return run(proto.SerializeToString(), feeds, level)[-len(names) :]


@settings(max_examples=60, deadline=None)
@given(
    scale=st.floats(1e-4, 10),
    zero=st.integers(0, 255),
    alpha=st.floats(1e-3, 30),
    beta=st.floats(0, 1),
    swish=st.booleans(),
)
def test_every_code_becomes_the_nearest_to_what_the_function_gives(scale, zero, alpha, beta, swish):
    """In float and in onnxruntime's kernels alike, against the function in float64."""
    alpha, beta = (1 / 6, 0.5) if swish else (alpha, beta)
    step = node("HardSwish", "c", "m") if swish else node("HardSigmoid", "c", "m", alpha=alpha, beta=beta)
    nodes = [node("Conv", "x w", "c"), step, node("Conv", "m w", "y")]
    x = {"x": ((np.arange(256) - zero) * scale).astype(np.float32).reshape(1, 1, 16, 16)}
    made = quantize_in_memory(
        build(nodes, {"x": [1, 1, 16, 16]}, ["y"], {"w": np.ones((1, 1, 1, 1), np.float32)}), "static-int8", [x]
    )
    known = {name: float(made.weights[name]) for name in ("c_scale", "c_zero_point", "m_scale", "m_zero_point")}
    for level in (NONE, ALL):
        read, given_codes = taps(made.data, x, level, "c_quantized", "m_quantized")
        values = (read.astype(np.float64) - known["c_zero_point"]) * known["c_scale"]
        ramp = np.clip(alpha * values + beta, 0, 1)
        exact = (values * np.rint(ramp * 255) / 255 if swish else ramp) / known["m_scale"] + known["m_zero_point"]
        off = np.abs(given_codes - np.clip(exact, 0, 255))
        step_of_ramp = np.abs(values).max() / 255 / known["m_scale"] if swish else 0.0  # where its code is a tie
        rounded = 2.0**-22 * alpha * scale * 255 / known["m_scale"]  # QLinearAdd takes the zero point off in float32
        assert off.max() < 0.501 + step_of_ramp + rounded
        assert np.quantile(off, 0.9) < 0.501


@pytest.mark.parametrize("nodes", [SWISH, [node("HardSwish", "c", "m")]], ids=["both", "one"])
def test_both_engines_agree_on_every_node(nodes):
    found = check_engines(quantized(*nodes).data, [{"x": floats(*X, seed=seed)} for seed in range(3)])
    assert not found.objection
