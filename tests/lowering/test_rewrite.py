"""The rewritten model as a whole: names that collide with nothing, the same bytes every time, nothing left behind."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers import ALL, F, build, every_node, floats, graph, node, quantize_in_memory, recipe_of, typed
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from onnxq.errors import ModelError
from onnxq.ir import Patch
from onnxq.lowering.rewrite import rewrite
from onnxq.planning.planner import make_plan

RECIPES = ["dynamic-int8", "static-int8", "weight-int8", "auto"]
X = {"x": floats(2, 6, 8, 8)}


def names_of(proto: onnx.ModelProto) -> list[str]:
    """Every tensor that the main graph defines."""
    inputs = [value.name for value in proto.graph.input]
    return [*inputs, *(w.name for w in proto.graph.initializer), *(o for n in proto.graph.node for o in n.output if o)]


def network(extra: dict[str, np.ndarray] | None = None, read: str = "") -> onnx.ModelProto:
    """Conv, Relu, pool, Gemm and MatMul; `read` is one more tensor that is added to the result."""
    nodes = [
        node("Conv", "x w b", "c"),
        node("Relu", "c", "r"),
        node("MaxPool", "r", "m", kernel_shape=[2, 2]),
        node("Conv", "m v", "d"),
        node("GlobalAveragePool", "d", "p"),
        node("Flatten", "p", "f"),
        node("Gemm", "f g h", "k"),
        node("MatMul", "k u", "y0"),
        node("Add", f"y0 {read}", "y") if read else node("Identity", "y0", "y"),
    ]
    weights = {
        "w": floats(8, 6, 3, 3, seed=1),
        "b": floats(8, seed=2),
        "v": floats(8, 8, 3, 3, seed=3),
        "g": floats(8, 64, seed=4),
        "h": floats(64, seed=5),
        "u": floats(64, 10, seed=6),
    }
    return build(nodes, {"x": [2, 6, 8, 8]}, ["y"], weights | (extra or {}))


# -- names ------------------------------------------------------------------------------------------------------------

TAKEN = [
    f"{tensor}{suffix}"
    for tensor in ("x", "w", "b", "c", "r", "m", "d", "f", "g", "h", "k", "u", "y0")
    for suffix in (
        *("_quantized", "_scale", "_zero_point", "_dequantized", "_int32", "_cast", "_scaled", "_float"),
        *("_QuantizeLinear", "_transposed", "_beta", "_reshaped"),
    )
]


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("name", ["x_scale", "w_scale", "w_quantized", "r_zero_point", "k_quantized", "u_dequantized"])
def test_a_tensor_that_has_the_name_we_would_have_chosen(name, recipe):
    """Other quantizers read an initializer of that name in place of their own: 2 dB, and the checker is content."""
    scalar = np.array(1234.5, F)
    made = quantize_in_memory(network({name: scalar}, read=name), recipe, [X])
    plain = quantize_in_memory(network({"other": scalar}, read="other"), recipe, [X])
    assert made.weights[name] == scalar
    np.testing.assert_array_equal(made.run(X)[0], plain.run(X)[0])
    assert made.ops == plain.ops


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_name_that_we_could_choose_is_taken(recipe):
    taken = {name: np.array(float(i), F) for i, name in enumerate(TAKEN)}
    proto = network(taken, read=TAKEN[0])
    made = quantize_in_memory(proto, recipe, [X])
    defined = names_of(made.proto)
    assert len(defined) == len(set(defined))
    assert {name: float(made.weights[name]) for name in taken} == {n: float(v) for n, v in taken.items()}
    plain = quantize_in_memory(network({"other": taken[TAKEN[0]]}, read="other"), recipe, [X])
    np.testing.assert_array_equal(made.run(X)[0], plain.run(X)[0])


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_name_that_is_taken_in_a_body_only(recipe):
    """A body sees the names around it: a new outer `x_scale` would be hidden by the body's own."""
    x_scale = floats(6, 7, seed=8)
    then = graph([node("MatMul", "x x_scale", "t")], {}, ["t"], {"x_scale": x_scale}, "then")
    other = graph([node("MatMul", "x v", "e")], {}, ["e"], {"v": floats(6, 7)}, "else")
    nodes = [
        node("MatMul", "x w", "a"),
        helper.make_node("If", ["q"], ["i"], name="if", then_branch=then, else_branch=other),
        node("Add", "a i", "y"),
    ]
    feeds = {"x": floats(4, 6, seed=3), "q": np.array(True)}
    proto = build(nodes, {"x": [4, 6], "q": (TensorProto.BOOL, [])}, ["y"], {"w": floats(6, 7, seed=1)})
    made = quantize_in_memory(proto, recipe, [feeds])
    assert made.sqnr(feeds) > 30
    assert made.sqnr(feeds | {"q": np.array(False)}) > 30


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("names", ["none", "ours"])
def test_nodes_without_names_and_nodes_with_the_names_we_would_have_chosen(names, recipe):
    """onnxruntime loads no model in which two nodes share a name, so no new node may take one."""
    proto = network()
    plain = quantize_in_memory(proto, recipe, [X]).run(X)[0]
    ours = iter(["x_QuantizeLinear", "x_quantized", "f_QuantizeLinear", "f_quantized", "w_dequantized", "y0_int32"])
    for one in proto.graph.node:
        one.name = "" if names == "none" else next(ours, one.name)
    made = quantize_in_memory(proto, recipe, [X])
    np.testing.assert_array_equal(made.run(X)[0], plain)
    given = [one.name for one in made.proto.graph.node if one.name]
    assert len(given) == len(set(given))


