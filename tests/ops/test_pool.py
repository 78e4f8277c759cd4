"""Pools against onnxruntime."""

import numpy as np
import pytest
from float_support import check, evaluate_single, normal, onnxruntime_single
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxq.errors import ModelError


@st.composite
def pools(draw):
    rank = draw(st.integers(1, 3))
    kernel = [draw(st.integers(1, 3)) for _ in range(rank)]
    attributes = {"kernel_shape": kernel, "strides": [draw(st.integers(1, 3)) for _ in range(rank)]}
    if draw(st.booleans()):
        attributes["pads"] = [draw(st.integers(0, k - 1)) for k in kernel * 2]
        attributes["ceil_mode"] = draw(st.integers(0, 1))
    else:
        # onnxruntime fails on SAME where a window is smaller than its stride.
        attributes["strides"] = [min(pair) for pair in zip(attributes["strides"], kernel, strict=True)]
        attributes["auto_pad"] = draw(st.sampled_from(["SAME_UPPER", "SAME_LOWER", "VALID"]))
    x = normal(draw(st.integers(1, 2)), 2, *(draw(st.integers(4, 9)) for _ in range(rank)))
    return x, attributes


@settings(max_examples=80, deadline=None)
@given(pools(), st.integers(1, 2))
def test_max_pool_agrees_with_onnxruntime(case, dilation):
    x, attributes = case
    if "auto_pad" not in attributes and min(x.shape[2:]) > 2 * dilation:
        attributes["dilations"] = [dilation] * (x.ndim - 2)
    check("MaxPool", [x], **attributes)


@settings(max_examples=80, deadline=None)
@given(pools(), st.integers(0, 1), st.sampled_from([11, 19]))
def test_average_pool_agrees_with_onnxruntime(case, include, opset):
    x, attributes = case
    check("AveragePool", [x], count_include_pad=include, opset=opset, **attributes)


@pytest.mark.parametrize("ceil_mode", [0, 1])
@pytest.mark.parametrize("op_type", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize("pads", [[0, 0], [1, 0], [0, 1], [1, 1]])
@pytest.mark.parametrize(
    ("size", "window", "stride"),
    [
        (1, 2, 2),
        (1, 3, 2),
        (1, 4, 2),
        (1, 4, 3),
        (1, 5, 2),
        (1, 5, 4),
        (2, 5, 2),
        (2, 5, 3),
        (3, 7, 5),
        (7, 1280, 1280),
    ],
)
def test_a_window_larger_than_its_map_agrees_with_onnxruntime(op_type, size, window, stride, pads, ceil_mode):
    """By less than a stride there is one window after all, by two there is none, and beyond that it is an error."""
    x = normal(1, 2, size, 4)
    attributes = {"kernel_shape": [window, 2], "strides": [stride, 1], "ceil_mode": ceil_mode}
    attributes["pads"] = [pads[0], 0, pads[1], 0]
    if window - size - sum(pads) < 2 * stride:
        check(op_type, [x], opset=19, **attributes)
        return
    with pytest.raises(Exception, match="output dimension is negative"):
        onnxruntime_single(op_type, [x], opset=19, **attributes)
    with pytest.raises(ModelError, match="does not fit"):
        evaluate_single(op_type, [x], opset=19, **attributes)


@pytest.mark.parametrize("p", [1, 2, 3])
def test_lp_pool_agrees_with_onnxruntime(p):
    check("LpPool", [normal(2, 3, 7, 8)], kernel_shape=[2, 3], strides=[2, 1], pads=[1, 1, 0, 1], p=p, opset=18)
    check("GlobalLpPool", [normal(2, 3, 7, 8)], p=p)


@pytest.mark.parametrize("op_type", ["GlobalAveragePool", "GlobalMaxPool"])
def test_global_pools_agree_with_onnxruntime(op_type):
    check(op_type, [normal(2, 3, 7, 8)])
    check(op_type, [normal(2, 3, 9)])


def test_max_pool_of_integers():
    x = np.random.default_rng(0).integers(-100, 100, (1, 2, 6, 6)).astype(np.int8)
    check("MaxPool", [x], kernel_shape=[3, 3], pads=[1, 1, 1, 1])


def test_padding_never_wins_a_maximum():
    x = -np.ones((1, 1, 3, 3), np.float32)
    (y,) = evaluate_single("MaxPool", [x], kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    assert np.array_equal(y, x)


@settings(max_examples=80, deadline=None)
@given(pools(), st.integers(0, 1), st.booleans())
def test_the_places_of_maxima_agree_with_onnxruntime(case, storage_order, ties):
    """onnx.reference knows no padding there."""
    x, attributes = case
    check("MaxPool", [np.rint(x) if ties else x], 2, storage_order=storage_order, **attributes)


@pytest.mark.parametrize("x", [np.zeros((1, 2, 3, 3), np.uint8), np.full((1, 2, 3, 3), -np.inf, np.float32)])
def test_the_lowest_number_has_a_place_too(x):
    check("MaxPool", [x], 2, kernel_shape=[2, 2], pads=[1, 1, 0, 0], opset=12)
