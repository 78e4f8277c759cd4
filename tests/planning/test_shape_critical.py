"""Nodes that decide how long other tensors are stay float."""

import numpy as np
import pytest
from helpers import build, floats, node, quantize_in_memory, recipe_of, run

from onnxq.ir import parse
from onnxq.pipeline.quantize import quantize
from onnxq.planning.shape_critical import deciding_lengths
from onnxq.targets import load_costs

# Each of 8 letters gets a duration; the frames are as many as all durations together.
NODES = [
    node("MatMul", "x encoder", "letters"),
    node("MatMul", "letters predictor", "durations"),
    node("Relu", "durations", "positive"),
    node("Ceil", "positive", "whole"),
    node("ReduceSum", "whole", "sum", keepdims=0),
    node("Cast", "sum", "frames", to=7),
    node("Range", "zero frames one", "places"),
    node("Cast", "places", "positions", to=1),
    node("Unsqueeze", "positions last", "column"),
    node("MatMul", "column spread", "h"),
    node("Shape", "h", "of_h"),
    node("Reshape", "h of_h", "same"),
    node("MatMul", "same decoder", "y"),
]
WEIGHTS = {
    "encoder": floats(64, 64, scale=0.2),
    "predictor": floats(64, 1, seed=1, scale=2.0),
    "spread": floats(1, 1024, seed=2, scale=0.01),
    "decoder": floats(1024, 1024, seed=3, scale=0.03),
    "zero": np.array(0),
    "one": np.array(1),
    "last": np.array([1]),
}


def test_what_predicts_durations_stays_float_and_what_follows_does_not(tmp_path):
    model = build(NODES, {"x": [8, 64]}, ["y"], WEIGHTS)
    made = quantize_in_memory(model, "auto")
    assert made.decision("n_letters").reason == "its values decide the length of an output"
    assert made.decision("n_letters").scheme is None
    assert made.decision("n_y").scheme == "dynamic-int8"
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    report = quantize(tmp_path / "m.onnx", samples=[{"x": floats(8, 64, seed=s)} for s in range(12)], fast=True)
    assert report.comparison is not None
    assert report.comparison.outputs[0].sqnr > 30


def test_a_recipe_that_asks_for_8_bit_gets_it():
    made = quantize_in_memory(build(NODES, {"x": [8, 64]}, ["y"], WEIGHTS), "dynamic-int8")
    assert made.decision("n_letters").scheme == "dynamic-int8"


def test_a_model_that_is_about_lengths_is_quantized_all_the_same():
    weights = {**WEIGHTS, "encoder": floats(64, 4096), "predictor": floats(4096, 1), "decoder": floats(1024, 2)}
    made = quantize_in_memory(build(NODES, {"x": [256, 64]}, ["y"], weights), "auto")
    assert made.decision("n_letters").scheme == "dynamic-int8"


def test_operators_that_read_nothing_take_their_time_too():
    nodes = [*NODES[:-1], node("RandomUniform", "", "noise", shape=[1024]), node("Add", "same noise", "noisy")]
    made = quantize_in_memory(
        build([*nodes, node("MatMul", "noisy decoder", "y")], {"x": [8, 64]}, ["y"], WEIGHTS), "auto"
    )
    assert made.decision("n_letters").reason == "its values decide the length of an output"


@pytest.mark.parametrize("kept", [0.0, 0.5])
def test_detections_may_differ_in_number(tmp_path, kept):
    """Rows are kept one by one where a score says so; a few are on the border."""
    nodes = [
        node("MatMul", "x w", "scores"),
        node("ReduceMax", "scores", "best", axes=[1], keepdims=0),
        node("Greater", "best least", "good"),
        node("Compress", "scores good", "y", axis=0),
    ]
    weights = {"w": floats(256, 64, scale=0.1), "least": np.array(3.0 + kept, np.float32)}
    (tmp_path / "m.onnx").write_bytes(build(nodes, {"x": [400, 256]}, ["y"], weights).SerializeToString())
    samples = [{"x": floats(400, 256, seed=s)} for s in range(4)]
    report = quantize(tmp_path / "m.onnx", "dynamic-int8", samples=samples)
    assert report.comparison is not None
    assert np.isfinite(report.comparison.outputs[0].sqnr)


@pytest.mark.parametrize("recipe", ["auto", "static-int8"])
def test_sizes_that_are_computed_of_sizes_are_exact_whatever_the_recipe(recipe):
    """A target that wants everything in 8 bit, and an interpolation to one and a half times the size."""
    nodes = [
        node("Shape", "x", "shape"),
        node("Cast", "shape", "sizes", to=1),
        node("Mul", "sizes factors", "larger"),
        node("Floor", "larger", "whole"),
        node("Cast", "whole", "wanted", to=7),
        node("Resize", "x - - wanted", "r", mode="nearest"),
        node("Conv", "r w", "y"),
    ]
    weights = {"factors": np.array([1, 1, 1.5, 1.5], np.float32), "w": floats(4, 4, 3, 3)}
    proto = build(nodes, {"x": ["batch", 4, "height", "width"]}, ["y"], weights)
    samples = [{"x": floats(1, 4, size, size)} for size in (10, 23)]
    made = quantize_in_memory(proto, recipe_of(recipe, target="qnn"), samples)
    assert made.decision("n_larger").reason == "it computes sizes"
    for feeds in samples:
        (expected,), (got,) = run(made.source, feeds), run(made.data, feeds)
        assert expected.shape == got.shape


def test_what_is_interpolated_to_a_predicted_size_is_as_large_as_in_float():
    nodes = [
        node("MatMul", "x encoder", "letters"),
        node("ReduceMax", "letters", "most", keepdims=0),
        node("Cast", "most", "count", to=7),
        node("Unsqueeze", "count first", "length"),
        node("Concat", "one one length", "wanted", axis=0),
        node("Resize", "z - - wanted", "r", mode="nearest"),
        node("Transpose", "r", "t", perm=[0, 2, 1]),
        node("MatMul", "t spread", "h"),
        node("MatMul", "h decoder", "y"),
    ]
    weights = {**WEIGHTS, "one": np.array([1]), "first": np.array([0])}
    made = quantize_in_memory(build(nodes, {"x": [8, 64], "z": [1, 1, 9]}, ["y"], weights), "auto")
    assert made.decision("n_letters").reason == "its values decide the length of an output"


def test_no_time_is_asked_for_where_nothing_decides_about_sizes(monkeypatch):
    """Work is counted: a search plans a model dozens of times."""
    monkeypatch.setattr("onnxq.planning.shape_critical.node_times", None)
    model = parse(build([node("Relu", "x", "y")], {"x": [8, 64]}, ["y"], {}).SerializeToString())
    assert deciding_lengths(model.graph.graphs(), load_costs("cpu")) == set()
