"""The examples that the operators' documentation prints, and the edges of the five basic kernels."""

from __future__ import annotations

import numpy as np
import pytest

from onnxq import ops
from onnxq.errors import ModelError

F = np.float32


@pytest.mark.parametrize(
    ("x", "scale", "zero_point"),
    [
        (np.array([0, 2, -3, -2.5, 1.34, 0.5], F), F(0.0196078438), 153),
        (np.array([-1.0, -2.1, -1.3, -2.5, -3.34, -4.0], F), F(0.0156862754), 255),
        (np.array([1, 2.1, 1.3, 2.5, 3.34, 4.0, 1.5, 2.6, 3.9, 4.0, 3.0, 2.345], F).reshape(3, 4), F(0.0156862754), 0),
    ],
)
def test_dynamic_quantize_linear_gives_what_its_page_prints(x, scale, zero_point):
    y, y_scale, y_zero_point = ops.dynamic_quantize_linear(x)
    x_min, x_max = np.minimum(0, np.min(x)), np.maximum(0, np.max(x))
    assert y_scale == scale == F((x_max - x_min) / (255 - 0))
    assert y_zero_point == zero_point == np.clip(round((0 - x_min) / y_scale), 0, 255)
    assert (y_scale.dtype, y_zero_point.dtype, y_scale.shape, y_zero_point.shape) == (F, np.uint8, (), ())
    expected = np.clip(np.round(x / y_scale) + F(zero_point), 0, 255).astype(np.uint8)
    np.testing.assert_array_equal(y, expected, strict=True)


X_AXIS = np.array(
    [
        [
            [[-162, 10], [-100, 232], [-20, -50]],
            [[-76, 0], [0, 252], [32, -44]],
            [[245, -485], [-960, -270], [-375, -470]],
        ]
    ],
    F,
)


def test_quantize_linear_axis_gives_what_its_page_prints():
    scale, zero = np.array([2, 4, 5], F), np.array([84, 24, 196], np.uint8)
    y = ops.quantize_linear(X_AXIS, scale, zero)
    expected = (X_AXIS / scale.reshape(1, 3, 1, 1) + zero.reshape(1, 3, 1, 1)).astype(np.uint8)
    np.testing.assert_array_equal(y, expected, strict=True)
    for axis in (1, -3):
        np.testing.assert_array_equal(ops.quantize_linear(X_AXIS, scale, zero, axis=axis), expected)


def test_dequantize_linear_gives_what_its_page_prints():
    y = ops.dequantize_linear(np.array([0, 3, 128, 255], np.uint8), F(2), np.uint8(128))
    np.testing.assert_array_equal(y, np.array([-256, -250, 0, 254], F), strict=True)


def test_dequantize_linear_axis_gives_what_its_page_prints():
    x = np.array(
        [[[[3, 89], [34, 200], [74, 59]], [[5, 24], [24, 87], [32, 13]], [[245, 99], [4, 142], [121, 102]]]], np.uint8
    )
    scale, zero = np.array([2, 4, 5], F), np.array([84, 24, 196], np.uint8)
    expected = (x.astype(F) - zero.reshape(1, 3, 1, 1).astype(F)) * scale.reshape(1, 3, 1, 1)
    np.testing.assert_array_equal(ops.dequantize_linear(x, scale, zero), expected, strict=True)


@pytest.mark.parametrize("shape", [(), (0,), (1,), (7,), (2, 0, 3), (3, 5, 7)])
@pytest.mark.parametrize("zero", [None, np.uint8(3), np.int8(-3), np.uint16(300), np.int16(-300)])
def test_shape_and_type_are_kept(shape, zero):
    x = np.linspace(-3, 3, int(np.prod(shape)), dtype=F).reshape(shape)
    before = x.copy()
    y = ops.quantize_linear(x, F(0.1), zero)
    assert y.shape == shape
    assert y.dtype == (np.uint8 if zero is None else zero.dtype)
    back = ops.dequantize_linear(y, F(0.1), zero)
    assert (back.shape, back.dtype) == (shape, F)
    np.testing.assert_array_equal(x, before)
    if zero is not None and zero.dtype.kind == "i":
        np.testing.assert_allclose(back, x, rtol=0, atol=0.0501)