@pytest.mark.parametrize("recipe", RECIPES)
def test_inputs_and_outputs_keep_names_types_and_order(recipe):
    nodes = [node("Conv", "x w", "c"), node("Relu", "c", "r"), node("Conv", "r v", "d"), node("MatMul", "d u", "y")]
    weights = {"w": floats(8, 6, 3, 3), "v": floats(8, 8, 3, 3), "u": floats(4, 64)}
    proto = build(nodes, {"x": [2, 6, 8, 8]}, ["d", "y", "c", "r"], weights)
    made = quantize_in_memory(proto, recipe, [X])
    assert list(made.proto.graph.input) == list(proto.graph.input)
    assert list(made.proto.graph.output) == list(proto.graph.output)
    assert made.sqnr(X) > 25
    assert made.sqnr(X, ALL) > 25


# -- the same bytes ---------------------------------------------------------------------------------------------------

SCRIPT = """
import sys
sys.path[:0] = [{here!r}, {tests!r}, {support!r}]
from test_rewrite import digests
print(*digests(), sep="\\n")
"""


def digests():
    return [hashlib.sha256(quantize_in_memory(network(), recipe, [X]).data).hexdigest() for recipe in RECIPES]


def test_the_same_bytes_whatever_the_hash_seed():
    """Python draws the seed of this process, unless the environment says one."""
    here = Path(__file__).parent
    script = SCRIPT.format(here=str(here), tests=str(here.parent), support=str(here.parent / "support"))
    other = "777" if os.environ.get("PYTHONHASHSEED") != "777" else "0"
    environment = os.environ | {"PYTHONHASHSEED": other, "PYTHONPATH": str(here.parents[1])}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == digests()


@pytest.mark.parametrize("recipe", RECIPES)
def test_nodes_that_no_decision_touches_keep_their_bytes(recipe):
    nodes = [
        node("Sigmoid", "x", "s"),
        node("Softmax", "s", "t", axis=-1),
        node("MatMul", "t w", "y"),
        node("Tanh", "y", "z"),
    ]
    proto = build(nodes, {"x": [2, 6, 8, 8]}, ["z"], {"w": floats(8, 64)})
    made = quantize_in_memory(proto, recipe, [X])
    after = {n.name: n.SerializeToString() for n in made.proto.graph.node}
    for one in (nodes[0], nodes[1], nodes[3]):
        assert after[one.name] == one.SerializeToString()


# -- nothing left behind ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", RECIPES)
def test_no_dead_weight_stays_in_the_file(recipe):
    made = quantize_in_memory(network(), recipe, [X])
    read = {name for one in every_node(made.proto.graph) for name in one.input}
    assert {w.name for w in made.proto.graph.initializer} <= read
    gone = {"dynamic-int8": {"g", "u"}, "static-int8": {"w", "v", "g", "u"}, "weight-int8": {"v", "g", "u"}}
    assert not gone.get(recipe, {"g", "u"}) & made.weights.keys(), "the float weight goes with its last reader"
    made_by = {name for one in made.proto.graph.node for name in one.output}
    assert made_by <= read | {"y"}, "every result is read"


def test_one_pair_for_each_value_and_one_constant_for_each_scale():
    made = quantize_in_memory(network(), "static-int8", [X])
    readers = [n.input[0] for n in made.proto.graph.node if n.op_type == "QuantizeLinear"]
    assert len(readers) == len(set(readers))
    scales = [n.input[1] for n in made.proto.graph.node if n.op_type == "QuantizeLinear"]
    assert scales.count("r_scale") == 2, "a pool has the scale of its input, stored once"


def test_bodies_without_quantized_nodes_keep_their_bytes():
    body = {side: graph([node("Sigmoid", "x", side)], {}, [side], {}, side) for side in ("then", "else")}
    holder = helper.make_node("If", ["q"], ["i"], name="if", then_branch=body["then"], else_branch=body["else"])
    nodes = [holder, node("MatMul", "i w", "y")]
    proto = build(nodes, {"x": [4, 6], "q": (TensorProto.BOOL, [])}, ["y"], {"w": floats(6, 7)})
    made = quantize_in_memory(proto, "dynamic-int8")
    assert next(n for n in made.proto.graph.node if n.op_type == "If").SerializeToString() == holder.SerializeToString()


