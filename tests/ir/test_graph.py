"""What a node is called."""

from __future__ import annotations

from onnx import TensorProto, helper

from onnxq.ir import parse


def test_what_a_node_is_called() -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], name="first", domain="ai.onnx"),
        helper.make_node("Gelu", ["r"], ["y"], domain="com.microsoft"),
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy")
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(helper.make_graph(nodes, "g", [x], [y]), opset_imports=imports, ir_version=8)
    found = parse(model.SerializeToString()).graph.nodes
    assert [(n.operator, n.display_name) for n in found] == [("Relu", "first"), ("com.microsoft.Gelu", "y")]
