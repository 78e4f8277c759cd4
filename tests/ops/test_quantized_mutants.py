"""Wrong arithmetic must be noticed: each mutant of the kernels is killed by a named data set that the kernels pass.

The project's own node tests, compared exactly, let the first five mutants live.
"""

from __future__ import annotations

import numpy as np
import pytest
from quantized_support import differing, run_kernel, run_onnxruntime

from onnxq.ops.quantized import _arithmetic, convolution, dynamic, integer

F = np.float32


def reciprocal(x, scale, precision, out):
    np.multiply(x, (F(1) / scale).astype(F), out=out)


def float64_division(x, scale, precision, out):
    out[...] = np.rint(x.astype(np.float64) / np.float64(scale))


def clamped(q, limits):
    low, high = (F(0), F(0)) if limits is None else (bound - F(3 << 22).view(np.int32) for bound in limits)
    return q if limits is None else np.fmin(np.fmax(q, F(low)), F(high))


def half_away_from_zero(q, limits, zero_point, out):
    q = clamped(q, limits)
    q = np.trunc(q + np.copysign(F(0.5), q))
    out[...] = q.astype(np.int32).astype(out.dtype)
    if zero_point is not None:
        out += zero_point


def zero_point_before_rounding(q, limits, zero_point, out):
    z = 0 if zero_point is None else zero_point.astype(np.int32)
    out[...] = np.rint(clamped(q, limits) + z).astype(np.int32).astype(out.dtype)


def truncation(q, limits, zero_point, out):
    out[...] = clamped(q, limits).astype(np.int32).astype(out.dtype)
    if zero_point is not None:
        out += zero_point


def clamp_after_the_cast(q, limits, zero_point, out):
    with np.errstate(all="ignore"):
        q = np.rint(q).astype(np.int32).astype(F)
    out[...] = np.rint(clamped(q, limits)).astype(np.int32).astype(out.dtype)
    if zero_point is not None:
        out += zero_point


def clamp_of_all_bits(bits, lowest, highest):
    """Positive NaNs stay above all numbers."""
    np.clip(bits, lowest, highest, out=bits)


def clamp_of_magnitudes(bits, lowest, highest):
    """The sign is read as the highest bit of a number."""
    bits[bits > np.int32(0x7F800000)] = 0
    np.clip(bits.view(np.uint32), lowest.astype(np.uint32), highest.astype(np.uint32), out=bits.view(np.uint32))


def two_products(x, scale, zero_point, out):
    out[...] = x.astype(F) * scale
    if zero_point is not None:
        out -= zero_point.astype(F) * scale


def float64_dequantization(x, scale, zero_point, out):
    z = 0 if zero_point is None else zero_point.astype(np.float64)
    out[...] = (x.astype(np.float64) - z) * np.float64(scale)


def float64_scale(low, high):
    scale = F(1) if high == low else F((np.float64(high) - np.float64(low)) / 255)
    return scale, np.uint8(np.rint(np.clip(-np.float64(low) / scale, 0, 255)))


def unadjusted_range(flat):
    return flat.min(), flat.max()


def ties():
    rng = np.random.default_rng(0)
    for scale in (F(0.1), F(0.0123), F(3.7), F(0.25)):
        with np.errstate(over="ignore"):
            x = (np.arange(-600, 600).astype(F) * F(0.5) * scale).astype(F)
        yield "QuantizeLinear", [x, scale, np.uint8(rng.integers(1, 128) * 2 + 1)], [np.uint8]


def special_values():
    x = np.array([np.nan, -np.nan, np.inf, -np.inf, 3e9, -3e9, 3e38, 2**31, -(2**31), 0, 1e-45], F)
    for zero in (np.uint8(0), np.uint8(7), np.int8(-5), np.int16(9)):
        yield "QuantizeLinear", [x, F(1), zero], [zero.dtype]


def every_byte():
    for scale in (F(0.1), F(0.0123), F(1 / 3)):
        for zero in (np.uint8(1), np.uint8(117), np.uint8(255)):
            yield "DequantizeLinear", [np.arange(256, dtype=np.uint8), scale, zero], [F]
    yield "DequantizeLinear", [np.arange(0, 65536, 7).astype(np.uint16), F(0.1), np.uint16(30001)], [F]


