"""What quantizing takes, in runs of the float model over the calibration samples, step by step.

    python tests/bench/bench_passes.py [--fast] FOLDER [NAME...]

FOLDER holds `NAME.onnx` beside `NAME_calib.npz` or a folder `NAME_calib`. Prints for each model seconds, seconds beyond
three (two with `--fast`) in such runs, and the steps that took most of them; then the median and the most. A run takes
what the report says; with `--fast`, which times no model, it is measured here, with one thread. Steps that run for the
report alone are left out: without `--report` there are none.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import onnxruntime

from onnxq.data.samples import input_specs, open_samples
from onnxq.ir import infer_types, load

REPORTED = ("layers", "details")  # steps that only a report asks for
START = {False: 3.0, True: 2.0}  # seconds that count for no model: imports, sessions, timing


def main() -> int:
    given = sys.argv[1:]
    fast = "--fast" in given
    folder, *names = [Path(one) for one in given if one != "--fast"]
    wanted = {str(name) for name in names}
    found = []
    print("| model | float pass, s | in all, s | passes beyond the start | where |\n|---|---:|---:|---:|---|")
    for model in sorted(folder.glob("*.onnx")):
        data = next(iter(folder.glob(f"{model.stem}_calib*")), None)
        if data is None or (wanted and model.stem not in wanted):
            continue
        report = quantized(model, data, fast=fast)
        if report is None or report["seconds"] is None:
            print(f"| {model.stem} | | | | refused |", flush=True)
            continue
        seconds, passes = (
            {step: number for step, number in (report[what] or {}).items() if step not in REPORTED}
            for what in ("seconds", "float_passes")
        )
        if passes:
            one = next(seconds[step] / passes[step] for step in seconds if passes[step] > 0)
        else:
            one = float_pass(model, data)
            passes = {step: taken / one for step, taken in seconds.items()}
        beyond = (sum(seconds.values()) - START[fast]) / one
        found.append(beyond)
        most = sorted(passes.items(), key=lambda item: -item[1])[:5]
        where = ", ".join(f"{step} {number:.0f}" for step, number in most)
        print(f"| {model.stem} | {one:.2f} | {sum(seconds.values()):.1f} | {beyond:.0f} | {where} |", flush=True)
    print(f"median {statistics.median(found):.0f}, most {max(found):.0f}")
    return 0


def float_pass(path: Path, data: Path) -> float:
    """Return the seconds that the float model takes for all samples, the faster of two runs."""
    model = load(path)
    infer_types(model)
    samples = open_samples(data, input_specs(model))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def run() -> float:
        taken = 0.0
        for sample in samples:
            started = time.perf_counter()
            session.run(None, dict(sample))
            taken += time.perf_counter() - started
        return taken

    return min(run(), run())


def quantized(model: Path, data: Path, *, fast: bool) -> dict[str, dict[str, float] | None] | None:
    """Quantize in a process of its own, and give the report; None where that is refused."""
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "onnxq", "quantize", str(model), "-d", str(data), "-o", f"{scratch}/q.onnx"]
        run = subprocess.run(
            [*command, "--format", "json", *(["--fast"] if fast else [])], capture_output=True, text=True
        )
        return json.loads(run.stdout) if run.returncode == 0 else None


if __name__ == "__main__":
    sys.exit(main())
