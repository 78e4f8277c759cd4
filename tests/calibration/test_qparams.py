"""Ranges, scales, zero points and codes: the arithmetic against onnxruntime, the searches against brute force."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from onnx import TensorProto

from onnxq.calibration.qparams import (
    CODE_TYPES,
    activation_qparams,
)
from onnxq.calibration.ranges import METHODS, choose_range, expected_error
from onnxq.calibration.stats import TensorStats
from onnxq.errors import RecipeError

FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)
TINY = float(np.finfo(np.float32).tiny)


def fake_quantize(x: np.ndarray, lo: float, hi: float, dtype: str = "uint8", symmetric: bool = False) -> np.ndarray:
    """QuantizeLinear and DequantizeLinear, independent of the code under test but for scale and zero point."""
    scale, zero = activation_qparams(lo, hi, dtype, symmetric=symmetric)
    kind = CODE_TYPES[dtype]
    codes = np.clip(np.rint(x / scale), kind.low - int(zero), kind.high - int(zero))
    return codes.astype(np.float64) * np.float64(scale)  # 65535 steps of the largest range overflow float32 by an ulp


def squared_error(x: np.ndarray, lo: float, hi: float, dtype: str = "uint8") -> float:
    return float(np.square(fake_quantize(x, lo, hi, dtype) - x, dtype=np.float64).mean())


def draw(kind: str, n: int = 20_000, seed: int = 0) -> np.ndarray:
    r = np.random.default_rng(seed)
    made = {
        "normal": lambda: r.standard_normal(n),
        "relu": lambda: np.maximum(r.standard_normal(n), 0),
        "relu6": lambda: np.clip(4 * r.standard_normal(n), 0, 6),
        "laplace": lambda: r.laplace(size=n),
        "student": lambda: r.standard_t(3, n),
        "outlier": lambda: np.append(r.standard_normal(n), 40),
        "lopsided": lambda: np.append(r.standard_normal(n) - 3, 25),
        "far": lambda: 5 + r.random(n),
        "negative": lambda: -r.exponential(size=n),
    }[kind]()
    return made.astype(np.float32)


KINDS = ["normal", "relu", "relu6", "laplace", "student", "outlier", "lopsided", "far", "negative"]


# -- ranges -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bits", [4, 8, 16])
def test_least_error_is_never_worse_than_the_extremes(kind, bits):
    x = draw(kind)
    stats = TensorStats.of(x)
    dtype = f"uint{bits}"
    errors = {m: squared_error(x, *choose_range(stats, m, bits=bits), dtype) for m in METHODS}
    # the histogram takes a bin's density as uniform: 2 % is the most that this model of the data may cost
    assert errors["mse"] <= errors["minmax"] * 1.02
    assert errors["mse"] <= errors["percentile"] * 1.02


@pytest.mark.parametrize("kind", KINDS)
def test_least_error_comes_close_to_an_exhaustive_search(kind):
    x = draw(kind)
    stats = TensorStats.of(x)
    shares = np.linspace(0.02, 1, 50)
    downs = shares * stats.min if stats.min < 0 else [0.0]
    ups = shares * stats.max if stats.max > 0 else [0.0]
    best = min(squared_error(x, lo, hi) for lo in downs for hi in ups)
    assert squared_error(x, *choose_range(stats, "mse")) <= best * 1.03  # 3 %: the grids differ


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bits", [4, 8, 16])
@pytest.mark.parametrize("share", [1.0, 0.5, 0.2])
def test_expected_error_is_the_error(kind, bits, share):
    x = draw(kind)
    stats = TensorStats.of(x)
    lo, hi = min(stats.min, 0) * share, max(stats.max, 0) * share
    measured = squared_error(x, lo, hi, f"uint{bits}")
    assert expected_error(stats, lo, hi, bits=bits) == pytest.approx(measured, rel=0.1)


@given(
    arrays(np.float32, st.integers(0, 50), elements=FINITE),
    st.sampled_from(sorted(METHODS)),
    st.sampled_from([2, 4, 8, 16]),
    st.booleans(),
)
def test_ranges_include_zero_and_stay_within_the_extremes(x, method, bits, symmetric):
    stats = TensorStats.of(x)
    lo, hi = choose_range(stats, method, bits=bits, symmetric=symmetric)
    assert lo <= 0 <= hi
    assert (lo, hi) == (np.float32(lo), np.float32(hi))
    limit = max(-stats.min, stats.max, 0.0)
    if symmetric:
        assert lo == -hi
        assert hi <= limit
    else:
        assert min(stats.min, 0) <= lo
        assert hi <= max(stats.max, 0)
    if method == "minmax" and not symmetric:
        assert (lo, hi) == (min(stats.min, 0), max(stats.max, 0))
    activation_qparams(lo, hi, symmetric=symmetric)


@given(st.integers(0, 99), st.integers(1, 4000), st.sampled_from([60.0, 90.0, 99.0, 99.9, 100.0]))
def test_percentile_leaves_out_no_more_than_it_may(seed, n, percentile):
    x = draw("student", n, seed)
    stats = TensorStats.of(x)
    lo, hi = choose_range(stats, "percentile", percentile=percentile)
    allowed = int(n * (100 - percentile) / 200)
    assert (x < lo).sum() <= allowed
    assert (x > hi).sum() <= allowed
    if percentile == 100:
        assert (lo, hi) == (min(stats.min, 0), max(stats.max, 0))


def test_percentile_cuts_an_outlier_off_and_least_error_weighs_it():
    x = np.append(draw("normal", 1_000_000), np.float32(300))
    stats = TensorStats.of(x)
    assert choose_range(stats, "minmax")[1] == 300
    assert choose_range(stats, "percentile")[1] < 6
    assert 20 < choose_range(stats, "mse")[1] < 200  # its square is worth 90,000 values off by one


def test_batches_do_not_change_a_range():
    x = draw("student", 30_000)
    whole, split = TensorStats.of(x), TensorStats.of(*np.split(x[::-1], [1, 700, 701, 20_000]))
    for method in METHODS:
        assert choose_range(whole, method) == choose_range(split, method)


def test_ranges_of_nothing_and_of_zeros():
    for stats in (TensorStats(), TensorStats.of(np.zeros(9, np.float32))):
        for method in METHODS:
            for symmetric in (False, True):
                assert choose_range(stats, method, symmetric=symmetric) == (0, 0)
        assert expected_error(stats, 0, 0) == 0


def test_unknown_methods_are_refused():
    stats = TensorStats.of(draw("normal", 10))
    with pytest.raises(RecipeError, match="no range method 'nothing'"):
        choose_range(stats, "nothing")
    for bad in ({"percentile": 50}, {"percentile": 101}, {"bits": 1}, {"bits": 17}):
        with pytest.raises(RecipeError, match="out of range"):
            choose_range(stats, "mse", **bad)


# -- activations ------------------------------------------------------------------------------------------------


def dynamic_quantize() -> ort.InferenceSession:
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("DynamicQuantizeLinear", ["x"], ["y", "s", "z"])],
        "g",
        [onnx.helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])],
        [
            onnx.helper.make_tensor_value_info("s", TensorProto.FLOAT, []),
            onnx.helper.make_tensor_value_info("z", TensorProto.UINT8, []),
        ],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    return ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


SESSION = dynamic_quantize()


@settings(max_examples=150)
@given(FINITE, FINITE)
def test_uint8_parameters_are_those_of_onnxruntime_bit_for_bit(a, b):
    lo, hi = sorted((a, b))
    scale, zero = activation_qparams(lo, hi)
    expected_scale, expected_zero = SESSION.run(None, {"x": np.float32([lo, hi])})
    if TINY <= expected_scale < np.inf:
        assert (scale.tobytes(), zero) == (expected_scale.tobytes(), expected_zero)
    else:  # onnxruntime's scale is subnormal, zero or infinite there: not fit for a model
        assert TINY <= scale < np.inf


@given(FINITE, FINITE, st.sampled_from(sorted(CODE_TYPES)), st.booleans())
def test_parameters_are_sound_for_every_type(a, b, dtype, symmetric):
    lo, hi = sorted((a, b))
    scale, zero = activation_qparams(lo, hi, dtype, symmetric=symmetric)
    kind = CODE_TYPES[dtype]
    assert scale.dtype == np.float32
    assert TINY <= scale < np.inf
    assert zero.dtype == kind.container
    assert kind.low <= zero <= kind.high
    if symmetric:
        assert zero == kind.middle
    # every real number of the range has a code at most half a step away (and half a step more at an end, where the
    # zero point was rounded); 1e-6 for float32
    for x in (lo, hi, 0.0, lo / 2, hi / 2):
        back = float(fake_quantize(np.array([x]), lo, hi, dtype, symmetric)[0])
        assert abs(back - x) <= float(scale) * (1 + 1e-6) + abs(x) * 1e-6
    assert fake_quantize(np.float32([0]), lo, hi, dtype, symmetric)[0] == 0


@given(
    arrays(np.float32, st.integers(1, 40), elements=st.floats(-1000, 1000, width=32)),
    st.sampled_from(["uint8", "int8", "uint16", "int16"]),
)
def test_rounding_costs_at_most_half_a_step(x, dtype):
    lo, hi = float(x.min()), float(x.max())
    scale, zero = activation_qparams(lo, hi, dtype)
    kind = CODE_TYPES[dtype]
    first, last = (kind.low - int(zero)) * float(scale), (kind.high - int(zero)) * float(scale)
    inside = (x >= first) & (x <= last)
    error = np.abs(fake_quantize(x, lo, hi, dtype) - x)
    assert (error[inside] <= float(scale) / 2 + np.abs(x[inside]) * 1e-6).all()  # 1e-6: float32 products


def test_parameters_of_zero_and_of_extremes():
    assert activation_qparams(0, 0) == (1, 0)
    assert activation_qparams(0, 0, "int8") == (1, 0)
    assert activation_qparams(0, 0, "uint8", symmetric=True) == (1, 128)
    assert activation_qparams(0, 255) == (1, 0)
    assert activation_qparams(-255, 0) == (1, 255)
    assert activation_qparams(-128, 127, "int8") == (1, 0)
    assert activation_qparams(-3, 127, "int8", symmetric=True) == (1, 0)
    assert activation_qparams(2, 255) == (1, 0)  # widened to zero
    scale, zero = activation_qparams(-3.4e38, 3.4e38)
    assert zero == 128
    assert float(scale) == pytest.approx(6.8e38 / 255, rel=1e-6)
    assert activation_qparams(0, 1e-45)[0] == TINY
    for bad in ((np.nan, 1), (0, np.inf), (-1e300, 0), (2, 1)):
        with pytest.raises(ValueError, match="no range of finite numbers"):
            activation_qparams(*bad)
    with pytest.raises(RecipeError, match="no quantized type 'int5'"):
        activation_qparams(0, 1, "int5")