def large_int32():
    """Beyond 2**24 the difference is rounded to float32 before it is multiplied; int32 differences wrap."""
    x = np.random.default_rng(5).integers(-(2**31), 2**31, 5000).astype(np.int32)
    yield "DequantizeLinear", [x, F(0.1), np.int32(-1)], [F]


def many_ranges():
    rng = np.random.default_rng(1)
    for _ in range(60):
        x = (rng.standard_normal(50) * 10.0 ** rng.uniform(-3, 3)).astype(F)
        yield "DynamicQuantizeLinear", [x], [np.uint8, F, np.uint8]
    yield "DynamicQuantizeLinear", [np.array([1, 2, 3], F)], [np.uint8, F, np.uint8]


def long_sums():
    rng = np.random.default_rng(2)
    a, b = rng.integers(200, 256, (4, 5000)).astype(np.uint8), rng.integers(200, 256, (5000, 4)).astype(np.uint8)
    yield "MatMulInteger", [a, b, np.uint8(1), np.uint8(0)], [np.int32]


def long_filters():
    rng = np.random.default_rng(3)
    x, w = (
        rng.integers(200, 256, (1, 900, 4, 4)).astype(np.uint8),
        rng.integers(200, 256, (2, 900, 3, 3)).astype(np.uint8),
    )
    yield "ConvInteger", [x, w, np.uint8(1), np.uint8(0)], [np.int32]


def requantized_ties():
    rng = np.random.default_rng(4)
    a, b = rng.integers(0, 256, (20, 9)).astype(np.uint8), rng.integers(0, 256, (9, 20)).astype(np.uint8)
    inputs = [a, F(0.5), np.uint8(128), b, F(0.25), np.uint8(127), F(8), np.uint8(129)]
    yield "QLinearMatMul", inputs, [np.uint8]


DATA = {
    f.__name__: f
    for f in (ties, special_values, every_byte, large_int32, many_ranges, long_sums, long_filters, requantized_ties)
}

MUTANTS = [
    (_arithmetic, "quotient", reciprocal, "ties"),
    (_arithmetic, "quotient", float64_division, "ties"),
    (_arithmetic, "to_integers", half_away_from_zero, "ties"),
    (_arithmetic, "to_integers", half_away_from_zero, "requantized_ties"),
    (_arithmetic, "to_integers", zero_point_before_rounding, "ties"),
    (_arithmetic, "to_integers", zero_point_before_rounding, "requantized_ties"),
    (_arithmetic, "to_integers", truncation, "many_ranges"),
    (_arithmetic, "to_integers", clamp_after_the_cast, "special_values"),
    (_arithmetic, "_clamp", clamp_of_all_bits, "special_values"),
    (_arithmetic, "_clamp", clamp_of_magnitudes, "special_values"),
    (_arithmetic, "dequantized", two_products, "every_byte"),
    (_arithmetic, "dequantized", float64_dequantization, "large_int32"),
    (dynamic, "dynamic_parameters", float64_scale, "many_ranges"),
    (dynamic, "value_range", unadjusted_range, "many_ranges"),
    (integer, "EXACT", 1 << 40, "long_sums"),
    (convolution, "EXACT", 1 << 40, "long_filters"),
]


def different(name) -> int:
    """How many values of a data set the kernels get wrong; onnxruntime, unoptimised, is right on all of these."""
    total = 0
    for op_type, inputs, dtypes in DATA[name]():
        theirs = run_onnxruntime(op_type, inputs, dtypes)
        for a, b in zip(run_kernel(op_type, inputs), theirs, strict=True):
            total += differing(np.asarray(a), np.asarray(b))
    return total


@pytest.mark.parametrize("name", DATA)
def test_the_kernels_pass(name):
    assert different(name) == 0


@pytest.mark.parametrize(
    ("module", "name", "mutant", "data"),
    MUTANTS,
    ids=[f"{getattr(m, '__name__', n)}-{d}" for _, n, m, d in MUTANTS],
)
def test_the_mutant_is_killed(module, name, mutant, data, monkeypatch):
    monkeypatch.setattr(module, name, mutant)
    assert different(data) > 0