def test_loop_bodies_are_quantized():
    body = graph(
        [node("MatMul", "h w", "n"), node("Identity", "go", "on")],
        {"i": (TensorProto.INT64, []), "go": (TensorProto.BOOL, []), "h": [4, 6]},
        {"on": TensorProto.BOOL, "n": TensorProto.FLOAT},
        {},
        "body",
    )
    loop = helper.make_node("Loop", ["trips", "", "x"], ["l"], name="loop", body=body)
    weights = {"trips": np.array(3), "w": floats(6, 6, scale=0.4), "s": np.array([4, 6])}
    proto = build([loop, node("Reshape", "l s", "y")], {"x": [4, 6]}, ["y"], weights)
    made = quantize_in_memory(proto, "dynamic-int8")
    assert made.ops["MatMulInteger"] == 1
    assert "w" not in made.weights
    assert made.weights["w_quantized"].dtype == np.int8, "beside the weight, outside of the body that runs three times"
    assert made.sqnr({"x": floats(4, 6)}) > 25


def test_a_stored_weight_that_bodies_read_is_folded_once_at_load():
    sides = {f"{side}_branch": graph([node("MatMul", "x w", side)], {}, [side], {}, side) for side in ("then", "else")}
    holder = helper.make_node("If", ["q"], ["y"], name="if", **sides)
    proto = build([holder], {"x": [4, 32], "q": (TensorProto.BOOL, [])}, ["y"], {"w": floats(32, 32)})
    made = quantize_in_memory(proto, "weight-int8")
    assert made.ops == {"Cast": 1, "Mul": 1, "If": 1, "MatMul": 2}
    assert made.optimized() == {"If": 1, "MatMul": 2}
    assert made.sqnr({"x": floats(4, 32), "q": np.array(True)}) > 40


# -- codes ------------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 4).flatmap(lambda rank: st.lists(st.integers(1, 4), min_size=rank, max_size=rank)),
    st.data(),
)
def test_codes_are_within_half_a_step_of_the_weight(shape, data):
    """Whatever axes share a scale; the scale is the greatest magnitude over 127, or the least one that is asked for."""
    from onnxq.rounding.weights import Weights, WeightSpec

    rank = len(shape)
    weight = floats(*shape, seed=data.draw(st.integers(0, 99)))
    axes = tuple(sorted(data.draw(st.sets(st.integers(0, rank - 1), max_size=rank))))
    channel = data.draw(st.integers(0, rank - 1))
    minimum = None
    if data.draw(st.booleans()):
        minimum = np.full([size if axis == channel else 1 for axis, size in enumerate(shape)], 0.01, F)
    graph = typed(build([node("MatMul", "x w", "y")], {"x": [4, 32]}, ["y"], {"w": floats(32, 32)})).graph
    value = Patch(graph).constant(weight, "weight")
    codes, scales = Weights().codes(value, WeightSpec(axes), minimum, "a node")
    assert (codes.shape, codes.dtype, scales.dtype) == (weight.shape, np.int8, F)
    assert scales.shape == tuple(1 if axis in axes else size for axis, size in enumerate(shape))
    least = np.abs(weight).max(axis=axes, keepdims=True) / F(127)
    np.testing.assert_array_equal(scales, least if minimum is None else np.maximum(least, F(0.01)))
    assert (np.abs(codes * scales - weight) <= scales / 2 * 1.0001).all()


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_weight_that_is_not_finite_is_named_with_its_reader(recipe):
    w = floats(32, 32)
    w[3, 4] = np.nan
    model = typed(build([node("MatMul", "x w", "y", name="/head/MatMul")], {"x": [4, 32]}, ["y"], {"w": w}))
    plan = make_plan(model, recipe_of(recipe), with_data=True)
    qparams = {value: (F(0.1), np.uint8(128)) for value in plan.calibrated()}
    with pytest.raises(ModelError, match="'w', read by /head/MatMul: the weight holds NaN"):
        rewrite(model, plan, qparams)


def test_ranges_come_from_the_setting_of_the_recipe():
    x = floats(64, 6)
    x[0, 0] = 1000
    proto = build([node("MatMul", "x w", "y")], {"x": [64, 6]}, ["y"], {"w": floats(6, 7)})
    wide = quantize_in_memory(proto, "static-int8", [{"x": x}], ranges="minmax")
    narrow = quantize_in_memory(proto, "static-int8", [{"x": x}], ranges="percentile", percentile=95.0)
    low = min(float(x.min()), 0.0)
    assert wide.weights["x_scale"] == F((F(1000) - F(low)) / F(255))
    assert narrow.weights["x_scale"] < 0.1, "the outlier is left out"
