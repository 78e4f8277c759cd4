"""What a node is called."""

from __future__ import annotations

from onnx import TensorProto, helper

from onnxq.ir import parse
from onnxq.ir.names import LONGEST, Names


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


def test_names_that_are_made_are_of_bounded_length():
    """Of a detector of notes, names joined by tf2onnx and repeated by every reader were 0.6 of the file."""
    names = Names()
    long = ";".join(["model/batch_normalization/FusedBatchNormV3"] * 9) + "_quantized_scale"
    first, second = names.fresh(long), names.fresh(long)
    assert first.startswith("model/batch_normalization/")
    assert first.endswith("_quantized_scale")
    assert (len(first), second) == (LONGEST, f"{first}_1")
    assert names.fresh("short_scale") == "short_scale"
