"""Elements that Tile repeats along the axes of a map."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from helpers import build, floats, node
from support import assert_same, simplified, written

SAID = ("rewrote 1 Tile upsampling as Resize",)
CONSTANTS = {"a2": np.int64([2]), "a3": np.int64([3])}
# Keras 3, channels last, in front of a Conv: x [n, 3, 5, 4] to [n, 4, 6, 10]
LAST = [
    node("Unsqueeze", "x a2", "u"),
    node("Tile", "u t2", "v"),
    node("Reshape", "v s2", "w"),
    node("Unsqueeze", "w a3", "p"),
    node("Tile", "p t3", "q"),
    node("Reshape", "q s3", "r"),
    node("Transpose", "r", "y", perm=[0, 3, 1, 2]),
]
SIZES = {
    "t2": np.int64([1, 1, 2, 1, 1]),
    "t3": np.int64([1, 1, 1, 2, 1]),
    "s2": np.int64([-1, 6, 5, 4]),
    "s3": np.int64([0, 0, 10, 4]),
}


def simple(nodes, constants, shape=("n", 3, 5, 4)):
    proto = build(nodes, {"x": list(shape)}, ["y"], {**CONSTANTS, **SIZES, **constants})
    return proto, simplified(proto, "tile_to_resize")


def test_an_older_resize_needs_a_region_of_interest():
    """Some models cannot be raised: a custom operator may stand in the way."""
    nodes = [node("Reshape", "x s", "v"), node("Tile", "v t", "w"), node("Reshape", "w r", "y")]
    sizes = {"s": np.int64([-1, 3, 5, 1, 4]), "t": np.int64([1, 1, 1, 2, 1]), "r": np.int64([-1, 3, 10, 4])}
    for opset, count in ((12, 0), (13, 1)):
        proto = build(nodes, {"x": ["n", 3, 5, 4]}, ["y"], sizes, opset=opset)
        found = simplified(proto, "tile_to_resize")
        assert sum(item.op_type == "Resize" for item in found.model.graph.nodes) == count
        onnx.checker.check_model(onnx.ModelProto.FromString(found.model.serialize()), full_check=True)


def feed(batch=2):
    return [{"x": floats(batch, 3, 5, 4)}, {"x": floats(batch, 3, 5, 4, seed=2)}]


def test_both_axes_and_the_transpose_behind():
    proto, found = simple(LAST, {})
    resize = "mode=nearest, nearest_mode=floor"
    assert written(found.model) == [
        "y_turned = Transpose(x, perm=[0, 3, 1, 2])",
        f"y = Resize(y_turned, , [1.0, 1.0, 2.0, 2.0], coordinate_transformation_mode=asymmetric, {resize})",
    ]
    assert found.notes == SAID
    assert_same(proto, found, feed())


def test_channels_first_in_front_and_last_behind():
    nodes = [node("Unsqueeze", "x a3", "u"), node("Tile", "u t", "v"), node("Reshape", "v s", "w")]
    nodes.append(node("Transpose", "w", "y", perm=[0, 2, 3, 1]))
    constants = {"t": np.int64([1, 1, 1, 3, 1]), "s": np.int64([-1, 3, 15, 4])}
    proto, found = simple(nodes, constants)
    assert [item.op_type for item in found.model.graph.nodes] == ["Resize", "Transpose"]
    assert found.model.graph.outputs[0].name == "y"
    assert_same(proto, found, feed())


@pytest.mark.parametrize("kind", ["int64", "bool", "float64", "float32", "int32", "int8", "uint8"])
def test_types_that_onnxruntime_does_not_resize_stay(kind):
    nodes = [node("Unsqueeze", "x a3", "u"), node("Tile", "u t", "v"), node("Reshape", "v s", "y")]
    sizes = {"a3": np.int64([3]), "t": np.int64([1, 1, 1, 2, 1]), "s": np.int64([1, 3, 8, 4])}
    code = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    proto = build(nodes, {"x": (code, [1, 3, 4, 4])}, {"y": code}, sizes)
    found = simplified(proto, "tile_to_resize")
    assert found.notes == (() if kind in ("int64", "bool", "float64") else SAID)
    assert_same(proto, found, [{"x": (np.arange(48).reshape(1, 3, 4, 4) % 5).astype(kind)}])


def test_a_known_number_of_samples():
    proto, found = simple(LAST, {"s2": np.int64([1, 6, 5, 4]), "s3": np.int64([1, 6, 10, 4])}, (1, 3, 5, 4))
    assert found.notes == SAID
    assert_same(proto, found, feed(1))


OTHERS = {
    "whole rows": ([node("Tile", "x t", "y")], {"t": np.int64([1, 1, 2, 2])}),
    "samples": ([node("Tile", "x t", "y")], {"t": np.int64([2, 1, 1, 1])}),
    "only moved": ([node("Transpose", "x", "y", perm=[0, 3, 1, 2])], {}),
    "channels": (
        [node("Unsqueeze", "x a2", "u"), node("Tile", "u t2", "v"), node("Reshape", "v s", "y")],
        {"s": np.int64([-1, 6, 5, 4])},
    ),
}


@pytest.mark.parametrize("case", OTHERS)
def test_other_repetitions_stay(case):
    nodes, constants = OTHERS[case]
    assert simple(nodes, constants)[1].notes == ()


def test_a_value_that_others_read_stays():
    proto = build(LAST, {"x": ["n", 3, 5, 4]}, ["y", "v", "q"], {**CONSTANTS, **SIZES})
    assert simplified(proto, "tile_to_resize").notes == ()
