"""What holds for every input, tried by hypothesis."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from helpers import peak_memory
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from onnxq import ops
from onnxq.ops.kernels.registry import find_kernel
from onnxq.ops.quantized import _layout, _parallel

F = np.float32
FLOATS = st.floats(-1e6, 1e6, width=32)
TYPES = st.sampled_from([np.dtype(t) for t in (np.uint8, np.int8, np.uint16, np.int16)])
SMALL = st.sampled_from([np.dtype(t) for t in (ml_dtypes.uint4, ml_dtypes.int4, ml_dtypes.uint2, ml_dtypes.int2)])
ARRAYS = hnp.arrays(F, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=6), elements=FLOATS)


def limits(dtype):
    info = np.iinfo(dtype) if dtype.kind in "iu" else ml_dtypes.iinfo(dtype)
    return int(info.min), int(info.max)


def definition(x, scale, zero, dtype):
    """One element at a time, in Python's own arithmetic on float32 values."""
    low, high = limits(dtype)
    q = float(F(x) / F(scale))
    q = low - zero if math.isnan(q) else min(max(q, low - zero), high - zero)
    return round(q) + zero


@given(x=ARRAYS, scale=st.floats(2.0**-10, 2.0**10, width=32), dtype=TYPES | SMALL, data=st.data())
def test_quantize_linear_is_its_definition(x, scale, dtype, data):
    zero = data.draw(st.integers(*limits(dtype)))
    y = ops.quantize_linear(x, F(scale), np.array(zero).astype(dtype))
    expected = [definition(v, scale, zero, dtype) for v in x.reshape(-1)]
    assert y.shape == x.shape
    assert y.astype(np.int64).reshape(-1).tolist() == expected


