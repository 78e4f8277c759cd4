"""Operators that move elements, against onnxruntime, in every version that differs."""

import numpy as np
import pytest
from float_support import check, evaluate_single, normal
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxq.errors import ModelError

X = normal(2, 3, 4)


def ints(*values):
    return np.array(values, np.int64)


@pytest.mark.parametrize("shape", [(6, 4), (-1,), (0, -1), (2, 0, 2, 2), (1, 2, 3, 4)])
def test_reshape_agrees_with_onnxruntime(shape):
    check("Reshape", [X, ints(*shape)])


def test_reshape_variants():
    (y,) = evaluate_single("Reshape", [np.zeros((0, 3), np.float32), ints(3, 0)], opset=14, allowzero=1)
    assert y.shape == (3, 0)
    (y,) = evaluate_single("Reshape", [X], opset=1, shape=[0, -1])
    assert y.shape == (2, 12)


@pytest.mark.parametrize("opset", [9, 11, 13])
def test_squeeze_and_unsqueeze_agree_with_onnxruntime(opset):
    x = normal(1, 3, 1, 2)
    if opset >= 13:
        check("Squeeze", [x, ints(0, 2)], opset=opset)
        check("Unsqueeze", [X, ints(0, -1)], opset=opset)
    else:
        check("Squeeze", [x], opset=opset, axes=[0, 2])
        check("Unsqueeze", [X], opset=opset, axes=[0, 3])
    check("Squeeze", [x], opset=opset)


@pytest.mark.parametrize("axis", [0, 1, 2, 3, -1])
def test_flatten_agrees_with_onnxruntime(axis):
    check("Flatten", [X], axis=axis)


def test_transpose_concat_tile_and_expand_agree_with_onnxruntime():
    check("Transpose", [X])
    check("Transpose", [X], perm=[1, 2, 0])
    check("Concat", [X, normal(2, 1, 4), X], axis=1)
    check("Concat", [X, X], axis=-1)
    check("Tile", [X, ints(1, 2, 3)])
    check("Expand", [normal(3, 1), ints(2, 1, 4)])
    check("Expand", [X, ints(1)])
    assert evaluate_single("Concat", [X, X], opset=1)[0].shape == (2, 6, 4)
    assert evaluate_single("Tile", [X, np.array(2.0, np.float32), np.array(1.0, np.float32)], opset=1)[0].shape == (
        2,
        6,
        4,
    )


@pytest.mark.parametrize(
    ("opset", "inputs", "outputs", "attributes"),
    [
        (7, [], 2, {"axis": 2, "split": [1, 3]}),
        (11, [], 3, {"axis": 1}),
        (13, [ints(1, 3)], 2, {"axis": -1}),
        (13, [], 2, {"axis": 0}),
        (18, [], 3, {"axis": 2, "num_outputs": 3}),  # 2, 2 and none left
    ],
)
def test_split_agrees_with_onnxruntime(opset, inputs, outputs, attributes):
    if opset == 18:
        x = normal(2, 3, 5)
        check("Split", [x], outputs, opset=opset, **attributes)
    else:
        check("Split", [X, *inputs], outputs, opset=opset, **attributes)


def test_split_that_does_not_add_up_is_refused():
    with pytest.raises(ModelError, match=r"parts of \[1, 1\] do not add up to 4"):
        evaluate_single("Split", [X, ints(1, 1)], 2, opset=13, axis=2)


big = st.sampled_from([-(2**31), -7, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 7, 2**31 - 1, 2**63 - 1])


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(big, big, st.sampled_from([-3, -2, -1, 1, 2, 3])), min_size=1, max_size=3), st.booleans())
def test_slice_agrees_with_onnxruntime(bounds, from_the_end):
    starts, ends, steps = (ints(*column) for column in zip(*bounds, strict=True))
    axes = ints(*(axis - 3 if from_the_end else axis for axis in range(len(bounds))))
    check("Slice", [normal(4, 5, 3), starts, ends, axes, steps], opset=13)


def test_slice_with_attributes_agrees_with_onnxruntime():
    check("Slice", [X], opset=9, starts=[0, -2], ends=[1, 1000], axes=[0, 2])


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
@pytest.mark.parametrize("pads", [(1, 0, 2, 0, 1, 1), (0, -1, 1, 0, 0, -2), (0, 0, 0, 0, 0, 0)])
def test_pad_agrees_with_onnxruntime(mode, pads):
    check("Pad", [normal(3, 3, 4), ints(*pads), np.float32(1.5)], opset=19, mode=mode)


def test_pad_versions_agree_with_onnxruntime():
    check("Pad", [X], opset=9, pads=[0, 1, 0, 0, 0, 2], value=2.0)
    check("Pad", [X, ints(1, 2), np.float32(0), ints(-1)], opset=18)
    (y,) = evaluate_single("Pad", [np.zeros((1, 2), np.float32)], opset=1, paddings=[0, 1, 0, 0], value=3.0)
    assert y.tolist() == [[3, 0, 0]]
    with pytest.raises(ModelError, match="do not fit 3 axes"):
        evaluate_single("Pad", [X, ints(1, 2)], opset=13)


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_depth_and_space_agree_with_onnxruntime(mode):
    check("DepthToSpace", [normal(2, 8, 3, 4)], blocksize=2, mode=mode)
    check("SpaceToDepth", [normal(2, 3, 4, 6)], blocksize=2)


def test_reverse_sequence_agrees_with_onnxruntime():
    check("ReverseSequence", [normal(4, 3, 2), ints(1, 4, 2)])
    check("ReverseSequence", [normal(3, 4, 2), ints(1, 4, 2)], batch_axis=0, time_axis=1)


def test_an_axis_out_of_range_is_refused():
    for op_type, attributes in {"Concat": {"axis": 3}, "Flatten": {"axis": 4}, "Softmax": {"axis": 5}}.items():
        with pytest.raises(ModelError, match="out of"):
            evaluate_single(op_type, [X], **attributes)
