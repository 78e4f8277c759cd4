"""Where engines differ: one test for each row of the table in docs/reference/operators.md."""

from __future__ import annotations

import re
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from onnxq import ops
from onnxq.errors import ModelError
from onnxq.ops.kernels.registry import find_kernel

F = np.float32
PAGE = Path(__file__).parents[2] / "docs/reference/operators.md"
INTEGERS = [
    *(np.uint8, np.int8, np.uint16, np.int16),
    *(ml_dtypes.uint4, ml_dtypes.int4, ml_dtypes.uint2, ml_dtypes.int2),
]


def values(array):
    return np.asarray(array).astype(np.float64).reshape(-1).tolist()


def limits(dtype):
    info = np.iinfo(dtype) if np.dtype(dtype).kind in "iu" else ml_dtypes.iinfo(dtype)
    return [int(info.min), int(info.max)]


def test_every_row_of_the_page_has_its_test_and_every_test_its_row():
    rows = set(re.findall(r"`(test_q_\w+)`", PAGE.read_text()))
    tests = {name for name in globals() if name.startswith("test_q_")}
    assert rows == tests


def test_q_ties_round_before_the_zero_point():
    assert values(ops.quantize_linear(np.array([0.5, 1.5, 2.5], F), F(1), np.uint8(11))) == [11, 13, 13]


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("real", [F, np.float16])
def test_q_beyond_int32_saturates(dtype, real):
    """Odd count, so that the last sub-byte values stand at a byte boundary."""
    x = np.array([np.inf, -np.inf, 60000, -60000, np.inf], real)
    low, high = limits(dtype)
    y = ops.quantize_linear(x, real(2.0**-24), np.array(1).astype(dtype))
    assert values(y) == [high, low, high, low, high]
    if real == F:
        assert values(ops.quantize_linear(np.array([3e9, -3e9, 3e38], F), F(1), np.zeros((), dtype))) == [
            high,
            low,
            high,
        ]


@pytest.mark.parametrize("dtype", INTEGERS)
def test_q_nan_is_the_lowest(dtype):
    x = np.array([np.nan, -np.nan, 1], F)
    assert values(ops.quantize_linear(x, F(1), np.array(1).astype(dtype)))[:2] == [limits(dtype)[0]] * 2


def test_q_scale_of_zero():
    assert values(ops.quantize_linear(np.array([0, 1, -1, 0.5], F), F(0), np.uint8(0))) == [0, 255, 0, 255]


def test_q_subnormal_negative_and_infinite_scale():
    assert values(ops.quantize_linear(np.array([3], F), F(1e-41), np.uint8(0))) == [255]
    assert values(ops.quantize_linear(np.array([3, -3], F), F(-1), np.int8(0))) == [-3, 3]
    assert values(ops.quantize_linear(np.array([3, np.inf], F), F(np.inf), np.uint8(9))) == [9, 0]


def test_q_one_element_scale_is_per_tensor():
    x = np.array([[1, 2, 3]], F)
    assert values(ops.quantize_linear(x, np.array([0.5], F), np.uint8(1))) == [3, 5, 7]
    assert values(ops.dequantize_linear(np.array([[1, 2, 3]], np.uint8), np.array([0.5], F), np.uint8(1))) == [
        0,
        0.5,
        1,
    ]


def test_q_scale_and_zero_point_of_other_shapes():
    x, many = np.zeros((2, 3), F), np.ones(3, F)
    with pytest.raises(ModelError, match=r"zero point has shape \[\] and the scale \[3\]"):
        ops.quantize_linear(x, many, np.uint8(0))
    with pytest.raises(ModelError, match=r"zero point has shape \[3\] and the scale \[\]"):
        ops.dequantize_linear(x.astype(np.uint8), F(1), np.zeros(3, np.uint8))


def test_q_rank_one_with_many_scales():
    x, scale = np.array([1, 2, 3], F), np.array([1, 2, 3], F)
    assert values(ops.quantize_linear(x, scale, axis=0)) == [1, 1, 1]
    with pytest.raises(ModelError, match=r"axis 1 is outside \[-1, 0\]"):
        ops.quantize_linear(x, scale)


def test_q_int32_input():
    """float32 scale: the type of the scale divides; int32 scale: float64, as an integer has no fractions."""
    assert values(ops.quantize_linear(np.array([2**24 + 1], np.int32), F(2**10), np.int16(0))) == [2**14]
    assert values(ops.quantize_linear(np.array([5, 7], np.int32), np.int32(2))) == [2, 4]


X16, S16 = np.array([-90.125], np.float16), np.float16(1.163)