def test_dynamic_quantize_linear_keeps_scalar_and_empty():
    y, scale, zero = ops.dynamic_quantize_linear(np.array(5, F))
    assert (y.shape, int(y), float(scale), int(zero)) == ((), 255, float(F(5) / F(255)), 0)
    y, scale, zero = ops.dynamic_quantize_linear(np.zeros((2, 0), F))
    assert (y.shape, y.dtype, float(scale), int(zero)) == ((2, 0), np.uint8, 1.0, 0)


@pytest.mark.parametrize("depth", [0, 1, 255, 256, 257, 300, 5000])
@pytest.mark.parametrize(("a_type", "b_type"), [(np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.int8)])
def test_mat_mul_integer_is_exact_for_every_depth(depth, a_type, b_type):
    """All values at the end of the range: float32 would lose the low bits of a sum beyond 2**24."""
    a = np.full((3, depth), np.iinfo(a_type).min or 255, a_type)
    b = np.full((depth, 5), np.iinfo(b_type).min or 255, b_type)
    if depth:
        a[0, 0], b[0, 1] = 1, 3
    za, zb = a_type(np.iinfo(a_type).max if a_type == np.int8 else 0), b_type(1)
    expected = ((a.astype(np.int64) - int(za)) @ (b.astype(np.int64) - 1)).astype(np.int32)
    np.testing.assert_array_equal(ops.mat_mul_integer(a, b, za, zb), expected, strict=True)


def test_mat_mul_integer_wraps_at_32_bits():
    a, b = np.full((1, 70_000), 255, np.uint8), np.full((70_000, 1), 255, np.uint8)
    assert ops.mat_mul_integer(a, b)[0, 0] == (255 * 255 * 70_000) - 2**32


def test_mat_mul_integer_per_row_and_per_column():
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 256, (4, 6), np.uint8), rng.integers(-128, 128, (6, 4), np.int8)
    za, zb = rng.integers(0, 256, 4, np.uint8), rng.integers(-128, 128, 4, np.int8)
    expected = (a.astype(np.int32) - za[:, None]) @ (b.astype(np.int32) - zb)
    for rows in (za, za[:, None]):
        for columns in (zb, zb[None]):
            np.testing.assert_array_equal(ops.mat_mul_integer(a, b, rows, columns), expected)


def test_q_linear_mat_mul_per_row_and_per_column_of_a_batch():
    a, b = np.array([[[2], [3]], [[4], [5]], [[6], [7]]], np.uint8), np.array([[3, 5]], np.uint8)
    scales, zeros = np.array([1, 2], F), np.zeros(2, np.uint8)
    y = ops.q_linear_mat_mul(a, scales, zeros, b, scales, zeros, F(1), np.uint8(0))
    assert y.tolist() == [[[6, 20], [18, 60]], [[12, 40], [30, 100]], [[18, 60], [42, 140]]]


@pytest.mark.parametrize(
    ("a_shape", "b_shape"),
    [((5,), (5,)), ((5,), (5, 3)), ((2, 5), (5,)), ((3, 2, 5), (5, 4)), ((2, 1, 3, 5), (7, 5, 4)), ((5,), (2, 5, 3))],
)
def test_mat_mul_integer_broadcasts_batches(a_shape, b_shape):
    rng = np.random.default_rng(1)
    a, b = rng.integers(0, 256, a_shape, np.uint8), rng.integers(-128, 128, b_shape, np.int8)
    expected = np.matmul(a.astype(np.int32) - 7, b.astype(np.int32) + 5)
    np.testing.assert_array_equal(ops.mat_mul_integer(a, b, np.uint8(7), np.int8(-5)), expected)
    if a.ndim > 1:
        za = rng.integers(0, 256, (*a_shape[:-1], 1), np.uint8)
        expected = np.matmul(a.astype(np.int32) - za, b.astype(np.int32))
        np.testing.assert_array_equal(ops.mat_mul_integer(a, b, za), expected)


