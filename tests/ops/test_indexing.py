"""Gather and scatter against onnxruntime."""

import numpy as np
import pytest
from float_support import check, evaluate_single, normal

from onnxq.errors import ModelError
from onnxq.ops.kernels.indexing import gather

X = normal(4, 5, 6)


def ints(values):
    return np.array(values, np.int64)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("indices", [2, [0, -1], [[1, 2], [3, -4]]])
def test_gather_agrees_with_onnxruntime(axis, indices):
    check("Gather", [X, ints(indices)], axis=axis)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("indices", [2, [0, -1], [[1, 2], [3, -4]]])
def test_gather_of_a_table_at_an_odd_place_gives_the_same(axis, indices):
    odd = np.frombuffer(b"x" + X.tobytes(), np.uint8)[1:].view(np.float32).reshape(X.shape)
    assert not odd.flags.aligned
    np.testing.assert_array_equal(gather(odd, ints(indices), axis=axis), np.take(X, indices, axis=axis))


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_gather_elements_agrees_with_onnxruntime(axis):
    indices = np.random.default_rng(0).integers(-4, 4, (2, 3, 4))
    check("GatherElements", [X, indices], axis=axis)


@pytest.mark.parametrize(
    ("indices", "batch"),
    [([[0, 1], [3, -1]], 0), ([[[1], [2]]], 0), ([[1, 2], [3, 4], [0, 0], [-1, -1]], 1), ([[[0]] * 5] * 4, 2)],
)
def test_gather_nd_agrees_with_onnxruntime(indices, batch):
    check("GatherND", [X, ints(indices)], batch_dims=batch)


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
def test_scatter_agrees_with_onnxruntime(reduction):
    rng = np.random.default_rng(0)
    for axis in (0, 1, -1):
        indices = np.argsort(rng.random((2, 3, 4)), axis=axis)  # no position twice: "none" must be defined
        check("ScatterElements", [X, indices, normal(2, 3, 4)], axis=axis, reduction=reduction, opset=18)
    check("ScatterND", [X, ints([[0, 1], [3, -1]]), normal(2, 6)], reduction=reduction, opset=18)


def test_scatter_adds_up_what_meets_at_one_place():
    (y,) = evaluate_single(
        "ScatterElements", [np.zeros(3, np.float32), ints([1, 1, -1]), np.float32([2, 3, 4])], opset=18, reduction="add"
    )
    assert y.tolist() == [0, 5, 4]


def test_scatter_under_its_old_name():
    (y,) = evaluate_single("Scatter", [np.zeros(3, np.float32), ints([2]), np.float32([7])], opset=10)
    assert y.tolist() == [0, 0, 7]


def test_scatter_leaves_its_input_alone():
    x = np.zeros(3, np.float32)
    evaluate_single("ScatterND", [x, ints([[1]]), np.float32([5])])
    assert not x.any()


def test_compress_agrees_with_onnxruntime():
    condition = np.array([True, False, True])
    check("Compress", [X, condition], axis=1)
    check("Compress", [X, condition])


def test_an_index_out_of_range_is_refused():
    with pytest.raises(ModelError, match=r"node node \(Gather\): it failed: index 9 is out of bounds"):
        evaluate_single("Gather", [X, ints([9])])
    with pytest.raises(ModelError, match="reduction 'mean' does not exist"):
        evaluate_single("ScatterND", [X, ints([[0]]), normal(1, 5, 6)], opset=18, reduction="mean")
