"""The least cut: found exactly, on whatever network; and what it makes of Conv graphs."""

import itertools

import numpy as np
import onnx
import pytest
from helpers import ALL, build, floats, node, quantize_in_memory, typed
from hypothesis import given
from hypothesis import strategies as st

from onnxq.planning.cost_model import node_times
from onnxq.planning.partition import Flow
from onnxq.planning.planner import make_plan
from onnxq.planning.recipe import load_recipe
from onnxq.targets import load_costs

COSTS = load_costs()


def cut_cost(edges, side):
    """What a choice of sides costs: the capacities that leave the source's side."""
    return sum(capacity for start, end, capacity in edges if start in side and end not in side)


@given(st.data())
def test_the_cut_is_the_least_of_all(data):
    nodes = data.draw(st.integers(1, 5))
    names = range(nodes + 2)
    edges = data.draw(
        st.lists(st.tuples(st.sampled_from(names), st.sampled_from(names), st.integers(1, 20)), max_size=14)
    )
    flow = Flow()
    for _ in range(nodes):
        flow.node()
    for start, end, capacity in edges:
        flow.edge(start, end, float(capacity))
    side = flow.source_side()
    assert 0 in side
    assert 1 not in side
    inner = range(2, nodes + 2)
    least = min(cut_cost(edges, {0, *chosen}) for k in range(nodes + 1) for chosen in itertools.combinations(inner, k))
    assert cut_cost(edges, side) == least


def schemes(proto: onnx.ModelProto, recipe: str = "auto", target: str = "cpu") -> dict[str, str | None]:
    plan = make_plan(typed(proto), load_recipe(recipe).for_target(target), with_data=True)
    return {decision.node.op_type: decision.scheme for decision in plan.decisions}


