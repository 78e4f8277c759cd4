"""Biases in front of Gelu: where they are written as Sum, and that no value changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from helpers import ALL, NONE, applied, build, changed_alike, count_ops, floats, node, session, typed

from onnxq.optimize.bias_before_gelu import bias_before_gelu
from onnxq.optimize.optimize import optimize_for_target

SHAPES: dict[str, Any] = {"x": [4, 16], "s": [4, 1]}
CONSTANTS = {"b": floats(16, seed=1), "root": np.float32(2**0.5), "one": np.float32(1), "half": np.float32(0.5)}
BIAS = [node("Mul", "x s", "m"), node("Add", "m b", "a")]
ERF = [
    node("Div", "a root", "d"),
    node("Erf", "d", "e"),
    node("Add", "e one", "f"),
    node("Mul", "a f", "g"),
    node("Mul", "g half", "y"),
]


def model(
    nodes: list[onnx.NodeProto], opset: int = 17, shapes: dict[str, Any] = SHAPES, **constants: Any
) -> onnx.ModelProto:
    return build(nodes, shapes, ["y"], {**CONSTANTS, **constants}, opset)


@pytest.mark.parametrize(("behind", "opset"), [(ERF, 13), (ERF, 17), ([node("Gelu", "a", "y")], 20)])
def test_a_bias_behind_scales_of_rows_becomes_a_sum(behind: list[onnx.NodeProto], opset: int) -> None:
    feeds = {"x": floats(4, 16), "s": floats(4, 1, seed=3)}
    made, changed = changed_alike(model([*BIAS, *behind], opset), bias_before_gelu, feeds, [NONE])
    assert changed == 1
    assert count_ops(made)["Sum"] == 1
    assert [step.name for step in made.graph.node if step.op_type == "Sum"] == ["n_a"]


def test_onnxruntime_leaves_it_apart_from_gelu(tmp_path: Any) -> None:
    proto = model([*BIAS, *ERF])
    for optimize, kinds in ((False, {"BiasGelu"}), (True, {"Sum", "Gelu"})):
        made = typed(proto)
        assert not optimize or applied(bias_before_gelu, made) == 1
        session(made.serialize(), ALL, keep=str(tmp_path / "o.onnx"))
        assert kinds <= set(count_ops(onnx.load(tmp_path / "o.onnx")))


@pytest.mark.parametrize(
    ("nodes", "constants"),
    [
        ([node("MatMul", "x w", "m"), BIAS[1], *ERF], {"w": floats(16, 16, seed=5)}),  # onnxruntime makes it a Gemm
        ([node("Mul", "x root", "m"), BIAS[1], *ERF], {}),
        ([BIAS[0], BIAS[1], node("Tanh", "a", "y")], {}),
        ([BIAS[0], BIAS[1], *ERF], {"b": floats(1, 16, seed=1)}),  # BiasGelu takes a row alone
    ],
)
def test_others_stay(nodes: list[onnx.NodeProto], constants: dict[str, Any]) -> None:
    assert applied(bias_before_gelu, typed(model(nodes, **constants))) == 0


def test_it_is_part_of_tuning_where_kernels_are_known() -> None:
    for target, there in (("cpu", True), ("qnn", False)):
        made = optimize_for_target(typed(model([*BIAS, *ERF])), target)
        assert ("Sum" in [step.op_type for step in made.graph.nodes]) == there
