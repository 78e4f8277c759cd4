"""BatchNormalization of what a product makes of a sequence, its rows in a list."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import build, floats, node
from support import assert_same, simplified, written

FEEDS = [{"x": floats(2, 5, 6, seed=9)}]
WEIGHTS = {
    "w": floats(6, 4), "g": floats(4, seed=1), "s": floats(4, seed=2), "m": floats(4, seed=3),
    "v": np.abs(floats(4, seed=4)) + 1, "flat": np.int64([-1, 4]), "turned": np.int64([4, -1]),
    "g2": floats(10, seed=1), "v2": np.abs(floats(10, seed=4)) + 1,
}  # fmt: skip
PRODUCT, LISTED = node("MatMul", "x w", "p"), node("Flatten", "p", "f", axis=2)
NORM = node("BatchNormalization", "f g s m v", "n")


def model(nodes, outputs=("y",)):
    read = {name for made in nodes for name in made.input}
    return build(nodes, {"x": [2, 5, 6]}, outputs, {k: v for k, v in WEIGHTS.items() if k in read})


@pytest.mark.parametrize("listed", [LISTED, node("Reshape", "p flat", "f")], ids=["Flatten", "Reshape"])
def test_it_becomes_weight_and_bias(listed):
    proto = model([PRODUCT, listed, NORM, node("Relu", "n", "y")])
    found = simplified(proto, "fold_batchnorm_into_matmul")
    assert [made.op_type for made in found.model.graph.nodes] == ["MatMul", "Add", listed.op_type, "Relu"]
    assert written(found.model)[0] == "p_scaled = MatMul(x, w_scaled[6, 4])"
    assert found.notes == ("folded 1 BatchNormalization of rows into the product before",)
    assert_same(proto, found, FEEDS, rtol=1e-5)


def test_it_may_be_an_output():
    proto = model([PRODUCT, LISTED, node("BatchNormalization", "f g s m v", "y")])
    found = simplified(proto, "fold_batchnorm_into_matmul")
    assert [value.name for value in found.model.graph.outputs] == ["y"]
    assert_same(proto, found, FEEDS, rtol=1e-5)


STAY = {
    "columns in front": [PRODUCT, node("Reshape", "p turned", "f"), node("BatchNormalization", "f g2 g2 g2 v2", "y")],
    "read elsewhere": [PRODUCT, LISTED, NORM, node("Relu", "n", "y"), node("Relu", "p", "z")],
    "list read elsewhere": [PRODUCT, LISTED, NORM, node("Relu", "n", "y"), node("Relu", "f", "z")],
    "a function between": [
        PRODUCT, node("Relu", "p", "r"), node("Flatten", "r", "f", axis=2), NORM, node("Relu", "n", "y"),
    ],
    "a shared weight": [PRODUCT, LISTED, NORM, node("Relu", "n", "y"), node("MatMul", "x w", "z")],
}  # fmt: skip


@pytest.mark.parametrize("case", STAY)
def test_others_stay(case):
    nodes = STAY[case]
    proto = model(nodes, ("y", "z") if nodes[-1].output[0] == "z" else ("y",))
    assert simplified(proto, "fold_batchnorm_into_matmul").original is None
