"""Operators whose results nobody reads."""

from __future__ import annotations

import numpy as np
import onnx
from helpers import build, floats, graph, node
from support import assert_same, simplified, written


def test_what_nobody_reads_goes_with_all_that_leads_to_it():
    nodes = [
        node("Relu", "x", "a"),
        node("MatMul", "a w", "b"),
        node("Softmax", "b", "c"),
        node("Split", "a", "d e", axis=1),
        node("Neg", "d", "y"),
    ]
    proto = build(nodes, {"x": ["n", 4]}, weights={"w": floats(4, 4)})
    found = simplified(proto, "dead_code_elimination")
    assert written(found.model) == ["a = Relu(x)", "d, e = Split(a, axis=1)", "y = Neg(d)"]
    assert "w" not in found.model.graph.initializers
    assert found.notes == ("removed 2 dead operators",)
    assert_same(proto, found, [{"x": floats(3, 4)}])


def test_bodies_count_as_readers_and_stay():
    yes = graph([node("Neg", "a", "p"), node("Exp", "a", "q")], {}, ["p"], {}, "yes")
    no = graph([node("Abs", "a", "r")], {}, ["r"], {}, "no")
    nodes = [
        node("Relu", "x", "a"),
        node("ReduceSum", "x", "s", keepdims=0),
        node("Greater", "s zero", "which"),
        onnx.helper.make_node("If", ["which"], ["unread"], name="n_if", then_branch=yes, else_branch=no),
        node("Neg", "x", "y"),
    ]
    proto = build(nodes, {"x": ["n", 4]}, weights={"zero": np.float32(0)})
    found = simplified(proto, "dead_code_elimination")
    operators = sorted(made.op_type for made in found.model.graph.walk())
    assert operators == ["Abs", "Greater", "If", "Neg", "Neg", "ReduceSum", "Relu"]
    assert found.notes == ("removed 1 dead operator",)


def test_custom_operators_stay():
    nodes = [onnx.helper.make_node("Print", ["x"], ["a"], domain="own"), node("Neg", "x", "y")]
    proto = build([nodes[1]], {"x": ["n", 4]})
    proto.graph.node.insert(0, nodes[0])
    proto.opset_import.append(onnx.helper.make_opsetid("own", 1))
    assert simplified(proto, "dead_code_elimination").notes == ()
