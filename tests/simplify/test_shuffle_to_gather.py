"""Shuffles of channels: a Gather along them."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import build, floats, node
from support import assert_same, simplified, written

SAID = ("rewrote 1 shuffle of channels as Gather",)
CONSTANTS = {
    "s5": np.int64([-1, 3, 2, 4, 5]),
    "s4": np.int64([-1, 6, 4, 5]),
    "one": np.int64([1, 3, 2, 4, 5]),
    "s3": np.int64([3, 2, 20]),
    "halves": np.int64([2, -1, 3, 4, 5]),
    "first": np.int64(0),
    "second": np.int64(-1),
    "axis": np.int64([0]),
}
SHUFFLE = [
    node("Reshape", "x s5", "a"),
    node("Transpose", "a", "b", perm=[0, 2, 1, 3, 4]),
    node("Reshape", "b s4", "y"),
]
# ShuffleNet V2 in PyTorch, for one sample
HALVES = [
    node("Reshape", "x s3", "a"),
    node("Transpose", "a", "b", perm=[1, 0, 2]),
    node("Reshape", "b halves", "c"),
]


def simple(nodes, outputs=("y",), batch="n", **constants):
    proto = build(nodes, {"x": [batch, 6, 4, 5]}, list(outputs), {**CONSTANTS, **constants})
    return proto, simplified(proto, "shuffle_to_gather")


def feed(batch):
    return [{"x": floats(batch, 6, 4, 5)}, {"x": floats(batch, 6, 4, 5, seed=2)}]


@pytest.mark.parametrize("batch", [1, 3])
def test_a_shuffle_of_any_number_of_samples(batch: int) -> None:
    proto, found = simple(SHUFFLE)
    assert written(found.model) == ["y = Gather(x, y_channels[6], axis=1)"]
    assert found.notes == SAID
    assert_same(proto, found, feed(batch), 0)


@pytest.mark.parametrize(
    "halves",
    [
        [node("Gather", "c first", "y", axis=0), node("Gather", "c second", "z", axis=0)],
        [node("Split", "c", "p q", axis=0), node("Squeeze", "p axis", "y"), node("Squeeze", "q axis", "z")],
    ],
)
def test_halves_of_a_shuffle(halves) -> None:
    proto, found = simple([*HALVES, *halves], ("y", "z"), 1)
    assert [line.split("(")[0] for line in written(found.model)] == ["y = Gather", "z = Gather"]
    assert found.notes == ("rewrote 2 shuffles of channels as Gather",)
    assert_same(proto, found, feed(1), 0)


@pytest.mark.parametrize(
    ("nodes", "outputs", "batch"),
    [
        ([SHUFFLE[0], node("Transpose", "a", "b", perm=[0, 1, 2, 4, 3]), SHUFFLE[2]], ["y"], "n"),
        ([SHUFFLE[0], node("Transpose", "a", "b", perm=[0, 1, 2, 3, 4]), SHUFFLE[2]], ["y"], "n"),
        (SHUFFLE, ["y", "b"], "n"),
        ([*SHUFFLE, node("Relu", "b", "z")], ["y", "z"], "n"),
        ([node("Reshape", "x s3", "a"), *SHUFFLE[1:]], ["y"], 1),
    ],
)
def test_what_is_no_shuffle_or_is_read_within_stays(nodes, outputs, batch) -> None:
    if nodes[0].input[1] == "s3":
        nodes = [nodes[0], node("Transpose", "a", "y", perm=[1, 0, 2])]
    assert simple(nodes, outputs, batch)[1].notes == ()


def test_a_shuffle_for_one_sample_stays_where_there_may_be_several() -> None:
    assert simple([node("Reshape", "x one", "a"), *SHUFFLE[1:]])[1].notes == ()


def test_a_shuffle_of_samples_that_is_one_of_channels_for_two_of_them_stays() -> None:
    samples = {"s5": np.int64([2, -1, 3, 4, 5]), "s4": np.int64([-1, 6, 4, 5])}
    proto, found = simple(SHUFFLE, **samples)
    assert found.notes == ()
    assert_same(proto, found, feed(4), 0)
