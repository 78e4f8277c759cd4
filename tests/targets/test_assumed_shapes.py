"""Sizes that a model leaves open: what is assumed for them, and what samples say instead."""

from __future__ import annotations

from helpers import build, node, typed

from onnxq.targets.assumed_shapes import assumed_shape, count, known_count


def value(*sizes: int | str | None):
    return typed(build([node("Relu", "x", "y")], {"x": list(sizes)})).graph.values["x"]


def test_an_open_batch_is_one_sample_and_an_open_side_is_56() -> None:
    assert count(value("n", 3, "h", "w")) == 3 * 56 * 56
    assert assumed_shape(value("n", 3, "h", "w"), {}) == (1, 3, 56, 56)
    assert count(value(2, 3)) == 6


def test_sizes_of_a_sample_come_first() -> None:
    given = {"x": (4, 3, 8, 8)}
    assert count(value("n", 3, "h", "w"), given) == 4 * 3 * 8 * 8
    assert assumed_shape(value("n", 3, "h", "w"), given) == (4, 3, 8, 8)


def test_a_count_that_must_be_known_assumes_nothing_but_one_sample() -> None:
    assert known_count(value("n", 3, "h"), {}) == 0
    assert known_count(value("n", 3, 5), {}) == 15
    assert known_count(value("n", 3, "h"), {"x": (2, 3, 5)}) == 30


def test_a_count_is_never_zero() -> None:
    assert count(value(0, 3)) == 1
