"""What a node is called, what it reads and makes."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper, numpy_helper

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


def test_what_a_node_reads() -> None:
    """An input may be left out, computed, constant, or given a default that callers replace."""
    node = helper.make_node("Clip", ["x", "", "most", "given"], ["y"], domain="custom")
    x, given, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, []) for name in ("x", "given", "y"))
    stored = [numpy_helper.from_array(np.float32(value), name) for name, value in (("most", 6), ("given", 1))]
    graph = helper.make_graph([node], "g", [x, given], [y], stored)
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("custom", 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=8)
    (found,) = parse(model.SerializeToString()).graph.nodes
    assert [value.name for value in found.reads] == ["x", "most", "given"]
    assert [constant.numpy().item() for constant in found.constants] == [6]
    assert [value.name if value is not None else None for value in map(found.input, range(5))] == [
        "x",
        None,
        "most",
        "given",
        None,
    ]
    assert [found.constant(slot) is not None for slot in range(5)] == [False, False, True, False, False]


def test_what_a_node_makes() -> None:
    """An output may be left out, too."""
    node = helper.make_node("Split", ["x"], ["", "y", ""], num_outputs=3)
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [3]) for name in "xy")
    model = helper.make_model(helper.make_graph([node], "g", [x], [y]), opset_imports=[helper.make_opsetid("", 18)])
    (found,) = parse(model.SerializeToString()).graph.nodes
    assert [value.name for value in found.makes] == ["y"]


def test_names_that_are_made_are_of_bounded_length():
    """Of a detector of notes, names joined by tf2onnx and repeated by every reader were 0.6 of the file."""
    names = Names()
    long = ";".join(["model/batch_normalization/FusedBatchNormV3"] * 9) + "_quantized_scale"
    first, second = names.fresh(long), names.fresh(long)
    assert first.startswith("model/batch_normalization/")
    assert first.endswith("_quantized_scale")
    assert (len(first), second) == (LONGEST, f"{first}_1")
    assert names.fresh("short_scale") == "short_scale"
