"""Shapes that ONNX inference leaves open, and what is behind them."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import build, floats, node, typed
from onnx import TensorProto

from onnxq.ir import infer_types, parse
from onnxq.ir.shape_inference.symbolic import Shapes
from onnxq.pipeline.quantize import quantize


def shapes_of(nodes, inputs, weights) -> dict[str, tuple[int | str | None, ...] | None]:
    """Shapes of inner values in opset 13; from 14 on, ONNX follows more, and the model is checked as such.

    Its output is the shape of `z`.
    """
    proto = build([*nodes, node("Shape", "z", "y")], inputs, {"y": TensorProto.INT64}, weights, opset=17)
    proto.opset_import[0].version = 13
    model = parse(proto.SerializeToString())
    infer_types(model)
    return {value.name: value.shape for made in model.graph.nodes for value in made.outputs if value is not None}


def ids(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


HEADS = [  # x.view(x.shape[0], -1, 4, 8) as PyTorch exports it
    node("Shape", "x", "shape"),
    node("Gather", "shape zero", "batch", axis=0),
    node("Unsqueeze", "batch axis", "batch1"),
    node("Concat", "batch1 open four eight", "target", axis=0),
    node("Reshape", "x target", "heads"),
]
WEIGHTS = {"zero": np.array(0, np.int64), "axis": ids(0), "open": ids(-1), "four": ids(4), "eight": ids(8)}


def test_behind_a_view_with_a_computed_size_and_a_minus_one_shapes_are_known():
    nodes = [
        *HEADS,
        node("Transpose", "heads", "turned", perm=[0, 2, 1, 3]),
        node("Transpose", "turned", "back", perm=[0, 2, 1, 3]),
        node("Concat", "batch1 open merged", "target2", axis=0),
        node("Reshape", "back target2", "rows"),
        node("MatMul", "rows w", "z"),
    ]
    found = shapes_of(nodes, {"x": ["n", "s", 32]}, {**WEIGHTS, "merged": ids(32), "w": floats(32, 5)})
    assert found["heads"] == ("n", "s", 4, 8)
    assert found["turned"] == ("n", 4, "s", 8)
    assert found["rows"] == ("n", "s", 32)
    assert found["z"] == ("n", "s", 5)


def test_inference_goes_on_behind_what_is_found():
    pads = {"pads": ids(0, 0, 1, 0, 0, 0, 1, 0)}
    nodes = [*HEADS, node("Transpose", "heads", "turned", perm=[0, 2, 3, 1]), node("Pad", "turned pads", "z")]
    found = shapes_of(nodes, {"x": ["n", "s", 32]}, {**WEIGHTS, **pads})
    assert found["z"] is not None
    assert found["z"][:3] == ("n", 4, 10)


@pytest.mark.parametrize(("given", "sizes"), [({}, [4, 4]), ({"parts": ids(5, 3)}, [5, 3])])
def test_parts_of_what_is_found_are_known(given, sizes):
    split = node("Split", " ".join(["heads", *given]), "a z", axis=-1)
    found = shapes_of([*HEADS, split], {"x": ["n", "s", 32]}, {**WEIGHTS, **given})
    assert [found["a"], found["z"]] == [("n", "s", 4, size) for size in sizes]


def test_what_nothing_tells_stays_open():
    inputs = {"x": ["n", 32], "target": (TensorProto.INT64, ["r"])}
    assert shapes_of([node("Reshape", "x target", "z")], inputs, {})["z"] is None


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        ("x pads", ["x:0", "3", "7", "z:3"]),
        ("x plain", ["x:0", "3", "5", "x:3"]),
        ("x moved", ["x:0", "3", "5", "x:3"]),
        ("x unknown", ["z:0", "z:1", "z:2", "z:3"]),
        ("x pads - axes", ["z:0", "z:1", "z:2", "z:3"]),
    ],
)
def test_pads_are_counted_on_the_axes_that_they_are_for(inputs, expected):
    """From opset 18 on, axes can stand beside them, in any order."""
    weights = {"pads": ids(0, 0, 2, 1, 0, 0, 0, 0), "plain": ids(*[0] * 8), "moved": ids(0, 0, 1, 0, 0, 0, -1, 0)}
    weights |= {"axes": ids(3, 2, 1, 0)}
    read = inputs.split()
    feeds = {"x": ["n", 3, 5, "s"]} | ({"unknown": (TensorProto.INT64, [8])} if "unknown" in read else {})
    used = {name: array for name, array in weights.items() if name in read}
    model = typed(build([node("Pad", inputs, "z"), node("Neg", "z", "y")], feeds, ["y"], used, opset=18))
    (z,) = (value for value in model.graph.values.values() if value.name == "z")
    z.shape = None  # as inference leaves it where it knows less
    found = Shapes(model.graph, 18).of(z)
    assert found is not None
    assert [str(size.known or size.symbols[0]) for size in found] == expected


@pytest.mark.parametrize("unknown", [-1, "?"])
def test_sizes_that_paddle_writes_stay_open(unknown: int | str) -> None:
    """Paddle's exporter writes -1, which a Tile refuses as a count, and names different sizes alike."""
    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s first", "n"),
        node("Concat", "n one", "times", axis=0),
        node("Tile", "row times", "y"),
        node("Concat", "x x", "z", axis=0),
    ]
    constants = {"first": ids(0), "one": ids(1), "row": floats(1, 4)}
    proto = build(nodes, {"x": ["a", "b"]}, ["y", "z"], constants)
    for dimension in proto.graph.input[0].type.tensor_type.shape.dim:
        dimension.Clear()
        if isinstance(unknown, int):
            dimension.dim_value = unknown
        else:
            dimension.dim_param = unknown
    model = parse(proto.SerializeToString())
    infer_types(model)
    assert model.graph.values["x"].shape == (None, None)
    rows, columns = Shapes(model.graph, model.opset).of(model.graph.values["x"])
    assert rows != columns


def test_a_model_of_paddle_is_quantized_for_any_number_of_samples() -> None:
    nodes = [
        node("MatMul", "x w", "m"),
        node("Shape", "x", "s"),
        node("Gather", "s first", "n"),
        node("Concat", "n one", "times", axis=0),
        node("Tile", "row times", "t"),
        node("Add", "m t", "y"),
    ]
    constants = {"w": floats(64, 64), "first": ids(0), "one": ids(1), "row": floats(1, 64)}
    proto = build(nodes, {"x": ["n", 64]}, ["y"], constants)
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    report = quantize(proto, samples={"x": floats(6, 64)}, fast=True)
    assert report.comparison is not None
    assert report.comparison.worst_sqnr > 30
