"""Time the quantized kernels against onnxruntime (one thread) and onnx.reference, as ratios measured in one run.

    python tests/bench/bench_kernels.py [--quick]

Prints a table: our time, times onnxruntime's, times faster than onnx.reference, and the extra memory beyond the output.
`--quick` leaves the 100 M elements out. The exit code is 1 when a limit is missed.
"""

from __future__ import annotations

import sys
import threading
import time
import warnings
from pathlib import Path

import numpy as np
from onnx import helper
from onnx.reference import ReferenceEvaluator

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from quantized_support import IR_VERSION, code, session

from onnxq import ops

F = np.float32
SIZES = {"1 K": 1_000, "1 M": 1_000_000, "100 M": 100_000_000}
LIMIT = {"1 K": float("inf"), "1 M": 4.0, "100 M": 2.5}


def model_of(op_type, feeds, outputs, version):
    inputs = [helper.make_tensor_value_info(k, code(v.dtype), list(v.shape)) for k, v in feeds.items()]
    results = [helper.make_tensor_value_info(k, code(t), None) for k, t in outputs.items()]
    graph = helper.make_graph([helper.make_node(op_type, list(feeds), list(outputs))], "bench", inputs, results)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)], ir_version=IR_VERSION[version])


def best(*functions, seconds=1.0):
    """The shortest time of each function in seconds; they take turns, so that all meet the same machine."""
    times = [[] for _ in functions]
    for function in functions:
        function()
    rounds = 0
    started = time.perf_counter()
    while rounds < 5 or (time.perf_counter() - started < seconds * len(functions) and rounds < 300):
        rounds += 1
        for function, taken in zip(functions, times, strict=True):
            start = time.perf_counter()
            function()
            taken.append(time.perf_counter() - start)
    return [min(taken) for taken in times]


def repeated(function, count):
    def run():
        for _ in range(count):
            function()

    return run if count > 1 else function


def resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def extra_memory(function) -> int:
    """Peak of the resident memory while the function runs, less what was there before and less its result."""
    peak, done = 0, threading.Event()
    before = resident()

    def observer():
        nonlocal peak
        while not done.is_set():
            peak = max(peak, resident())
            time.sleep(0.0005)

    watcher = threading.Thread(target=observer)
    watcher.start()
    result = function()
    peak = max(peak, resident())
    done.set()
    watcher.join()
    size = sum(v.nbytes for v in (result if isinstance(result, tuple) else (result,)))
    return max(0, peak - before - size)


def cases(size):
    x = np.random.default_rng(0).standard_normal(size, dtype=F)
    scale, zero = np.array(0.013, F), np.array(117, np.uint8)
    q = ops.quantize_linear(x, scale, zero)
    yield (
        "QuantizeLinear",
        {"x": x, "s": scale, "z": zero},
        {"y": np.uint8},
        lambda: ops.quantize_linear(x, scale, zero),
    )
    wide = np.array(0.05, F)  # as calibration would choose it: no value is clamped
    yield (
        "QuantizeLinear, calibrated",
        {"x": x, "s": wide, "z": zero},
        {"y": np.uint8},
        lambda: ops.quantize_linear(x, wide, zero),
    )
    yield "DequantizeLinear", {"x": q, "s": scale, "z": zero}, {"y": F}, lambda: ops.dequantize_linear(q, scale, zero)
    outputs = {"y": np.uint8, "s": F, "z": np.uint8}
    yield "DynamicQuantizeLinear", {"x": x}, outputs, lambda: ops.dynamic_quantize_linear(x)


def matrix_case():
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 256, (512, 768)).astype(np.uint8), rng.integers(-128, 128, (768, 3072)).astype(np.int8)
    za, zb = np.array(7, np.uint8), np.array(0, np.int8)
    feeds = {"a": a, "b": b, "za": za, "zb": zb}
    return "MatMulInteger", feeds, {"y": np.int32}, lambda: ops.mat_mul_integer(a, b, za, zb)


def row(name, size, case, most, least, memory=False):
    op_type, feeds, outputs, ours = case
    model = model_of(op_type.partition(",")[0], feeds, outputs, 21)
    runtime, reference = session(model), ReferenceEvaluator(model)
    count = 20 if size == "1 K" else 1
    mine, theirs = best(repeated(ours, count), repeated(lambda: runtime.run(None, feeds), count))
    (slow,) = best(repeated(lambda: reference.run(None, feeds), count), seconds=0.5)
    extra = extra_memory(ours) if memory else None
    good = mine / theirs <= most and slow / mine >= least and (extra is None or extra <= 64 << 20)
    print(
        f"{name:28}{size:>12}{mine / count * 1e3:11.3f} ms{mine / theirs:9.2f} (max {most:g})"
        f"{slow / mine:10.1f} (min {least:g}){'' if extra is None else f'{extra / 2**20:8.1f} MB'}"
        f"{'' if good else '   MISSED'}",
        flush=True,
    )
    return good


def main() -> int:
    warnings.simplefilter("ignore")
    print(f"{'operator':28}{'elements':>12}{'ours':>14}{'x onnxruntime':>20}{'x faster than ref.':>20}{'extra':>8}")
    good = [row("MatMulInteger", "512x768x3072", matrix_case(), 6.0, 80.0)]
    for label, size in SIZES.items():
        if label == "100 M" and "--quick" in sys.argv:
            continue
        good += [row(case[0], label, case, LIMIT[label], 1.0, label == "100 M") for case in cases(size)]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
