"""Bodies of If, Loop and Scan: captured, shadowed and repeated names, weights in either scope, changes inside."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from helpers import run
from ir_support import X, assert_consistent, model_of, node_of, ops, text_model, value_of

from onnxq.errors import ModelError
from onnxq.ir import Patch, Use, commit, infer_types, parse
from onnxq.ir.wire import bytes_field

CAPTURE = """g (bool c, float[2,4] x) => (float[2,4] y) {
  a = Relu(x)
  [pick] y = If (c) <
    then_branch = t () => (float[2,4] o) { [inner] o = Mul(a, w) },
    else_branch = e () => (float[2,4] o) { p = Neg(a) o = Add(p, a) }>
}"""
W = {"w": np.float32([1, -2, 0.5, 3])}


def body(model, attribute="then_branch"):
    return node_of(model.graph, "If").bodies[attribute][0]


def both(model, **feeds):
    return [run(model.serialize(), {"x": X, "c": np.array(c)} | feeds)[0].tolist() for c in (True, False)]


def test_captured_values_know_their_readers_in_bodies():
    model = model_of(CAPTURE, W)
    a, w = value_of(model.graph, "a"), value_of(model.graph, "w")
    inner = body(model).nodes[0]
    assert list(a.uses) == [
        Use(inner, 0),
        Use(body(model, "else_branch").nodes[0], 0),
        Use(body(model, "else_branch").nodes[1], 1),
    ]
    assert list(w.uses) == [Use(inner, 1)]
    assert [node.label for node in model.graph.walk()][2] == "inner"
    assert [graph.depth for graph in model.graph.graphs()] == [0, 1, 1]
    assert value_of(body(model), "o") is not value_of(body(model, "else_branch"), "o")


def test_pair_behind_a_captured_value_changes_no_body():
    model = model_of(CAPTURE, W)
    before, spans = both(model), [bytes(g.encoded) for g in model.graph.graphs()][1:]
    a = value_of(model.graph, "a")
    patch = Patch(model.graph)
    patch.replace(a, patch.op("Identity", patch.op("Identity", a, hint="q"), hint="dq"))
    commit([patch])
    assert_consistent(model)
    assert ops(model.graph) == ["Relu", "Identity", "Identity", "If"]
    assert both(model) == before
    assert all(span in model.serialize() for span in spans)


def test_patch_inside_a_body_over_an_outer_weight():
    model = model_of(CAPTURE, W)
    before, spared = both(model), bytes(body(model, "else_branch").encoded)
    inner = body(model).nodes[0]
    patch = Patch(inner.graph, inner)
    patch.rewire(inner, 1, patch.op("Identity", patch.constant(W["w"], "w"), hint="w_dq"))
    commit([patch])
    assert_consistent(model)
    assert list(model.graph.initializers) == []  # its last reader went
    assert list(body(model).initializers) == ["w_1"]
    assert both(model) == before
    assert spared in model.serialize()
    assert_consistent(parse(model.serialize()))


def test_both_scopes_in_one_commit():
    model = model_of(CAPTURE, W)
    before = both(model)
    inner, a = body(model).nodes[0], value_of(model.graph, "a")
    deep = Patch(inner.graph, inner)
    deep.replace(
        value_of(inner.graph, "o"), deep.op("Mul", deep.op("Identity", a, hint="x"), inner.inputs[1], hint="o")
    )
    outer = Patch(model.graph)
    outer.replace(a, outer.op("Identity", a, hint="b"))
    commit([deep, outer])
    assert_consistent(model)
    assert ops(body(model)) == ["Identity", "Mul"]
    assert both(model) == before


def test_removed_body_lets_go_of_what_it_captured():
    model = model_of(CAPTURE, W)
    patch = Patch(model.graph, node_of(model.graph, "If"))
    patch.replace(value_of(model.graph, "y"), patch.op("Neg", value_of(model.graph, "x"), hint="y"))
    commit([patch])
    assert_consistent(model)
    assert ops(model.graph) == ["Neg"]
    assert list(model.graph.initializers) == []


def test_initializer_that_hides_an_outer_tensor_is_refused():
    """onnxruntime and onnx.reference both compute with the outer one, against every rule of scopes."""
    proto = text_model(CAPTURE, W)
    branch = next(a for a in proto.graph.node[1].attribute if a.name == "then_branch").g
    branch.initializer.append(onnx.numpy_helper.from_array(np.zeros_like(X), "a"))
    loads = run(proto.SerializeToString(), {"x": X, "c": np.array(True)})[0]
    assert loads.tolist() == (X.clip(0) * W["w"]).tolist()
    with pytest.raises(ModelError, match="initializer 'a' of body 't' has the name of a tensor outside it"):
        parse(proto.SerializeToString())


def test_shadowing_loop_input_is_renamed_where_it_hides():
    proto = text_model(
        "g (float[2,4] x) => (float[2,4] y) <int64 n = {3}, bool go = {1}, float[2,4] h> {"
        " y = Loop(n, go, x) <body = b (int64 i, bool g, float[2,4] s) => (bool h, float[2,4] t)"
        " { h = Identity(g) t = Add(s, w) }> }",
        {"w": np.ones(4, np.float32)},
    )
    proto.graph.node[0].attribute[0].g.node[1].name = "sum"
    inner_graph = proto.graph.node[0].attribute[0].g
    inner_graph.input[2].name = inner_graph.node[1].input[0] = "x"  # the state is named like the outer input
    model = parse(proto.SerializeToString())
    before = (X + 3).tolist()
    add = node_of(model.graph, "Loop").bodies["body"][0].nodes[1]
    patch = Patch(add.graph, add)
    patch.rewire(add, 1, patch.op("Sub", add.inputs[1], patch.op("Sub", model.graph.inputs[0], model.graph.inputs[0])))
    commit([patch])
    assert_consistent(model)
    assert add.inputs[0].name == "x_1"
    assert run(model.serialize(), {"x": X})[0].tolist() == before


def test_nested_bodies_and_loop_weights():
    model = model_of(
        "g (bool c, float[2,4] x) => (float[2,4] y) <int64 n = {2}, bool go = {1}> {"
        " y = Loop(n, go, x) <body = b (int64 i, bool k, float[2,4] s) => (bool k2, float[2,4] t)"
        " <float[4] v = {1, 2, 3, 4}> { k2 = Identity(k) t = If(c) <then_branch = t () => (float[2,4] o)"
        " { m = Add(s, v) o = Mul(m, w) }, else_branch = e () => (float[2,4] o) { o = Sub(s, w) }> }> }",
        W,
    )
    infer_types(model)
    before = both(model)
    loop = node_of(model.graph, "Loop").bodies["body"][0]
    deepest = node_of(loop, "If").bodies["then_branch"][0]
    assert (deepest.depth, deepest.parent, deepest.owner) == (2, loop, node_of(loop, "If"))
    assert value_of(deepest, "v").graph is loop
    assert value_of(deepest, "m").shape == (2, 4)
    patches = []
    for node in model.graph.walk():
        if node.op_type in ("Add", "Mul", "Sub"):
            patch = Patch(node.graph, node)
            patch.rewire(node, 1, patch.op("Identity", node.inputs[1], hint="copy"))
            patches.append(patch)
    commit(patches)
    assert len(patches) == 3
    assert_consistent(model)
    assert both(model) == before
    assert_consistent(parse(model.serialize()))


def test_body_output_that_is_an_outer_value_is_kept():
    """onnxruntime refuses such bodies; the graph engine has to keep name and order all the same."""
    proto = text_model(CAPTURE, W)
    branch = next(a for a in proto.graph.node[1].attribute if a.name == "then_branch").g
    del branch.node[:]
    branch.output[0].name = "a"
    proto.graph.node[0].CopyFrom(onnx.helper.make_node("Abs", ["x"], ["a"]))
    model = parse(proto.SerializeToString())
    assert_consistent(model)
    a = value_of(model.graph, "a")
    patch = Patch(model.graph)
    patch.replace(a, patch.op("Identity", a, hint="b"))
    commit([patch])
    assert_consistent(model)
    assert ops(model.graph) == ["Abs", "Identity", "If"]
    assert body(model).outputs == [a]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda g: g.node[1].output.__setitem__(0, "a"), "tensor 'a' is made twice, the second time by pick"),
        (lambda g: g.node[1].input.__setitem__(0, "nothing"), "reads tensor 'nothing', which nothing produces"),
        (lambda g: setattr(g.output[0], "name", "nothing"), "output 'nothing' of graph 'g' is made by no node"),
        (lambda g: g.initializer.append(g.initializer[0]), "two initializers are named 'w'"),
        (lambda g: g.input.append(g.input[0]), "two inputs of graph 'g' are named 'c'"),
    ],
)
def test_contradictions_are_named(change, sentence):
    proto = text_model(CAPTURE, W)
    change(proto.graph)
    with pytest.raises(ModelError, match=sentence):
        parse(proto.SerializeToString())


def test_bodies_too_deep_are_refused():
    graph = b""
    for _ in range(70):  # more than protobuf itself would parse
        attribute = bytes_field(1, "then_branch") + bytes_field(6, graph)
        graph = bytes_field(1, bytes_field(4, "If") + bytes_field(5, attribute))
    with pytest.raises(ModelError, match="nested more than 64 deep"):
        parse(bytes_field(7, graph) + bytes_field(8, b""))
