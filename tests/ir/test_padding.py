"""Which pads count where `auto_pad` is stated too, or empty: those that onnxruntime takes, wherever pads are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers import NONE, build, floats, node, quantize_in_memory, run, sqnr, typed

from onnxq import evaluate
from onnxq.ir.shape_inference.padding import auto_pad_of, pads_of
from onnxq.pipeline.quantize import quantize

STATED = [1, 0, 2, 1]


@pytest.mark.parametrize(
    ("attributes", "note", "pads"),
    [
        ({}, "NOTSET", [0] * 4),
        ({"pads": STATED}, "NOTSET", STATED),
        ({"pads": STATED, "auto_pad": ""}, "NOTSET", STATED),
        ({"pads": STATED, "auto_pad": "NOTSET"}, "NOTSET", STATED),
        ({"pads": STATED, "auto_pad": "VALID"}, "VALID", [0] * 4),
        ({"pads": STATED, "auto_pad": "SAME_UPPER"}, "SAME_UPPER", [0] * 4),
    ],
)
def test_pads_that_count(attributes: dict[str, Any], note: str, pads: list[int]) -> None:
    model = typed(
        build([node("Conv", "x w", "y", **attributes)], {"x": [1, 3, 9, 9]}, ["y"], {"w": floats(4, 3, 3, 3)})
    )
    conv = model.graph.nodes[0]
    assert (auto_pad_of(conv), pads_of(conv, 2)) == (note, pads)


@pytest.mark.parametrize("ceil_mode", [0, 1])
@pytest.mark.parametrize("auto_pad", ["", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("op_type", ["MaxPool", "AveragePool", "LpPool"])
def test_pools_that_state_both(op_type: str, auto_pad: str, ceil_mode: int) -> None:
    attributes = {"kernel_shape": [3, 3], "strides": [3, 3], "ceil_mode": ceil_mode, "auto_pad": auto_pad}
    nodes = [node(op_type, "x", "h", **attributes, pads=STATED), node("Neg", "h", "y")]
    proto = build(nodes, {"x": [1, 2, 10, 11]}, opset=18)
    feeds = {"x": floats(1, 2, 10, 11)}
    (expected,) = run(proto.SerializeToString(), feeds, NONE)
    assert typed(proto).graph.values["h"].shape == expected.shape
    np.testing.assert_allclose(evaluate(proto, feeds)["y"], expected, rtol=1e-5, atol=1e-6)


def test_an_empty_auto_pad_is_none_where_a_conv_is_quantized(tmp_path: Path) -> None:
    """With a scale for every window, and with weights rounded on what the layer reads."""
    nodes = [node("Conv", "x w", "h", pads=[2, 1], auto_pad=""), node("Relu", "h", "y")]
    proto = build(nodes, {"x": [1, 6, 17]}, ["y"], {"w": floats(5, 6, 3, seed=1)})
    samples = [{"x": floats(1, 6, 17, seed=seed)} for seed in range(4)]
    (expected,) = run(proto.SerializeToString(), samples[0], NONE)
    made = quantize_in_memory(proto, activation_granularity="row")
    assert sqnr(expected, made.run(samples[0])[0]) > 30
    onnx.save(proto, tmp_path / "m.onnx")
    report = quantize(tmp_path / "m.onnx", "static-int8", output=tmp_path / "q.onnx", samples=samples)
    assert report.comparison.outputs[0].sqnr > 30
