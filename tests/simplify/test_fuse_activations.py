"""Functions that are recognised by their values, however they are spelled."""

from __future__ import annotations

import math

import numpy as np
import onnx
import pytest
from helpers import build, floats, node, run
from hypothesis import given, settings
from hypothesis import strategies as st
from support import assert_same, simplified, written

from onnxq.ir.operator_traits import Trait, operators_with
from onnxq.simplify import known_functions
from onnxq.simplify.fusing import fuse_activations
from onnxq.simplify.known_functions import NANOSECONDS, candidates, cost

F = np.float32
FEEDS = [{"x": np.concatenate([floats(7, 3, scale=3.0), F([[-30, 0, 30], [-1e4, 1e-6, 1e4]])]).reshape(1, 9, 3)}]
K, C = math.sqrt(2 / math.pi), 0.044715


def spelled(*steps, opset=17, weights=None, shape=("n", 9, 3), around=True):
    """Nodes from steps `name = Op a b`; numbers are constants. `x` comes through Floor where something is around it."""
    nodes, constants = [], dict(weights or {})
    for step in steps:
        name, _, call = step.partition(" = ")
        op_type, *inputs = call.split()
        attributes = {key: float(value) for key, _, value in (i.partition("=") for i in inputs if "=" in i)}
        inputs = [i for i in inputs if "=" not in i]
        for given_input in inputs:
            if given_input.lstrip("-")[0].isdigit():
                constants[given_input] = F(float(given_input))
        nodes.append(node(op_type, " ".join(inputs), name, **attributes))
    return build(nodes, {"x": list(shape)}, weights=constants, opset=opset)


GELU_JAX = (
    f"a = Mul {C} x", "b = Mul x a", "c = Mul x b", "d = Add x c", f"e = Mul {K} d", "f = Tanh e", "g = Add 1 f",
    "h = Mul 0.5 g", "y = Mul x h",
)  # fmt: skip
GELU_TORCH = (
    "a = Mul x 0.5", "b = Pow x 3.0", f"c = Mul b {C}", "d = Add x c", f"e = Mul d {K}", "f = Tanh e", "g = Add f 1",
    "h = Mul a g", "y = Floor h",
)  # fmt: skip
GELU_ERF = ("a = Mul x 0.7071067811865476", "b = Erf a", "c = Add 1 b", "d = Mul 0.5 c", "y = Mul x d")
CASES = {
    "Gelu by tanh": (GELU_JAX, ["y = Gelu(x, approximate=tanh)"]),
    "Gelu": (GELU_ERF, ["y = Gelu(x, approximate=none)"]),
    "Gelu by Erf of the negative": (
        ("n = Neg x", "a = Mul n 0.70710678", "b = Erf a", "c = Sub 1 b", "d = Mul x 0.5", "y = Mul d c"),
        ["y = Gelu(x, approximate=none)"],
    ),
    "HardSwish": (
        ("a = Add x 3", "b = Clip a 0 6", "c = Mul x b", "y = Div c 6.0"),
        ["HardSigmoid = HardSigmoid(x, alpha=0.1666666716337204, beta=0.5)", "y = Mul(x, HardSigmoid)"],
    ),
    "HardSigmoid": (
        ("a = Add x 3", "b = Clip a 0 6", "y = Div b 6.0"),
        ["y = HardSigmoid(x, alpha=0.1666666716337204, beta=0.5)"],
    ),
    "Sigmoid": (("a = Neg x", "b = Exp a", "c = Add b 1", "y = Reciprocal c"), ["y = Sigmoid(x)"]),
    "SiLU": (
        ("a = Neg x", "b = Exp a", "c = Add b 1", "y = Div x c"),
        ["Sigmoid = Sigmoid(x)", "y = Mul(x, Sigmoid)"],
    ),
    "SiLU by tanh": (
        ("a = Mul x 0.5", "b = Tanh a", "c = Add b 1", "y = Mul a c"),
        ["Sigmoid = Sigmoid(x)", "y = Mul(x, Sigmoid)"],
    ),
    "Tanh": (
        ("a = Mul x 2", "b = Sigmoid a", "c = Mul b 2", "y = Sub c 1"),
        ["y = Tanh(x)"],
    ),
    "Clip": (("a = Max x -1.5", "y = Min 2.5 a"), ["y = Clip(x, -1.5, 2.5)"]),
    "LeakyRelu": (("a = Mul x 0.1", "y = Max x a"), ["y = LeakyRelu(x, alpha=0.10000000149011612)"]),
    "Softsign": (("a = Abs x", "b = Add a 1", "y = Div x b"), ["y = Softsign(x)"]),
    "Relu": (("a = Abs x", "b = Add x a", "y = Mul b 0.5"), ["y = Relu(x)"]),
    "Mish": (
        ("a = Softplus x", "b = Tanh a", "y = Mul x b"),
        [
            "Min = Min(x, 30.0)",
            "Exp = Exp(Min)",
            "Add = Add(Exp, 2.0)",
            "Mul = Mul(Exp, Add)",
            "Add_1 = Add(Mul, 2.0)",
            "Div = Div(Mul, Add_1)",
            "y = Mul(x, Div)",
        ],
    ),
}


