"""Operators that make tensors, against onnxruntime."""

import numpy as np
import pytest
from float_support import check, evaluate_single, normal
from onnx import TensorProto, helper

X = normal(3, 4)
PLAIN = [np.bool_, np.uint8, np.int8, np.int32, np.int64, np.float16, np.float32, np.float64]


def ints(*values):
    return np.array(values, np.int64)


@pytest.mark.parametrize("target", PLAIN)
@pytest.mark.parametrize("source", PLAIN)
def test_casts_agree_with_onnxruntime(source, target):
    x = np.array([0, 1, 2, 3, 100], np.float64).astype(source)
    check("Cast", [x], to=helper.np_dtype_to_tensor_dtype(np.dtype(target)))


def test_casts_truncate_and_keep_nan():
    check("Cast", [np.float32([-2.7, -0.5, 0.5, 2.7])], to=TensorProto.INT32)
    check("Cast", [np.float32([np.nan, 0.0, 0.1])], to=TensorProto.BOOL)
    (y,) = evaluate_single("Cast", [X], opset=1, to="DOUBLE")
    assert y.dtype == np.float64
    check("CastLike", [X, ints(1)], opset=15)


@pytest.mark.parametrize(
    ("kind", "bounds"),
    [
        (np.int64, (2, 11, 3)),
        (np.int32, (10, 0, -4)),
        (np.int64, (3, 3, 1)),
        (np.float32, (0.0, 1.0, 0.3)),
        (np.float32, (5.0, 1.0, 1.0)),
    ],
)
def test_range_agrees_with_onnxruntime(kind, bounds):
    check("Range", [np.array(v, kind) for v in bounds])


def test_shapes_and_constants_agree_with_onnxruntime():
    check("Shape", [X])
    check("Shape", [normal(2, 3, 4, 5)], opset=15, start=-3, end=3)
    check("Size", [X])
    check("ConstantOfShape", [ints(2, 3)])
    check("ConstantOfShape", [ints(2, 3)], value=helper.make_tensor("v", TensorProto.INT64, [1], [7]))
    check("EyeLike", [X], k=1)
    check("EyeLike", [X], k=-1, dtype=TensorProto.INT64)
    check("NonZero", [np.array([[1, 0], [2, 3]], np.int64)])


@pytest.mark.parametrize("upper", [0, 1])
@pytest.mark.parametrize("k", [None, -1, 0, 2])
def test_trilu_agrees_with_onnxruntime(upper, k):
    check("Trilu", [normal(2, 4, 5), None if k is None else np.array(k, np.int64)], upper=upper)


@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_one_hot_agrees_with_onnxruntime(axis):
    indices = ints(0, 3, -1, 9, -9).reshape(1, 5)
    check("OneHot", [indices, np.array(4, np.int64), np.float32([-1, 2])], axis=axis)


@pytest.mark.parametrize(("kind", "depth"), [(np.uint8, 300), (np.int8, 200), (np.float32, 5)])
def test_one_hot_of_narrow_indices(kind, depth):
    (y,) = evaluate_single("OneHot", [kind([3, 0]), np.array(depth, np.int64), np.float32([0, 1])])
    assert y.shape == (2, depth)
    assert np.argwhere(y).tolist() == [[0, 3], [1, 0]]


@pytest.mark.parametrize(
    ("attribute", "value", "expected"),
    [
        ("value_float", 1.5, np.float32(1.5)),
        ("value_floats", [1.0, 2.0], np.float32([1, 2])),
        ("value_int", 3, np.int64(3)),
        ("value_ints", [3, 4], ints(3, 4)),
    ],
)
def test_constants_of_every_form(attribute, value, expected):
    (y,) = evaluate_single("Constant", [], **{attribute: value})
    assert y.dtype == expected.dtype
    assert np.array_equal(y, expected)
