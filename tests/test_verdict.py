"""The verdict of the mass tests itself: what it lets pass, and what not."""

from __future__ import annotations

import pytest
import verdict
from corpus import Case, cases
from helpers import floats, graph, node
from onnx import ModelProto, TensorProto, helper
from verdict import SETTINGS, Broken, judge


def unknown_operator() -> ModelProto:
    """A product behind an operator that no onnxruntime has."""
    nodes = [node("Odd", "x", "a", domain="strange"), node("MatMul", "a w", "y")]
    made = graph(nodes, {"x": [4, 64]}, [], {"w": floats(64, 64)})
    made.output.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 64]))
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("strange", 1)]
    return helper.make_model(made, opset_imports=imports, ir_version=8)


def test_what_onnxruntime_cannot_load_need_not_load_in_8_bit() -> None:
    assert judge(unknown_operator(), [], with_data=False).kind == "quantized"


def test_what_onnxruntime_can_load_has_to_load_in_8_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdict, "_loads", lambda path, level: True)
    with pytest.raises(Broken, match="does not load"):
        judge(unknown_operator(), [], with_data=False)


def test_four_bits_are_held_to_what_eight_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    case = differences_of_large_numbers()
    assert case.judge("weights in 4 bit").kind == "quantized"
    monkeypatch.setattr("corpus.COARSENESS", 12.0)
    with pytest.raises(Broken, match="dB"):
        case.judge("weights in 4 bit")


def differences_of_large_numbers() -> Case:
    """LogSoftmax of numbers around 10,000, whose differences 4 bits lose."""
    return next(one for one in cases() if one.name == "test_logsoftmax_large_number, between products")


def test_every_setting_in_four_bits_has_one_in_eight() -> None:
    assert {name for name in SETTINGS if "4 bit" in name} == set(verdict.FINER)
    assert set(verdict.FINER.values()) <= set(SETTINGS)
