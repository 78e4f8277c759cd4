"""Random products of uint8 and int8 in onnxruntime and in our saturating kernels, for a processor that saturates.

    python tests/support/saturating_cases.py OUTPUTS [SEED]

Prints, as JSON, for each operator how many outputs were compared, how many differ, and how many saturated, that is, are
not what exact arithmetic gives. Outputs are integers, or floats that are such integers times a scale.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator

import numpy as np
from quantized_support import differing, feeds_of, node_session, run_kernel

F, U8, S8 = np.float32, np.uint8, np.int8
MS = "com.microsoft"
Case = tuple[list, dict]


def codes(rng: np.random.Generator, shape, dtype) -> np.ndarray:
    """Uniform codes, or such with fewer high ones, or a few values of the ends."""
    limits = np.iinfo(dtype)
    kind = rng.integers(4)
    if kind == 0:
        return rng.choice(np.array([limits.min, limits.max, limits.max - 1, 0, 1], dtype), shape)
    if kind == 1:
        return np.clip(rng.standard_normal(shape) * 45 + (0 if dtype == S8 else 110), limits.min, limits.max).astype(
            dtype
        )
    return rng.integers(limits.min, limits.max + 1, shape).astype(dtype)


def zero(rng: np.random.Generator, dtype, shape=()) -> np.ndarray:
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max + 1, shape).astype(dtype) if rng.integers(3) else np.zeros(shape, dtype)


def sides(rng: np.random.Generator) -> tuple[int, int, int]:
    """Rows, inner dimension and columns: one row often, for which there is another kernel."""
    rows = 1 if rng.integers(3) == 0 else int(rng.integers(2, 300))
    inner = int(rng.integers(1, 1500) if rng.integers(4) == 0 else rng.integers(1, 70))
    return rows, inner, int(rng.integers(1, 200))


def mat_mul_integer(rng: np.random.Generator) -> Case:
    m, k, n = sides(rng)
    batch = [(), (), (2,), (2, 3)][rng.integers(4)]
    shared = rng.integers(2)
    per_column = rng.integers(2) if shared or not batch else 0
    inputs = [codes(rng, (*batch, m, k), U8), codes(rng, (k, n) if shared else (*batch, k, n), S8)]
    return [*inputs, zero(rng, U8), zero(rng, S8, n if per_column else ())], {"version": 10}


def mat_mul_integer_to_float(rng: np.random.Generator) -> Case:
    m, k, n = sides(rng)
    scale = np.exp(rng.uniform(-3, 1, n if rng.integers(2) else ())).astype(F)
    return [codes(rng, (m, k), U8), codes(rng, (k, n), S8), F(0.01), scale, zero(rng, U8), zero(rng, S8)], {
        "domain": MS
    }


def dynamic_quantize_mat_mul(rng: np.random.Generator) -> Case:
    m, k, n = sides(rng)
    a = rng.standard_normal((m, k)).astype(F) if rng.integers(2) else rng.uniform(0, 1, (m, k)).astype(F)
    return [a, codes(rng, (k, n), S8), F(0.02), zero(rng, S8)], {"domain": MS}


def q_gemm(rng: np.random.Generator) -> Case:
    m, k, n = sides(rng)
    left, right = rng.integers(0, 2, 2).tolist()
    inputs = [
        *(codes(rng, (k, m) if left else (m, k), U8), F(0.25), zero(rng, U8)),
        *(codes(rng, (n, k) if right else (k, n), S8), F(0.5), zero(rng, S8)),
        *(rng.integers(-9999, 9999, n).astype(np.int32), F(2.0 ** rng.integers(0, 6)), zero(rng, U8)),
    ]
    return inputs, {"domain": MS, "transA": left, "transB": right}


def q_linear_mat_mul(rng: np.random.Generator) -> Case:
    m, k, n = sides(rng)
    inputs = [
        *(codes(rng, (m, k), U8), F(0.25), zero(rng, U8)),
        *(codes(rng, (k, n), S8), F(0.5), zero(rng, S8)),
        *(F(2.0 ** rng.integers(0, 6)), zero(rng, U8)),
    ]
    return inputs, {"version": 10}


def geometry(rng: np.random.Generator) -> tuple[tuple, tuple, dict]:
    """Shapes and attributes of a convolution in one to three dimensions, with any channels, depthwise too."""
    rank = int(rng.integers(1, 4))
    group = int(rng.choice([1, 1, 1, 2, 3, 16]))
    channels, filters = int(rng.choice([1, 2, 3, 4, 5, 8, 12, 16])), int(rng.choice([1, 2, 3, 8, 16, 24, 32]))
    if group == 16:
        channels, filters = 1, int(rng.integers(1, 3))
    kernel = rng.integers(1, 4, rank)
    dilations = rng.integers(1, 3, rank)
    size = (kernel - 1) * dilations + 1 + rng.integers(0, {1: 300, 2: 24, 3: 9}[rank], rank)
    attributes = {
        "group": group,
        "dilations": dilations.tolist(),
        "strides": rng.integers(1, 3, rank).tolist(),
        "pads": rng.integers(0, 3, 2 * rank).tolist(),
    }
    return (int(rng.integers(1, 3)), group * channels, *size), (group * filters, channels, *kernel), attributes


def q_linear_conv(rng: np.random.Generator) -> Case:
    x, w, attributes = geometry(rng)
    w_zero = zero(rng, S8) if rng.integers(4) == 0 else S8(0)
    inputs = [
        *(codes(rng, x, U8), F(0.25), zero(rng, U8), codes(rng, w, S8), F(0.5), w_zero),
        *(F(2.0 ** rng.integers(0, 6)), zero(rng, U8), None),
    ]
    return inputs, {"version": 10, **attributes}


def conv_integer(rng: np.random.Generator) -> Case:
    """Filters are the left matrix: uint8 ones times int8 inputs saturate."""
    x, w, attributes = geometry(rng)
    return [codes(rng, x, S8), codes(rng, w, U8), zero(rng, S8), zero(rng, U8)], {"version": 10, **attributes}


def dynamic_quantize_lstm(rng: np.random.Generator) -> Case:
    """One step whose output is the sum for the cell gate: other gates are 1, and activations are the identity.

    Inputs are whole numbers from 0 to 255, so that their scale is 1; either the input or the hidden state is zero.
    """
    batch, inputs, hidden = int(rng.integers(1, 9)), int(rng.integers(1, 300)), int(rng.integers(2, 100))
    recurrent = bool(rng.integers(2))
    x, h = np.zeros((1, batch, inputs), F), np.zeros((1, batch, hidden), F)
    read = h if recurrent else x
    read[...] = rng.integers(0, 256, read.shape)
    read.flat[0] = 255
    w, r = np.zeros((1, inputs, 4 * hidden), S8), np.zeros((1, hidden, 4 * hidden), S8)
    w[..., 3 * hidden :] = codes(rng, (1, inputs, hidden), S8)
    r[..., 3 * hidden :] = codes(rng, (1, hidden, hidden), S8)
    bias = np.zeros((1, 8 * hidden), F)
    bias[:, : 2 * hidden] = 1
    one, none, cell = np.ones(1, F), np.zeros(1, S8), np.zeros((1, batch, hidden), F)
    settings = {"hidden_size": hidden, "activations": ["Affine"] * 3, "activation_alpha": [1.0] * 3}
    settings |= {"activation_beta": [0.0] * 3, "domain": MS}
    return [x, w, r, bias, None, h, cell, None, one, none, one, none], settings


OPERATORS: dict[str, tuple[Callable[[np.random.Generator], Case], list]] = {
    "MatMulInteger": (mat_mul_integer, [np.int32]),
    "MatMulIntegerToFloat": (mat_mul_integer_to_float, [F]),
    "DynamicQuantizeMatMul": (dynamic_quantize_mat_mul, [F]),
    "QGemm": (q_gemm, [U8]),
    "QLinearMatMul": (q_linear_mat_mul, [U8]),
    "QLinearConv": (q_linear_conv, [U8]),
    "ConvInteger": (conv_integer, [np.int32]),
    "DynamicQuantizeLSTM": (dynamic_quantize_lstm, [F, F, F]),
}


def sessions() -> Callable[[str, list, list, dict], list]:
    """Give a function that runs a node in onnxruntime, and makes a session for those that are alike."""
    made: dict[str, object] = {}

    def run(op_type: str, inputs: list, dtypes: list, settings: dict) -> list:
        key = repr((op_type, [None if v is None else (v.dtype, v.ndim) for v in map(np.asarray, inputs)], settings))
        if key not in made:
            made[key] = node_session(op_type, inputs, dtypes, **settings)
        return made[key].run(None, feeds_of(inputs))

    return run


def counts(outputs: int, seed: int = 0) -> Iterator[tuple[str, list[int]]]:
    """Compare at least so many outputs of each operator."""
    for op_type, (make, dtypes) in OPERATORS.items():
        rng, total, run = np.random.default_rng(seed), [0, 0, 0], sessions()
        while total[0] < outputs:
            inputs, settings = make(rng)
            theirs = run(op_type, inputs, dtypes, settings)[0]
            ours, exact = (
                run_kernel(op_type, inputs, arithmetic=kind, **settings)[0] for kind in ("saturating", "exact")
            )
            total[0] += theirs.size
            total[1] += differing(ours, theirs)
            total[2] += differing(exact, ours)
        yield op_type, total


if __name__ == "__main__":
    print(json.dumps(dict(counts(int(sys.argv[1]), *map(int, sys.argv[2:])))))
