"""Conv and ConvTranspose against onnxruntime, over what their attributes allow."""

import numpy as np
import pytest
from float_support import check, evaluate_single, normal
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxq.errors import ModelError
from onnxq.ops.kernels.conv import conv
from onnxq.ops.kernels.conv_transpose import conv_transpose

small = st.integers(1, 3)


@st.composite
def convolutions(draw, transposed=False):
    rank = draw(st.integers(1, 3))
    group = draw(st.integers(1, 3))
    per_group_in, per_group_out = draw(small), draw(small)
    kernel = [draw(small) for _ in range(rank)]
    dilations = [draw(st.integers(1, 2)) for _ in range(rank)]
    strides = [draw(small) for _ in range(rank)]
    pads = [draw(st.integers(0, 2)) for _ in range(2 * rank)]
    sizes = [draw(st.integers(5, 9)) for _ in range(rank)]
    attributes = {"group": group, "kernel_shape": kernel, "dilations": dilations, "strides": strides}
    if draw(st.booleans()) or transposed:
        attributes["pads"] = pads if not transposed else [min(p, 1) for p in pads]
    elif set(dilations) == {1}:
        attributes["auto_pad"] = draw(st.sampled_from(["SAME_UPPER", "SAME_LOWER", "VALID"]))
    x = normal(draw(small), group * per_group_in, *sizes)
    shape = (group * per_group_in, per_group_out) if transposed else (group * per_group_out, per_group_in)
    w = normal(*shape, *kernel, seed=1)
    b = normal(group * per_group_out, seed=2) if draw(st.booleans()) else None
    return [x, w] if b is None else [x, w, b], attributes


@settings(max_examples=120, deadline=None)
@given(convolutions())
def test_conv_agrees_with_onnxruntime(case):
    inputs, attributes = case
    check("Conv", inputs, rtol=1e-4, atol=1e-5, **attributes)


@settings(max_examples=60, deadline=None)
@given(convolutions(transposed=True), st.booleans())
def test_conv_transpose_agrees_with_onnxruntime(case, longer):
    inputs, attributes = case
    if longer:  # output_padding must be below the stride
        attributes["output_padding"] = [stride - 1 for stride in attributes["strides"]]
    check("ConvTranspose", inputs, rtol=1e-4, atol=1e-5, **attributes)


@pytest.mark.parametrize("window", [(3, 4), (3, 1)])  # one place wide, it leaves every other column out
@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER"])
def test_conv_transpose_pads_by_itself(auto_pad, window):
    inputs = [normal(1, 2, 5, 6), normal(2, 3, *window, seed=1)]
    check("ConvTranspose", inputs, strides=[2, 2], auto_pad=auto_pad, atol=1e-5)


def test_conv_transpose_to_a_stated_shape():
    check(
        "ConvTranspose",
        [normal(1, 2, 5, 5), normal(2, 3, 3, 3, seed=1)],
        strides=[2, 2],
        output_shape=[10, 10],
        atol=1e-5,
    )


@pytest.mark.parametrize(
    ("x", "w", "attributes"),
    [
        ((1, 16, 120, 130), (8, 16, 3, 3), {"pads": [1, 1, 1, 1]}),  # several blocks of rows
        ((1, 16, 120, 130), (8, 16, 3, 3), {"strides": [2, 2], "pads": [0, 1, 1, 0]}),
        ((40, 8, 12, 12), (8, 8, 3, 3), {"pads": [1, 1, 1, 1]}),  # several images in a block
        ((5, 64, 40, 40), (64, 1, 3, 3), {"group": 64, "pads": [1, 1, 1, 1]}),  # several blocks of channels
        ((2, 64, 41, 40), (128, 1, 5, 3), {"group": 64, "strides": [2, 1], "dilations": [1, 2]}),
        ((2, 32, 20, 20), (16, 32, 1, 1), {"strides": [2, 2]}),
        ((1, 3, 50, 50), (4, 3, 7, 7), {"strides": [2, 2], "pads": [3, 3, 3, 3]}),
    ],
)
def test_conv_in_blocks_agrees_with_onnxruntime(x, w, attributes):
    check("Conv", [normal(*x), normal(*w, seed=1), normal(w[0], seed=2)], rtol=1e-4, atol=1e-4, **attributes)


def test_equal_rows_of_a_pointwise_weight_give_equal_channels():
    x, w = normal(1, 512, 13, 13), np.repeat(normal(1, 512, 1, 1, seed=1), 1000, axis=0)
    y = conv(x, w)
    assert np.array_equal(y, np.broadcast_to(y[:, :1], y.shape))


def test_conv_without_elements():
    assert conv(np.zeros((0, 2, 5, 5), np.float32), normal(3, 2, 3, 3)).shape == (0, 3, 3, 3)
    assert conv_transpose(np.zeros((0, 2, 5, 5), np.float32), normal(2, 3, 3, 3)).shape == (0, 3, 7, 7)


def test_conv_keeps_narrow_and_wide_types():
    x, w = normal(1, 2, 6, 6), normal(3, 2, 3, 3, seed=1)
    exact = conv(x.astype(np.float64), w.astype(np.float64))
    assert exact.dtype == np.float64
    half = conv(x.astype(np.float16), w.astype(np.float16))
    assert half.dtype == np.float16
    np.testing.assert_allclose(half.astype(np.float64), exact, rtol=0, atol=2e-2)


def test_conv_says_what_does_not_fit():
    with pytest.raises(ModelError, match=r"input \[1, 3, 4, 4\] and weight \[2, 2, 3, 3\] do not fit with group 1"):
        conv(normal(1, 3, 4, 4), normal(2, 2, 3, 3))
    with pytest.raises(
        ModelError, match=r"node node \(Conv\): a window of \[5, 5\] does not fit into the padded input"
    ):
        evaluate_single("Conv", [normal(1, 1, 3, 3), normal(1, 1, 5, 5)])
