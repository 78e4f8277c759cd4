"""Arithmetic, comparisons and bit operators against onnxruntime, and their oldest versions by hand."""

import numpy as np
import pytest
from float_support import check, evaluate_single, normal
from hypothesis import given, settings
from hypothesis import strategies as st

A, B = normal(2, 3, 4) * 3, normal(3, 1, seed=1) + np.float32(0.2)
ARITHMETIC = ["Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "Mean"]


@pytest.mark.parametrize("op_type", ARITHMETIC)
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_arithmetic_agrees_with_onnxruntime(op_type, kind):
    if kind == np.float64 and op_type in ("Sum", "Mean"):
        check(op_type, [A, B, A])
    else:
        check(op_type, [A.astype(kind), B.astype(kind)])


integers = st.integers(-20, 20)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(integers, integers.filter(bool)), min_size=1, max_size=8))
def test_integer_division_truncates_like_onnxruntime(pairs):
    a, b = (np.array(column, np.int32) for column in zip(*pairs, strict=True))
    check("Div", [a, b])
    check("Mod", [a, b], opset=13)
    check("Mod", [a, b], opset=13, fmod=1)


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 2.0, 3.0, -1.0, 2.5])
def test_power_agrees_with_onnxruntime(exponent):
    check("Pow", [np.abs(A), np.float32(exponent)], rtol=2e-6)
    check("Pow", [np.abs(A), np.full((4,), exponent, np.float32)], rtol=2e-6)


def test_power_keeps_the_type_of_the_base():
    check("Pow", [np.array([1, -2, 3], np.int32), np.array([2, 3, 0], np.int64)], opset=13)
    check("Pow", [np.array([1, 2, 3], np.int64), np.float32(2)], opset=13)
    check("Pow", [A, np.int64(2)], opset=13)


UNARY = {
    "Abs": A, "Acos": np.tanh(A), "Acosh": np.abs(A) + 1, "Asin": np.tanh(A), "Asinh": A, "Atan": A,
    "Atanh": np.tanh(A), "Ceil": A, "Cos": A, "Cosh": A, "Exp": A, "Floor": A,
    "Log": np.abs(A), "Neg": A, "Reciprocal": A,
    "Round": np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 0.3], np.float32), "Sign": A, "Sin": A, "Sinh": A,
    "Sqrt": np.abs(A), "Tan": np.tanh(A), "Tanh": A,
}  # fmt: skip


@pytest.mark.parametrize("op_type", UNARY)
def test_functions_of_one_argument_agree_with_onnxruntime(op_type):
    check(op_type, [UNARY[op_type]], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("op_type", ["Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual"])
def test_comparisons_agree_with_onnxruntime(op_type):
    check(op_type, [np.round(A), np.round(B)])


def test_logic_and_bits_agree_with_onnxruntime():
    p, q = A > 0, B > 0
    for op_type in ("And", "Or", "Xor"):
        check(op_type, [p, q])
    check("Not", [p])
    check("Where", [p, A, B])
    u, v = np.arange(8, dtype=np.uint8), np.array([0, 1, 2, 3, 4, 5, 6, 7], np.uint8)
    for direction in ("LEFT", "RIGHT"):
        check("BitShift", [u, v], direction=direction)
    for op_type in ("BitwiseAnd", "BitwiseOr", "BitwiseXor"):
        check(op_type, [u, v[::-1].copy()], opset=18)
    check("BitwiseNot", [u], opset=18)
    special = np.array([np.nan, np.inf, -np.inf, 0], np.float32)
    check("IsNaN", [special])
    for negative, positive in ((1, 1), (0, 1), (1, 0)):
        check("IsInf", [special], detect_negative=negative, detect_positive=positive)


@pytest.mark.parametrize("opset", [7, 10, 11, 13])
def test_clip_agrees_with_onnxruntime_in_every_version(opset):
    if opset < 11:
        check("Clip", [A], opset=opset, min=-1.0, max=2.0)
        check("Clip", [A], opset=opset, max=0.5)
    else:
        check("Clip", [A, np.float32(-1), np.float32(2)], opset=opset)
        check("Clip", [A, None, np.float32(0.5)], opset=opset)
        check("Clip", [A, np.float32(1), np.float32(-1)], opset=opset)  # the upper limit wins


def test_arithmetic_before_7_broadcasts_only_where_it_says_so():
    a, b = np.zeros((2, 3, 4), np.float32), np.arange(3, dtype=np.float32)
    (y,) = evaluate_single("Add", [a, b], opset=6, broadcast=1, axis=1)
    assert np.array_equal(y, np.broadcast_to(b[:, None], (2, 3, 4)))
    (y,) = evaluate_single("Mul", [a + 1, np.arange(4, dtype=np.float32)], opset=1, broadcast=1)
    assert np.array_equal(y, np.broadcast_to(np.arange(4), (2, 3, 4)))
    (y,) = evaluate_single("Clip", [b], opset=1, min=0.5, max=1.5, consumed_inputs=[0])
    assert y.tolist() == [0.5, 1.0, 1.5]