def test_softplus_is_faster_in_eleven_operators():
    proto = spelled("z = Softplus x", "y = Floor z", shape=(8, 128))
    found = simplified(proto, "fuse_activations")
    assert len(found.model.graph.nodes) == 12
    assert found.notes == ("fused 1 decomposed Softplus as 11 operators",)
    assert_same(proto, found, [{"x": floats(8, 128, scale=9.0)}], rtol=1e-6)
    few = spelled("z = Softplus x", "y = Floor z", shape=(8, 16))
    assert simplified(few, "fuse_activations").notes == ()  # ten more nodes take longer


@pytest.mark.parametrize(
    ("steps", "exact"),
    [
        (("y = Softplus x",), lambda x: np.logaddexp(0, x)),
        (CASES["Mish"][0], lambda x: x * np.tanh(np.logaddexp(0, x))),
    ],
)
def test_every_element_is_as_exact_as_float32(steps, exact):
    x = np.concatenate([np.linspace(-87, 88, 20001), np.geomspace(1e-30, 1e30, 999), -np.geomspace(1e-30, 80, 999)])
    x = np.concatenate([x.astype(F), F([0.0, np.inf])])
    found = simplified(spelled(*steps, shape=x.shape), "fuse_activations")
    assert len(found.notes) == 1
    (y,) = run(found.model.serialize(), {"x": x})
    expected = exact(x.astype(np.float64))
    np.testing.assert_allclose(y, expected, rtol=1e-6, atol=1e-37)


@pytest.mark.parametrize("case", CASES)
def test_spelled_out_functions(case):
    steps, expected = CASES[case]
    proto = spelled(*steps, shape=("n", 9, "m"))
    found = simplified(proto, "fuse_activations")
    assert written(found.model) == expected
    assert found.model.graph.nodes[-1].name == "n_y"  # as the last of what it replaces
    said, *rest = found.notes
    assert said.startswith(f"fused 1 decomposed {case.partition(' by ')[0]}")
    assert rest == (["opset raised from 17 to 20"] if "Gelu" in case else [])
    assert_same(proto, found, FEEDS, rtol=1e-6)


def test_constants_with_axes_and_other_readers_of_the_input():
    steps = [*GELU_JAX[:6], "g = Add one f", *GELU_JAX[7:-1], "gelu = Mul x h", "y = Add gelu x"]
    proto = spelled(*steps, weights={"one": np.ones((1, 1, 1), F)})
    found = simplified(proto, "fuse_activations")
    assert written(found.model) == ["gelu = Gelu(x, approximate=tanh)", "y = Add(gelu, x)"]
    higher = spelled(*steps, weights={"one": np.ones((1, 1, 1, 1), F)})
    assert simplified(higher, "fuse_activations").notes == ()


STAY = {
    "what onnxruntime fuses: Gelu": ("a = Div x 1.4142135", "b = Erf a", "c = Add b 1", "d = Mul x c", "y = Mul d 0.5"),
    "what onnxruntime fuses: FastGelu": GELU_TORCH,
    "what onnxruntime fuses: QuickGelu": ("a = Sigmoid x", "y = Mul x a"),
    "no operator does it": ("a = Mul x 0.7", "b = Erf a", "c = Add 1 b", "d = Mul 0.5 c", "y = Mul x d"),
    "Softplus, which is slower": ("a = Exp x", "b = Add a 1", "y = Log b"),
    "Elu, which is slower": ("a = Min x 0", "b = Exp a", "c = Sub b 1", "d = Max x 0", "y = Add c d"),
    "one number off": (*GELU_JAX[:7], "h = Mul 0.50001 g", "y = Mul x h"),
}


@pytest.mark.parametrize("case", STAY)
def test_what_stays(case):
    assert simplified(spelled(*STAY[case]), "fuse_activations").notes == ()


