"""Differences of rows of two as one product: where, and to the bit."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from helpers import ALL, NONE, applied, build, changed_alike, count_ops, floats, node, typed

from onnxq.optimize.optimize import optimize_for_target
from onnxq.optimize.pairwise_difference import join_differences

STEPS = {
    "split": ("Split", "x sizes", "a b", {"axis": -1}),
    "ahead": ("Sub", "a b", "p", {}),
    "behind": ("Sub", "b a", "q", {}),
    "joined": ("Concat", "p q", "d", {"axis": -1}),
    "out": ("Sigmoid", "d", "y", {}),
}


def model(
    outputs: str = "y", shape: tuple[int, ...] = (3, 600, 2), sizes: tuple[int, int] = (1, 1), **other: tuple
) -> onnx.ModelProto:
    steps = {**STEPS, **other}
    nodes = [node(op, reads, makes, **attributes) for op, reads, makes, attributes in steps.values()]
    return build(nodes, {"x": [*shape]}, outputs.split(), {"sizes": np.array(sizes, np.int64)}, 13)


@pytest.mark.parametrize("shape", [(3, 600, 2), (700, 2), (2,)])
def test_they_are_a_product_to_the_bit(shape: tuple[int, ...]) -> None:
    x = floats(*shape, scale=20)
    x.reshape(-1, 2)[0] = [1e-40, -3e38]
    made, count = changed_alike(model(shape=shape), join_differences, {"x": x}, [NONE, ALL])
    assert count == 1
    assert count_ops(made) == {"MatMul": 1, "Sigmoid": 1}
    assert made.graph.node[0].name == "n_d"


def test_a_class_that_is_ruled_out_stays_so() -> None:
    x = floats(600, 2)
    x[:2] = [[-np.inf, 1], [1, -np.inf]]
    changed_alike(model(shape=(600, 2)), join_differences, {"x": x}, [NONE, ALL])


@pytest.mark.parametrize(
    "proto",
    [
        model(joined=("Concat", "p q", "d", {"axis": -2})),
        model(split=("Split", "x sizes", "a b", {"axis": 0}), shape=(2, 600, 2)),
        model(sizes=(2, 1), shape=(3, 600, 3), behind=("Sub", "b a", "q", {})),
        model(behind=("Sub", "a b", "q", {})),  # both the same
        model(behind=("Add", "b a", "q", {})),
        model("y p"),  # a difference is asked for by itself
        model(behind=("Sub", "b x", "q", {}), shape=(3, 600, 2)),
        model(joined=("Concat", "p q p", "d", {"axis": -1})),
    ],
)
def test_others_stay(proto: onnx.ModelProto) -> None:
    assert applied(join_differences, typed(proto)) == 0


def test_it_is_part_of_tuning_where_kernels_are_known() -> None:
    for target, kinds in (("cpu", ["MatMul", "Sigmoid"]), ("qnn", ["Split", "Sub", "Sub", "Concat", "Sigmoid"])):
        assert [step.op_type for step in optimize_for_target(typed(model()), target).graph.nodes] == kinds
