"""What can be divided for free: every rule is applied and compared in onnxruntime, every refusal asserted."""

from __future__ import annotations

import numpy as np
import pytest
from rescale_support import build, nothing_changes, stays

from onnxq.rescaling.find_groups import find_groups

R = np.random.default_rng(7)
C = 6


def weight(*shape: int) -> np.ndarray:
    return R.standard_normal(shape).astype(np.float32)


W1, W2, V = weight(4, C), weight(C, 5), weight(C)
K1, K2 = weight(C, 3, 3, 3), weight(4, C, 3, 3)
TOKENS, IMAGE = ["n", "s", 4], ["n", 3, 8, 8]
FIRST = ("MatMul", ["x", "a"], ["h"])
LAST = ("MatMul", ["z", "b"], ["y"])
CONV1, CONV2 = ("Conv", ["x", "a", "c"], ["h"]), ("Conv", ["z", "b"], ["y"])
LINEAR, CONVS = {"a": W1, "b": W2}, {"a": K1, "c": V, "b": K2}
ERF = [
    ("Div", ["h", "root"], ["d"]),
    ("Erf", ["d"], ["e"]),
    ("Add", ["e", "one"], ["e1"]),
    ("Mul", ["h", "e1"], ["z"]),
]
ONE = np.float32(1)

