"""Operators that change nothing, and shapes that need no computation."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import build, floats, node
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto
from support import assert_same, simplified, written

from onnxq.ir import infer_types, parse
from onnxq.ir.shape_inference.dims import Size, takes_all
from onnxq.ir.shape_inference.symbolic import Shapes

I64 = np.int64
X = {"x": floats(3, 4, seed=1)}
END = np.iinfo(np.int32).max
LEFT_OUT = "removed 1 no-op"

NEUTRAL = {
    "identity": ([("Identity", "r", {})], {}),
    "add zero": ([("Add", "r c", {})], {"c": np.zeros((1, 4), np.float32)}),
    "zero plus": ([("Add", "c r", {})], {"c": np.float32(0)}),
    "minus zero": ([("Sub", "r c", {})], {"c": np.float32(0)}),
    "times one": ([("Mul", "c r", {})], {"c": np.ones(4, np.float32)}),
    "by one": ([("Div", "r c", {})], {"c": np.float32([1])}),
    "power one": ([("Pow", "r c", {})], {"c": np.float32(1)}),
    "least": ([("Max", "c r", {})], {"c": np.float32(-np.inf)}),
    "most": ([("Min", "r c", {})], {"c": np.float32(np.inf)}),
    "unlimited": ([("Clip", "r - c", {})], {"c": np.float32(np.inf)}),
    "cast": ([("Cast", "r", {"to": 1})], {}),
    "transpose": ([("Transpose", "r", {"perm": [0, 1]})], {}),
    "all of it": ([("Slice", "r s e a", {})], {"s": I64([0, -END]), "e": I64([END, 4]), "a": I64([0, 1])}),
    "as it is": ([("Reshape", "r c", {})], {"c": I64([-1, 4])}),
    "expand": ([("Expand", "r c", {})], {"c": I64([1, 4])}),
    "padded by nothing": ([("Pad", "r c", {})], {"c": I64([0, 0, 0, 0])}),
    "joined with nothing": ([("Concat", "r", {"axis": 0})], {}),
}


def proto_of(nodes, weights, shape=("n", 4)):
    """Relu, then the nodes in a row, then Neg."""
    names = ["r", *(f"a{i}" for i in range(len(nodes)))]
    made = [node("Relu", "x", "r")]
    for (op_type, inputs, attributes), before, output in zip(nodes, names, names[1:], strict=False):
        made.append(node(op_type, " ".join(before if i == "r" else i for i in inputs.split()), output, **attributes))
    made.append(node("Neg", names[len(nodes)], "y"))
    return build(made, {"x": list(shape)}, weights=weights)


@pytest.mark.parametrize("case", NEUTRAL)
def test_what_changes_nothing_goes(case):
    proto = proto_of(*NEUTRAL[case])
    found = simplified(proto, "eliminate_no_ops")
    assert written(found.model) == ["r = Relu(x)", "y = Neg(r)"]
    assert found.notes == (LEFT_OUT,)
    assert_same(proto, found, [X])


STAY = {
    "add one": ([("Add", "r c", {})], {"c": np.float32(1)}),
    "one zero too few": ([("Add", "r c", {})], {"c": np.float32([0, 0, 0, 1])}),
    "more rows": ([("Add", "r c", {})], {"c": np.zeros((2, 1, 4), np.float32)}),
    "zero minus": ([("Sub", "c r", {})], {"c": np.float32(0)}),
    "one by": ([("Div", "c r", {})], {"c": np.float32(1)}),
    "one to the power": ([("Pow", "c r", {})], {"c": np.float32(1)}),
    "lowest number": ([("Max", "c r", {})], {"c": np.finfo(np.float32).min}),
    "limited": ([("Clip", "r c", {})], {"c": np.float32(1)}),
    "to double": ([("Cast", "r", {"to": 11}), ("Cast", "r", {"to": 1})], {}),
    "turned": ([("Transpose", "r", {"perm": [1, 0]})], {}),
    "part": ([("Slice", "r s e a", {})], {"s": I64([0]), "e": I64([3]), "a": I64([1])}),
    "most rows": ([("Slice", "r s e a", {})], {"s": I64([0]), "e": I64([1000]), "a": I64([0])}),
    "backwards": ([("Slice", "r s e a t", {})], {"s": I64([-1]), "e": I64([-99]), "a": I64([1]), "t": I64([-1])}),
    "other shape": ([("Reshape", "r c", {})], {"c": I64([-1, 2])}),
    "expanded": ([("Expand", "r c", {})], {"c": I64([2, 1, 4])}),
    "padded": ([("Pad", "r c", {})], {"c": I64([0, 0, 0, 1])}),
    "cropped": ([("Pad", "r c", {})], {"c": I64([1, 0, -1, 0])}),
    "joined": ([("Concat", "r r", {"axis": 0})], {}),
}


@pytest.mark.parametrize("case", STAY)
def test_what_changes_something_stays(case):
    found = simplified(proto_of(*STAY[case]), "eliminate_no_ops")
    assert found.notes == ()


def test_shapes_are_followed_through_computed_ones():
    """As jax2tf and tf2onnx write `broadcast_to` and `reshape`: sizes pass through int32."""
    nodes = [
        node("Shape", "x", "s"),
        node("Cast", "s", "s32", to=TensorProto.INT32),
        node("Slice", "s32 zero one zero", "n"),
        node("Concat", "n three one1", "long32", axis=0),
        node("Cast", "long32", "long", to=TensorProto.INT64),
        node("Reshape", "x open", "column"),
        node("Expand", "column long", "spread"),
        node("Neg", "spread", "negative"),
        node("Concat", "n four two", "pair32", axis=0),
        node("Cast", "pair32", "pair", to=TensorProto.INT64),
        node("Reshape", "negative pair", "y"),
    ]
    weights = {
        "zero": I64([0]), "one": I64([1]), "three": np.int32([8]), "one1": np.int32([1]), "open": I64([-1, 8, 1]),
        "four": np.int32([4]), "two": np.int32([2]),
    }  # fmt: skip
    proto = build(nodes, {"x": ["n", 8]}, weights=weights)
    found = simplified(proto, "eliminate_no_ops", "fold_shape_computations")
    assert written(found.model) == [
        "column = Reshape(x, [-1, 8, 1])",
        "negative = Neg(column)",
        "y = Reshape(negative, [-1, 4, 2])",
    ]
    assert found.notes == (LEFT_OUT, "replaced 1 computed shape by constants")
    assert_same(proto, found, [{"x": floats(3, 8)}, {"x": floats(1, 8)}])


def test_names_of_sizes_prove_nothing():
    """Two inputs that state one name for a size may still differ in it, and broadcast."""
    nodes = [node("Shape", "z", "s"), node("Expand", "x s", "y")]
    proto = build(nodes, {"x": ["n", 4], "z": ["n", 4]})
    found = simplified(proto, "eliminate_no_ops")
    assert found.notes == ()
    assert_same(proto, found, [{"x": floats(1, 4), "z": floats(3, 4)}])


def test_there_and_back():
    nodes = [
        node("Transpose", "x", "a", perm=[0, 2, 1]),
        node("Transpose", "a", "b", perm=[0, 2, 1]),
        node("Unsqueeze", "b axes", "d"),
        node("Relu", "d", "e"),
        node("Squeeze", "d axes", "f"),
        node("Add", "f one", "z"),
    ]
    proto = build(nodes, {"x": ["n", 4, 5]}, ("e", "z"), {"axes": I64([1]), "one": np.float32(1)})
    found = simplified(proto, "eliminate_no_ops")
    assert written(found.model) == ["d = Unsqueeze(x, [1])", "e = Relu(d)", "z = Add(x, 1.0)"]
    assert_same(proto, found, [{"x": floats(2, 4, 5)}])


def test_outputs_keep_their_names():
    nodes = [node("Relu", "x", "a"), node("Identity", "a", "y"), node("Identity", "x", "z"), node("Neg", "y", "w")]
    proto = build(nodes, {"x": ["n", 4]}, ("y", "z", "w"))
    found = simplified(proto, "eliminate_no_ops")
    assert written(found.model) == ["y = Relu(x)", "z = Identity(x)", "w = Neg(y)"]
    both = build([node("Relu", "x", "a"), node("Identity", "a", "y")], {"x": ["n", 4]}, ("a", "y"))
    assert simplified(both, "eliminate_no_ops").notes == ()
    twice = build(
        [node("Relu", "x", "a"), node("Identity", "a", "y"), node("Identity", "a", "z")], {"x": ["n", 4]}, ("y", "z")
    )
    found = simplified(twice, "eliminate_no_ops")
    assert written(found.model) == ["y = Relu(x)", "z = Identity(y)"]
    assert_same(twice, found, [X])


def test_what_a_file_states_about_its_outputs_is_not_believed():
    proto = build([node("Relu", "x", "a"), node("Reshape", "a s", "y")], {"x": ["n", 4]}, weights={"s": I64([1, -1])})
    proto.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 4
    model = parse(proto.SerializeToString())
    infer_types(model)
    shape = Shapes(model.graph, model.opset).of(model.graph.outputs[0])
    assert shape == (Size(1), Size(4, ("x:0",)))


@given(st.integers(-12, 12), st.integers(-12, 12), st.integers(0, 9))
def test_a_slice_of_everything(start, end, size):
    if takes_all(start, end, Size(size), ()):
        assert list(range(size))[start:end] == list(range(size))
    assert not takes_all(0, 10**9, Size(1, ("n",)), (Size(8),))
    assert takes_all(0, 10**9, Size(1, ("n",)), (Size(8192),))
    assert takes_all(0, END, Size(1, ("n",)), ())


def test_sizes_multiply_and_divide():
    n, m = Size(2, ("n",)), Size(3, ("m",))
    assert n * m == Size(6, ("m", "n"))
    assert (n * m).divided(m) == n
    assert n.divided(m) is None
    assert Size(6).divided(Size(4)) is None
    assert Size(6).divided(Size(0)) is None


@pytest.mark.parametrize("taken", [True, False])
def test_a_mask_of_nothing_goes(taken):
    """As PyTorch's newer exporter writes attention without a mask: one of every score, expanded to the batch."""
    nodes = [
        node("Relu", "x", "r"),
        node("Shape", "x", "rows", end=1),
        node("Concat", "rows four", "to", axis=0),
        node("Expand", "all to", "spread"),
        node("Where", "spread none lowest" if taken else "spread lowest none", "mask"),
        node("Add", "r mask", "masked"),
        node("Neg", "masked", "y"),
    ]
    lowest = np.finfo(np.float32).min
    weights = {"four": I64([4]), "all": np.full((1, 4), taken), "none": np.float32(0), "lowest": np.float32(lowest)}
    proto = build(nodes, {"x": ["n", 4]}, weights=weights, opset=18)
    found = simplified(proto, "eliminate_no_ops", "dead_code_elimination")
    assert written(found.model) == ["r = Relu(x)", "y = Neg(r)"]
    assert_same(proto, found, [X])
    weights["all"] = np.array([[taken, taken, not taken, taken]])
    assert (
        simplified(
            build(nodes, {"x": ["n", 4]}, weights=weights, opset=18), "eliminate_no_ops", "dead_code_elimination"
        ).notes
        == ()
    )