def test_the_largest_part_that_is_known_is_written():
    proto = spelled(
        "x2 = Add x 0.25", *(s.replace(" x", " x2") for s in GELU_ERF[:-1]), "z = Mul x2 d", "y = Min z 999.0"
    )
    found = simplified(proto, "fuse_activations")
    assert written(found.model) == ["x2 = Add(x, 0.25)", "z = Gelu(x2, approximate=none)", "y = Min(z, 999.0)"]
    assert_same(proto, found, FEEDS, rtol=1e-6)


def test_what_others_read_inside_stays():
    proto = spelled(*GELU_JAX)
    proto.graph.output.append(onnx.helper.make_tensor_value_info("f", 1, ["n", 9, 3]))
    assert simplified(proto, "fuse_activations").notes == ()
    proto = spelled(*GELU_JAX[:-1], "i = Mul x h", "y = Add i f")
    assert simplified(proto, "fuse_activations").notes == ()


def test_constants_of_channels_stay():
    proto = spelled(
        "a = Add x three", "b = Clip a 0 6", "c = Mul x b", "y = Div c 6.0", weights={"three": F([3, 3, 3])}
    )
    assert simplified(proto, "fuse_activations").notes == ()


def test_other_types_stay():
    proto = spelled(*CASES["Sigmoid"][0])
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.elem_type = 11
    for tensor in proto.graph.initializer:
        tensor.CopyFrom(
            onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor).astype(np.float64), tensor.name)
        )
    assert simplified(proto, "fuse_activations").notes == ()


def test_a_model_that_cannot_be_converted_keeps_its_gelu():
    proto = spelled(*GELU_JAX)
    proto.graph.sparse_initializer.append(
        onnx.helper.make_sparse_tensor(
            onnx.numpy_helper.from_array(F([1]), "sparse"), onnx.numpy_helper.from_array(np.int64([0])), [3]
        )
    )
    found = simplified(proto, "fuse_activations")
    assert (found.model.opset, found.notes) == (17, ())


def test_a_relu_behind_a_convolution_is_written_as_such():
    nodes = [node("Conv", "x w", "c"), node("Max", "c zero", "y")]
    weights = {"w": floats(2, 3, 1), "zero": F(0)}
    found = simplified(build(nodes, {"x": ["n", 3, 4]}, weights=weights), "fuse_activations")
    assert written(found.model) == ["c = Conv(x, w[2, 3, 1])", "y = Relu(c)"]
    alone = build([node("Max", "x zero", "y")], {"x": ["n", 3]}, weights={"zero": F(0)})
    assert simplified(alone, "fuse_activations").notes == ()


def test_masks_beyond_float32_are_no_functions():
    least = np.finfo(np.float32).min  # (1 - mask) times it is an attention mask, and overflows far out
    for written_as in (("a = Sub 1 x", "y = Mul a least"), ("a = Sub 1 x", "b = Mul a least", "y = Floor b")):
        proto = spelled(*written_as, weights={"least": F(least)})
        assert simplified(proto, "fuse_activations").notes == ()


def test_bodies_are_simplified_too():
    steps = ("x2 = Floor x", *(step.replace(" x", " x2") for step in CASES["Softsign"][0]))
    then = spelled(*steps, shape=("n", 3)).graph
    del then.input[:]
    info = onnx.helper.make_tensor_value_info
    other = onnx.helper.make_graph([node("Neg", "x", "y2")], "else", [], [info("y2", 1, ["n", 3])])
    held = onnx.helper.make_node("If", ["flag"], ["z"], name="if", then_branch=then, else_branch=other)
    inputs = [info("flag", onnx.TensorProto.BOOL, []), info("x", 1, ["n", 3])]
    graph = onnx.helper.make_graph([held], "g", inputs, [info("z", 1, ["n", 3])])
    proto = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    found = simplified(proto, "fuse_activations")
    assert sorted(item.op_type for item in found.model.graph.walk()) == ["Floor", "If", "Neg", "Softsign"]
    assert_same(proto, found, [{"flag": np.array(flag), "x": floats(2, 3)} for flag in (True, False)], rtol=1e-6)


@given(
    st.sampled_from(["HardSigmoid", "LeakyRelu", "Clip", "SiLU"]),
    st.floats(0.015625, 0.96875, width=32),
    st.floats(0.03125, 0.96875, width=32),
)
@settings(max_examples=40, deadline=None)
def test_parameters_are_read_off_the_values(name, first, second):
    steps = {
        "HardSigmoid": ("a = Mul x p", "b = Add a q", "c = Max b 0", "y = Min c 1"),
        "LeakyRelu": ("a = Mul x p", "y = Max x a"),
        "Clip": ("a = Min x p", "b = Neg q", "y = Max a b"),
        "SiLU": ("a = Mul x p", "b = Neg a", "c = Exp b", "d = Add c 1", "y = Div x d"),
    }[name]
    proto = spelled(*steps, weights={"p": F(first), "q": F(second)})
    if name != "HardSigmoid" and name != "Clip":
        del proto.graph.initializer[[t.name for t in proto.graph.initializer].index("q")]
    found = simplified(proto, "fuse_activations")
    assert len(found.notes) == 1
    assert name in found.notes[0]
    assert_same(proto, found, FEEDS, rtol=1e-6)


