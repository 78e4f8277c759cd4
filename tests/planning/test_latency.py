"""Predicted latency of a finished plan on families of processors."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from helpers import build, floats, node, typed
from onnx import TensorProto, helper

from onnxq.ir import infer_types, parse
from onnxq.planning.decision import Override, node_key
from onnxq.planning.latency import RUN, float_node_time, planned_time, predicted_latency
from onnxq.planning.planner import Plan, make_plan
from onnxq.planning.recipe import load_recipe
from onnxq.search.candidates import predicted_time
from onnxq.targets import load_costs

FAMILIES = ("cpu-avx2", "cpu-vnni", "cpu-arm64", "cpu-armv8")


def planned(proto: onnx.ModelProto, recipe: str = "auto", *, with_data: bool = True) -> Plan:
    return make_plan(typed(proto), load_recipe(recipe), with_data=with_data)


def product(rows: int = 64) -> onnx.ModelProto:
    return build([node("MatMul", "x w", "y")], {"x": [rows, 256]}, ["y"], {"w": floats(256, 256)})


def stack(*, clamp: str = "Relu") -> onnx.ModelProto:
    bounds = " low high" if clamp == "Clip" else ""
    nodes = [node("Conv", "x w", "a", pads=[1] * 4), node(clamp, f"a{bounds}", "b"), node("Conv", "b v", "y")]
    weights = {"w": floats(64, 64, 3, 3), "v": floats(64, 64, 1, 1)}
    weights |= {"low": np.float32(0), "high": np.float32(6)} if bounds else {}
    return build(nodes, {"x": [1, 64, 28, 28]}, ["y"], weights)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_plan_of_floats_takes_the_time_of_float(family: str) -> None:
    assert predicted_latency(planned(stack(), "weight-int8"), family) == 1


@pytest.mark.parametrize("family", FAMILIES)
def test_a_product_takes_its_kernel_and_the_conversion_of_what_it_reads(family: str) -> None:
    costs = load_costs(family)
    in_float, in_integers = costs.matmul(64, 256, 256)
    start, conversion = costs.borders["node"], costs.borders["QuantizeLinear"] * 64 * 256 + costs.borders["node"]
    expected = (RUN + start + in_integers + conversion) / (RUN + start + in_float)
    assert predicted_latency(planned(product(), "static-int8"), family) == pytest.approx(expected, rel=1e-12)


def test_a_product_quantized_at_run_time_takes_longer_than_a_static_one() -> None:
    static, dynamic = planned(product(), "static-int8"), planned(product(), "dynamic-int8", with_data=False)
    for family in FAMILIES:
        assert predicted_latency(static, family) < predicted_latency(dynamic, family) < 1


@pytest.mark.parametrize(
    ("stack", "inner", "columns", "scheme"),
    [(1, 64, 64, None), (16, 64, 64, None), (8, 17, 256, None), (1, 512, 64, "dynamic-int8"), (1, 256, 1, None)],
)
def test_a_weight_in_front_is_priced_as_a_product(stack: int, inner: int, columns: int, scheme: str | None) -> None:
    """Measured with VNNI: 1.19, 1.12, 1.49, 0.75 and 2.79 of float's time."""
    weights = {"w": floats(inner, inner)}
    proto = build([node("MatMul", "w x", "y")], {"x": [stack, inner, columns]}, ["y"], weights)
    plan = planned(proto)
    assert (plan.decisions[0].scheme == "dynamic-int8") is (scheme is not None)
    in_8_bit = planned(proto, "dynamic-int8", with_data=False)
    assert (predicted_latency(in_8_bit, "cpu-vnni") < 0.9) is (scheme is not None)


def test_convolutions_in_8_bit_gain_more_with_dot_products_than_without() -> None:
    plan = planned(stack())
    found = {family: predicted_latency(plan, family) for family in FAMILIES}
    assert max(found["cpu-vnni"], found["cpu-arm64"]) < 0.5
    assert 0.55 < min(found["cpu-avx2"], found["cpu-armv8"]) < 0.85


