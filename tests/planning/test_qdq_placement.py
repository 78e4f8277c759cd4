"""Targets: where each of them wants QuantizeLinear and DequantizeLinear, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from helpers import (
    ALL,
    Quantized,
    build,
    floats,
    node,
    quantize_in_memory,
    recipe_of,
    sqnr,
    typed,
    unlike,
    unlike_kernel,
)
from onnx import TensorProto, helper

from onnxq import evaluate, quantize
from onnxq.errors import RecipeError
from onnxq.evaluator import Evaluator
from onnxq.ops.quantized import host_arithmetic
from onnxq.planning.planner import make_plan
from onnxq.planning.recipe import load_recipe, parse_recipe
from onnxq.runtime.ort_session import Settings, load_native
from onnxq.targets import load_costs
from onnxq.targets.host import host_family
from onnxq.targets.target import load_target, target_names

TARGETS = [
    "cpu",
    "cpu-arm64",
    "cpu-armv8",
    "cpu-avx2",
    "cpu-vnni",
    "generic",
    "native",
    "openvino",
    "qnn",
    "tensorrt",
    "web",
]
WEIGHTS = {
    "w": floats(8, 3, 3, 3, scale=0.3),
    "b": floats(8, seed=1),
    "v": floats(8, 8, 3, 3, seed=2, scale=0.2),
    "m": floats(8, 16, seed=3),
    "f": floats(16, 5, seed=4),
    "g": floats(5, seed=5),
}
FEEDS = [{"x": floats(2, 3, 8, 8, seed=seed)} for seed in range(5, 9)]
# Conv, Relu, and a residual addition around a second Conv; then MatMul, Softmax, Gemm.
NODES = [
    node("Conv", "x w b", "c", pads=[1, 1, 1, 1]),
    node("Relu", "c", "r"),
    node("Conv", "r v", "d", pads=[1, 1, 1, 1]),
    node("Add", "d r", "s"),
    node("Relu", "s", "t"),
    node("GlobalAveragePool", "t", "p"),
    node("Flatten", "p", "h"),
    node("MatMul", "h m", "k"),
    node("Softmax", "k", "o"),
    node("Gemm", "o f g", "y"),
]


def network(opset: int = 17) -> onnx.ModelProto:
    return build(NODES, {"x": [2, 3, 8, 8]}, ["y"], WEIGHTS, opset)


def quantized(target: str, recipe: str = "auto", **settings: Any) -> Quantized:
    return quantize_in_memory(network(), recipe_of(recipe, target=target, **settings), FEEDS)


def reads(made: Quantized) -> dict[str, str]:
    """For each float node, what it reads: Q for codes, w for a stored weight, b for an int32 bias, f for floats."""
    proto = made.proto
    maker = {name: one for one in proto.graph.node for name in one.output}
    dtypes = {one.name: one.data_type for one in proto.graph.initializer}

    def kind(name: str) -> str:
        one = maker.get(name)
        if one is None or one.op_type != "DequantizeLinear":
            return "f"
        source = one.input[0]
        return "Q" if source in maker else "b" if dtypes[source] == onnx.TensorProto.INT32 else "w"

    return {
        one.name.removeprefix("n_"): "".join(kind(name) for name in one.input)
        for one in proto.graph.node
        if one.op_type not in ("QuantizeLinear", "DequantizeLinear")
    }


def codes_of(made: Quantized) -> set[str]:
    """Names of the float values that are quantized."""
    return {one.input[0].removesuffix("_float") for one in made.proto.graph.node if one.op_type == "QuantizeLinear"}


EXPECTED = {
    # Weighted operators read codes and give codes.
    "generic": (
        {"c": "Qwb", "d": "Qw", "s": "QQ", "p": "Q", "h": "Q", "k": "Qw", "o": "Q", "y": "Qwb"},
        {"absorbed": {"r", "t"}, "static": {"c", "d", "s", "p", "h", "k", "y"}},
    ),
    # All inputs of weighted operators and of the addition, no outputs, biases in float.
    "openvino": (
        {"c": "Qwf", "r": "f", "d": "Qw", "s": "QQ", "t": "f", "p": "f", "h": "f", "k": "Qw", "o": "f", "y": "Qwf"},
        {"absorbed": set(), "static": {"c", "d", "s", "k", "y"}},
    ),
    # As OpenVINO, but of the addition only the residual.
    "tensorrt": (
        {"c": "Qwf", "r": "f", "d": "Qw", "s": "fQ", "t": "f", "p": "f", "h": "f", "k": "Qw", "o": "f", "y": "Qwf"},
        {"absorbed": set(), "static": {"c", "d", "s", "k", "y"}},
    ),
    # The whole graph.
    "qnn": (
        {"c": "Qwb", "d": "Qw", "s": "QQ", "p": "Q", "h": "Q", "k": "Qw", "o": "Q", "y": "Qwb"},
        {"absorbed": {"r", "t"}, "static": {"c", "d", "s", "p", "h", "k", "o", "y"}},
    ),
}


@pytest.mark.parametrize("target", EXPECTED)
def test_placement(target):
    made = quantized(target)
    expected, kinds = EXPECTED[target]
    found = reads(made)
    assert {name.split("_")[0]: kind for name, kind in found.items()} == expected
    names = {d.node.name.removeprefix("n_"): d for d in made.plan.decisions}
    assert {name for name, d in names.items() if d.reason.startswith("absorbed")} == kinds["absorbed"]
    assert {name for name, d in names.items() if d.form is not None} == kinds["static"]


@pytest.mark.parametrize("target", TARGETS)
def test_every_target_runs_here_too(target):
    made = quantized(target)
    evaluator = Evaluator(made.proto, host_arithmetic())
    foreign = not load_target(target).saturates  # its codes may leave 16 bits on a processor that it is not meant for
    for feeds in FEEDS[:2]:
        assert sqnr(made.float_run(feeds)[0], evaluate(made.proto, feeds)["y"]) > 25
        assert made.sqnr(feeds, ALL, exact=foreign) > 25
        np.testing.assert_allclose(evaluator.run(feeds)["y"], made.run(feeds)[0], atol=1e-3)
    assert {one.domain for one in made.proto.opset_import} == {""}


def test_outputs_of_the_graph_are_quantized_where_all_are():
    assert "y" not in codes_of(quantized("tensorrt"))
    for target in ("generic", "qnn"):
        last = quantized(target).proto.graph.node[-1]
        assert (last.op_type, list(last.output)) == ("DequantizeLinear", ["y"])


def test_tensorrt_is_symmetric_and_scales_weights_by_channel():
    made = quantized("tensorrt")
    arrays = made.weights
    for one in made.proto.graph.node:
        if one.op_type in ("QuantizeLinear", "DequantizeLinear"):
            zero = arrays[one.input[2]]
            assert zero.dtype == np.int8
            assert not zero.any()
    assert arrays["w_scale"].shape == (8,)
    assert arrays["m_scale"].shape == (16,)


def test_qnn_has_one_scale_for_a_matrix_and_one_a_channel_for_a_kernel():
    arrays = quantized("qnn").weights
    assert arrays["w_scale"].shape == (8,)
    assert arrays["m_scale"].shape == arrays["f_scale"].shape == ()


def test_qnn_takes_16_bits_below_opset_21_from_com_microsoft():
    made = quantized("qnn", activations="uint16", domain="com.microsoft")
    assert {one.domain: one.version for one in made.proto.opset_import} == {"": 17, "com.microsoft": 1}
    assert made.sqnr(FEEDS[0]) > 30


def test_qnn_quantizes_constants_beside_activations():
    weights = {"w": floats(8, 3, 1, 1), "k": floats(8, 1, 1, seed=3)}
    nodes = [node("Conv", "x w", "c"), node("Mul", "c k", "u"), node("Sigmoid", "u", "y")]
    source = build(nodes, {"x": [2, 3, 8, 8]}, ["y"], weights)
    made = quantize_in_memory(source, recipe_of("auto", target="qnn"), FEEDS)
    assert {name.split("_")[0]: kind for name, kind in reads(made).items()} == {"c": "Qw", "u": "Qw", "y": "Q"}
    assert made.weights["k_quantized"].dtype == np.uint8
    assert made.sqnr(FEEDS[0]) > 30


def test_qnn_leaves_float_what_reads_a_default_that_callers_may_replace():
    weights = {"w": floats(8, 3, 1, 1), "b": floats(8), "k": floats(8, 1, 1, seed=3)}
    nodes = [node("Conv", "x w b", "c"), node("Mul", "c k", "y")]
    source = build(nodes, {"x": [2, 3, 8, 8], "k": [8, 1, 1]}, ["y"], weights)
    made = quantize_in_memory(source, recipe_of("static-int8", target="qnn"), FEEDS)
    assert made.decision("n_y").reason == "its data input can be overridden by a graph input"
    assert made.sqnr(FEEDS[0]) > 30


@pytest.mark.parametrize(
    ("operator", "attributes", "opset", "raised"),
    [
        ("ReduceMax", {"axes": [1]}, 10, 12),
        ("ReduceMax", {"axes": [1]}, 13, 13),
        ("DepthToSpace", {"blocksize": 2}, 10, 11),
    ],
)
def test_qnn_asks_for_an_operator_set_that_knows_codes(
    operator: str, attributes: dict, opset: int, raised: int
) -> None:
    nodes = [node("Relu", "x", "h"), node(operator, "h", "m", **attributes), node("Relu", "m", "y")]
    samples = {"x": floats(8, 1, 8, 4, 4)}
    report = quantize(build(nodes, {"x": [1, 8, 4, 4]}, opset=opset), "static-int8", samples=samples, target="qnn")
    assert report.counts() == {"static-int8": 3}
    assert report.model.opset_import[0].version == raised
    assert report.comparison.worst_sqnr > 35


@pytest.mark.parametrize(
    ("target", "settings", "opset"),
    [
        ("cpu", {"granularity": "tensor"}, 11),
        ("generic", {"granularity": "tensor"}, 11),
        ("qnn", {"granularity": "tensor"}, 11),
        ("qnn", {"domain": "com.microsoft"}, 13),
    ],
)
def test_a_transposed_conv_asks_for_operators_that_quantize_its_bias(target: str, settings: dict, opset: int) -> None:
    """onnxruntime does so when it loads a model with pairs around the ConvTranspose, by operators of ai.onnx."""
    weights = {"w": floats(8, 4, 3, 3, scale=0.2), "b": floats(4, seed=1)}
    nodes = [node("ConvTranspose", "x w b", "h"), node("Conv", "h v", "y")]
    weights["v"] = floats(4, 4, 1, 1, seed=2)
    proto = build(nodes, {"x": [1, 8, 6, 6]}, weights=weights, opset=10)
    recipe = load_recipe("static-int8").setting(**settings, reduce_range=True)  # QNN does not saturate, AVX2 does
    report = quantize(proto, recipe, samples={"x": floats(8, 1, 8, 6, 6)}, target=target)
    assert report.counts() == {"static-int8": 2}
    assert report.model.opset_import[0].version == opset
    assert report.comparison.worst_sqnr > 30


def test_of_two_convolutions_the_earlier_one_is_the_residual():
    weights = {"w": floats(8, 3, 1, 1), "v": floats(8, 3, 1, 1, seed=1)}
    nodes = [node("Conv", "x w", "c"), node("Conv", "x v", "d"), node("Add", "c d", "y")]
    source = build(nodes, {"x": [2, 3, 8, 8]}, ["y"], weights)
    made = quantize_in_memory(source, recipe_of("auto", target="tensorrt"), FEEDS)
    assert reads(made)["y"] == "Qf"


def test_an_addition_is_left_alone_where_its_conv_is():
    for target in ("tensorrt", "openvino"):
        recipe = recipe_of("auto", target=target).selecting(exclude=["n_d"])
        made = quantize_in_memory(network(), recipe, FEEDS)
        assert made.decision("n_s").reason == "the Conv that it adds to stays float"
    other = quantized("tensorrt", "static-int8").decision("n_t")
    assert other.reason == "target tensorrt has no Q/DQ around it"


@pytest.mark.parametrize(
    ("target", "recipe", "settings", "node_name", "reason"),
    [
        ("tensorrt", "static-int8", {"activations": "uint16"}, "n_c", "takes int8 activations, not uint16"),
        ("qnn", "static-int8", {"activations": "int8"}, "n_c", "takes uint8 or uint16 activations, not int8"),
        ("tensorrt", "dynamic-int8", {}, "n_k", "target tensorrt has no quantization at run time"),
        ("openvino", "static-int8", {"domain": "com.microsoft"}, "n_c", "has no operators of com.microsoft"),
        ("generic", "weight-int8", {"form": "matmulnbits", "block_size": 32}, "n_k", "no operators of com.microsoft"),
    ],
)
def test_refusals(target, recipe, settings, node_name, reason):
    assert reason in quantized(target, recipe, **settings).decision(node_name).reason


def test_without_data_other_runtimes_get_stored_weights():
    made = quantize_in_memory(network(), recipe_of("auto", target="tensorrt"), ())
    assert made.plan.counts() == {"weight-int8": 1, "float": 9}
    assert made.ops["DequantizeLinear"] == 1
    assert not made.ops["DynamicQuantizeLinear"]


def test_tables_are_only_looked_up_where_the_runtime_can():
    weights = {"table": floats(64, 32)}
    source = build([node("Gather", "table ids", "y")], {"ids": (onnx.TensorProto.INT64, [4])}, ["y"], weights)
    assert quantize_in_memory(source, recipe_of("auto")).plan.counts() == {"weight-int8": 1}
    made = quantize_in_memory(source, recipe_of("auto", target="tensorrt"))
    assert "has no lookup in 8-bit tables" in made.decision("n_y").reason


def test_signed_activations_of_another_runtime_load_here_from_opset_21_on():
    w, v = unlike_kernel(floats(8, 3, 1, 1)), unlike(floats(64, 4, seed=1))
    weights = {"w": w, "v": v, "shape": np.array([2, 8, 64])}
    nodes = [node("Conv", "x w", "c"), node("Reshape", "c shape", "h"), node("MatMul", "h v", "y")]
    source = build(nodes, {"x": [2, 3, 8, 8]}, ["y"], weights, 21)
    made = quantize_in_memory(source, recipe_of("auto", target="generic", activations="int8"), FEEDS)
    loaded = load_native(made.data, Settings())
    assert made.sqnr(FEEDS[0]) > 25
    np.testing.assert_allclose(loaded.run(None, FEEDS[0])[0], made.run(FEEDS[0])[0], rtol=0.1, atol=0.1)


# -- names ------------------------------------------------------------------------------------------------------------


def test_the_targets_that_come_with_onnxq():
    assert target_names() == TARGETS
    for name in TARGETS:
        target = load_target(name)
        assert target.name == (host_family() if name == "native" else name)
        assert target.description
        assert target.timed == (name == "native" or name == "web" or name.startswith("cpu"))
    assert load_costs().borders


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("tensor-rt", "Did you mean 'tensorrt'?"),
        ("cpu-avx", "Did you mean 'cpu-avx2'?"),
        ("zzz", "Choose one of cpu, cpu-arm64,"),
    ],
)
def test_an_unknown_target_names_the_nearest(name, hint):
    for attempt in (lambda: load_recipe("auto").for_target(name), lambda: parse_recipe(f"target = '{name}'", "r")):
        with pytest.raises(RecipeError, match=f"there is no target named '{name}'") as error:
            attempt()
        assert error.value.hint.startswith(hint)


def test_a_recipe_holds_its_target():
    recipe = parse_recipe("name = 'mine'\ntarget = 'qnn'", "r")
    assert recipe.scheme.target == "qnn"
    assert parse_recipe(recipe.to_toml(), "r") == recipe
    for text in ("[[rules]]\ntarget = 'qnn'", "target = 3"):
        with pytest.raises(RecipeError, match="'target'"):
            parse_recipe(text, "r")


@pytest.mark.parametrize("order", ["a b", "b a"])
def test_a_sum_in_a_body_may_be_of_a_convolution_outside(order: str) -> None:
    made = helper.make_tensor_value_info("s", TensorProto.FLOAT, None)
    inner = [node("Conv", "a v", "b"), node("Add", order, "s")]
    bodies = {
        "then_branch": helper.make_graph(inner, "then", [], [made]),
        "else_branch": helper.make_graph([node("Identity", "a", "s")], "else", [], [made]),
    }
    nodes = [node("Conv", "x w", "a"), node("If", "condition", "y", **bodies)]
    inputs = {"x": [1, 4, 8, 8], "condition": (TensorProto.BOOL, [])}
    proto = build(nodes, inputs, ["y"], {"w": floats(8, 4, 3, 3), "v": floats(8, 8, 1, 1)})
    plan = make_plan(typed(proto), load_recipe("auto").for_target("tensorrt"), with_data=True)
    (form,) = [each.form for each in plan.decisions if each.node.op_type == "Add"]
    assert form is not None
    assert form.activations == (order.split().index("a"),)
