"""Constants that channels are multiplied by behind a layer."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import build, floats, node
from hypothesis import given, settings
from support import PICTURES, assert_same, conv_with, convolutions_with_a_constant, simplified, written

SAID = ("folded 1 constant factor into the weight of the layer before",)
ROWS = [{"x": floats(2, 3, 5, seed=3)}]


def product_with(nodes, weights, outputs=("y",)):
    return build([node("MatMul", "x w", "p"), *nodes], {"x": ["n", 3, 5]}, outputs, {"w": floats(5, 4), **weights})


def test_a_normalisation_spelled_out_behind_a_conv1d_is_part_of_it():
    nodes = [
        node("Squeeze", "c axes", "s"),
        node("Add", "s k", "a"),
        node("Mul", "a f", "m"),
        node("Add", "m t", "r"),
        node("Relu", "r", "y"),
    ]
    weights = {"axes": np.int64([2]), **{name: floats(1, 4, 1, seed=at) for at, name in enumerate("kft")}}
    proto = conv_with(nodes, weights)
    found = simplified(proto, "fold_add_into_conv", "fold_mul_into_weight")
    assert [item.op_type for item in found.model.graph.nodes] == ["Conv", "Squeeze", "Relu"]
    assert found.notes == ("folded 2 constants into the bias of a convolution", *SAID)
    assert_same(proto, found, PICTURES, rtol=1e-6)


def test_a_factor_behind_a_product_and_its_bias_is_part_of_both():
    nodes = [node("Add", "p b", "a"), node("Mul", "f a", "m"), node("Relu", "m", "y")]
    proto = product_with(nodes, {"b": np.float32([1, 2, 3, 4]), "f": np.float32([2, -1, 0, 0.5]).reshape(1, 4)})
    found = simplified(proto, "fold_mul_into_weight")
    assert written(found.model) == [
        "p_scaled = MatMul(x, w_scaled[5, 4])",
        "a_scaled = Add(p_scaled, [2.0, -2.0, 0.0, 2.0])",
        "y = Relu(a_scaled)",
    ]
    assert found.notes == SAID
    assert_same(proto, found, ROWS, rtol=1e-6)


def test_an_output_keeps_its_name():
    found = simplified(product_with([node("Div", "p f", "y")], {"f": np.float32(8)}), "fold_mul_into_weight")
    assert written(found.model) == ["y = MatMul(x, w_scaled[5, 4])"]


CONVS = {
    "along a row": ([node("Mul", "c k", "y")], {"k": floats(5)}),
    "of a batch": ([node("Mul", "c k", "y")], {"k": floats(2, 4, 1, 1)}),
    "divides": ([node("Div", "k c", "y")], {"k": floats(4, 1, 1)}),
    "divides by zero": ([node("Div", "c k", "y")], {"k": np.float32(0)}),
    "squared": ([node("Mul", "c c", "y")], {}),
}
PRODUCTS = {
    "one for each row": ([node("Mul", "p k", "y")], {"k": floats(3, 1)}),
    "what is added has rows": ([node("Add", "p k", "a"), node("Mul", "a f", "y")], {"k": floats(3, 4), "f": floats(4)}),
    "two sums": (
        [node("Add", "p k", "a"), node("Add", "a k", "b"), node("Mul", "b f", "y")],
        {"k": floats(4), "f": floats(4)},
    ),
    "a result": ([node("MatMul", "x v", "q"), node("Mul", "p q", "y")], {"v": floats(5, 4)}),
}


@pytest.mark.parametrize("case", CONVS)
def test_what_is_no_factor_of_channels_stays_behind_a_conv(case):
    assert simplified(conv_with(*CONVS[case], conv="x w b"), "fold_mul_into_weight").notes == ()


@pytest.mark.parametrize("case", PRODUCTS)
def test_what_is_no_factor_of_columns_stays_behind_a_product(case):
    assert simplified(product_with(*PRODUCTS[case]), "fold_mul_into_weight").notes == ()


def test_shared_weights_and_other_readers_keep_theirs():
    nodes = [node("Mul", "p f", "y"), node("MatMul", "x w", "z")]
    assert simplified(product_with(nodes, {"f": floats(4)}, ("y", "z")), "fold_mul_into_weight").notes == ()
    assert simplified(product_with(nodes[:1], {"f": floats(4)}, ("y", "p")), "fold_mul_into_weight").notes == ()


@given(convolutions_with_a_constant("Mul", "Div"))
@settings(max_examples=25, deadline=None)
def test_groups_scalars_and_transposed_convolutions(made):
    proto, feeds = made
    found = simplified(proto, "fold_mul_into_weight")
    assert found.notes == SAID
    assert_same(proto, found, [feeds], rtol=1e-6)