def test_q_float16_divides_in_the_type_of_the_scale_from_23():
    kernels = {opset: find_kernel("QuantizeLinear", "", opset) for opset in (19, 21, 23, 25)}
    got = {opset: values(kernel(X16, S16, np.uint8(236))) for opset, kernel in kernels.items()}
    assert got == {19: [159], 21: [159], 23: [158], 25: [158]}


def test_q_precision():
    x = np.array([-90.125, 70000], F)
    assert values(ops.quantize_linear(x, F(S16), np.uint8(236), precision=10)) == [158, 255]
    assert values(ops.quantize_linear(x, F(S16), np.uint8(236))) == [159, 255]


def test_q_mixed_types_of_input_and_scale():
    assert values(ops.quantize_linear(X16, F(S16), np.uint8(236))) == [159]
    assert values(ops.quantize_linear(X16.astype(F), S16, np.uint8(236))) == [158]


def test_q_bfloat16():
    x = np.array([1.5, 2.5, 3.3], ml_dtypes.bfloat16)
    assert values(ops.quantize_linear(x, ml_dtypes.bfloat16(0.5), np.int8(0))) == [3, 5, 7]
    y = ops.dequantize_linear(np.array([3, 101], np.int8), ml_dtypes.bfloat16(0.3))
    assert y.dtype == ml_dtypes.bfloat16
    assert values(y) == values((np.array([3, 101], F) * F(ml_dtypes.bfloat16(0.3))).astype(ml_dtypes.bfloat16))


def test_q_float8_without_saturation():
    x = np.array([464, 464.25, 480, 61440, 65536, np.inf], F)
    e4m3 = ops.quantize_linear(x, F(1), np.zeros((), ml_dtypes.float8_e4m3fn), saturate=0)
    np.testing.assert_array_equal(e4m3.astype(F), [448, *[np.nan] * 5])
    e5m2 = ops.quantize_linear(x, F(1), np.zeros((), ml_dtypes.float8_e5m2), saturate=0)
    np.testing.assert_array_equal(e5m2.astype(F), [448, 448, 512, np.inf, np.inf, np.inf])


def test_q_zero_point_of_float8_and_float4():
    for dtype in (ml_dtypes.float8_e4m3fn, ml_dtypes.float4_e2m1fn, ml_dtypes.float6_e2m3fn):
        zero = np.array(0.5, dtype)
        assert values(ops.quantize_linear(np.array([2], F), F(2), zero)) == [1.5]
        assert values(ops.dequantize_linear(np.array([1.5], dtype), F(2), zero)) == [2]


def test_q_float4_and_float6_saturate_and_have_no_nan():
    for dtype, top in ((ml_dtypes.float4_e2m1fn, 6), (ml_dtypes.float6_e2m3fn, 7.5), (ml_dtypes.float6_e3m2fn, 28)):
        for saturate in (0, 1):
            y = ops.quantize_linear(np.array([np.inf, -1e9, np.nan], F), F(1), np.zeros((), dtype), saturate=saturate)
            assert values(y) == [top, -top, 0]


def test_q_e8m0_scale():
    scale = np.array(4, ml_dtypes.float8_e8m0fnu)
    assert values(ops.quantize_linear(np.array([10, 14], F), scale, np.int8(0))) == [2, 4]
    with pytest.raises(ModelError, match="output cannot be float8_e8m0fnu"):
        ops.dequantize_linear(np.array([3], np.int8), scale)
    assert values(ops.dequantize_linear(np.array([3], np.int8), scale, output_dtype=1)) == [12]


def test_q_int32_difference_wraps():
    assert values(ops.dequantize_linear(np.array([2**31 - 1], np.int32), F(1), np.int32(-1))) == [-(2**31)]
    assert values(ops.dequantize_linear(np.array([7], np.int32), F(2), np.int32(3))) == [8]


def test_q_float16_output_is_rounded_once():
    assert values(ops.dequantize_linear(np.array([65535], np.uint16), np.float16(0.1))) == [float(np.float16(6552))]


def test_q_blocks_that_do_not_fit():
    x = np.zeros((2, 5), np.uint8)
    assert ops.dequantize_linear(x, np.ones((2, 3), F), block_size=2).shape == (2, 5)
    with pytest.raises(ModelError, match=r"blocks of 4 along axis 1 of \[2, 5\] need a scale of shape \[2, 2\]"):
        ops.dequantize_linear(x, np.ones((2, 3), F), block_size=4)
    with pytest.raises(ModelError, match="scale and tensor have the same rank"):
        ops.dequantize_linear(x, F(1), block_size=2)
    assert values(ops.dequantize_linear(np.array([1, 2], np.uint8), np.array([3], F), axis=0, block_size=2)) == [3, 6]


