"""Activations and the Softmax family: https://onnx.ai/onnx/operators.

float32 stays float32; constants are cast to the type of the input first, as onnxruntime does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from onnxq.ops.kernels.arrays import Array, in_float32, per_channel
from onnxq.ops.kernels.registry import kernel
from onnxq.ops.quantized._parallel import spread

CHUNK = 1 << 13
"""Elements a chain of in-place steps works on at a time: three float32 buffers of it stay in a 128 KB cache."""

# erf(x) = x P(x²) / Q(x²) on [-4, 4], within 7e-8 when it is worked out in float64 (4e-7 in float32). Coefficients as
# in Eigen (unsupported SpecialFunctions, generic_fast_erf_float) and TensorFlow's XLA (lib/math.cc, ErfImpl32).
ERF_NUMERATOR = (
    -2.72614225801306e-10,
    2.77068142495902e-08,
    -2.10102402082508e-06,
    -5.69250639462346e-05,
    -7.34990630326855e-04,
    -2.95459980854025e-03,
    -1.60960333262415e-02,
)
ERF_DENOMINATOR = (
    -1.45660718464996e-05,
    -2.13374055278905e-04,
    -1.68282697438203e-03,
    -7.37332916720468e-03,
    -1.42647390514189e-02,
)
ERF_LIMIT = 4.0

# erfc(z) = t exp(-z² + series in t), t = 2 / (2 + z). Source: Numerical Recipes, third edition, section 6.2.2.
ERFC_CHEBYSHEV = (
    -1.3026537197817094, 6.4196979235649026e-1, 1.9476473204185836e-2, -9.561514786808631e-3, -9.46595344482036e-4,
    3.66839497852761e-4, 4.2523324806907e-5, -2.0278578112534e-5, -1.624290004647e-6, 1.303655835580e-6,
    1.5626441722e-8, -8.5238095915e-8, 6.529054439e-9, 5.059343495e-9, -9.91364156e-10, -2.27365122e-10,
    9.6467911e-11, 2.394038e-12, -6.886027e-12, 8.94487e-13, 3.13092e-13, -1.12708e-13, 3.81e-16, 7.106e-15,
    -1.523e-15, -9.4e-17, 1.21e-16, -2.8e-17,
)  # fmt: skip


def _in_chunks(function: Callable[[Array, Array], None], x: Array) -> Array:
    """Apply `function(part of x, part of the result)` to a tensor, chunk by chunk, on all threads.

    A chain of in-place steps over one chunk runs in the cache; over the whole tensor each step would go to memory.
    """
    flat = np.ascontiguousarray(x).reshape(-1)
    result = np.empty(x.shape, x.dtype)
    out = result.reshape(-1)

    def run(first: int, last: int) -> None:
        with np.errstate(all="ignore"):
            for start in range(first * CHUNK, min(last * CHUNK, flat.size), CHUNK):
                part = slice(start, min(start + CHUNK, flat.size))
                function(flat[part], out[part])

    spread(run, -(-flat.size // CHUNK), flat.size * 4)
    return result


def _erf_part(x: Array, out: Array) -> None:
    limited = np.clip(x, -ERF_LIMIT, ERF_LIMIT).astype(np.float64)
    square = limited * limited
    numerator = square * ERF_NUMERATOR[0]
    for coefficient in ERF_NUMERATOR[1:-1]:
        numerator += coefficient
        numerator *= square
    numerator += ERF_NUMERATOR[-1]
    numerator *= limited
    denominator = square * ERF_DENOMINATOR[0]
    for coefficient in ERF_DENOMINATOR[1:-1]:
        denominator += coefficient
        denominator *= square
    denominator += ERF_DENOMINATOR[-1]
    np.divide(numerator, denominator, out=out, casting="same_kind")


def _wide_erf(x: Array) -> Array:
    """Error function in float64, within 2e-16: Chebyshev series of erfc, Clenshaw's recurrence."""
    z = np.abs(x)
    t = 2.0 / (2.0 + z)
    ty = 4.0 * t - 2.0
    now, last = np.zeros_like(z), np.zeros_like(z)
    for coefficient in ERFC_CHEBYSHEV[:0:-1]:
        now, last = ty * now - last + coefficient, now
    complement = t * np.exp(-z * z + 0.5 * (ERFC_CHEBYSHEV[0] + ty * now) - last)
    return np.copysign(1.0 - complement, x)


@kernel("Erf", since=9)
@in_float32
def erf(x: Array) -> Array:
    """Error function: float32 within 1e-7, float64 within 2e-16 (both of 1)."""
    if x.dtype == np.float64:
        return np.asarray(_wide_erf(x))
    return _in_chunks(_erf_part, x)


def _gelu_part(x: Array, out: Array) -> None:
    _erf_part(x * np.float32(math.sqrt(0.5)), out)
    out += np.float32(1)
    out *= x
    out *= np.float32(0.5)


def _gelu_tanh_part(x: Array, out: Array) -> None:
    number = x.dtype.type
    np.multiply(x, x, out=out)
    out *= number(0.044715)
    out += number(1)
    out *= x
    out *= number(math.sqrt(2 / math.pi))
    np.tanh(out, out=out)
    out += number(1)
    out *= x
    out *= number(0.5)


@kernel("Gelu", since=20)
@in_float32
def gelu(x: Array, *, approximate: str = "none") -> Array:
    """x/2 (1 + erf(x / √2)), or its form with tanh."""
    if approximate == "tanh":
        return _in_chunks(_gelu_tanh_part, x)
    if x.dtype == np.float64:
        return np.asarray(0.5 * x * (1 + erf(x * math.sqrt(0.5))))
    return _in_chunks(_gelu_part, x)


