"""Copies of models: object by object what parsing the encoded model gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxq.ir import Graph, Model, Patch, commit, infer_types, parse
from onnxq.ir.clone import can_be_cloned


def _model(*, listed: bool = False) -> Model:
    """Return `relu(conv(x)) + b` with a large and a small weight; with the small one as an input, too."""
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.standard_normal((16, 8, 3, 3)).astype(np.float32), "w"),
        numpy_helper.from_array(rng.standard_normal((1, 16, 1, 1)).astype(np.float32), "b"),
    ]
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Add", ["r", "b"], ["y"], name="add", doc_string="said by the exporter"),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 8, 4, 4])]
    inputs += [helper.make_tensor_value_info("b", TensorProto.FLOAT, [1, 16, 1, 1])] if listed else []
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 16, 4, 4])]
    stated = [helper.make_tensor_value_info("c", TensorProto.FLOAT, ["n", 16, 4, 4])]
    graph = helper.make_graph(nodes, "g", inputs, outputs, weights, doc_string="a graph", value_info=stated)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return parse(made.SerializeToString())


def _changed(model: Model) -> Model:
    """Put a Neg behind the Relu, as a patch does."""
    relu = model.graph.nodes[1]
    patch = Patch(model.graph, relu, "turn the sign")
    output = relu.outputs[0]
    assert output is not None
    patch.replace(output, patch.op("Neg", output))
    commit([patch])
    return model


def _reparsed(model: Model) -> Model:
    """Copy a model through its bytes."""
    weights: list[Any] = []
    skeleton = model.skeleton(weights)
    copied = Model(memoryview(skeleton), model.path)
    copied.read_skeleton(skeleton, weights)
    return copied


def _state(graph: Graph) -> list[Any]:
    """Return everything that later steps could depend on, the order of tables included."""
    place = {node: index for index, node in enumerate(graph.nodes)}
    values = [
        (v.name, v.is_input, v.is_output, v.tensor is not None, [(place[use.node], use.slot) for use in v.uses])
        for v in graph.values.values()
    ]
    nodes = [(n.name, n.operator, [v and v.name for v in n.outputs], sorted(n.attributes())) for n in graph.nodes]
    names = graph.names.fresh("r"), graph.names.fresh("new")
    infos = {name: bytes(info) for name, info in graph.infos.items()}
    listed = [[v.name for v in each] for each in (graph.inputs, graph.outputs)]
    return [values, nodes, names, infos, listed, list(graph.initializers), [bytes(span) for span in graph.others]]


@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize("change", [lambda model: model, _changed])
def test_a_copy_is_what_parsing_the_bytes_of_a_model_gives(change, listed):
    model = change(_model(listed=listed))
    copied, reparsed = model.copy(), _reparsed(model)
    assert copied.serialize() == reparsed.serialize()
    assert _state(copied.graph) == _state(reparsed.graph)


def test_a_copy_shares_the_weights_and_nothing_that_changes():
    model = _model()
    before = model.serialize()
    copied = _changed(model.copy())
    assert copied.graph.values["w"].tensor is model.graph.values["w"].tensor
    assert model.serialize() == before
    assert len(copied.graph.nodes) == len(model.graph.nodes) + 1


def test_a_copy_of_a_typed_model_has_its_types_until_it_changes():
    model = _model()
    infer_types(model)
    copied = model.copy()
    assert copied.is_typed
    shapes = {name: (value.dtype, value.shape) for name, value in copied.graph.values.items()}
    infer_types(reparsed := _reparsed(model))
    assert shapes == {name: (value.dtype, value.shape) for name, value in reparsed.graph.values.items()}
    _changed(copied)
    assert not copied.is_typed
    assert model.is_typed
    infer_types(copied)
    assert copied.graph.nodes[2].outputs[0].shape == ("n", 16, 4, 4)


def test_another_operator_set_is_another_model_to_infer_types_of():
    model = _model()
    infer_types(model)
    model.opsets[""] = 18
    assert not model.is_typed


def test_models_with_bodies_are_copied_through_their_bytes():
    body = helper.make_graph([helper.make_node("Neg", ["x"], ["t"])], "then", [], [
        helper.make_tensor_value_info("t", TensorProto.FLOAT, [2])
    ])  # fmt: skip
    node = helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=body)
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("c", TensorProto.BOOL, []), helper.make_tensor_value_info("x", 1, [2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    model = parse(made.SerializeToString())
    assert not can_be_cloned(model.graph)
    assert onnx.load_from_string(model.copy().serialize()).graph.node[0].op_type == "If"
