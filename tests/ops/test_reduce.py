"""Reductions, ArgMax, ArgMin and TopK against onnxruntime, with axes as attribute and as input."""

import numpy as np
import pytest
from float_support import check, evaluate_single, normal
from hypothesis import given, settings
from hypothesis import strategies as st

OPERATORS = [
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd",
    "ReduceSum", "ReduceSumSquare",
]  # fmt: skip


@st.composite
def reductions(draw):
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    axes = draw(st.lists(st.integers(-len(shape), len(shape) - 1), max_size=len(shape)))
    axes = list({axis % len(shape): axis for axis in axes}.values())
    return np.abs(normal(*shape)) + np.float32(0.1), axes, draw(st.integers(0, 1))


@pytest.mark.parametrize("op_type", OPERATORS)
@pytest.mark.parametrize("opset", [11, 13, 18])
@settings(max_examples=15, deadline=None)
@given(reductions())
def test_reductions_agree_with_onnxruntime(op_type, opset, case):
    x, axes, keep = case
    by_input = opset >= 18 or (op_type == "ReduceSum" and opset >= 13)
    if by_input:
        check(op_type, [x, np.array(axes, np.int64)], opset=opset, keepdims=keep, rtol=1e-4)
    else:
        check(op_type, [x], opset=opset, keepdims=keep, rtol=1e-4, **({"axes": axes} if axes else {}))


@pytest.mark.parametrize("kind", [np.int32, np.int64, np.float64])
@pytest.mark.parametrize("op_type", ["ReduceSum", "ReduceMax", "ReduceMin", "ReduceMean", "ReduceProd"])
def test_reductions_keep_the_type(op_type, kind):
    if (op_type, kind) == ("ReduceMean", np.int64):
        kind = np.int32  # onnxruntime has no kernel for int64
    x = np.random.default_rng(0).integers(-9, 9, (3, 4)).astype(kind)
    check(op_type, [x, np.array([1], np.int64)], opset=18)


def test_empty_axes_do_nothing_when_told_so():
    x = normal(2, 3)
    (y,) = evaluate_single("ReduceSum", [x, np.zeros(0, np.int64)], opset=13, noop_with_empty_axes=1)
    assert np.array_equal(y, x)


def test_reductions_of_nothing_give_the_neutral_element():
    x, axes = np.zeros((2, 0), np.float32), np.array([1], np.int64)
    for op_type, expected in {"ReduceSum": 0, "ReduceProd": 1, "ReduceMax": -np.inf, "ReduceMin": np.inf}.items():
        (y,) = evaluate_single(op_type, [x, axes], opset=20)
        assert y.tolist() == [[expected], [expected]], op_type


def test_log_sum_exp_does_not_overflow():
    (y,) = evaluate_single("ReduceLogSumExp", [np.array([1000, 1000], np.float32)], opset=18, keepdims=0)
    np.testing.assert_allclose(y, 1000 + np.log(2), rtol=1e-6)


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("keep", [0, 1])
@pytest.mark.parametrize("op_type", ["ArgMax", "ArgMin"])
def test_positions_agree_with_onnxruntime(op_type, keep, last):
    x = np.random.default_rng(0).integers(0, 3, (4, 5, 6)).astype(np.float32)  # with many ties
    for axis in (0, -1):
        check(op_type, [x], axis=axis, keepdims=keep, select_last_index=last, opset=13)


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("kind", [np.float32, np.int64])
def test_top_k_agrees_with_onnxruntime(kind, axis, largest):
    x = np.random.default_rng(0).integers(-3, 3, (5, 6, 7)).astype(kind)
    check("TopK", [x, np.array([3], np.int64)], 2, opset=11, axis=axis, largest=largest)


def test_top_k_of_the_smallest_integers_does_not_overflow():
    x = np.array([np.iinfo(np.int64).min, 0, 5], np.int64)
    values, _ = evaluate_single("TopK", [x, np.array([2], np.int64)], 2, opset=11)
    assert values.tolist() == [5, 0]


def test_top_k_with_its_k_as_attribute():
    values, indices = evaluate_single("TopK", [np.array([1, 3, 2], np.float32)], 2, opset=9, k=2)
    assert values.tolist() == [3, 2]
    assert indices.tolist() == [1, 2]