FREE = {
    "layer norm": (
        [FIRST, ("LayerNormalization", ["h", "g", "v"], ["z"], {"axis": -1}), LAST],
        TOKENS,
        LINEAR | {"g": weight(C), "v": V},
    ),
    "layer norm without beta, read twice and by Shape": (
        [
            FIRST,
            ("LayerNormalization", ["h", "g"], ["z"]),
            ("Shape", ["z"], ["s"]),
            LAST,
            ("MatMul", ["z", "b2"], ["y2"]),
            ("Cast", ["s"], ["y3"], {"to": 1}),
        ],
        TOKENS,
        LINEAR | {"g": weight(C), "b2": weight(C, 3)},
    ),
    "instance norm": (
        [CONV1, ("InstanceNormalization", ["h", "g", "v"], ["z"]), CONV2],
        IMAGE,
        CONVS | {"g": weight(C), "v": V},
    ),
    "linear pair with bias": (
        [FIRST, ("Add", ["v", "h"], ["i"]), ("Relu", ["i"], ["z"]), LAST],
        TOKENS,
        LINEAR | {"v": V},
    ),
    "subtraction": ([FIRST, ("Sub", ["h", "v"], ["z"]), LAST], TOKENS, LINEAR | {"v": V}),
    "constant factor": ([("Mul", ["x", "v"], ["z"]), LAST], ["n", C], {"v": V, "b": W2}),
    "constant divisor": ([("Div", ["x", "v"], ["z"]), LAST], ["n", C], {"v": V, "b": W2}),
    "factor behind": (
        [FIRST, ("Relu", ["h"], ["z"]), LAST, ("Mul", ["z", "v"], ["y2"])],
        TOKENS,
        LINEAR | {"v": V},
    ),
    "divisor behind": (
        [FIRST, ("Identity", ["h"], ["z"]), LAST, ("Div", ["z", "v"], ["y2"])],
        TOKENS,
        LINEAR | {"v": V},
    ),
    "single number": (
        [FIRST, ("Mul", ["two", "h"], ["i"]), ("Div", ["i", "two"], ["z"]), LAST],
        TOKENS,
        LINEAR | {"two": np.float32(2)},
    ),
    "gate": (
        [("MatMul", ["x", "g"], ["p"]), ("Sigmoid", ["p"], ["q"]), FIRST, ("Mul", ["q", "h"], ["z"]), LAST],
        TOKENS,
        LINEAR | {"g": weight(4, C)},
    ),
    "Gemm": (
        [
            ("Gemm", ["x", "a", "v"], ["h"], {"transB": 1, "alpha": 0.5, "beta": 2.0}),
            ("LeakyRelu", ["h"], ["z"], {"alpha": 0.3}),
            ("Gemm", ["z", "b"], ["y"]),
        ],
        ["n", 4],
        {"a": weight(C, 4), "v": weight(1, C), "b": W2},
    ),
    "Gemm turned": (
        [("Gemm", ["x", "a"], ["h"]), ("PRelu", ["h", "v"], ["z"]), ("Gemm", ["z", "b"], ["y"], {"transB": 1})],
        ["n", 4],
        {"a": W1, "v": np.abs(V), "b": weight(5, C)},
    ),
    "Conv and pooling": (
        [CONV1, ("Clip", ["h", "zero"], ["i"]), ("MaxPool", ["i"], ["z"], {"kernel_shape": [2, 2]}), CONV2],
        IMAGE,
        CONVS | {"zero": np.float32(0)},
    ),
    "depthwise Conv": (
        [CONV1, ("Relu", ["h"], ["z"]), ("Conv", ["z", "b"], ["y"], {"group": C})],
        IMAGE,
        CONVS | {"b": weight(2 * C, 1, 3, 3)},
    ),
    "grouped Conv": (
        [CONV1, ("Relu", ["h"], ["z"]), ("Conv", ["z", "b"], ["y"], {"group": 2})],
        IMAGE,
        CONVS | {"b": weight(8, C // 2, 3, 3)},
    ),
    "residual": (
        [
            CONV1,
            ("Relu", ["h"], ["t"]),
            ("Conv", ["t", "m"], ["u"], {"pads": [1, 1, 1, 1]}),
            ("Add", ["t", "u"], ["z"]),
            CONV2,
        ],
        IMAGE,
        CONVS | {"m": weight(C, C, 3, 3)},
    ),
    "weight shared by two that do the same": (
        [FIRST, ("Relu", ["h"], ["z"]), LAST, ("MatMul", ["z", "b"], ["y2"])],
        TOKENS,
        LINEAR,
    ),
    "weight that reads and makes": (
        [FIRST, ("Relu", ["h"], ["t"]), ("MatMul", ["t", "m"], ["u"]), ("Add", ["u", "t"], ["z"]), LAST],
        TOKENS,
        LINEAR | {"m": weight(C, C)},
    ),
    "means and Flatten": (
        [CONV1, ("GlobalAveragePool", ["h"], ["i"]), ("Flatten", ["i"], ["z"]), LAST],
        IMAGE,
        CONVS | {"b": W2},
    ),
    "flattened map": (
        [CONV1, ("Relu", ["h"], ["i"]), ("Flatten", ["i"], ["z"]), ("Gemm", ["z", "b"], ["y"], {"transB": 1})],
        IMAGE,
        CONVS | {"b": weight(5, C * 36)},
    ),
    "ReduceMean": (
        [CONV1, ("ReduceMean", ["h"], ["z"], {"axes": [2, -1], "keepdims": 0}), LAST],
        IMAGE,
        CONVS | {"b": W2},
    ),
    "Transpose": (
        [CONV1, ("Transpose", ["h"], ["z"], {"perm": [0, 2, 3, 1]}), LAST],
        IMAGE,
        CONVS | {"b": W2},
    ),
}


@pytest.mark.parametrize("case", FREE)
def test_dividing_a_group_changes_no_output(case):
    nothing_changes(*FREE[case])


OPEN = {
    "a Clip from below zero": (
        [CONV1, ("Clip", ["h", "low", "six"], ["z"]), CONV2],
        IMAGE,
        CONVS | {"low": np.float32(-1), "six": np.float32(6)},
    ),
    "GELU": ([FIRST, *ERF, LAST], TOKENS, LINEAR | {"root": np.float32(1.41), "one": ONE}),
    "a function without scale": ([FIRST, ("Tanh", ["h"], ["z"]), LAST], TOKENS, LINEAR),
    "the model's input": ([("Relu", ["x"], ["z"]), LAST], ["n", C], {"b": W2}),
    "a residual into a norm": (
        [
            FIRST,
            ("LayerNormalization", ["h", "v"], ["z"]),
            LAST,
            ("Add", ["z", "h"], ["i"]),
            ("LayerNormalization", ["i", "v"], ["y2"]),
        ],
        TOKENS,
        LINEAR | {"v": V},
    ),
    "a square": ([FIRST, ("Relu", ["h"], ["z"]), LAST, ("Mul", ["z", "z"], ["y2"])], TOKENS, LINEAR),
    "a sum with a number": ([FIRST, ("Add", ["h", "one"], ["z"]), LAST], TOKENS, LINEAR | {"one": ONE}),
    "a divisor": (
        [FIRST, ("Exp", ["h"], ["z"]), LAST, ("Div", ["one", "z"], ["y2"])],
        TOKENS,
        LINEAR | {"one": ONE},
    ),
    "a weight with another reader": (
        [FIRST, ("Relu", ["h"], ["z"]), LAST, ("ReduceMax", ["b"], ["y2"], {"axes": [0]})],
        TOKENS,
        LINEAR,
    ),
    "a norm over more axes": (
        [CONV1, ("LayerNormalization", ["h", "g"], ["z"], {"axis": 1}), CONV2],
        IMAGE,
        CONVS | {"g": weight(C, 6, 6)},
    ),
    "two factors of a product": (
        [FIRST, ("Relu", ["h"], ["z"]), LAST, ("Abs", ["h"], ["p"]), ("Mul", ["p", "z"], ["y2"])],
        TOKENS,
        LINEAR,
    ),
}


@pytest.mark.parametrize("case", OPEN)
def test_an_edge_that_nothing_absorbs_keeps_a_value_as_it_is(case):
    stays(*OPEN[case])


def test_an_upper_bound_is_told_by_the_value_that_it_holds_for():
    nodes = [CONV1, ("Clip", ["h", "zero", "six"], ["z"]), CONV2]
    model = build(nodes, IMAGE, CONVS | {"zero": np.float32(0), "six": np.float32(6)})
    value = model.graph.values["z"]
    assert find_groups({value: 1})[value].limits == {value: 6.0}


def test_an_output_of_the_model_is_not_divided():
    model = build([FIRST, ("Relu", ["h"], ["z"]), LAST], TOKENS, LINEAR, outputs=["y", "z"])
    value = model.graph.values["z"]
    assert not find_groups({value: -1})


def test_a_deep_trunk_is_searched_once():
    nodes, weights = [FIRST, ("Relu", ["h"], ["t0"])], dict(LINEAR)
    depth = 400
    for i in range(depth):
        weights[f"m{i}"] = weight(C, C)
        nodes += [("MatMul", [f"t{i}", f"m{i}"], [f"u{i}"]), ("Add", [f"u{i}", f"t{i}"], [f"t{i + 1}"])]
    nodes.append(("Tanh", [f"t{depth}"], ["y"]))  # open at the far end, deeper than Python's recursion limit
    model = build(nodes, TOKENS, weights)
    values = {model.graph.values[f"t{i}"]: -1 for i in range(depth)}
    assert not find_groups(values)