def test_a_clamp_between_convolutions_in_8_bit_takes_no_time() -> None:
    """In float a Relu takes next to none there, and a Clip a pass."""
    relu, clip = planned(stack()), planned(stack(clamp="Clip"))
    for family in FAMILIES:
        assert predicted_latency(clip, family) < predicted_latency(relu, family)


def test_a_model_whose_parts_stay_float_gains_less() -> None:
    nodes = [node("MatMul", "x w", "h"), node("Softmax", "h", "s"), node("Erf", "s", "y")]
    long = build(nodes, {"x": [64, 256]}, ["y"], {"w": floats(256, 256)})
    for family in FAMILIES:
        assert predicted_latency(planned(product()), family) < predicted_latency(planned(long), family) < 1


def test_a_node_in_float_takes_the_layouts_around_it() -> None:
    """The sum of two Convs becomes one of float and 8 bit: what both are read and given in is laid out anew."""
    nodes = [node("Conv", "x w", "a"), node("Conv", "x v", "b"), node("Add", "a b", "c"), node("Relu", "c", "d")]
    nodes.append(node("Conv", "d u", "y"))
    proto = build(nodes, {"x": [1, 64, 28, 28]}, ["y"], {name: floats(64, 64, 1, 1) for name in "wvu"})
    before = planned(proto, "static-int8")
    key = next(node_key(decision.node) for decision in before.decisions if decision.node.outputs[0].name == "b")
    choices = {key: Override("weight-int8", "in float")}
    after = make_plan(typed(proto), load_recipe("static-int8"), with_data=True, choices=choices)
    costs = load_costs("cpu-avx2")
    kernels = predicted_time(after, costs) - predicted_time(before, costs)
    assert planned_time(after, costs) - planned_time(before, costs) > kernels + costs.reorder(64 * 28 * 28)


def test_shapes_of_samples_count_where_the_model_leaves_them_open() -> None:
    proto = build([node("MatMul", "x w", "y")], {"x": ["n", 256]}, ["y"], {"w": floats(256, 256)})
    plan = planned(proto, "static-int8")
    few = predicted_latency(plan, "cpu-vnni")
    plan.costs = type(plan.costs)(plan.costs.table, shapes={"x": (256, 256), "y": (256, 256)})
    assert predicted_latency(plan, "cpu-vnni") < few


def test_a_product_of_two_activations_takes_what_one_with_a_weight_takes() -> None:
    costs = load_costs("cpu-avx2")
    proto = build([node("MatMul", "a b", "y")], {"a": [1, 8, 64, 32], "b": [1, 8, 32, 64]}, ["y"], {})
    (one,) = typed(proto).graph.nodes
    least = costs.matmul(1, 64, 64)[0]
    expected = costs.borders["node"] + least + 8 * max(costs.matmul(64, 32, 64)[0] - least, 0)
    assert float_node_time(one, costs) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("op_type", ["Softmax", "Gelu", "Softsign", "ReduceMean", "Reshape"])
def test_operators_that_compute_in_float_have_a_time(op_type: str) -> None:
    reads = ["x", "shape"] if op_type == "Reshape" else ["x"]
    graph = helper.make_graph(
        [helper.make_node(op_type, reads, ["y"])],
        "one",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 64, 128])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [helper.make_tensor("shape", TensorProto.INT64, [2], [4, -1])] if op_type == "Reshape" else [],
    )
    model = parse(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]).SerializeToString())
    infer_types(model)
    costs = load_costs("cpu-vnni")
    taken = float_node_time(next(iter(model.graph.nodes)), costs)
    rates = {**costs.table["floats"], "Softsign": 0.08}
    expected = 0 if op_type == "Reshape" else costs.borders["node"] + rates[op_type] * 4 * 64 * 128
    assert taken == pytest.approx(expected)
