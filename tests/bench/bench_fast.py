"""Time `onnxq quantize --fast` against running the float model over the calibration samples.

    python tests/bench/bench_fast.py MODEL DATA [MODEL DATA …]

Gives for each model the seconds that onnxruntime takes to run the float model over all samples with its default
threads, the limit of 1.5 times as much and 3 seconds, and the seconds of the whole command. Both are timed in turn,
three times; the least of each counts. The exit code is 1 if a limit is exceeded.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import onnxruntime as ort

from onnxq.data.samples import input_specs, open_samples
from onnxq.ir import infer_types, load

FACTOR, SECONDS, TURNS = 1.5, 3.0, 3


def float_seconds(model: Path, data: Path) -> float:
    """Time that onnxruntime takes to run a model over all samples."""
    loaded = load(model)
    infer_types(loaded)
    samples = [dict(sample) for sample in open_samples([data], input_specs(loaded))]
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    started = time.perf_counter()
    for sample in samples:
        session.run(None, sample)
    return time.perf_counter() - started


def command_seconds(model: Path, data: Path) -> float:
    """Time of the whole command."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "onnxq", "quantize", str(model), "--data", str(data), "--fast"]
        started = time.perf_counter()
        subprocess.run([*command, "--output", f"{folder}/out.onnx"], check=True, capture_output=True)
        return time.perf_counter() - started


def measure(model: Path, data: Path) -> tuple[float, float, float]:
    """Give the seconds of the float model, the limit, and the seconds of the command."""
    turns = [(float_seconds(model, data), command_seconds(model, data)) for _ in range(TURNS)]
    run, command = (min(column) for column in zip(*turns, strict=True))
    return run, FACTOR * run + SECONDS, command


def main() -> int:
    """Print a line for each model."""
    given = [Path(argument) for argument in sys.argv[1:]]
    exceeded = 0
    for model, data in zip(given[::2], given[1::2], strict=True):
        run, limit, command = measure(model, data)
        exceeded |= command > limit
        print(f"{model.name}: float {run:.2f} s, limit {limit:.2f} s, quantize --fast {command:.2f} s")
    return int(exceeded)


if __name__ == "__main__":
    raise SystemExit(main())
