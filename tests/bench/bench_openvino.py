"""Accuracy and latency in OpenVINO: onnxq's target `openvino` beside NNCF's post-training quantization, in one run.

    pip install openvino nncf
    python tests/bench/bench_openvino.py [--keep FOLDER] MODEL.onnx CALIBRATION EVALUATION [MODEL …]

Both calibrate on the same samples. SQNR is that of the worst output on the evaluation samples, against the float model
in OpenVINO. Latency is the least time of a run on one thread, the three models in turn, as a share of float's. With
--keep, quantized models are kept in a folder, and a second run on an idle machine only measures them.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import nncf
import numpy as np
import openvino as ov

import onnxq
from onnxq.data.samples import input_specs, open_samples
from onnxq.ir import infer_types, load
from onnxq.ir.passes import normalise

SECONDS = 6.0  # of runs for a model
MOST_EVALUATED = 64
Sample = Mapping[str, np.ndarray]
Run = Callable[[Sample], list[np.ndarray]]


def samples(model: Path, data: Path) -> list[Sample]:
    """Read samples as onnxq reads them, one row each."""
    loaded = load(model)
    normalise(loaded, needs=("drop_initializer_inputs",))
    infer_types(loaded)
    found: list[Sample] = []
    for sample in open_samples([data], input_specs(loaded)):
        rows = max(array.shape[0] if array.ndim else 1 for array in sample.values())
        found += [{name: array[row : row + 1] for name, array in sample.items()} for row in range(rows)]
    return found


def compiled(core: ov.Core, model: Any) -> Run:
    """Compile a model for one thread."""
    built = core.compile_model(model, "CPU", {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32"})
    request = built.create_infer_request()
    return lambda sample: [np.array(value) for value in request.infer(dict(sample)).values()]


def sqnr(expected: list[list[np.ndarray]], got: list[list[np.ndarray]]) -> float:
    """Return the SQNR of the worst float output in dB."""
    worst = np.inf
    for place, first in enumerate(expected[0]):
        if first.dtype.kind != "f":
            continue
        signal = sum(float(np.sum(np.square(run[place], dtype=np.float64))) for run in expected)
        noise = sum(
            float(np.sum(np.square(a[place].astype(np.float64) - b[place]))) for a, b in zip(expected, got, strict=True)
        )
        worst = min(worst, 10 * np.log10(signal / noise) if noise else np.inf)
    return float(worst)


def latencies(runs: list[Run], sample: Sample) -> list[float]:
    """Return the least time of each model, run in turn."""
    least = [np.inf] * len(runs)
    started = time.perf_counter()
    while time.perf_counter() - started < SECONDS * len(runs):
        for place, run in enumerate(runs):
            before = time.perf_counter()
            run(sample)
            least[place] = min(least[place], time.perf_counter() - before)
    return least


def row(core: ov.Core, model: Path, calibration: Path, evaluation: Path, folder: Path) -> str:
    """Measure one model."""
    given, unseen = samples(model, calibration), samples(model, evaluation)[:MOST_EVALUATED]
    ours_at, theirs_at = folder / f"{model.stem}.onnx", folder / f"{model.stem}.nncf.xml"
    if not ours_at.exists():
        onnxq.quantize(model, data=[calibration], target="openvino", output=ours_at)
    if not theirs_at.exists():
        mixed = nncf.QuantizationPreset.MIXED
        made = nncf.quantize(core.read_model(model), nncf.Dataset(given), preset=mixed, subset_size=len(given))
        ov.save_model(made, theirs_at, compress_to_fp16=False)
    runs = [compiled(core, core.read_model(path)) for path in (model, ours_at, theirs_at)]
    results = [[run(sample) for sample in unseen] for run in runs]
    times = latencies(runs, unseen[0])
    ours, theirs = (sqnr(results[0], result) for result in results[1:])
    shares = [f"{one / times[0]:.2f}" for one in times[1:]]
    return f"| {model.stem} | {ours:.1f} | {shares[0]} | {theirs:.1f} | {shares[1]} |"


def main() -> None:
    arguments = sys.argv[1:]
    kept = Path(arguments[1]) if arguments[:1] == ["--keep"] else None
    paths = [Path(given) for given in (arguments if kept is None else arguments[2:])]
    if not paths or len(paths) % 3:
        sys.exit(__doc__)
    core = ov.Core()
    print("| model | onnxq dB | latency | NNCF dB | latency |\n|---|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        for start in range(0, len(paths), 3):
            print(row(core, *paths[start : start + 3], kept or Path(folder)), flush=True)


if __name__ == "__main__":
    main()
