"""What follows from sizes is computed once."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from exported_support import attention_of, bert_like, gpt_like, ids_of
from helpers import build, floats, graph, node
from onnx import TensorProto
from support import assert_same, simplified, written

I64 = np.int64
INT = TensorProto.INT64
SIZES = ((1, 1), (2, 7), (3, 16), (0, 5), (2, 0), (0, 0))
WEIGHTS = {"i0": I64(0), "i1": I64(1), "axis": I64([0]), "one": I64([1]), "ones": np.ones(4, np.float32)}


def model(nodes, outputs=("y",), inputs=None, **weights):
    """A model with those of the weights that it reads."""
    used = {name for made in nodes for name in made.input}
    kept = {name: array for name, array in (WEIGHTS | weights).items() if name in used}
    return build(nodes, inputs or {"x": ["n", "m"]}, outputs, kept)


def test_layers_of_a_decoder_share_a_mask():
    proto = gpt_like(layers=3)
    found = simplified(proto, "fold_shape_computations", "share_shape_computations")
    lines = written(found.model)
    assert lines[:6] == [
        "length_shape = Shape(ids)",
        "length_number = Gather(length_shape, 1, axis=0)",
        "length = Unsqueeze(length_number, [0])",
        "place = Slice(positions[16, 8], [0], length, [0])",
        "word = Gather(words[11, 8], ids)",
        "embedded = Add(word, place)",
    ]
    assert [line for line in lines if any(part in line for part in (" = Shape", "OfShape", "l0_mask)", "Trilu"))] == [
        "length_shape = Shape(ids)",
        "l0_full = ConstantOfShape(l0_square, value=[-1.e+09])",
        "l0_mask = Trilu(l0_full, 1, upper=1)",
        *(f"l{layer}_masked = Add(l{layer}_scaled, l0_mask)" for layer in range(3)),
    ]
    assert found.notes == (
        "replaced 12 computed shapes by constants",
        "removed 23 repeated shape computations",
    )
    assert_same(proto, found, [{"ids": ids_of(n, t)} for n, t in SIZES])


def test_a_decoder_of_one_length_has_no_sizes_left():
    """What is known when the model is loaded is a constant; onnxruntime computes the mask then too."""
    proto = gpt_like(layers=2)
    proto.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 6
    found = simplified(proto)
    operators = [node.op_type for node in found.model.graph.nodes]
    assert not {"Shape", "Gather", "Unsqueeze", "Concat"} & set(operators[:-1]) - {"Gather"}
    assert operators.count("Trilu") == operators.count("ConstantOfShape") == operators.count("Gather") == 1
    assert_same(proto, found, [{"ids": ids_of(n, 6)} for n in (1, 2, 0)])


def test_layers_of_an_encoder_ask_once():
    """Where a mask could be of a larger batch, what each layer reads is of another size: nothing is shared then."""
    proto = bert_like(layers=2)
    found = simplified(proto, "share_shape_computations")
    lines = written(found.model)
    assert sum("Shape(" in line and "Reshape" not in line for line in lines) == 3
    assert sum("Concat" in line for line in lines) == 2
    for n, t in SIZES[:3]:
        assert_same(proto, found, [{"ids": ids_of(n, t), "attention": attention_of(n, t)}])
    assert_same(proto, found, [{"ids": ids_of(3, 5), "attention": attention_of(1, 5)}])


def test_the_same_from_the_same_sizes():
    """Attributes and constants are compared, by what is in them; other ones stay apart."""
    nodes = [
        node("Relu", "x", "a"),
        node("Shape", "x", "s"),
        node("Shape", "a", "s2"),
        node("ConstantOfShape", "s", "c"),
        node("ConstantOfShape", "s2", "c2"),
        node("ConstantOfShape", "s2", "c3", value=onnx.numpy_helper.from_array(np.float32([2]))),
        node("Trilu", "c i1", "d"),
        node("Trilu", "c2 k1", "d2"),
        node("Trilu", "c2 i0", "d3"),
        node("Sum", "a d d2 d3 c3", "y"),
    ]
    found = simplified(model(nodes, k1=I64(1)), "share_shape_computations")
    assert written(found.model) == [
        "a = Relu(x)",
        "s = Shape(x)",
        "c = ConstantOfShape(s)",
        "c3 = ConstantOfShape(s, value=[2.])",
        "d = Trilu(c, 1)",
        "d3 = Trilu(c, 0)",
        "y = Sum(a, d, d, d3, c3)",
    ]
    assert found.notes == ("removed 3 repeated shape computations",)
    assert_same(model(nodes, k1=I64(1)), found, [{"x": floats(n, m)} for n, m in SIZES])


APART = {
    "random": [
        node("Shape", "x", "s"),
        *(node("RandomUniformLike", "s", f"r{i}", dtype=1) for i in "ab"),
        node("Add", "ra rb", "y"),
    ],
    "data": [
        node("Shape", "x", "s"),
        node("ConstantOfShape", "s", "c"),
        *(node("Add", "x c", f"r{i}") for i in "ab"),
        node("Add", "ra rb", "y"),
    ],
    "constants": [node("Add", "x ones", "a"), node("Add", "a ones", "y")],
    "outputs": [*(node("Shape", "x", f"s{i}") for i in "ab"), *(node("Identity", f"s{i}", f"y{i}") for i in "ab")],
}  # fmt: skip


@pytest.mark.parametrize("case", APART)
def test_what_stays_apart(case):
    outputs = {"ya": INT, "yb": INT} if case == "outputs" else ("y",)
    found = simplified(model(APART[case], outputs, {"x": ["n", 4]}), "share_shape_computations")
    assert [line for line in found.notes if "removed" in line] == (
        ["removed 1 repeated shape computation"] if case == "outputs" else []
    )
    if case == "outputs":
        assert written(found.model) == ["sa = Shape(x)", "ya = Identity(sa)", "yb = Identity(sa)"]


def test_names_of_sizes_prove_nothing():
    nodes = [
        node("Shape", "x", "s"),
        node("Shape", "z", "s2"),
        node("ConstantOfShape", "s", "y"),
        node("ConstantOfShape", "s2", "y2"),
    ]
    proto = model(nodes, ("y", "y2"), {"x": ["n", "m"], "z": ["n", "m"]})
    found = simplified(proto, "share_shape_computations")
    assert found.notes == ()
    assert_same(proto, found, [{"x": floats(2, 3), "z": floats(3, 1)}])


def test_a_shape_is_asked_of_an_input():
    """Else an operator whose result only Shape and another one read could not be fused with that one."""
    nodes = [node("Neg", "x", "a"), node("Relu", "a", "b"), node("Shape", "a", "s"), node("Expand", "b s", "c")]
    nodes += [node("ConstantOfShape", "s", "d"), node("Sum", "c d", "y")]
    found = simplified(model(nodes), "share_shape_computations")
    assert found.notes == ("let 1 Shape read an input of the same sizes",)
    assert "s = Shape(x)" in written(found.model)


def test_a_cut_that_broadcasts_with_its_size_is_whole():
    """Behind 17 words the table of 16 ends, and the model with it."""
    nodes = [
        node("Shape", "x", "s"),
        node("Slice", "s i0_ i1_", "n"),
        node("Slice", "table i0_ n", "part"),
        node("Add", "x part", "a"),
        node("Shape", "a", "s2"),
        node("ConstantOfShape", "s2", "b"),
        node("ConstantOfShape", "s", "c"),
        node("Sum", "a b c", "y"),
    ]
    weights = {"i0_": I64([0]), "i1_": I64([1]), "table": floats(5, 1)}
    proto = model(nodes, **weights)
    found = simplified(proto, "share_shape_computations")
    assert found.notes == ("removed 2 repeated shape computations",)
    assert_same(proto, found, [{"x": floats(n, 3)} for n in (0, 1, 5)])


def test_bodies_read_what_is_shared():
    """A value of the main graph that a body reads is merged as well; bodies themselves are left alone."""
    yes = graph([node("ConstantOfShape", "s2", "yes_")], {}, ["yes_"], {}, "yes")
    no = graph([node("Shape", "a", "s3"), node("ConstantOfShape", "s3", "no_")], {}, ["no_"], {}, "no")
    nodes = [
        node("Relu", "x", "a"),
        node("Shape", "x", "s"),
        node("Shape", "a", "s2"),
        node("ConstantOfShape", "s", "c"),
        node("ReduceSum", "a", "total", keepdims=0),
        node("Greater", "total zero", "which"),
        onnx.helper.make_node("If", ["which"], ["b"], name="n_b", then_branch=yes, else_branch=no),
        node("Sum", "a b c", "y"),
    ]
    proto = model(nodes, zero=np.float32(1))
    found = simplified(proto, "share_shape_computations")
    assert [node.op_type for node in found.model.graph.walk()].count("Shape") == 2
    assert_same(proto, found, [{"x": floats(2, 3)}, {"x": -np.abs(floats(2, 3))}])


def test_a_size_as_a_number_of_elements():
    """Size is followed like Shape, and a product of all sizes is the same."""
    nodes = [
        node("Shape", "x", "s"),
        node("ReduceProd", "s", "count", keepdims=0),
        node("Size", "x", "count2"),
        node("Range", "i0 count i1", "a"),
        node("Range", "i0 count2 i1", "b"),
        node("Add", "a b", "y"),
    ]
    proto = model(nodes, {"y": INT})
    found = simplified(proto, "share_shape_computations")
    assert written(found.model)[-2:] == ["a = Range(0, count, 1)", "y = Add(a, a)"]
    assert_same(proto, found, [{"x": floats(n, m)} for n, m in SIZES])


def test_pads_of_known_sizes_are_constants():
    """PyTorch writes pads in pairs, the last axis first, and turns them around: here of windows that fit."""
    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s i1", "width"),
        node("Mod", "width four", "over"),
        node("Unsqueeze", "over axis", "end"),
        node("Concat", "none end", "pairs", axis=0),
        node("Reshape", "pairs two", "rows"),
        node("Slice", "rows last low axis last", "turned"),
        node("Transpose", "turned", "sides", perm=[1, 0]),
        node("Reshape", "sides last", "pads"),
        node("Pad", "x pads", "padded"),
        node("Neg", "padded", "y"),
    ]
    known = {
        "four": I64(4), "none": I64([0, 0, 0]), "two": I64([-1, 2]), "last": I64([-1]),
        "low": I64([-np.iinfo(np.int64).max]),
    }  # fmt: skip
    for width, left in ((8, ["y = Neg(x)"]), (7, ["padded = Pad(x, [0, 0, 3, 0])", "y = Neg(padded)"])):
        proto = model(nodes, inputs={"x": ["n", width]}, **known)
        found = simplified(proto, "eliminate_no_ops", "share_shape_computations")
        assert written(found.model) == left
        assert_same(proto, found, [{"x": floats(3, width)}])
