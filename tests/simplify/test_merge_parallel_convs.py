"""Branches over one value that are added up, as networks have them that are trained with more than they need."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from helpers import build, floats, node
from support import assert_same, simplified, written

FEEDS = [{"x": floats(2, 4, 7, 7, seed=9)}]
NORM = {"g": floats(4, seed=1), "s": floats(4, seed=2), "m": floats(4, seed=3), "v": np.abs(floats(4, seed=4)) + 1}
WEIGHTS = {
    "k3": floats(4, 4, 3, 3, seed=5), "k1": floats(4, 4, 1, 1, seed=6), "b": floats(4, seed=7), **NORM,
    "d3": floats(4, 1, 3, 3, seed=5), "d1": floats(4, 1, 1, 1, seed=6), "wide": floats(4, 4, 1, 3, seed=8),
    "half3": floats(4, 2, 3, 3, seed=5),
}  # fmt: skip
LARGE, POINT, NORMED = (
    node("Conv", "x k3 b", "l", pads=[1] * 4),
    node("Conv", "x k1", "p"),
    node("BatchNormalization", "x g s m v", "n"),
)
JOINED = {
    "RepVGG": [LARGE, POINT, NORMED, node("Add", "l p", "a"), node("Add", "a n", "y")],
    "MobileOne": [LARGE, POINT, NORMED, node("Add", "p n", "a"), node("Add", "a l", "y")],
    "depthwise": [
        node("Conv", "x d3 b", "l", pads=[1] * 4, group=4),
        node("Conv", "x d1", "p", group=4),
        NORMED,
        node("Add", "l p", "a"),
        node("Sub", "a n", "y"),
    ],
    "two groups": [node("Conv", "x half3", "l", pads=[1] * 4, group=2), NORMED, node("Sub", "n l", "y")],
    "by strides": [
        node("Conv", "x k3", "l", pads=[1] * 4, strides=[2, 2]),
        node("Conv", "x k1 b", "p", strides=[2, 2]),
        node("Add", "l p", "y"),
    ],
    "at a corner": [node("Conv", "x k1", "p"), node("Conv", "x k3", "l", pads=[2, 2, 0, 0]), node("Sub", "p l", "y")],
    "padded on one side": [
        node("Conv", "x k3", "l", pads=[2, 1, 0, 1]),
        node("Conv", "x wide", "p", pads=[0, 1, 0, 1]),
        node("Add", "l p", "y"),
    ],
}


def model(nodes, outputs=("y",)):
    read = {name for made in nodes for name in made.input}
    return build(nodes, {"x": ["n", 4, 7, 7]}, outputs, {k: v for k, v in WEIGHTS.items() if k in read})


@pytest.mark.parametrize("case", JOINED)
def test_branches_are_one_convolution(case):
    proto = model(JOINED[case])
    found = simplified(proto, "merge_parallel_convs")
    assert [made.op_type for made in found.model.graph.nodes] == ["Conv"]
    assert_same(proto, found, FEEDS, rtol=1e-5)


def test_how_it_is_written():
    proto = model(JOINED["by strides"])
    bias = next(array for array in proto.graph.initializer if array.name == "b")
    bias.CopyFrom(onnx.numpy_helper.from_array(np.float32([0, 1, -2, 0.5]), "b"))
    found = simplified(proto, "merge_parallel_convs")
    assert written(found.model) == [
        "y = Conv(x, k3_joined[4, 4, 3, 3], [0.0, 1.0, -2.0, 0.5], "
        "group=1, kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2])"
    ]
    assert found.notes == ("merged 1 pair of parallel branches into one convolution",)


APART = {
    "other strides": [
        node("Conv", "x k3", "l", pads=[0, 0, 0, 0], strides=[2, 2]),
        node("Conv", "x k3 b", "p", pads=[1] * 4, strides=[3, 3]),
        node("Add", "l p", "y"),
    ],
    "elsewhere": [
        node("Conv", "x k1", "p", pads=[1, 1, 0, 0], strides=[3, 3]),
        node("Conv", "x k3", "l", pads=[0, 0, 2, 2], strides=[3, 3]),
        node("Sub", "p l", "y"),
    ],
    "dilated": [node("Conv", "x k3", "l", pads=[2] * 4, dilations=[2, 2]), POINT, node("Add", "l p", "y")],
    "padded by the runtime": [node("Conv", "x k3", "l", auto_pad="SAME_UPPER"), POINT, node("Add", "l p", "y")],
    "the same": [LARGE, node("Add", "l l", "y")],
    "of another value": [node("Relu", "x", "r"), LARGE, node("Conv", "r k1", "p"), node("Add", "l p", "y")],
    "two norms": [NORMED, node("BatchNormalization", "x s g m v", "p"), node("Add", "n p", "y")],
    "a residual": [LARGE, node("Add", "l x", "y")],
    "one weight": [POINT, node("Conv", "x k1", "l"), node("Add", "l p", "y")],
}


@pytest.mark.parametrize("case", APART)
def test_other_sums_stay(case):
    assert simplified(model(APART[case]), "merge_parallel_convs").original is None


def test_what_somebody_else_reads_stays():
    proto = model([LARGE, POINT, node("Add", "l p", "y"), node("Relu", "p", "z")], ("y", "z"))
    assert simplified(proto, "merge_parallel_convs").original is None
