"""Nodes that onnxruntime breaks behind a Conv in 8 bit: the Conv stays out of it, and the plan says why."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import F, build, floats, node, quantize_in_memory
from onnx import TensorProto
from verdict import judge

from onnxq.ir import infer_types, parse
from onnxq.planning.ort_workarounds import breaks_runtime
from onnxq.planning.planner import make_plan
from onnxq.planning.recipe import load_recipe

Middle = tuple[str, str, dict[str, Any], dict[str, np.ndarray]]
WINDOW = {"kernel_shape": [2, 2]}
BROKEN: dict[str, Middle] = {
    "cubic": ("Resize", "m - s", {"mode": "cubic"}, {"s": F([1, 1, 0.8, 0.8])}),
    "scales of some axes": ("Resize", "m - s", {"axes": [2, 3]}, {"s": F([2, 2])}),
    "sizes of some axes": ("Resize", "m - - z", {"axes": [2, 3]}, {"z": np.array([12, 12])}),
    "pads of some axes": ("Pad", "m p - a", {}, {"p": np.array([1, 1, 1, 1]), "a": np.array([2, 3])}),
    "crop": ("CenterCropPad", "m z", {"axes": [2, 3]}, {"z": np.array([8, 4])}),
    "dilated pool": ("AveragePool", "m", WINDOW | {"dilations": [2, 2]}, {}),
    "dilation of one": ("AveragePool", "m", WINDOW | {"dilations": [1, 1]}, {}),
    "overhanging pool": (
        *("AveragePool", "m"),
        {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4, "ceil_mode": 1, "count_include_pad": 1},
        {},
    ),
}
SOUND: dict[str, Middle] = {
    "all scales": ("Resize", "m - s", {"mode": "linear"}, {"s": F([1, 1, 2, 2])}),
    "all pads": ("Pad", "m p", {}, {"p": np.array([0, 0, 1, 1, 0, 0, 1, 1])}),
    "pool": ("AveragePool", "m", WINDOW, {}),
}


def around(middle: Middle, *, behind: tuple[str, ...] = (), last: str = "Conv") -> Any:
    """Conv, some clamps and maps, the node in question, and another Conv or a Transpose."""
    op_type, inputs, attributes, weights = middle
    nodes, value = [node("Conv", "x w", "c0", name="first")], "c0"
    for index, between in enumerate(behind):
        nodes.append(node(between, value, f"b{index}"))
        value = f"b{index}"
    nodes.append(node(op_type, inputs.replace("m", value, 1), "mid", name="culprit", **attributes))
    weights = weights | {"w": floats(8, 8, 1, 1)}
    if last == "Conv":
        nodes.append(node("Conv", "mid v", "y", name="second"))
        weights |= {"v": floats(8, 8, 1, 1, seed=2)}
    else:
        nodes.append(node("Transpose", "mid", "y", perm=[0, 2, 3, 1]))
    return build(nodes, {"x": [1, 8, 6, 6]}, ["y"], weights, opset=19)


def first_conv(proto: Any, recipe: str = "static-int8") -> tuple[str | None, str]:
    model = parse(proto.SerializeToString())
    infer_types(model)
    plan = make_plan(model, load_recipe(recipe), with_data=True)
    return next((d.scheme, d.reason) for d in plan.decisions if d.node.name == "first")


@pytest.mark.parametrize("name", [*BROKEN, *SOUND])
@pytest.mark.parametrize("behind", [(), ("Relu",), ("Sigmoid", "Neg")])
@pytest.mark.parametrize("last", ["Conv", "Transpose"])
def test_the_result_runs_and_agrees(name: str, behind: tuple[str, ...], last: str) -> None:
    proto = around((BROKEN | SOUND)[name], behind=behind, last=last)
    samples = [{"x": floats(1, 8, 6, 6, seed=seed)} for seed in range(2)]
    judge(proto, samples, recipe="static-int8", fast=bool(behind))
    assert (first_conv(proto)[0] is None) == (name in BROKEN)


def test_the_plan_says_why() -> None:
    scheme, reason = first_conv(around(BROKEN["pads of some axes"]))
    assert (scheme, reason) == (None, "onnxruntime breaks culprit (Pad) behind an 8-bit Conv")
    scheme, reason = first_conv(around(BROKEN["pads of some axes"]), "auto")
    assert reason.endswith("onnxruntime breaks culprit (Pad) behind an 8-bit Conv") or scheme != "static-int8"


def test_a_convolution_further_up_is_safe() -> None:
    """The Conv in between fixes its own layout, in float as in 8 bit."""
    nodes = [
        node("Conv", "x w", "a", name="far"),
        node("Conv", "a w", "b", name="near"),
        node("Pad", "b p - i", "y"),
    ]
    weights = {"w": floats(8, 8, 1, 1), "p": np.array([1, 1]), "i": np.array([3])}
    model = parse(build(nodes, {"x": [1, 8, 6, 6]}, ["y"], weights, opset=19).SerializeToString())
    infer_types(model)
    assert [found.name for found in breaks_runtime(model.graph, model.graph.nodes)] == ["near"]


def test_products_that_meet_many_scales_of_the_model_stay_float() -> None:
    nodes = [
        node("MatMul", "x w", "h", name="input"),
        node("MatMul", "s v", "scale", name="scale"),
        node("QuantizeLinear", "h scale zero", "y", axis=1, block_size=2),
    ]
    weights = {"w": floats(4, 4), "v": np.abs(floats(2, 2, seed=1)), "zero": np.zeros((3, 2), np.uint8)}
    proto = build(nodes, {"x": [3, 4], "s": [3, 2]}, {"y": TensorProto.UINT8}, weights, opset=21)
    samples = [{"x": floats(3, 4, seed=seed), "s": np.abs(floats(3, 2, seed=seed)) + F(0.1)} for seed in range(2)]
    assert judge(proto, samples, recipe="static-int8").kind == "nothing"
    model = parse(proto.SerializeToString())
    infer_types(model)
    assert [found.name for found in breaks_runtime(model.graph, model.graph.nodes)] == ["scale", "input"]


def behind_a_pool(*more: Any, reads: str = "p") -> Any:
    """Conv of few channels and MaxPool, both float under `auto`, and two Convs that read what is pooled."""
    nodes = [
        node("Conv", "x w", "c", name="first", pads=[1] * 4),
        node("MaxPool", "c", "p", kernel_shape=[2, 2], strides=[2, 2]),
        *more,
        node("Conv", f"{reads} v", "y", name="second", pads=[1] * 4),
        node("Conv", f"{reads} u", "z", name="third", pads=[1] * 4),
    ]
    weights = {"w": floats(16, 3, 3, 3), "v": floats(64, 16, 3, 3, seed=1), "u": floats(64, 16, 3, 3, seed=2)}
    return build(nodes, {"x": [1, 3, 64, 66]}, ["y", "z"], weights)  # whose columns are not folded: a float Conv


@pytest.mark.parametrize(
    ("more", "reads"), [((), "p"), ((node("Transpose", "p", "t", perm=[0, 1, 3, 2]),), "t")], ids=["pool", "mover"]
)
def test_a_float_pool_stays_float_in_front_of_codes(more, reads):
    made = quantize_in_memory(behind_a_pool(*more, reads=reads), "auto", [{"x": floats(1, 3, 64, 66)}])
    assert {made.decision(name).scheme for name in ("second", "third")} == {"static-int8"}
    assert made.ops["Max"] == 1
    optimized = made.optimized_proto()
    kind = {name: one.op_type for one in optimized.graph.node for name in one.output}
    (pool,) = (one for one in optimized.graph.node if "MaxPool" in one.op_type)
    assert pool.op_type == "MaxPool"
    assert kind[pool.input[0]] == "Conv", "and not the codes of it"


@pytest.mark.parametrize("behind", [(), (node("Transpose", "p", "t", perm=[0, 1, 3, 2]),)], ids=["pool", "mover"])
def test_an_average_that_is_to_be_float_is_not_taken_of_codes(behind):
    nodes = [
        node("Conv", "x w", "c", pads=[1] * 4),
        node("AveragePool", "c", "p", name="pool", kernel_shape=[3, 3], pads=[1] * 4),
        *behind,
        node("Conv", "t v" if behind else "p v", "y", pads=[1] * 4),
    ]
    proto = build(nodes, {"x": [1, 64, 16, 16]}, ["y"], {name: floats(64, 64, 3, 3, seed=3) for name in "wv"})
    made = quantize_in_memory(proto, "auto", [{"x": floats(1, 64, 16, 16)}])
    assert made.decision("pool").scheme is None
    assert made.optimized()["QLinearConv"] == 2
    assert made.optimized()["AveragePool"] == 1


def test_a_pool_of_codes_needs_no_keeping():
    recipe = load_recipe("static-int8")
    made = quantize_in_memory(behind_a_pool(), recipe, [{"x": floats(1, 3, 64, 66)}])
    assert made.decision("first").scheme == "static-int8"
    assert made.ops["Max"] == 0
    other = quantize_in_memory(behind_a_pool(), recipe.setting(target="generic"), [{"x": floats(1, 3, 64, 66)}])
    assert other.ops["Max"] == 0


@pytest.mark.parametrize("behind", [(), ("Relu",), ("Relu", "MaxPool")], ids=lambda names: "-".join(names) or "bare")
@pytest.mark.parametrize("op_type", ["Conv", "ConvTranspose"])
def test_a_product_that_is_excluded_computes_with_the_weight_it_has(op_type, behind):
    """Between two Convs in 8 bit, onnxruntime makes codes of a float weight, with one scale for all of it."""
    nodes, value = [node("Conv", "x w", "a"), node(op_type, "a u", "b", name="left")], "b"
    for index, name in enumerate(behind):
        nodes.append(node(name, value, f"m{index}", **({"kernel_shape": [2, 2]} if name == "MaxPool" else {})))
        value = f"m{index}"
    nodes.append(node("Conv", f"{value} v", "y"))
    uneven = floats(8, 8, 1, 1, seed=1) * F(10.0 ** np.arange(-4, 4)).reshape(1, 8, 1, 1)
    weights = {"w": floats(8, 8, 1, 1), "u": uneven, "v": floats(8, 8, 1, 1, seed=2)}
    proto = build(nodes, {"x": [1, 8, 6, 6]}, ["y"], weights, opset=19)
    recipe = load_recipe("static-int8").selecting(exclude=["left"])
    made = quantize_in_memory(proto, recipe, [{"x": floats(1, 8, 6, 6, seed=seed)} for seed in range(3)])
    assert made.decision("left").scheme is None
    assert made.ops["Max"] == 1
    kinds = [one.op_type for one in made.optimized_proto().graph.node]
    assert kinds.count("QLinearConv") == 2
    assert [kind for kind in kinds if kind in ("Conv", "FusedConv", "ConvTranspose", "NhwcFusedConv")]
    assert kinds.count("DequantizeLinear") == 2, "none of them of the weight"


def test_a_product_that_reads_floats_needs_no_keeping():
    nodes = [node("Conv", "x w", "a", name="first"), node("Conv", "a v", "y")]
    proto = build(nodes, {"x": [1, 8, 6, 6]}, ["y"], {"w": floats(8, 8, 1, 1), "v": floats(8, 8, 1, 1, seed=2)})
    recipe = load_recipe("static-int8").selecting(exclude=["first"])
    made = quantize_in_memory(proto, recipe, [{"x": floats(1, 8, 6, 6)}])
    assert made.ops["Max"] == 0
    assert made.optimized()["QLinearConv"] == 1
