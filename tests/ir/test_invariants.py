"""What the ONNX checker says, on one line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from helpers import build, node
from onnx import TensorProto, helper, numpy_helper

from onnxq.ir.invariants import first_line, objection


def test_the_checker_is_asked_about_bytes_and_files(tmp_path: Path) -> None:
    model = build([node("Relu", "x", "y")], {"x": [2]}, ["y"], {})
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    assert objection(model.SerializeToString()) is None
    assert objection(str(path)) is None
    model.graph.node[0].op_type = "NoSuchOperator"
    found = objection(model.SerializeToString())
    assert found is not None
    assert "NoSuchOperator" in found
    assert "\n" not in found
    assert objection(b"\xff\xff") is not None
    assert objection(str(tmp_path / "none.onnx")) is not None


def test_an_error_without_a_message_is_named_by_its_type() -> None:
    assert first_line(onnx.checker.ValidationError("  one\ntwo")) == "one"
    assert first_line(RuntimeError()) == "RuntimeError"


def test_operators_of_onnxruntime_are_known_in_branches_too() -> None:
    branches = []
    for name in ("then", "else"):
        made = node("SimplifiedLayerNormalization", "x scale", f"{name}_y", axis=-1)
        outputs = [helper.make_tensor_value_info(f"{name}_y", TensorProto.FLOAT, [2, 4])]
        branches.append(helper.make_graph([made], name, [], outputs))
    chosen = node("If", "which", "y", then_branch=branches[0], else_branch=branches[1])
    arrays = {"which": np.array(True), "scale": np.ones(4, np.float32)}
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 4]) for name in ("x", "y")]
    tensors = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = helper.make_graph([chosen], "g", ends[:1], ends[1:], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    assert objection(model.SerializeToString()) is None


def test_weights_of_ir_version_3_need_not_be_inputs(tmp_path: Path) -> None:
    model = build([node("Add", "x w", "y")], {"x": [2]}, ["y"], {"w": np.ones(2, np.float32)})
    model.ir_version = 3
    onnx.save(model, tmp_path / "m.onnx")
    assert "w" not in [value.name for value in model.graph.input]
    assert objection(model.SerializeToString()) is None
    assert objection(str(tmp_path / "m.onnx")) is None
    model.graph.node[0].op_type = "NoSuchOperator"
    assert "NoSuchOperator" in (objection(model.SerializeToString()) or "")


def test_shapes_of_outputs_may_be_left_out() -> None:
    model = build([node("Relu", "x", "y")], {"x": [2]}, ["y"], {})
    model.graph.output[0].type.tensor_type.ClearField("shape")
    assert objection(model.SerializeToString()) is None
    model.graph.node[0].op_type = "NoSuchOperator"
    found = objection(model.SerializeToString())
    assert found is not None
    assert "NoSuchOperator" in found
