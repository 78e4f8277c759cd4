"""Time and memory of rounding a large decoder layer by layer, against passes of the float model; and kill and resume.

    python tests/bench/bench_layer_by_layer.py DECODER.onnx --ids calib.npz [--samples 64] [--bits 4] [--kills 10]

Prints processor seconds and the largest resident set of three processes, pages of mapped files included. The first runs
the float model in onnxruntime on all samples, with one thread. The second multiplies float32 matrices, the third
quantizes. The bound is three float passes, and what the search multiplies by second moments at the rate of the second.

With `--kills`, a resumable run is killed at so many moments of its first half, and resumed. Its bytes have to be those
of a run that was never killed. grow_decoder.py and fetch_decoder.py make decoders.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from onnxq.ir import Model, load
from onnxq.rounding.layer_by_layer import MOST_COLUMNS

# Products of a weight with H in the search: error feedback, two slopes, least squares for scales, two descents. And for
# what the weight compensates: two sums, two ridges with their errors, the correction.
PRODUCTS = 12
USED = """
import resource
used = resource.getrusage(resource.RUSAGE_SELF)
print(used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, *extra)
"""
FLOAT_PASS = """
import sys, time, numpy, onnxruntime
path, data, count = sys.argv[1:]
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
options.add_session_config_entry("session.disable_prepacking", "1")
run = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
with numpy.load(data) as arrays:
    ids = next(arrays[name] for name in arrays.files)[: int(count)]
run.run(None, {run.get_inputs()[0].name: ids[:1, :8]})
begun = time.process_time()
for row in ids:
    run.run(None, {run.get_inputs()[0].name: row[None]})
extra = [time.process_time() - begun]
"""
RATE = """
import time, numpy
from onnxq.runtime.blas_threads import single_threaded_blas
matrix = numpy.random.default_rng(0).standard_normal((2048, 2048), dtype=numpy.float32)
with single_threaded_blas():
    matrix @ matrix
    begun = time.process_time()
    for _ in range(8):
        matrix @ matrix
    extra = [8 * 2 * 2048**3 / (time.process_time() - begun)]
"""
QUANTIZE = """
import sys
from onnxq import in_blocks, quantize
source, target, data, count, bits, resume = sys.argv[1:]
quantize(source, in_blocks(int(bits), 32), data=[data], output=target, sample_limit=int(count), resume=resume == "1",
         force=True)
extra = []
"""


def child(code: str, *given: object) -> list[float]:
    """Run a program to its end; return its processor seconds, its largest resident set in MB, and what it adds."""
    command = [sys.executable, "-c", code + USED, *map(str, given)]
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return [float(word) for word in said.splitlines()[-1].split()]


def rounding_operations(model: Model) -> float:
    """Return the floating-point operations of the products that weights take with H."""
    total = 0.0
    for node in model.graph.nodes:
        weight = node.inputs[1] if node.op_type == "MatMul" else None
        if weight is not None and weight.constant is not None and len(weight.shape or ()) == 2:
            inner, outer = weight.constant.shape
            total += 2.0 * PRODUCTS * inner * outer * min(inner, MOST_COLUMNS)
    return total


def killed_and_resumed(given: argparse.Namespace, folder: Path, whole: Path, seconds: float) -> str:
    """Kill runs at moments spread over a whole run, resume, and compare the bytes."""
    target = folder / "resumed.onnx"
    told = [given.model, target, given.ids, given.samples, given.bits, 1]
    moments = []
    for index in range(given.kills):
        run = subprocess.Popen([sys.executable, "-c", QUANTIZE, *map(str, told)], stdout=subprocess.DEVNULL)
        time.sleep(seconds * (index + 1) / (given.kills + 1) / 2)
        run.send_signal(signal.SIGKILL)
        run.wait()
        moments.append(len(list(target.with_name(f"{target.name}.resume").glob("*.npz"))))
        target.unlink(missing_ok=True)
    child(QUANTIZE, *told)
    kept = [Path(f"{path}{end}") for end in ("", ".data") for path in (whole, target)]
    pairs = [pair for pair in zip(kept[::2], kept[1::2], strict=True) if pair[0].exists()]
    same = all(subprocess.run(["cmp", "-s", *map(os.fspath, pair)], check=False).returncode == 0 for pair in pairs)
    return f"weights with codes when it was killed: {moments}; bytes are {'the same' if same else 'others'}"


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--ids", type=Path, required=True)
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--bits", type=int, default=4)
    parser.add_argument("--kills", type=int, default=0)
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=given.model.absolute().parent, prefix="bench-"))
    try:
        one_pass = child(FLOAT_PASS, given.model, given.ids, given.samples)[2]
        rate = child(RATE)[2]
        rounding = rounding_operations(load(given.model)) / rate
        begun = time.perf_counter()
        told = [given.model, folder / "whole.onnx", given.ids, given.samples, given.bits, 0]
        used, peak = child(QUANTIZE, *told)
        seconds = time.perf_counter() - begun
        print(f"float pass {one_pass:.0f} s, products with H {rounding:.0f} s at {rate / 1e9:.0f} GFLOP/s")
        print(f"bound {3 * one_pass + rounding:.0f} s; quantized in {used:.0f} s, {seconds:.0f} of the clock")
        print(f"largest resident set {peak:.0f} MB")
        if given.kills:
            print(killed_and_resumed(given, folder, folder / "whole.onnx", seconds))
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
