"""Sizes that a model leaves open: what is assumed for them, and what samples say instead."""

from __future__ import annotations

import numpy as np
from helpers import build, node, typed

from onnxq.targets.assumed_shapes import TensorBytes, assumed_shape, count, known_count


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


def test_bytes_of_a_tensor_follow_from_names_of_sizes() -> None:
    def found(sizes: list[int | str | None], sample: tuple[int, ...], shapes: dict[str, tuple[int, ...]]) -> int | None:
        model = typed(build([node("Relu", "x", "y")], {"x": sizes}))
        return TensorBytes(model, {"x": np.zeros(sample, np.float32)}, shapes).of(model.graph.values["y"])

    assert found(["n", 3, "side"], (2, 3, 5), {}) == 2 * 3 * 5 * 4
    assert found([None, 3, 5], (1, 3, 5), {}) == 3 * 5 * 4
    assert found(["n", 3, None], (2, 3, 5), {}) is None  # known after a run
    assert found(["n", 3, None], (2, 3, 5), {"y": (2, 3, 5)}) == 2 * 3 * 5 * 4
