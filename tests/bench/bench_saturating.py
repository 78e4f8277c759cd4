"""Time the saturating integer products against the exact ones: Gaussian int8 weights, uniform uint8 activations.

    python tests/bench/bench_saturating.py

Weights have a scale for every column, so that the largest of each is 127. Times are processor time of
this thread, the shortest of several. The exit code is 1 where saturating takes more than 4 times as long as exact.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np

from onnxq.evaluator import arithmetic
from onnxq.ops.quantized import Arithmetic, integer_arithmetic, mat_mul_integer, q_linear_conv

LIMIT = 4.0
PRODUCTS = [
    (1, 768, 768), (8, 768, 768), (128, 64, 64), (1024, 64, 64), (128, 768, 768), (128, 768, 3072), (512, 768, 768),
]  # fmt: skip
CONVOLUTIONS = [
    (32, 32, 28, 3),
    (64, 64, 28, 3),
    (256, 256, 14, 1),
    (256, 256, 14, 3),
]  # channels, filters, side, kernel


def gaussian(rng: np.random.Generator, inner: int, columns: int) -> np.ndarray:
    """Weights [K, N] of which the largest in each column is 127."""
    weights = rng.standard_normal((inner, columns))
    return np.rint(weights / np.abs(weights).max(0) * 127).astype(np.int8)


def shortest(function: Callable[[], object], kind: Arithmetic) -> tuple[float, object]:
    """Give seconds and the result."""
    best, result = float("inf"), None
    with integer_arithmetic(kind):
        for _ in range(12):
            start = time.thread_time()
            result = function()
            best = min(best, time.thread_time() - start)
    return best, result


def cases(rng: np.random.Generator) -> list[tuple[str, Callable[[], object]]]:
    """Products and convolutions, by name."""
    found = []
    for m, k, n in PRODUCTS:
        a, b = rng.integers(0, 256, (m, k)).astype(np.uint8), gaussian(rng, k, n)
        found.append((f"MatMulInteger {m} × {k} × {n}", lambda a=a, b=b: mat_mul_integer(a, b, np.uint8(128))))
    for channels, filters, side, kernel in CONVOLUTIONS:
        x = rng.integers(0, 256, (1, channels, side, side)).astype(np.uint8)
        w = gaussian(rng, channels * kernel**2, filters).T.reshape(filters, channels, kernel, kernel)
        one, pads = np.float32(1), [kernel // 2] * 4
        inputs = (x, one, np.uint8(128), w.copy(), one, np.int8(0), np.float32(99), np.uint8(128))
        name = f"QLinearConv {channels} → {filters}, {side}², {kernel}×{kernel}"
        found.append((name, lambda inputs=inputs, pads=pads: q_linear_conv(*inputs, pads=pads)))
    return found


def main() -> int:
    """Print the table."""
    worst = 0.0
    with arithmetic():
        for name, function in cases(np.random.default_rng(0)):
            exact, expected = shortest(function, "exact")
            time_, result = shortest(function, "saturating")
            differ = np.mean(np.asarray(result) != np.asarray(expected))
            worst = max(worst, time_ / exact)
            print(
                f"{name:36} exact {exact * 1e3:7.3f} ms   saturating {time_ / exact:5.2f} times   {differ:6.1%} differ"
            )
    return int(worst > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
