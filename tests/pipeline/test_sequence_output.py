"""A model that gives a sequence of tensors is quantized like any other."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from onnxq.pipeline.quantize import quantize


def test_biases_are_corrected_where_an_output_is_a_sequence(tmp_path: Path) -> None:
    weight = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32) / 8
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("SequenceConstruct", ["a", "a"], ["y"])],
        "main",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 64])],
        [helper.make_tensor_sequence_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(weight, "w")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
    samples = {"x": np.random.default_rng(1).normal(size=(32, 64)).astype(np.float32)}
    report = quantize(tmp_path / "m.onnx", samples=samples)
    assert report.output is not None
    assert report.comparison is not None
    assert report.comparison.worst_sqnr is not None
    assert report.comparison.worst_sqnr > 30