@given(dtype=TYPES | SMALL, scale=st.floats(2.0**-10, 2.0**10, width=32), data=st.data())
def test_quantize_undoes_dequantize(dtype, scale, data):
    low, high = limits(dtype)
    zero = np.array(data.draw(st.integers(low, high))).astype(dtype)
    q = np.arange(low, high + 1, max(1, (high - low) // 999)).astype(dtype)
    back = ops.quantize_linear(ops.dequantize_linear(q, F(scale), zero), F(scale), zero)
    np.testing.assert_array_equal(back, q, strict=True)


@given(x=ARRAYS)
def test_dynamic_quantization_is_off_by_half_a_step(x):
    y, scale, zero = ops.dynamic_quantize_linear(x)
    if np.abs(x).max(initial=0) > 1e-30:  # below, the scale itself is subnormal and loses digits
        error = np.abs(ops.dequantize_linear(y, scale, zero).astype(np.float64) - x)
        # Half a step, and another half at the ends, where the zero point was rounded too.
        assert error.max() <= 1.0001 * float(scale)
    exact_zero = ops.dequantize_linear(np.array(zero), scale, np.array(zero))
    assert exact_zero == 0


@settings(max_examples=60)
@given(
    shape=hnp.array_shapes(min_dims=1, max_dims=4, min_side=1, max_side=7),
    block=st.integers(0, 4),
    chunk=st.integers(1, 40),
    data=st.data(),
)
def test_every_granularity_is_the_repeated_one(shape, block, chunk, data):
    """Per axis and blocked, in whatever chunks: as if each element had its own scale."""
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    params = list(shape) if block else [shape[axis]]
    if block:
        params[axis] = -(-shape[axis] // block)
    scale, zero = rng.uniform(0.1, 2, params).astype(F), rng.integers(0, 256, params).astype(np.uint8)
    if zero.size > 1 and data.draw(st.booleans()):
        zero[...] = 0
    x = (rng.standard_normal(shape) * 50).astype(F)
    if block:
        index = np.arange(shape[axis]) // block
        full_scale, full_zero = scale.take(index, axis), zero.take(index, axis)
    else:
        column = [1] * len(shape)
        column[axis] = -1
        full_scale = np.broadcast_to(scale.reshape(column), shape)
        full_zero = np.broadcast_to(zero.reshape(column), shape)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_layout, "CHUNK", chunk)
        y = ops.quantize_linear(x, scale, zero, axis=axis, block_size=block)
        back = ops.dequantize_linear(y, scale, zero, axis=axis, block_size=block)
    expected = np.clip(np.rint(x / full_scale) + full_zero, 0, 255).astype(np.uint8)
    np.testing.assert_array_equal(y, expected, strict=True)
    np.testing.assert_array_equal(back, (y.astype(F) - full_zero.astype(F)) * full_scale, strict=True)


@given(m=st.integers(0, 5), k=st.integers(0, 9), n=st.integers(0, 5), depth=st.integers(1, 3), seed=st.integers(0, 99))
def test_mat_mul_integer_in_blocks_of_any_size(m, k, n, depth, seed):
    from onnxq.ops.quantized import integer

    rng = np.random.default_rng(seed)
    a, b = rng.integers(0, 256, (m, k)).astype(np.uint8), rng.integers(-128, 128, (k, n)).astype(np.int8)
    za, zb = rng.integers(0, 256, (m, 1)).astype(np.uint8), rng.integers(-128, 128, (1, n)).astype(np.int8)
    expected = (a.astype(np.int32) - za) @ (b.astype(np.int32) - zb)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(integer, "EXACT", depth * 255 * 255)
        patch.setattr(integer, "BLOCK", depth * 2)
        np.testing.assert_array_equal(ops.mat_mul_integer(a, b, za, zb), expected, strict=True)


@pytest.mark.parametrize("size", [_layout.CHUNK - 1, _layout.CHUNK, _layout.CHUNK + 1, 5 * _layout.CHUNK + 3])
@pytest.mark.parametrize("threads", [1, 3])
def test_sizes_around_a_chunk_and_threads(size, threads, monkeypatch):
    monkeypatch.setattr(_parallel, "threads_available", lambda: threads)
    monkeypatch.setattr(_parallel, "THREAD_WORTH", 1)
    x = np.linspace(-3, 4, size, dtype=F)
    x.flags.writeable = False
    y, scale, zero = ops.dynamic_quantize_linear(x)
    np.testing.assert_array_equal(y, np.clip(np.rint(x / scale) + F(zero), 0, 255).astype(np.uint8))
    np.testing.assert_array_equal(ops.quantize_linear(x, scale, zero), y)
    expected = (y.astype(F) - F(zero)) * scale
    np.testing.assert_array_equal(ops.dequantize_linear(y, scale, zero), expected)
    per_axis = ops.quantize_linear(x[None], np.full(size, scale), np.full(size, zero))
    np.testing.assert_array_equal(per_axis[0], y)
    half = ops.dequantize_linear(y, np.float16(scale), zero)
    np.testing.assert_array_equal(half, ((y.astype(F) - F(zero)) * F(np.float16(scale))).astype(np.float16))


def test_an_error_in_a_thread_is_raised(monkeypatch):
    def task(first, last):
        if last == 2:
            raise ValueError("second part")

    monkeypatch.setattr(_parallel, "threads_available", lambda: 2)
    with pytest.raises(ValueError, match="second part"):
        _parallel.spread(task, 2, 1 << 30)


def test_inputs_that_are_not_contiguous():
    x = np.linspace(-3, 3, 60, dtype=F).reshape(6, 10)
    y = ops.quantize_linear(x.T, F(0.1), np.uint8(9))
    np.testing.assert_array_equal(y, ops.quantize_linear(np.ascontiguousarray(x.T), F(0.1), np.uint8(9)))
    np.testing.assert_array_equal(ops.dequantize_linear(y.T, F(0.1)), ops.dequantize_linear(y, F(0.1)).T)
    np.testing.assert_array_equal(
        ops.dynamic_quantize_linear(x[:, ::2])[0], ops.dynamic_quantize_linear(x[:, ::2].copy())[0]
    )


VERSIONS = [10, 13, 19, 21, 23, 24, 25, 28]


@pytest.mark.parametrize("op_type", ["QuantizeLinear", "DequantizeLinear"])
def test_every_version_is_registered_with_its_own_attributes(op_type):
    found = [find_kernel(op_type, "", opset) for opset in VERSIONS]
    assert len(set(map(id, found))) == len(VERSIONS)
    assert find_kernel(op_type, "", 9) is None
    assert find_kernel(op_type, "", 20) is found[2]
    assert find_kernel(op_type, "", 27) is found[6]


def extra_memory(call) -> int:
    """Peak bytes that a call allocates beyond its result, as NumPy reports them to tracemalloc."""
    result = call()
    return peak_memory(call) - sum(v.nbytes for v in (result if isinstance(result, tuple) else (result,)))


def test_extra_memory_does_not_grow_with_the_tensor(monkeypatch):
    monkeypatch.setattr(_parallel, "threads_available", lambda: 2)
    x = np.linspace(-3, 3, 4_000_000, dtype=F).reshape(2000, 2000)
    scale, zero = np.full(2000, 0.1, F), np.arange(2000).astype(np.uint8)
    blocked = np.full((2000, 125), 0.1, F)
    y = ops.quantize_linear(x, F(0.1))
    calls = [
        lambda: ops.quantize_linear(x, F(0.1), np.uint8(3)),
        lambda: ops.quantize_linear(x, scale, zero),
        lambda: ops.quantize_linear(x, blocked, axis=1, block_size=16),
        lambda: ops.quantize_linear(x, F(0.1), np.zeros((), ml_dtypes.float8_e5m2)),
        lambda: ops.quantize_linear(x, np.float16(0.1)),
        lambda: ops.dequantize_linear(y, F(0.1), np.uint8(3)),
        lambda: ops.dequantize_linear(y, scale, zero, axis=0),
        lambda: ops.dequantize_linear(y, np.float16(0.1)),
        lambda: ops.dynamic_quantize_linear(x),
    ]
    assert max(extra_memory(call) for call in calls) < 8 << 20


def test_extra_memory_of_products_is_bounded():
    a = np.ones((3000, 1500), np.uint8)
    assert extra_memory(lambda: ops.mat_mul_integer(a, a.T[:, :2000], np.uint8(3))) < 20 << 20
    x, w = np.ones((2, 32, 128, 128), np.uint8), np.ones((32, 32, 3, 3), np.int8)
    padded = 32 * 130 * 130 * 4
    assert extra_memory(lambda: ops.conv_integer(x, w, np.uint8(3), pads=[1] * 4)) < (20 << 20) + 2 * padded


@pytest.mark.parametrize("kind", ["exact", "saturating"])
@pytest.mark.parametrize(
    ("x", "w", "shape"),
    [
        ((1, 2, 0, 4), (4, 2, 3, 3), (1, 4, 2, 4)),  # of padding alone
        ((1, 0, 1, 4), (4, 0, 3, 3), (1, 4, 3, 4)),
        ((1, 2, 1, 4), (0, 2, 3, 3), (1, 0, 3, 4)),
        ((0, 2, 1, 4), (4, 2, 3, 3), (0, 4, 3, 4)),
    ],
)
def test_convolutions_of_nothing_have_a_shape(x, w, shape, kind):
    one, zero = np.float32(1), np.array(0, np.uint8)
    codes, weight, pads = np.ones(x, np.uint8), np.ones(w, np.int8), (2, 1, 2, 1)
    with ops.quantized.integer_arithmetic(kind):
        assert ops.quantized.conv_integer(codes, weight, pads=pads).shape == shape
        parameters = codes, one, zero, weight, one, np.array(0, np.int8), one, zero
        assert ops.quantized.q_linear_conv(*parameters, pads=pads).shape == shape


def test_an_lstm_and_a_product_of_nothing_have_a_shape():
    scale, zero = np.ones(1, np.float32), np.zeros(1, np.int8)
    weights = np.ones((1, 4, 12), np.int8), np.ones((1, 3, 12), np.int8)
    for steps, batch in ((0, 2), (3, 0)):
        x = np.zeros((steps, batch, 4), np.float32)
        absent = [None] * 5
        y, *_ = ops.quantized.dynamic_quantize_lstm(x, *weights, *absent, scale, zero, scale, zero)
        assert y.shape == (steps, 1, batch, 3)
    rows = np.ones((0, 5), np.uint8), np.ones((5, 4), np.int8), np.ones(0, np.uint8)
    assert ops.quantized.mat_mul_integer(*rows).shape == (0, 4)