def _sigmoid_part(x: Array, out: Array) -> None:
    np.negative(x, out=out)
    np.exp(out, out=out)
    out += x.dtype.type(1)
    np.reciprocal(out, out=out)


@kernel("Sigmoid", since=1)
@in_float32
def sigmoid(x: Array, *, consumed_inputs: Sequence[int] = ()) -> Array:
    """1 / (1 + exp(-x))."""
    return _in_chunks(_sigmoid_part, x)


@kernel("Relu", since=1)
def relu(x: Array, *, consumed_inputs: Sequence[int] = ()) -> Array:
    """max(x, 0)."""
    result: Array = np.maximum(x, x.dtype.type(0))
    return result


@kernel("LeakyRelu", since=1)
def leaky_relu(x: Array, *, alpha: float = 0.01, consumed_inputs: Sequence[int] = ()) -> Array:
    """X where positive, alpha x elsewhere."""
    return np.where(x < 0, x * x.dtype.type(alpha), x)


@kernel("PRelu", since=7)
def prelu(x: Array, slope: Array) -> Array:
    """X where positive, slope x elsewhere; the slope broadcasts to x."""
    return np.where(x < 0, np.multiply(x, slope), x)


@kernel("PRelu", since=1)
def prelu_1(x: Array, slope: Array, *, consumed_inputs: Sequence[int] = ()) -> Array:
    """PRelu of versions 1 and 6, whose slope [C] lies on axis 1."""
    return prelu(x, per_channel(slope, x.ndim) if slope.size > 1 else slope)


@kernel("ThresholdedRelu", since=1)
def thresholded_relu(x: Array, *, alpha: float = 1.0) -> Array:
    """X where above alpha, 0 elsewhere."""
    return np.where(x > x.dtype.type(alpha), x, x.dtype.type(0))


def _exponential_unit(x: Array, alpha: float, divisor: float = 1.0) -> Array:
    negative = np.expm1(np.minimum(x, x.dtype.type(0)) / x.dtype.type(divisor)) * x.dtype.type(alpha)
    return np.where(x > 0, x, negative)


@kernel("Elu", since=1)
def elu(x: Array, *, alpha: float = 1.0, consumed_inputs: Sequence[int] = ()) -> Array:
    """X where positive, alpha (exp(x) - 1) elsewhere."""
    return _exponential_unit(x, alpha)


@kernel("Celu", since=12)
@in_float32
def celu(x: Array, *, alpha: float = 1.0) -> Array:
    """max(0, x) + min(0, alpha (exp(x / alpha) - 1))."""
    return _exponential_unit(x, alpha, alpha)


def _selu(x: Array, alpha: float, gamma: float) -> Array:
    result: Array = np.multiply(_exponential_unit(x, alpha), x.dtype.type(gamma))
    return result


@kernel("Selu", since=6)
@in_float32
def selu(x: Array, *, alpha: float = 1.67326319217681884765625, gamma: float = 1.05070102214813232421875) -> Array:
    """Gamma times Elu."""
    return _selu(x, alpha, gamma)


@kernel("Selu", since=1)
@in_float32
def selu_1(x: Array, *, alpha: float = 1.6732, gamma: float = 1.0507, consumed_inputs: Sequence[int] = ()) -> Array:
    """Selu with the shorter constants that version 1 states."""
    return _selu(x, alpha, gamma)


@kernel("HardSigmoid", since=1)
@in_float32
def hard_sigmoid(x: Array, *, alpha: float = 0.2, beta: float = 0.5, consumed_inputs: Sequence[int] = ()) -> Array:
    """max(0, min(1, alpha x + beta))."""
    linear = x * x.dtype.type(alpha) + x.dtype.type(beta)
    result: Array = np.clip(linear, x.dtype.type(0), x.dtype.type(1))
    return result


@kernel("HardSwish", since=14)
@in_float32
def hard_swish(x: Array) -> Array:
    """X times HardSigmoid(x; 1/6, 1/2)."""
    return np.multiply(x, hard_sigmoid(x, alpha=1 / 6, beta=0.5))


@kernel("Swish", since=24)
@in_float32
def swish(x: Array, *, alpha: float = 1.0) -> Array:
    """X sigmoid(alpha x)."""
    return np.multiply(x, sigmoid(np.multiply(x, x.dtype.type(alpha))))


@kernel("Softplus", since=1)
@in_float32
def softplus(x: Array) -> Array:
    """log(1 + exp(x)), written so that exp never overflows."""
    result: Array = np.add(np.log1p(np.exp(-np.abs(x))), np.maximum(x, x.dtype.type(0)))
    return result


@kernel("Mish", since=18)
@in_float32
def mish(x: Array) -> Array:
    """X tanh(softplus(x))."""
    return np.multiply(x, np.tanh(softplus(x)))


@kernel("Softsign", since=1)
def softsign(x: Array) -> Array:
    """X / (1 + |x|)."""
    result: Array = np.true_divide(x, x.dtype.type(1) + np.abs(x))
    return result


@kernel("Shrink", since=9)
def shrink(x: Array, *, bias: float = 0.0, lambd: float = 0.5) -> Array:
    """X + bias below -lambd, x - bias above lambd, 0 between."""
    return np.where(x < -lambd, x + bias, np.where(x > lambd, x - bias, 0)).astype(x.dtype)