def test_q_many_dimensional_scale_without_blocks():
    with pytest.raises(ModelError, match=r"scale of shape \[2, 5\] needs block_size"):
        ops.dequantize_linear(np.zeros((2, 5), np.uint8), np.ones((2, 5), F))


@pytest.mark.parametrize("opset", [10, 11, 13, 18])
def test_q_dequantize_before_opset_19(opset):
    kernel = find_kernel("DequantizeLinear", "", opset)
    assert values(kernel(np.array([0, 3, 128, 255], np.uint8), F(2), np.uint8(128))) == [-256, -250, 0, 254]
    if opset < 13:
        with pytest.raises(ModelError, match="version 10 takes one scale for the tensor, not 3"):
            kernel(np.zeros((2, 3), np.uint8), np.ones(3, F))
    with pytest.raises(ModelError, match=r"version \d+ has no attribute block_size"):
        kernel(np.zeros((2, 3), np.uint8), F(1), block_size=2)


@pytest.mark.parametrize(
    ("x", "y", "scale", "zero"),
    [
        ([0, 0], [0, 0], 1, 0),
        ([-0.0], [0], 1, 0),
        ([], [], 1, 0),
        ([1e-45], [255], 0, 255),
        ([3.4e38, -3.4e38], [0, 0], np.inf, 0),
        ([np.inf, 1], [0, 0], np.inf, 0),
        ([-np.inf, 1], [0, 255], np.inf, 255),
    ],
)
def test_q_dynamic_ranges_without_an_answer_in_the_text(x, y, scale, zero):
    got = ops.dynamic_quantize_linear(np.array(x, F))
    assert [values(v) for v in got] == [y, [scale], [zero]]


@pytest.mark.parametrize("where", [0, 1, 16, 63, 99])
def test_q_dynamic_nan_anywhere(where):
    x = np.linspace(-1, 1, 100, dtype=F)
    x[where] = np.nan
    y, scale, zero = ops.dynamic_quantize_linear(x)
    assert np.isnan(scale)
    assert zero == 255
    assert not y.any()


def test_q_mat_mul_zero_point_per_row():
    a, b = np.arange(9, dtype=np.uint8).reshape(3, 3), np.eye(3, dtype=np.uint8)
    za = np.array([0, 3, 6], np.uint8)
    assert values(ops.mat_mul_integer(a, b, za)) == [0, 1, 2] * 3


def test_q_conv_zero_point_per_channel():
    x, w = np.full((1, 1, 3), 10, np.uint8), np.array([[[1]], [[1]]], np.uint8)
    assert values(ops.conv_integer(x, w, None, np.array([0, 3], np.uint8))) == [10] * 3 + [-20] * 3


def test_q_nothing_to_add_up_is_zero():
    assert values(ops.mat_mul_integer(np.zeros((2, 0), np.uint8), np.zeros((0, 2), np.uint8))) == [0] * 4


def test_q_sums_wrap_at_32_bits():
    a = np.full((1, 70_000), 255, np.uint8)
    assert values(ops.mat_mul_integer(a, a.T)) == [255 * 255 * 70_000 - 2**32]


def linear_product(total, y_zero, **other):
    """QLinearMatMul whose int32 sum is `total`, to scale one half."""
    parts = {"a": np.array([[total]], np.uint8), "sa": F(0.5), "za": np.uint8(0), "b": np.array([[1]], np.uint8)}
    parts |= {"sb": F(1), "zb": np.uint8(0), "sy": F(1), "zy": np.uint8(y_zero)} | other
    return ops.q_linear_mat_mul(*(parts[k] for k in ("a", "sa", "za", "b", "sb", "zb", "sy", "zy")))


def test_q_requantized_ties_round_before_the_zero_point():
    assert [values(linear_product(1, 1)), values(linear_product(3, 1))] == [[1], [3]]
    one = np.ones((1, 1, 1), np.uint8)
    y = ops.q_linear_conv(one, F(0.5), np.uint8(0), one, F(1), np.uint8(0), F(1), np.uint8(1))
    assert values(y) == [1]


def test_q_linear_mat_mul_scale_per_row():
    a, b = np.array([[2], [2], [2]], np.uint8), np.array([[3, 5]], np.uint8)
    for shape in ((3,), (3, 1)):
        y = ops.q_linear_mat_mul(
            *(a, np.array([1, 2, 3], F).reshape(shape), np.zeros(shape, np.uint8)),
            *(b, np.array([1, 2], F), np.zeros(2, np.uint8), F(1), np.uint8(0)),
        )
        assert values(y) == [6, 20, 12, 40, 18, 60]


