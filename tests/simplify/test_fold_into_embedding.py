"""What is computed of looked-up rows alone."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from helpers import build, floats, node, run
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from onnx import TensorProto
from support import assert_same, simplified, written

I64 = TensorProto.INT64
IDS = {"ids": np.int64([[0, 6, 3, 3], [1, -1, 2, 0]])}


def said(count):
    s = "" if count == 1 else "s"
    return (f"folded {count} operator{s} on looked-up rows into the table",)


def proto_of(nodes, weights=None, outputs=("y",), table=None):
    table = floats(7, 4) if table is None else table
    made = [node("Gather", "t ids", "g"), *nodes]
    return build(made, {"ids": (I64, ["n", 4])}, outputs, {"t": table, **(weights or {})})


def test_a_bias_and_a_function_move_into_the_table():
    nodes = [
        node("Add", "g b", "a"),
        node("Mul", "a half", "h"),
        node("Tanh", "a", "t1"),
        node("Mul", "h t1", "m"),
        node("Reshape", "m s", "y"),
    ]
    weights = {"b": floats(1, 1, 4), "half": np.float32([[0.5]]), "s": np.int64([-1, 8])}
    proto = proto_of(nodes, weights)
    found = simplified(proto, "fold_into_embedding")
    assert written(found.model) == ["m = Gather(t_folded[7, 4], ids, axis=0)", "y = Reshape(m, [-1, 8])"]
    assert found.notes == said(4)
    assert_same(proto, found, [IDS], rtol=1e-6)


def test_products_with_narrow_matrices_move_too():
    proto = proto_of([node("MatMul", "g w", "m"), node("Relu", "m", "y")], {"w": floats(4, 3)})
    found = simplified(proto, "fold_into_embedding")
    assert written(found.model) == ["y = Gather(t_folded[7, 3], ids, axis=0)"]
    assert_same(proto, found, [IDS], rtol=1e-6)
    wide = proto_of([node("MatMul", "g w", "m"), node("Relu", "m", "y")], {"w": floats(4, 5)})
    assert simplified(wide, "fold_into_embedding").notes == ()


@pytest.mark.parametrize("axes", [0, 2])
def test_rows_may_have_any_number_of_axes(axes):
    table = floats(7, *(2, 3)[:axes])
    constant = floats(1, *(2, 3)[:axes])
    proto = proto_of([node("Sub", "c g", "a"), node("Exp", "a", "y")], {"c": constant}, table=table)
    found = simplified(proto, "fold_into_embedding")
    assert found.notes == said(2)
    assert_same(proto, found, [IDS], rtol=1e-6)


REFUSED = {
    "positions": ([node("Add", "g c", "y")], {"c": floats(4, 4)}),
    "another input": ([node("Add", "g x", "y")], {}),
    "a longer result": ([node("Add", "g c", "y")], {"c": floats(1, 1, 1, 4)}),
    "along an axis": ([node("Softmax", "g", "y", axis=1)], {}),
    "a matrix first": ([node("MatMul", "c g", "y")], {"c": floats(4, 4)}),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_of_single_rows_stays(case):
    nodes, weights = REFUSED[case]
    made = [node("Gather", "t ids", "g"), *nodes]
    inputs = {"ids": (I64, ["n", 4]), "x": ["n", 4, 4]}
    proto = build(made, inputs, weights={"t": floats(7, 4), **weights})
    assert simplified(proto, "fold_into_embedding").notes == ()


def test_steps_are_computed_in_float32():
    """3 / 0.1 is 30 in float32; in float64, 0.1 as a float32 is more, and the quotient less than 30."""
    nodes = [node("Div", "g tenth", "d"), node("Floor", "d", "f"), node("Mul", "f tenth", "y")]
    proto = proto_of(nodes, {"tenth": np.float32(0.1)}, table=np.float32([[0, 1, 2, 3]] * 7))
    found = simplified(proto, "fold_into_embedding")
    assert [line.split(" = ")[1].split("(")[0] for line in written(found.model)] == ["Gather", "Floor", "Mul"]
    assert_same(proto, found, [IDS], 0)


def test_rows_that_others_read_stay():
    for outputs, extra in ((("y", "g"), []), (("y", "z"), [node("Softmax", "g", "z")])):
        proto = proto_of([node("Relu", "g", "y"), *extra], outputs=outputs)
        assert simplified(proto, "fold_into_embedding").notes == ()
    inside = proto_of([node("Relu", "g", "a"), node("Neg", "a", "y"), node("Softmax", "a", "z")], outputs=("y", "z"))
    found = simplified(inside, "fold_into_embedding")
    assert written(found.model)[0] == "a = Gather(t_folded[7, 4], ids, axis=0)"
    assert found.notes == said(1)


def test_a_large_table_that_others_read_is_not_doubled():
    table = floats(300, 300)
    nodes = [node("Relu", "g", "y"), node("MatMul", "x t", "z")]
    made = [node("Gather", "t ids", "g"), *nodes]
    inputs = {"ids": (I64, ["n", 4]), "x": ["n", 300]}
    assert simplified(build(made, inputs, ("y", "z"), {"t": table}), "fold_into_embedding").notes == ()
    assert simplified(build(made[:2], inputs, ("y",), {"t": table}), "fold_into_embedding").notes == said(1)


def test_a_table_does_not_grow_by_much():
    proto = proto_of([node("Add", "g c", "y")], {"c": floats(300)}, table=floats(900, 1))
    assert simplified(proto, "fold_into_embedding").notes == ()


def test_another_axis_or_a_table_that_is_an_input_stays():
    made = [node("Gather", "t ids", "g", axis=1), node("Relu", "g", "y")]
    assert (
        simplified(build(made, {"ids": (I64, ["n"])}, weights={"t": floats(3, 4)}), "fold_into_embedding").notes == ()
    )
    made = [node("Gather", "t ids", "g"), node("Relu", "g", "y")]
    assert simplified(build(made, {"ids": (I64, ["n"]), "t": [3, 4]}), "fold_into_embedding").notes == ()


FUNCTIONS = ("Relu", "Tanh", "Sigmoid", "Erf", "Abs", "Neg", "Exp")


@given(
    st.lists(st.sampled_from([*FUNCTIONS, "Add", "Mul", "MatMul", "Max"]), min_size=1, max_size=6),
    st.integers(0, 10**6),
)
@example(["Relu", "MatMul", "MatMul", "Exp", "Exp"], 250)  # infinity
@example(["Relu", "Neg", "Relu", "Erf"], 0)  # zeros, of which our own Erf makes 1e-16
@settings(max_examples=30, deadline=None)
def test_any_function_of_rows(chain, seed):
    nodes, weights, before = [], {}, "g"
    for index, op_type in enumerate(chain):
        name = "y" if index + 1 == len(chain) else f"v{index}"
        inputs = before
        if op_type not in FUNCTIONS:
            inputs += f" c{index}"
            shape = (4, 4) if op_type == "MatMul" else [(4,), (1, 4), (), (1, 1, 1)][seed % 4]
            weights[f"c{index}"] = floats(*shape, seed=seed + index)
        nodes.append(node(op_type, inputs, name))
        before = name
    proto = proto_of(nodes, weights, table=floats(7, 4, seed=seed, scale=0.5))
    assume(np.isfinite(run(proto.SerializeToString(), IDS)[0]).all())  # of Exp and products, some overflow
    found = simplified(proto, "fold_into_embedding")
    assert [item.op_type for item in found.model.graph.nodes] == ["Gather"]
    onnx.checker.check_model(onnx.ModelProto.FromString(found.model.serialize()))
    assert_same(proto, found, [IDS], rtol=1e-4 if chain.count("Exp") > 1 else 1e-5)
