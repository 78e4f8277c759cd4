"""Constants behind convolutions."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import floats, node
from hypothesis import given, settings
from support import PICTURES, assert_same, conv_with, convolutions_with_a_constant, simplified, written

SAID = ("folded 1 constant into the bias of a convolution",)


def test_a_constant_becomes_the_bias():
    proto = conv_with(
        [node("Add", "c k", "a"), node("Relu", "a", "y")], {"k": np.float32([1, -2, 3, 0.5]).reshape(4, 1, 1)}
    )
    found = simplified(proto, "fold_add_into_conv")
    assert written(found.model) == [
        "c_with_bias = Conv(x, w[4, 3, 5, 1], [1.0, -2.0, 3.0, 0.5])",
        "y = Relu(c_with_bias)",
    ]
    assert found.notes == SAID
    assert_same(proto, found, PICTURES, rtol=1e-6)


def test_axes_behind_the_channels_may_go_in_between():
    nodes = [node("Squeeze", "c axes", "s"), node("Sub", "s k", "y")]
    proto = conv_with(nodes, {"axes": np.int64([2]), "k": floats(1, 4, 1)}, conv="x w b")
    found = simplified(proto, "fold_add_into_conv")
    assert [item.op_type for item in found.model.graph.nodes] == ["Conv", "Squeeze"]
    assert [value.name for value in found.model.graph.outputs] == ["y"]
    assert found.notes == SAID
    assert_same(proto, found, PICTURES, rtol=1e-6)


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
    assert simplified(conv_with(nodes, weights), "fold_add_into_conv").notes == ()


def test_other_readers_keep_what_they_read():
    nodes = [node("Add", "c k", "y"), node("Relu", "c", "z")]
    assert simplified(conv_with(nodes, {"k": floats(4, 1, 1)}, ("y", "z")), "fold_add_into_conv").notes == ()
    assert simplified(conv_with(nodes[:1], {"k": floats(4, 1, 1)}, ("y", "c")), "fold_add_into_conv").notes == ()


@given(convolutions_with_a_constant("Add", "Sub"))
@settings(max_examples=25, deadline=None)
def test_groups_scalars_and_transposed_convolutions(made):
    proto, feeds = made
    found = simplified(proto, "fold_add_into_conv")
    assert found.notes == SAID
    assert_same(proto, found, [feeds], rtol=1e-6)