def test_q_mixed_signs():
    a, b = np.array([[2]], np.int8), np.array([[200]], np.uint8)
    y = ops.q_linear_mat_mul(a, F(1), np.int8(0), b, F(1), np.uint8(0), F(4), np.int8(0))
    assert (values(y), y.dtype) == ([100], np.int8)


def test_q_one_scale_and_many_zero_points_of_weights():
    x, w = np.ones((1, 1, 3), np.uint8), np.ones((2, 1, 1), np.uint8)
    with pytest.raises(ModelError, match=r"w_scale has shape \[\] and w_zero_point \[2\]"):
        ops.q_linear_conv(x, F(1), np.uint8(0), w, F(1), np.zeros(2, np.uint8), F(1), np.uint8(0))


def test_q_float8_mat_mul():
    a, b = np.array([[1.5, 2]], ml_dtypes.float8_e4m3fn), np.array([[4], [0.5]], ml_dtypes.float8_e4m3fn)
    zero = np.zeros((), ml_dtypes.float8_e4m3fn)
    y = ops.q_linear_mat_mul(a, F(2), zero, b, F(1), zero, F(0.5), zero)
    assert (values(y), y.dtype) == ([28], ml_dtypes.float8_e4m3fn)


def test_q_microsoft_axis():
    x, scale = np.array([[2, 4, 9]], F), np.array([1, 2, 3], F)
    assert values(ops.microsoft_quantize_linear(x, scale)) == [2, 2, 3]
    assert values(ops.microsoft_quantize_linear(x, F(2), axis=1)) == [1, 2, 4]
    assert values(ops.microsoft_dequantize_linear(x.astype(np.uint8), scale)) == [2, 8, 27]
    with pytest.raises(ModelError, match="without axis the scale is a scalar"):
        ops.microsoft_quantize_linear(x, scale, semantics="spec")
    with pytest.raises(ModelError, match="with axis the scale is 1-D"):
        ops.microsoft_dequantize_linear(x.astype(np.uint8), F(2), axis=1, semantics="spec")
    assert values(ops.microsoft_quantize_linear(x, scale, axis=1, semantics="spec")) == [2, 2, 3]
    with pytest.raises(ModelError, match="neither 'onnxruntime' nor 'spec'"):
        ops.microsoft_quantize_linear(x, scale, semantics="other")


def test_q_microsoft_example_saturates():
    y = ops.microsoft_quantize_linear(np.array([-960, 252], F), F(5), np.uint8(196))
    assert values(y) == [4, 246]
    assert values(ops.microsoft_quantize_linear(np.array([-9600, 2520], F), F(5), np.uint8(196))) == [0, 255]


def test_q_softmax_of_one_value_saturates():
    y = ops.q_linear_softmax(np.array([[7]], np.uint8), F(0.1), np.uint8(0), F(1 / 256), np.uint8(0), opset=13)
    assert values(y) == [255]


def test_q_add_and_average_pool_add_the_zero_point_before_rounding():
    one = np.array([1], np.uint8)
    zero = np.uint8(0)
    y = ops.q_linear_add(one, F(0.25), zero, one, F(0.25), zero, F(1), np.uint8(1))
    assert values(y) == [2]
    x = np.array([[[1, 0, 0]]], np.uint8)
    y = ops.q_linear_average_pool(x, F(1), zero, F(1), np.uint8(1), kernel_shape=[2])
    assert values(y) == [2, 1]
    y = ops.q_linear_average_pool(x[..., :2], F(1), zero, F(1), np.uint8(1), kernel_shape=[2])
    assert values(y) == [1]


def test_q_n_bits_accuracy_level():
    a = np.full((1, 16), 0.3, F)
    inputs = [a, np.full((1, 1, 8), 0x99, np.uint8), np.full((1, 1), 0.1, F)]
    y = [ops.mat_mul_n_bits(*inputs, K=16, N=1, block_size=16, accuracy_level=level) for level in (0, 4)]
    np.testing.assert_array_equal(y[0], y[1])
    np.testing.assert_allclose(y[0], [[16 * 0.3 * 0.1]], rtol=1e-6)


def test_q_gather_out_of_range_is_zero():
    data, scales = np.full((2, 16), 3, np.uint8).astype(ml_dtypes.uint4), np.ones((2, 1), F)
    y = ops.gather_block_quantized(data, np.array([1, -3, 2]), scales, block_size=16)
    assert y[:, 0].tolist() == [3, 0, 0]
