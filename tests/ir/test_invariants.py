"""What the ONNX checker says, on one line."""

from __future__ import annotations

from pathlib import Path

import onnx
from helpers import build, node

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
