"""Constants behind convolutions."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import build, floats, node
from hypothesis import given, settings
from hypothesis import strategies as st
from support import assert_same, simplified, written

SAID = ("added 1 constant behind a convolution to its bias",)
FEEDS = [{"x": floats(2, 3, 5, 5, seed=3)}]


def proto_of(nodes, weights, outputs=("y",), conv="x w"):
    made = [node("Conv", conv, "c"), *nodes]
    return build(made, {"x": ["n", 3, 5, 5]}, outputs, {"w": floats(4, 3, 5, 1), **weights})


def test_a_constant_becomes_the_bias():
    proto = proto_of(
        [node("Add", "c k", "a"), node("Relu", "a", "y")], {"k": np.float32([1, -2, 3, 0.5]).reshape(4, 1, 1)}
    )
    found = simplified(proto, "conv_bias")
    assert written(found.model) == [
        "c_with_bias = Conv(x, w[4, 3, 5, 1], [1.0, -2.0, 3.0, 0.5])",
        "y = Relu(c_with_bias)",
    ]
    assert found.notes == SAID
    assert_same(proto, found, FEEDS, rtol=1e-6)


def test_axes_behind_the_channels_may_go_in_between():
    nodes = [node("Squeeze", "c axes", "s"), node("Sub", "s k", "y")]
    proto = proto_of(nodes, {"axes": np.int64([2]), "k": floats(1, 4, 1), "b": floats(4, seed=5)}, conv="x w b")
    found = simplified(proto, "conv_bias")
    assert [item.op_type for item in found.model.graph.nodes] == ["Conv", "Squeeze"]
    assert [value.name for value in found.model.graph.outputs] == ["y"]
    assert found.notes == SAID
    assert_same(proto, found, FEEDS, rtol=1e-6)


STAY = {
    "along a row": ([node("Add", "c k", "y")], {"k": floats(5)}),
    "everywhere another": ([node("Add", "c k", "y")], {"k": floats(4, 1, 5)}),
    "of a batch": ([node("Add", "c k", "y")], {"k": floats(2, 4, 1, 1)}),
    "more axes": ([node("Add", "c k", "y")], {"k": floats(1, 1, 4, 1, 1)}),
    "subtracted from": ([node("Sub", "k c", "y")], {"k": floats(4, 1, 1)}),
    "twice itself": ([node("Add", "c c", "y")], {}),
    "channels moved": (
        [node("Unsqueeze", "c axes", "s"), node("Add", "s k", "y")],
        {"axes": np.int64([1]), "k": floats(4, 1, 1)},
    ),
}


@pytest.mark.parametrize("case", STAY)
def test_what_is_no_bias_stays(case):
    nodes, weights = STAY[case]
    assert simplified(proto_of(nodes, weights), "conv_bias").notes == ()


def test_other_readers_keep_what_they_read():
    nodes = [node("Add", "c k", "y"), node("Relu", "c", "z")]
    assert simplified(proto_of(nodes, {"k": floats(4, 1, 1)}, ("y", "z")), "conv_bias").notes == ()
    assert simplified(proto_of(nodes[:1], {"k": floats(4, 1, 1)}, ("y", "c")), "conv_bias").notes == ()


@given(st.integers(1, 3), st.integers(1, 4), st.booleans(), st.booleans(), st.sampled_from(["Add", "Sub"]))
@settings(max_examples=25, deadline=None)
def test_groups_scalars_and_transposed_convolutions(group, channels, transposed, scalar, op_type):
    shape = (2 * group, channels, 3) if transposed else (channels * group, 2, 3)
    constant = floats(1, 1, seed=9) if scalar else floats(channels * group, 1, seed=9)
    nodes = [
        node("ConvTranspose" if transposed else "Conv", "x w b", "c", group=group),
        node(op_type, "c k", "y"),
    ]
    weights = {"w": floats(*shape), "b": floats(channels * group, seed=2), "k": constant}
    proto = build(nodes, {"x": ["n", 2 * group, 7]}, weights=weights)
    found = simplified(proto, "conv_bias")
    assert found.notes == SAID
    assert_same(proto, found, [{"x": floats(2, 2 * group, 7, seed=4)}], rtol=1e-6)
