"""Products with one-hot tensors."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import build, floats, node
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto
from support import assert_same, simplified, written

I32, I64, U8 = TensorProto.INT32, TensorProto.INT64, TensorProto.UINT8
SAID = ("rewrote 1 one-hot product as Gather",)


def compared(classes, matrix, *, dtype=I32, shape=("n", 3, 1), turned=False, opset=17):
    """Cast(Equal(ids, classes)) times a matrix; ids have a last axis of size 1."""
    nodes = [
        node("Equal", "c ids" if turned else "ids c", "e"),
        node("Cast", "e", "hot", to=1),
        node("MatMul", "hot w", "y"),
    ]
    return build(nodes, {"ids": (dtype, list(shape))}, weights={"c": classes, "w": matrix}, opset=opset)


@pytest.mark.parametrize("turned", [False, True])
def test_a_comparison_becomes_a_lookup(turned):
    matrix = floats(5, 2)
    proto = compared(np.arange(5, dtype=np.int32).reshape(1, 1, 5), matrix, turned=turned)
    found = simplified(proto, "one_hot_to_gather")
    assert written(found.model) == [
        "Squeeze = Squeeze(ids, [-1])",
        "Clip = Clip(Squeeze, -1, 5)",
        "y = Gather(w_rows[6, 2], Clip, axis=0)",
    ]
    assert found.notes == SAID
    ids = np.int32([0, 4, 2, -1, 5, -7, 2**31 - 1, -(2**31), 3]).reshape(3, 3, 1)
    assert_same(proto, found, [{"ids": ids}])


def test_bytes_need_no_limits_where_all_have_a_row():
    proto = compared(np.arange(256, dtype=np.uint8), floats(256, 2), dtype=U8)
    found = simplified(proto, "one_hot_to_gather")
    assert written(found.model) == [
        "Squeeze = Squeeze(ids, [-1])",
        "Cast = Cast(Squeeze, to=6)",
        "y = Gather(w[256, 2], Cast, axis=0)",
    ]
    assert_same(proto, found, [{"ids": np.arange(256, dtype=np.uint8)[::-1][:255].reshape(85, 3, 1)}])


def test_older_operator_sets_state_axes_as_an_attribute():
    found = simplified(compared(np.arange(5, dtype=np.int32), floats(5, 2), opset=12), "one_hot_to_gather")
    assert written(found.model)[0] == "Squeeze = Squeeze(ids, axes=[-1])"
    assert found.model.opset == 12
    older = simplified(compared(np.arange(5, dtype=np.int32), floats(5, 2), opset=11), "one_hot_to_gather")
    assert (older.model.opset, older.notes) == (12, (*SAID, "opset raised from 11 to 12"))


def one_hot(matrix, *, depth=5, values=(0, 1), axis=-1, dtype=I64):
    nodes = [node("OneHot", "ids d v", "hot", axis=axis), node("MatMul", "hot w", "y")]
    weights = {"d": np.int64([depth]), "v": np.float32(values), "w": matrix}
    return build(nodes, {"ids": (dtype, ["n", 3])}, weights=weights)


@given(
    st.integers(1, 6),
    st.lists(st.integers(-9, 9), min_size=6, max_size=6),
    st.sampled_from([I32, I64]),
    st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_every_index_gives_what_it_gave(depth, ids, dtype, by_operator):
    dtype = I64 if by_operator else dtype  # onnxruntime has no OneHot of int32
    matrix = floats(depth, 3, seed=depth)
    numpy_type = np.int32 if dtype == I32 else np.int64
    given_ids = np.array(ids, numpy_type).reshape(2, 3)
    if by_operator:
        proto, feeds = one_hot(matrix, depth=depth, dtype=dtype), {"ids": given_ids}
    else:
        proto = compared(np.arange(depth, dtype=numpy_type), matrix, dtype=dtype)
        feeds = {"ids": given_ids[..., None]}
    found = simplified(proto, "one_hot_to_gather")
    assert found.notes == (SAID if by_operator or depth > 1 else ())
    assert_same(proto, found, [feeds])


def test_where_makes_one_hot_tensors_too():
    nodes = [node("Equal", "ids c", "e"), node("Where", "e one zero", "hot"), node("MatMul", "hot w", "y")]
    weights = {"c": np.arange(5, dtype=np.int64), "one": np.float32(1), "zero": np.float32([0]), "w": floats(5, 2)}
    proto = build(nodes, {"ids": (I64, ["n", 1])}, weights=weights)
    found = simplified(proto, "one_hot_to_gather")
    assert found.notes == SAID
    assert_same(proto, found, [{"ids": np.int64([[3], [9], [-1]])}])
    for other in (np.float32(2), np.ones((1, 1, 1), np.float32)):  # the latter gives the product an axis more
        weights["one"] = other
        assert simplified(build(nodes, {"ids": (I64, ["n", 1])}, weights=weights), "one_hot_to_gather").notes == ()


REFUSED = {
    "classes in another order": compared(np.int32([0, 2, 1, 3, 4]), floats(5, 2)),
    "classes along another axis": compared(
        np.arange(5, dtype=np.int32).reshape(1, 5, 1), floats(1, 2), shape=("n", 1, 1)
    ),
    "no axis of size 1": compared(np.arange(5, dtype=np.int32), floats(5, 2), shape=("n", 3, 5)),
    "unknown last axis": compared(np.arange(5, dtype=np.int32), floats(5, 2), shape=("n", 3, "m")),
    "infinite weights": compared(np.arange(5, dtype=np.int32), np.full((5, 2), np.inf, np.float32)),
    "other values": one_hot(floats(5, 2), values=(0, 2)),
    "values turned": one_hot(floats(5, 2), values=(1, 0)),
    "another axis": one_hot(floats(3, 2), depth=5, axis=1),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_lookup_stays(case):
    assert simplified(REFUSED[case], "one_hot_to_gather").notes == ()


def test_a_matrix_that_is_an_input_stays():
    nodes = [node("Equal", "ids c", "e"), node("Cast", "e", "hot", to=1), node("MatMul", "hot w", "y")]
    inputs = {"ids": (I32, ["n", 1]), "w": [5, 2]}
    assert (
        simplified(build(nodes, inputs, weights={"c": np.arange(5, dtype=np.int32)}), "one_hot_to_gather").notes == ()
    )
    turned = [node("Equal", "ids c", "e"), node("Cast", "e", "hot", to=1), node("MatMul", "w hot", "y")]
    weights = {"c": np.arange(5, dtype=np.int32), "w": floats(2, 3)}
    assert simplified(build(turned, {"ids": (I32, [3, 1])}, weights=weights), "one_hot_to_gather").notes == ()
