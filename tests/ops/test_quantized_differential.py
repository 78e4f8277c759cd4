"""Every kernel against onnxruntime's CPU kernels with optimisations off: no integer may differ.

`pytest -m slow tests/ops/test_quantized_differential.py -s` runs at least ten million values an operator and type and
prints the counts.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from quantized_support import FLOAT8, as_fed, differing, feeds_of, node_session, run_kernel

F = np.float32
ORDINARY, FULL = 200_000, 10_000_000
SIZES = [pytest.param(ORDINARY, id="200K"), pytest.param(FULL, id="10M", marks=pytest.mark.slow)]
BATCH = 100_000
INTEGERS = [np.dtype(t) for t in (np.uint8, np.int8, np.uint16, np.int16, ml_dtypes.uint4, ml_dtypes.int4)]
TWO_BITS = [np.dtype(t) for t in (ml_dtypes.uint2, ml_dtypes.int2)]
LIMITS = {
    **{np.dtype(t): (np.iinfo(t).min, np.iinfo(t).max) for t in (np.uint8, np.int8, np.uint16, np.int16)},
    **{np.dtype(t): (ml_dtypes.iinfo(t).min, ml_dtypes.iinfo(t).max) for t in (ml_dtypes.uint4, ml_dtypes.int4)},
    **{np.dtype(t): (ml_dtypes.iinfo(t).min, ml_dtypes.iinfo(t).max) for t in (ml_dtypes.uint2, ml_dtypes.int2)},
}
SPECIAL = np.array(
    [
        0.0,
        -0.0,
        np.inf,
        -np.inf,
        np.nan,
        1e-45,
        -1e-45,
        1e-38,
        3e38,
        -3e38,
        2**31,
        -(2**31),
        2**31 - 128,
        2**32,
        3e9,
        -3e9,
    ],
    F,
)


def random_scale(rng):
    kind = rng.integers(6)
    if kind == 0:
        return F(2.0 ** rng.integers(-20, 20))  # exact ties
    if kind == 1:
        return F(10.0 ** rng.uniform(-44, -37))  # subnormal or nearly
    if kind == 2:
        return F(10.0 ** rng.uniform(30, 38))
    return F(rng.uniform(0.5, 2) * 10.0 ** rng.integers(-6, 3))


def random_values(rng, size, scale, width, largest=None):
    """Ties, in-range, saturating, wild magnitudes and special values, mixed."""
    with np.errstate(all="ignore"):
        x = rng.uniform(-width, width, size).astype(F) * scale
        quarter = size // 4
        x[:quarter] = (rng.integers(-2 * width, 2 * width, quarter).astype(F) * F(0.5)) * scale
        wild = 10.0 ** rng.uniform(-44, 38, quarter // 2) * rng.choice([-1, 1], quarter // 2)
        x[quarter : quarter + quarter // 2] = wild.astype(F)
        x[-SPECIAL.size :] = SPECIAL
        if largest is not None:
            x = np.clip(x, -largest * scale, largest * scale)
            x = np.where(np.abs(x / scale) < largest * 1.01, x, F(0)).astype(F)
    return x


def zero_point_in(rng, dtype):
    low, high = LIMITS[dtype]
    return np.array(rng.choice([low, high, 0, rng.integers(low, high + 1)])).astype(dtype)


def compare(op_type, sessions, inputs, dtypes, settings, totals):
    key = tuple(None if v is None else (np.asarray(v).dtype, np.asarray(v).ndim) for v in inputs)
    if key not in sessions:
        sessions[key] = node_session(op_type, inputs, dtypes, **settings)
    theirs = sessions[key].run(None, feeds_of(inputs))
    mine = run_kernel(op_type, inputs, **settings)
    for a, b in zip(mine, theirs, strict=True):
        totals[0] += a.size
        totals[1] += differing(as_fed(np.asarray(a)), np.asarray(b))


def report(capsys, name, totals, wanted):
    assert totals[0] >= wanted
    if wanted >= FULL:
        with capsys.disabled():
            print(f"\n{name}: {totals[0]:,} values, {totals[1]} differ", end="")
    assert totals[1] == 0


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", INTEGERS + TWO_BITS, ids=str)
def test_quantize_linear(dtype, size, capsys):
    """Per-tensor. x stays below 2**31: above, onnxruntime gets 4 bits and less wrong (docs/reference/operators.md)."""
    rng, sessions, totals = np.random.default_rng(10), {}, [0, 0]
    settings = {"version": 25 if dtype in TWO_BITS else 21}
    low, high = LIMITS[dtype]
    largest = 2.0**30 if dtype.itemsize == 1 and dtype.kind == "V" else None
    while totals[0] < size:
        scale = random_scale(rng)
        x = random_values(rng, BATCH, scale, 2 * (high - low), largest)
        compare("QuantizeLinear", sessions, [x, scale, zero_point_in(rng, dtype)], [dtype], settings, totals)
    report(capsys, f"QuantizeLinear {dtype}", totals, size)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_quantize_linear_per_axis_and_blocked(dtype, size, capsys):
    rng, totals = np.random.default_rng(11), [0, 0]
    sessions: dict[object, dict] = {}
    low, high = LIMITS[dtype]
    while totals[0] < size:
        shape = rng.integers(1, 30, rng.integers(1, 4))
        shape[rng.integers(len(shape))] *= rng.integers(1, 200)
        axis = int(rng.integers(-len(shape), len(shape)))
        block = int(rng.integers(0, 7))
        settings = {"axis": axis, "block_size": block, "version": 21}
        param = list(shape) if block else [shape[axis]]
        if block:
            param[axis] = -(-shape[axis] // block)
        if np.prod(param) == 1:
            continue
        scale = np.exp(rng.uniform(-8, 5, param)).astype(F)
        zero = rng.integers(low, high + 1, param).astype(dtype)
        x = (rng.standard_normal(shape) * 10.0 ** rng.integers(-3, 4)).astype(F)
        key = (axis, block)
        compare("QuantizeLinear", sessions.setdefault(key, {}), [x, scale, zero], [dtype], settings, totals)
        compare(
            "DequantizeLinear",
            sessions.setdefault((*key, 0), {}),
            [zero_like(rng, x, dtype), scale, zero],
            [F],
            settings,
            totals,
        )
    report(capsys, f"Quantize/DequantizeLinear {dtype}, per axis and blocked", totals, size)


def zero_like(rng, x, dtype):
    low, high = LIMITS[dtype]
    return rng.integers(low, high + 1, x.shape).astype(dtype)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [np.dtype(t) for t in (np.uint8, np.int8, np.uint16, np.int16)], ids=str)
def test_quantize_linear_float16(dtype, size, capsys):
    """Before opset 23 the text does not say what to divide in; both divide in float32."""
    rng, sessions, totals = np.random.default_rng(12), {}, [0, 0]
    while totals[0] < size:
        with np.errstate(all="ignore"):
            scale = np.float16(2.0 ** rng.uniform(-8, 4))
            x = (rng.standard_normal(BATCH) * 2.0 ** rng.integers(-4, 12)).astype(np.float16)
            x[::3] = (np.rint(x[::3] / scale) + np.float16(0.5)) * scale
        x[~np.isfinite(x)] = 0
        compare("QuantizeLinear", sessions, [x, scale, zero_point_in(rng, dtype)], [dtype], {"version": 21}, totals)
    report(capsys, f"QuantizeLinear float16 to {dtype}", totals, size)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
def test_quantize_linear_float8(dtype, size, capsys):
    rng, sessions, totals = np.random.default_rng(13), {}, [0, 0]
    while totals[0] < size:
        scale = F(2.0 ** rng.uniform(-10, 10))
        x = random_values(rng, BATCH, scale, 600)
        inputs = [x, scale, np.zeros((), dtype)]
        compare("QuantizeLinear", sessions, inputs, [dtype], {"saturate": 1, "version": 19}, totals)
    report(capsys, f"QuantizeLinear {dtype}", totals, size)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("real", [F, np.float16], ids=["float32", "float16"])
@pytest.mark.parametrize("dtype", [*INTEGERS, *TWO_BITS, np.dtype(np.int32), *FLOAT8], ids=str)
def test_dequantize_linear(dtype, real, size, capsys):
    rng, sessions, totals = np.random.default_rng(14), {}, [0, 0]
    settings = {"version": 25 if dtype in TWO_BITS else 21}
    while totals[0] < size:
        if dtype in FLOAT8:
            x, zero = rng.integers(0, 256, BATCH, np.uint8).view(dtype), np.zeros((), dtype)
            x = np.where(np.isnan(x.astype(F)), dtype.type(1), x)
        elif dtype == np.int32:
            x, zero = rng.integers(-(2**31), 2**31, BATCH).astype(np.int32), np.array(rng.integers(-9, 9), np.int32)
        else:
            x = rng.integers(LIMITS[dtype][0], LIMITS[dtype][1] + 1, BATCH).astype(dtype)
            zero = zero_point_in(rng, dtype)
        with np.errstate(all="ignore"):
            scale = np.asarray(random_scale(rng) if real == F else 2.0 ** rng.uniform(-14, 4), real)
        compare("DequantizeLinear", sessions, [x, scale, zero], [real], settings, totals)
    report(capsys, f"DequantizeLinear {dtype} to {np.dtype(real)}", totals, size)


@pytest.mark.parametrize("size", SIZES)
def test_dynamic_quantize_linear(size, capsys):
    rng, sessions, totals = np.random.default_rng(15), {}, [0, 0]
    while totals[0] < size:
        length = int(rng.choice([1, 2, 3, 17, 300, 3000, 30_000]))
        x = rng.standard_normal(length).astype(F) * F(10.0 ** rng.uniform(-37, 37))
        kind = rng.integers(5)
        if kind == 0:
            x = np.abs(x)
        elif kind == 1:
            x = -np.abs(x)
        elif kind == 2:  # a power of two as scale, and ties everywhere
            x = rng.integers(-255, 256, length).astype(F) * F(0.5)
            x[0], x[-1] = -127.5, 127.5
        elif kind == 3:
            x[rng.integers(length)] = rng.choice(SPECIAL[~np.isnan(SPECIAL)])
        compare("DynamicQuantizeLinear", sessions, [x], [np.uint8, F, np.uint8], {"version": 11}, totals)
    report(capsys, "DynamicQuantizeLinear", totals, size)


PAIRS = [(a, b) for a in (np.uint8, np.int8) for b in (np.uint8, np.int8)]
TRIPLES = [(np.uint8, np.uint8, np.uint8), (np.uint8, np.int8, np.uint8), (np.int8, np.int8, np.int8)]


def whole(rng, shape, dtype):
    low, high = LIMITS[np.dtype(dtype)]
    return rng.integers(low, high + 1, shape).astype(dtype)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("a_type", "b_type"), PAIRS)
def test_mat_mul_integer(a_type, b_type, size, capsys):
    rng, sessions, totals = np.random.default_rng(16), {}, [0, 0]
    while totals[0] < size:
        m, k, n = rng.integers(1, 300), rng.integers(1, 700), rng.integers(1, 300)
        zb = whole(rng, n if rng.integers(2) else (), b_type)
        inputs = [whole(rng, (m, k), a_type), whole(rng, (k, n), b_type), whole(rng, (), a_type), zb]
        compare("MatMulInteger", sessions, inputs, [np.int32], {"version": 10}, totals)
    report(capsys, f"MatMulInteger {np.dtype(a_type)} x {np.dtype(b_type)}", totals, size)


def convolution(rng):
    """Random shapes and attributes of a convolution in one to three dimensions."""
    n = int(rng.integers(1, 4))
    group = int(rng.choice([1, 1, 2, 3]))
    per_group, filters = int(rng.integers(1, 9)), group * int(rng.integers(1, 9))
    kernel = rng.integers(1, 4, n)
    dilations = rng.integers(1, 3, n)
    size = (kernel - 1) * dilations + 1 + rng.integers(0, {1: 200, 2: 24, 3: 9}[n], n)
    attributes = {
        "group": group,
        "dilations": dilations.tolist(),
        "strides": rng.integers(1, 3, n).tolist(),
        "pads": rng.integers(0, 3, 2 * n).tolist(),
    }
    return (int(rng.integers(1, 3)), group * per_group, *size), (filters, per_group, *kernel), attributes


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("x_type", "w_type"), PAIRS)
def test_conv_integer(x_type, w_type, size, capsys):
    rng, totals = np.random.default_rng(17), [0, 0]
    while totals[0] < size:
        x, w, attributes = convolution(rng)
        inputs = [whole(rng, x, x_type), whole(rng, w, w_type), whole(rng, (), x_type), whole(rng, (), w_type)]
        compare("ConvInteger", {}, inputs, [np.int32], {"version": 10, **attributes}, totals)
    report(capsys, f"ConvInteger {np.dtype(x_type)} x {np.dtype(w_type)}", totals, size)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("a_type", "b_type", "y_type"), TRIPLES)
def test_q_linear_mat_mul(a_type, b_type, y_type, size, capsys):
    rng, sessions, totals = np.random.default_rng(18), {}, [0, 0]
    while totals[0] < size:
        m, k, n = rng.integers(1, 200), rng.integers(1, 300), rng.integers(1, 200)
        ties = bool(rng.integers(2))
        per_column = n if rng.integers(2) else ()
        b_scale = np.full(per_column, 0.25) if ties else np.exp(rng.uniform(-3, 1, per_column))
        inputs = [
            *(whole(rng, (m, k), a_type), F(0.5 if ties else 0.0173), whole(rng, (), a_type)),
            *(whole(rng, (k, n), b_type), b_scale.astype(F), whole(rng, per_column, b_type)),
            *(F(2.0 ** rng.integers(0, 12)), whole(rng, (), y_type)),
        ]
        compare("QLinearMatMul", sessions, inputs, [y_type], {"version": 10}, totals)
    report(capsys, f"QLinearMatMul {np.dtype(a_type)} {np.dtype(b_type)} {np.dtype(y_type)}", totals, size)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("x_type", "w_type", "y_type"), TRIPLES)
def test_q_linear_conv(x_type, w_type, y_type, size, capsys):
    rng, totals = np.random.default_rng(19), [0, 0]
    while totals[0] < size:
        x, w, attributes = convolution(rng)
        per_channel = w[0] if rng.integers(2) else ()
        ties = bool(rng.integers(2))
        w_scale = np.full(per_channel, 0.25) if ties else np.exp(rng.uniform(-4, 1, per_channel))
        # onnxruntime wants one and the same zero point for all channels of int8 weights
        w_zero = np.full(per_channel, whole(rng, (), w_type))
        inputs = [
            *(whole(rng, x, x_type), F(0.5 if ties else 0.031), whole(rng, (), x_type)),
            *(whole(rng, w, w_type), w_scale.astype(F), w_zero),
            *(F(2.0 ** rng.integers(0, 9)), whole(rng, (), y_type)),
            rng.integers(-9999, 9999, w[0]).astype(np.int32) if rng.integers(2) else None,
        ]
        compare("QLinearConv", {}, inputs, [y_type], {"version": 10, **attributes}, totals)
    report(capsys, f"QLinearConv {np.dtype(x_type)} {np.dtype(w_type)} {np.dtype(y_type)}", totals, size)