def naive_convolution(x, w, strides, pads, dilations, group):
    """The definition, one output element at a time."""
    n = x.ndim - 2
    x = np.pad(x, [(0, 0), (0, 0), *((pads[i], pads[n + i]) for i in range(n))])
    reach = [(w.shape[2 + i] - 1) * dilations[i] + 1 for i in range(n)]
    out = [(x.shape[2 + i] - reach[i]) // strides[i] + 1 for i in range(n)]
    y = np.zeros((x.shape[0], w.shape[0], *out), np.int64)
    channels = x.shape[1] // group
    for m in range(w.shape[0]):
        g = m // (w.shape[0] // group)
        for at in np.ndindex(*out):
            cut = tuple(slice(p * s, p * s + r, d) for p, s, r, d in zip(at, strides, reach, dilations, strict=True))
            box = x[(slice(None), slice(g * channels, (g + 1) * channels), *cut)]
            y[(slice(None), m, *at)] = (box * w[m]).reshape(x.shape[0], -1).sum(1)
    return y


@pytest.mark.parametrize(
    ("x_shape", "w_shape", "attributes"),
    [
        ((2, 3, 9), (4, 3, 3), {"pads": [1, 2], "strides": [2]}),
        ((1, 4, 7, 6), (6, 2, 3, 2), {"group": 2, "pads": [1, 0, 0, 2], "dilations": [2, 1]}),
        ((2, 4, 6, 6), (4, 1, 3, 3), {"group": 4, "pads": [1, 1, 1, 1]}),
        ((2, 4, 6, 6), (8, 1, 3, 3), {"group": 4, "strides": [2, 1]}),
        ((1, 2, 5, 4, 6), (3, 2, 2, 3, 2), {"pads": [1, 1, 0, 0, 0, 1], "strides": [2, 1, 2], "dilations": [1, 1, 3]}),
        ((1, 600, 3, 3), (2, 600, 3, 3), {"pads": [1, 1, 1, 1]}),
    ],
)
def test_conv_integer_is_the_definition(x_shape, w_shape, attributes):
    rng = np.random.default_rng(2)
    n = len(x_shape) - 2
    x, w = rng.integers(200, 256, x_shape, np.uint8), rng.integers(-128, 128, w_shape, np.int8)
    wz = rng.integers(-128, 128, w_shape[0], np.int8)
    expected = naive_convolution(
        x.astype(np.int64) - 9,
        w.astype(np.int64) - wz.reshape(-1, *(1,) * (n + 1)),
        attributes.get("strides", [1] * n),
        attributes.get("pads", [0] * (2 * n)),
        attributes.get("dilations", [1] * n),
        attributes.get("group", 1),
    )
    y = ops.conv_integer(x, w, np.uint8(9), wz, kernel_shape=w_shape[2:], **attributes)
    np.testing.assert_array_equal(y, expected.astype(np.int32), strict=True)


@pytest.mark.parametrize(
    ("auto_pad", "pads"), [("SAME_UPPER", [0, 1, 1, 1]), ("SAME_LOWER", [1, 1, 0, 1]), ("VALID", [0] * 4)]
)
def test_conv_integer_auto_pad(auto_pad, pads):
    rng = np.random.default_rng(3)
    x, w = rng.integers(0, 256, (1, 2, 8, 7), np.uint8), rng.integers(0, 256, (3, 2, 3, 3), np.uint8)
    automatic = ops.conv_integer(x, w, np.uint8(5), strides=[2, 2], auto_pad=auto_pad)
    np.testing.assert_array_equal(automatic, ops.conv_integer(x, w, np.uint8(5), strides=[2, 2], pads=pads))


Z8 = np.zeros(3, np.uint8)
S3 = np.ones(3, F)
X34 = np.zeros((3, 4), F)
Q34 = np.zeros((3, 4), np.uint8)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ops.quantize_linear(X34, S3, np.uint8(0), axis=0), "must be the same"),
        (lambda: ops.quantize_linear(X34, F(1), Z8), "must be the same"),
        (lambda: ops.quantize_linear(X34, S3, Z8, axis=1), "3 scales do not fit axis 1"),
        (lambda: ops.quantize_linear(X34, S3, Z8, axis=2), r"axis 2 is outside \[-2, 1\]"),
        (lambda: ops.quantize_linear(X34, S3, Z8, axis=-3), r"axis -3 is outside"),
        (lambda: ops.quantize_linear(np.zeros(3, F), S3, Z8), r"axis 1 is outside \[-1, 0\]"),
        (lambda: ops.quantize_linear(X34, np.ones((3, 2), F)), "needs block_size"),
        (lambda: ops.quantize_linear(X34, np.ones((3, 1), F), axis=1, block_size=2), r"need a scale of shape \[3, 2\]"),
        (lambda: ops.quantize_linear(X34, F(1), block_size=2), "same rank"),
        (lambda: ops.quantize_linear(X34, S3, axis=0, block_size=2), "same rank"),
        (lambda: ops.quantize_linear(X34, np.ones((3, 4), F), block_size=-1), "negative"),
        (lambda: ops.quantize_linear(X34, F(1), np.uint8(0), output_dtype=3), "must be the same"),
        (lambda: ops.quantize_linear(X34, F(1), output_dtype=6), "cannot be int32"),
        (lambda: ops.quantize_linear(X34, F(1), output_dtype=99), "output_dtype = 99"),
        (lambda: ops.quantize_linear(X34, F(1), output_dtype=7), "output_dtype = 7"),
        (lambda: ops.quantize_linear(X34, F(1), precision=2), "precision is uint8"),
        (lambda: ops.quantize_linear(X34.astype(np.float64), F(1)), "x has type float64"),
        (lambda: ops.quantize_linear(X34, np.float64(1)), "y_scale has type float64"),
        (lambda: ops.quantize_linear(X34, F(1), np.uint16(0), opset=19), "needs opset 21"),
        (lambda: ops.dequantize_linear(Q34, S3, np.uint8(0), axis=0), "must be the same"),
        (lambda: ops.dequantize_linear(Q34, F(1), np.int8(0)), "must be the same"),
        (lambda: ops.dequantize_linear(X34, F(1)), "x has type float32"),
        (lambda: ops.dequantize_linear(Q34, np.ones((3, 3), F), block_size=4), r"need a scale of shape \[3, 1\]"),
        (lambda: ops.dequantize_linear(Q34, np.int32(1)), "x_scale has type int32"),
        (lambda: ops.dequantize_linear(Q34, F(1), output_dtype=2), "output cannot be uint8"),
        (lambda: ops.dynamic_quantize_linear(X34.astype(np.float16)), "float32 only"),
        (lambda: ops.mat_mul_integer(X34, Q34), "A has type float32"),
        (lambda: ops.mat_mul_integer(Q34, Q34), "do not fit for a matrix product"),
        (lambda: ops.mat_mul_integer(Q34, Q34.T, np.zeros(4, np.uint8)), "nor its rows"),
        (lambda: ops.mat_mul_integer(Q34, Q34.T, None, np.zeros(4, np.uint8)), "nor its columns"),
        (lambda: ops.mat_mul_integer(Q34, Q34.T, np.int8(0)), "must be the same"),
        (lambda: ops.mat_mul_integer(np.uint8(1), Q34), "scalar"),
        (lambda: ops.mat_mul_integer(np.zeros((2, 1, 3), np.uint8), np.zeros((3, 3, 1), np.uint8)), "batch dimensions"),
        (lambda: ops.conv_integer(Q34, Q34), "1-D to 3-D"),
        (lambda: ops.conv_integer(Q34[None], Q34[None], pads=[1]), "pads"),
        (lambda: ops.conv_integer(Q34[None], Q34[None], pads=[-1, 0]), "pads"),
        (lambda: ops.conv_integer(Q34[None], Q34[None], strides=[0]), "strides"),
        (lambda: ops.conv_integer(Q34[None], Q34[None], group=2), "2 groups"),
        (lambda: ops.conv_integer(Q34[None], Q34[None], kernel_shape=[3]), "kernel_shape"),
        (lambda: ops.conv_integer(Q34[None], Q34[None], dilations=[2]), "does not fit into"),
        (lambda: ops.conv_integer(Q34[None], Q34[None], auto_pad="SAME"), "auto_pad"),
        (lambda: ops.conv_integer(Q34[None], Q34[None], auto_pad="VALID", pads=[1, 1]), "exclude"),
        (lambda: ops.conv_integer(Q34[None], Q34[None], Z8), "one value for the tensor"),
        (lambda: ops.conv_integer(Q34[None], Q34[None], None, Z8), "one for each of 1 channels"),
    ],
)
def test_what_does_not_fit_is_refused_in_a_sentence(call, message):
    with pytest.raises(ModelError, match=message):
        call()
