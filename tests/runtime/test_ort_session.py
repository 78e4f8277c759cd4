"""A session that cannot be made says so in an error, and nowhere else."""

from __future__ import annotations

from typing import Any

import onnx
import onnxruntime as ort
import pytest
from onnx import parser

from onnxq.runtime.ort_session import SessionError, Settings, load_native

MODEL = '<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { y = Neg (x) }'


def test_a_model_that_does_not_load_prints_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """onnxruntime falls back by itself, and says so on stdout: that would stand in front of a report in JSON."""
    tries = []

    def fail(*_: Any, **__: Any) -> None:
        tries.append(1)
        raise RuntimeError("Failed to find node output")

    monkeypatch.setattr(ort.InferenceSession, "_create_inference_session", fail)
    model = onnx.ModelProto.SerializeToString(parser.parse_model(MODEL))
    with pytest.raises(SessionError, match="Failed to find node output"):
        load_native(model, Settings())
    assert len(tries) == 1
    assert capsys.readouterr().out == ""