@given(st.lists(st.sampled_from([0.1, 0.5, 1.0, 2.0, -1.0]), min_size=1, max_size=4), st.data())
@settings(max_examples=60, deadline=None)
def test_whatever_is_written_computes_the_same(numbers, data):
    """Random elementwise graphs of one input, some of which happen to be a known function."""
    steps, values = [], ["x"]
    for index in range(data.draw(st.integers(2, 6))):
        name = f"v{index}"
        op_type = data.draw(st.sampled_from(["Neg", "Tanh", "Sigmoid", "Abs", "Add", "Mul", "Max", "Min", "Relu"]))
        first = data.draw(st.sampled_from(values))
        second = data.draw(st.sampled_from([*values, *map(str, numbers)]))
        steps.append(f"{name} = {op_type} {first}" + (f" {second}" if op_type in ("Add", "Mul", "Max", "Min") else ""))
        values.append(name)
    steps.append(f"y = Mul {values[-1]} 1.5")
    proto = spelled(*steps)
    used = {name for item in proto.graph.node for name in item.input}
    for tensor in [tensor for tensor in proto.graph.initializer if tensor.name not in used]:
        proto.graph.initializer.remove(tensor)
    assert_same(proto, simplified(proto, "fuse_activations"), FEEDS, rtol=2e-6)


def test_operators_with_a_cost_are_elementwise():
    microsoft = {"FastGelu", "QuickGelu"}
    assert set(NANOSECONDS) - microsoft <= operators_with(Trait.ELEMENTWISE)
    assert cost(["Add", "Mul"]) == pytest.approx(0.24)
    assert cost(["Add", "NotThere"]) == 0


def test_candidates_agree_with_themselves():
    for known in known_functions.FIXED:
        values = known.on(fuse_activations.FEW)
        assert known.name in {item.name for item in candidates(fuse_activations.FEW, values)}
        assert len(fuse_activations.GRID) == len(known.on(fuse_activations.GRID))


GELU_FUSED = ("a = Div v 1.4142135381698608", "b = Erf a", "c = Add b 1", "d = Mul v c", "e = Mul d 0.5", "y = Floor e")


@pytest.mark.parametrize(("before", "gelu"), [("Conv", True), ("MatMul", False)])
def test_what_is_fused_behind_floats_only_is_written_behind_a_convolution(before, gelu):
    """In 8 bit, Div and Mul read codes by a DequantizeLinear each, and a Gelu of ConvNeXt stayed five operators."""
    weight = floats(3, 3, 1) if before == "Conv" else floats(3, 3)
    proto = spelled(f"v = {before} x w", *GELU_FUSED, weights={"w": weight}, shape=("n", 3, 3))
    found = simplified(proto)
    assert any(line == "e = Gelu(v, approximate=none)" for line in written(found.model)) == gelu
    assert_same(proto, found, [{"x": floats(2, 3, 3)}], rtol=1e-6)


def test_silu_behind_a_convolution_stays_two_operators():
    steps = ("v = Conv x w", "s = Sigmoid v", "y = Mul v s")
    proto = spelled(*steps, weights={"w": floats(3, 3, 1)}, shape=("n", 3, 3))
    assert simplified(proto).notes == ()


def test_no_operator_set_is_asked_for_that_makes_pools_slow():
    """A Gelu saves less than AveragePool loses: an EfficientFormer took 1.01 of float's time in place of 0.72."""
    steps = ("v = Conv x w", *GELU_FUSED[:-1])
    proto = spelled(*steps, "y = Floor e", weights={"w": floats(3, 3, 1)}, shape=("n", 3, 3))
    assert simplified(proto).model.opset == known_functions.GELU_OPSET
    proto.graph.node[-1].CopyFrom(node("AveragePool", "e", "y", kernel_shape=[2]))
    del proto.graph.output[0].type.tensor_type.shape.dim[-1]
    proto.graph.output[0].type.tensor_type.shape.dim.add().dim_value = 2
    assert simplified(proto).model.opset == proto.opset_import[0].version