def conv(channels: int, filters: int, kernel: int, side: int, group: int = 1) -> onnx.ModelProto:
    weight = np.ones((filters, channels // group, kernel, kernel), np.float32)
    step = node("Conv", "x w", "y", pads=[kernel // 2] * 4, group=group)
    return build([step], {"x": [1, channels, side, side]}, ["y"], {"w": weight})


def test_a_conv_of_many_channels_works_in_8_bit_and_one_of_few_in_float() -> None:
    assert schemes(conv(64, 64, 3, 56)) == {"Conv": "static-int8"}
    assert schemes(conv(3, 16, 3, 112)) == {"Conv": None}  # 432 weights are not worth storing in 8 bit either
    assert schemes(conv(3, 64, 3, 112)) == {"Conv": "weight-int8"}


def test_groups_side_by_side_are_started_once() -> None:
    """A RegNet's groups of 8 are small products for float, and stayed there for what 46 kernels take to start."""
    eights = conv(368, 368, 3, 4, group=46)
    assert schemes(eights, target="cpu-vnni") == {"Conv": "static-int8"}
    assert schemes(eights, target="cpu-avx2") == {"Conv": "weight-int8"}  # where float computes blocks of 8 channels
    assert schemes(conv(128, 128, 3, 32, group=32)) == {"Conv": "weight-int8"}


def test_an_addition_is_in_8_bit_where_a_conv_reads_its_float_operand_in_8_bit() -> None:
    """Else onnxruntime converts to float and back, and adds a pair around the Transpose in between."""
    rng = np.random.default_rng(0)
    sizes = {"w0": (16, 3, 3, 3), "w1": (16, 16, 3, 3), "w2": (16, 16, 3, 3), "w3": (64, 16, 3, 3)}
    weights = {name: rng.standard_normal(size).astype(np.float32) / 24 for name, size in sizes.items()}
    nodes = [
        node("Conv", "x w0", "s", name="stem", pads=[1] * 4),
        node("Conv", "s w1", "a", name="first", pads=[1] * 4),
        node("Conv", "a w2", "b", name="second", pads=[1] * 4),
        node("Add", "s b", "r", name="add"),
        node("Conv", "r w3", "y", name="last", pads=[1] * 4),
    ]
    x = floats(1, 3, 112, 113)  # as many columns do not come in blocks, so the first Conv is faster in float
    proto = build(nodes, {"x": [1, 3, 112, 113]}, ["y"], weights)
    made = quantize_in_memory(proto, "auto", [{"x": x}], target="cpu-vnni")
    assert made.decision("stem").scheme is None
    assert {made.decision(name).scheme for name in ("first", "second", "add", "last")} == {"static-int8"}
    optimized = made.optimized()
    assert (optimized["QuantizeLinear"], optimized["DequantizeLinear"]) == (1, 1)
    assert (optimized["QLinearConv"], optimized["QLinearAdd"], optimized["Add"]) == (3, 1, 0)
    assert made.sqnr({"x": x}, ALL) > 25


@pytest.mark.parametrize("clamp", ["Relu", "Clip"])
def test_a_clamp_behind_an_addition_is_absorbed_by_its_codes(clamp: str) -> None:
    """Else every block of a residual network goes back to float, and to another layout, for its Add and Relu."""
    weights = {name: floats(64, 64, 3, 3, seed=i, scale=1 / 24) for i, name in enumerate(["w0", "w1", "w2"])}
    weights |= {"lo": np.float32(0), "hi": np.float32(1.5)}
    nodes = [
        node("Conv", "x w0", "a", name="first", pads=[1] * 4),
        node("Conv", "a w1", "b", name="second", pads=[1] * 4),
        node("Add", "a b", "s", name="add"),
        node(clamp, "s lo hi" if clamp == "Clip" else "s", "r", name="clamp"),
        node("Conv", "r w2", "y", name="last", pads=[1] * 4),
    ]
    x = floats(1, 64, 28, 28)
    made = quantize_in_memory(build(nodes, {"x": [1, 64, 28, 28]}, ["y"], weights), "auto", [{"x": x}])
    assert {d.scheme for d in made.plan.decisions} == {"static-int8"}
    assert made.decision("clamp").reason == "absorbed by the quantized output of add"
    assert made.ops[clamp] == 0
    optimized = made.optimized()
    assert (optimized["QLinearConv"], optimized["QLinearAdd"], optimized["QuantizeLinear"]) == (3, 1, 1)
    assert made.sqnr({"x": x}, ALL) > 30


def pooled(channels: list[int], side: int, target: str = "cpu") -> dict[str, str | None]:
    """What Conv, Relu and MaxPool become, one after another."""
    nodes, weights = [], {}
    for index, (before, filters) in enumerate(itertools.pairwise([3, *channels])):
        weights[f"w{index}"] = np.ones((filters, before, 3, 3), np.float32)
        nodes += [
            node("Conv", f"{f'p{index - 1}' if index else 'x'} w{index}", f"c{index}", name=f"c{index}", pads=[1] * 4),
            node("Relu", f"c{index}", f"r{index}"),
            node("MaxPool", f"r{index}", f"p{index}", kernel_shape=[2, 2], strides=[2, 2]),
        ]
    made = build(nodes, {"x": [1, 3, side, side]}, [f"p{len(channels) - 1}"], weights)
    plan = make_plan(typed(made), load_recipe("auto").for_target(target), with_data=True)
    return {d.node.outputs[0].name: d.scheme for d in plan.decisions if d.node.op_type != "Relu" and d.scheme}


def test_a_pooling_of_floats_keeps_no_conv_out_of_8_bit() -> None:
    assert pooled([8, 16], 32)["c1"] == "weight-int8"
    assert pooled([16, 32], 128)["c1"] == "static-int8"


def test_poolings_between_convs_are_in_8_bit() -> None:
    assert pooled([32, 64, 128], 64, "cpu-vnni") == {
        "c0": "static-int8",
        "p0": "static-int8",
        "c1": "static-int8",
        "p1": "static-int8",
        "c2": "static-int8",
    }


@pytest.mark.parametrize(("clamp", "extra"), [("Relu", 0.0), ("Clip", 1.0)])
def test_a_float_conv_takes_the_time_of_its_clamp_too(clamp: str, extra: float) -> None:
    inputs = "c lo hi" if clamp == "Clip" else "c"
    nodes = [node("Conv", "x w", "c"), node(clamp, inputs, "r"), node("Conv", "r v", "d"), node("Relu", "x", "y")]
    constants = {"w": floats(32, 16, 1, 1), "v": floats(8, 32, 1, 1), "lo": np.float32(0), "hi": np.float32(6)}
    model, costs = typed(build(nodes, {"x": [1, 16, 14, 14]}, ["d", "y"], constants)), load_costs("cpu-vnni")
    alone, behind, _, free = model.graph.nodes
    in_float, in_integers = costs.conv(16, 32, 1, 196, 1)
    added = extra * costs.clamp(clamp, 32 * 196)
    assert node_times(alone, costs) == pytest.approx((in_float + added, in_integers))
    assert extra == 0 or added > 0
    assert node_times(behind, costs) == (0, 0)
    assert node_times(free, costs)[0] > 0


def test_a_gate_that_comes_first_is_priced_by_what_it_scales() -> None:
    made = build(
        [node("Mul", "g x", "y"), node("Mul", "x g", "z")], {"x": [1, 64, 28, 28], "g": [1, 64, 1, 1]}, ["y", "z"]
    )
    first, second = typed(made).graph.nodes
    assert node_times(first, load_costs()) == node_times(second, load_costs())
    assert node_times(first, load_costs()) == load_costs().elementwise("Mul", 64 * 784)


def swishing(channels: int, side: int, *, one: bool, squeezed: bool = False) -> onnx.ModelProto:
    """Convolutions of 1 × 1 with HardSwish between, as one operator or two, and a gate on each if asked for."""
    nodes, weights, value = [], {"w0": floats(channels, 3, 1, 1)}, "x"
    for index in range(3):
        read = nodes[-1].output[0] if nodes else value
        weights.setdefault(f"w{index}", floats(channels, channels, 1, 1, seed=index, scale=channels**-0.5))
        nodes.append(node("Conv", f"{read} w{index}", f"c{index}"))
        if one:
            nodes.append(node("HardSwish", f"c{index}", f"m{index}"))
        else:
            nodes.append(node("HardSigmoid", f"c{index}", f"h{index}", alpha=1 / 6))
            nodes.append(node("Mul", f"c{index} h{index}", f"m{index}"))
        if squeezed:
            weights[f"s{index}"] = floats(channels, channels, 1, 1, seed=9 + index, scale=channels**-0.5)
            nodes.append(node("GlobalAveragePool", f"m{index}", f"p{index}"))
            nodes.append(node("Conv", f"p{index} s{index}", f"e{index}"))
            nodes.append(node("HardSigmoid", f"e{index}", f"g{index}"))
            nodes.append(node("Mul", f"m{index} g{index}", f"n{index}"))
    weights["last"] = floats(channels, channels, 1, 1, seed=8, scale=channels**-0.5)
    nodes.append(node("Conv", f"{nodes[-1].output[0]} last", "y"))
    return build(nodes, {"x": [1, 3, side, side]}, ["y"], weights)


@pytest.mark.parametrize("one", [True, False], ids=["HardSwish", "HardSigmoid"])
@pytest.mark.parametrize("squeezed", [False, True])
def test_wide_convolutions_with_a_hard_swish_between_stay_in_8_bit(one: bool, squeezed: bool) -> None:
    proto, x = swishing(240, 14, one=one, squeezed=squeezed), {"x": floats(1, 3, 14, 14)}
    made = quantize_in_memory(proto, "auto", [x], target="cpu-vnni")
    inner = [d for d in made.plan.decisions if d.node.op_type != "Conv" and d.node.name[-1] in "12"]
    assert {d.scheme for d in inner} == {"static-int8"}
    assert made.sqnr(x, ALL, exact=True) > 25


def test_narrow_ones_stay_float() -> None:
    plan = make_plan(typed(swishing(16, 112, one=True)), load_recipe("auto"), with_data=True)
    assert {d.scheme for d in plan.decisions if d.node.op_type == "HardSwish"} == {None}
    assert {d.reason for d in plan.decisions if d.node.op_type == "HardSwish"} == {"int8 is not faster for this shape"}


def test_a_named_recipe_has_its_way_whatever_it_costs() -> None:
    assert schemes(conv(3, 16, 3, 112), "static-int8") == {"Conv": "static-int8"}


def test_the_reason_says_that_float_is_as_fast() -> None:
    plan = make_plan(typed(conv(3, 64, 3, 112)), load_recipe("auto"), with_data=True)
    assert plan.decisions[0].reason == "weight stored in 8 bit, computed in float: int8 is not faster for this shape"


def test_a_product_of_one_row_stays_float() -> None:
    weight = np.ones((256, 64), np.float32)
    row, many = ({"x": [rows, 256]} for rows in (1, 256))
    steps = [node("MatMul", "x w", "y")]
    assert schemes(build(steps, row, ["y"], {"w": weight})) == {"MatMul": "weight-int8"}
    assert schemes(build(steps, many, ["y"], {"w": weight})) == {"MatMul": "static-int8"}


def conversions(proto: onnx.ModelProto, recipe: str = "auto") -> float:
    return make_plan(typed(proto), load_recipe(recipe), with_data=True).conversions


def test_the_plan_says_what_conversions_take() -> None:
    """In front of a Conv in 8 bit, behind it, and where nothing is in 8 bit none."""
    elements = 64 * 56 * 56
    both = COSTS.border(elements, into_integers=True) + COSTS.border(elements, into_integers=False)
    assert conversions(conv(64, 64, 3, 56)) == pytest.approx(both)
    assert conversions(conv(3, 16, 3, 112)) == 0.0


def test_a_float_conv_at_a_border_changes_the_layout_once_more() -> None:
    weights = {"w0": floats(16, 3, 3, 3), "w1": floats(64, 16, 3, 3), "w2": floats(64, 64, 3, 3)}
    nodes = [node("Conv", f"{read} w{i}", made, pads=[1] * 4) for i, (read, made) in enumerate(("xa", "ab", "by"))]
    proto = build(nodes, {"x": [1, 3, 112, 113]}, ["y"], weights)
    plan, costs = (
        make_plan(typed(proto), load_recipe("auto").for_target("cpu-vnni"), with_data=True),
        load_costs("cpu-vnni"),
    )
    assert plan.decisions[0].scheme is None
    read, made = 16 * 112 * 113, 64 * 112 * 113
    ends = costs.border(read, into_integers=True) + costs.border(made, into_integers=False)
    assert plan.conversions == pytest.approx(ends + costs.reorder(read))


@pytest.mark.parametrize("kernel", [1, 9])
@pytest.mark.parametrize("group", [1, 4])
def test_times_grow_with_the_work(kernel: int, group: int) -> None:
    small = COSTS.conv(64, 64, kernel, 784, group)
    assert all(time > 0 for time in small)
    assert all(b > a for a, b in zip(small, COSTS.conv(64, 512, kernel, 784, group), strict=True))
    assert all(b > a for a, b in zip(small, COSTS.conv(64, 64, kernel, 12544, group), strict=True))


def test_table_points_are_given_back() -> None:
    table = COSTS.table["pointwise"]
    first = table["float"][0], table["integer"][0]
    found = COSTS.conv(table["channels"][0], table["filters"][0], 1, table["pixels"][0], 1)
    assert found == pytest.approx(first)


def test_beyond_the_table_times_go_on() -> None:
    near, far = COSTS.matmul(256, 1024, 1024), COSTS.matmul(1024, 1024, 1024)
    assert all(2 < b / a < 8 for a, b in zip(near, far, strict=True))


@pytest.mark.parametrize(("rows", "inner", "columns"), [(1, 32, 1), (1, 8, 8), (1, 16, 64), (2, 3, 5)])
def test_a_product_smaller_than_the_table_takes_no_longer_than_its_edge(rows, inner, columns):
    costs = load_costs()
    least = min(costs.table["matmul"]["float"]), min(costs.table["matmul"]["integer"])
    edge = costs.matmul(max(rows, 1), max(inner, 64), max(columns, 64))
    for time, floor, most in zip(costs.matmul(rows, inner, columns), least, edge, strict=True):
        assert floor * 0.999 <= time <= most * 1.001
    assert costs.matmul(2, 4096, 4096)[0] > costs.matmul(2, 1024, 1024)[0]


def test_a_convolution_of_one_pixel_takes_less_than_one_of_many():
    assert load_costs().conv(512, 128, 1, 1, 1)[0] < load_costs().conv(512, 128, 1, 49, 1)[0] / 2


def test_a_silu_is_one_kernel() -> None:
    gate = [node("Sigmoid", "c", "s", name="sigmoid"), node("Mul", "s c", "h", name="silu")]
    nodes = [node("Conv", "x w", "c"), *gate, node("Conv", "h w", "y")]
    graph = typed(build(nodes, {"x": [1, 64, 28, 28]}, ["y"], {"w": floats(64, 64, 1, 1)})).graph
    times = {each.name: node_times(each, COSTS) for each in graph.nodes}
    elements = 64 * 28 * 28
    assert times["sigmoid"] == (0, 0)
    assert times["silu"] == COSTS.elementwise("SiLU", elements)
    assert times["silu"][0] < COSTS.elementwise("Sigmoid", elements)[0] + COSTS.elementwise("Mul", elements)[0]
