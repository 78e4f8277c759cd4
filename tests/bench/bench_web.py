"""Models for `--target web` in the real onnxruntime-web: time in float's time, and accuracy there and in Python.

    python tests/bench/bench_web.py MODEL[=DATA] …       # DATA: an .npz to calibrate with; without it, dynamic
    python tests/bench/bench_web.py --test TEST.npz MODEL=DATA    # another file to compare on

The float model is timed without initializers among its inputs, which would keep onnxruntime from folding them. Float
and quantized run in turn, one thread, on the first core with real-time priority where that is allowed; the median of
the ratios counts. SQNR is of the worst output on at most 12 samples, in onnxruntime-web and in onnxruntime.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnxruntime_web import Web, missing

import onnxq

RUNS, SECONDS, WARM = 60, 15.0, 6
SAMPLES = 12


def plain(path: Path) -> bytes:
    """Return a model without initializers among its inputs."""
    model = onnx.load(path)
    stored = {tensor.name for tensor in model.graph.initializer}
    kept = [value for value in model.graph.input if value.name not in stored]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    model.ir_version = max(model.ir_version, 4)
    return bytes(model.SerializeToString())


def worst_sqnr(expected: list[list[np.ndarray]], found: list[list[np.ndarray]]) -> float:
    """Return the least SQNR of any output in dB, all samples of an output together."""
    figures = []
    for ours, theirs in zip(zip(*expected, strict=True), zip(*found, strict=True), strict=True):
        right, wrong = (np.concatenate([a.ravel() for a in each]).astype(np.float64) for each in (ours, theirs))
        noise = float(((right - wrong) ** 2).sum())
        figures.append(10 * np.log10(float((right**2).sum()) / noise) if noise else np.inf)
    return min(figures)


def measure(source: Path, quantized: bytes, samples: list[dict[str, np.ndarray]]) -> tuple[float, float, float, float]:
    """Return milliseconds in float, the ratio, and the SQNR in onnxruntime-web and in onnxruntime."""
    ort.set_default_logger_severity(3)
    in_float = plain(source)
    here, there = ort.InferenceSession(in_float), ort.InferenceSession(quantized)
    names = [output.name for output in here.get_outputs()]
    with Web(priority=True) as web:
        sessions = [web.load(in_float), web.load(quantized)]
        web.times(sessions, samples[0], WARM)
        times = web.times(sessions, samples[0], RUNS, seconds=SECONDS)
        found = [web.run(sessions[1], sample) for sample in samples]
    expected = [here.run(names, sample) for sample in samples]
    in_web = worst_sqnr(expected, [[each[name] for name in names] for each in found])
    in_python = worst_sqnr(expected, [there.run(names, sample) for sample in samples])
    return float(np.median(times[0])), float(np.median(times[1] / times[0])), in_web, in_python


def samples_of(path: Path) -> list[dict[str, np.ndarray]]:
    """Return the first samples of a file one by one; arrays whose names start with _ are no inputs."""
    with np.load(path) as data:
        arrays = {name: data[name] for name in data.files if not name.startswith("_")}
    count = min(SAMPLES, len(next(iter(arrays.values()))))
    return [{name: array[at : at + 1] for name, array in arrays.items()} for at in range(count)]


def main() -> int:
    """Quantize, measure, and print a row for each model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL[=DATA]")
    parser.add_argument("--test", type=Path, nargs="+", default=[], help="what to compare on, one for each model")
    parser.add_argument(
        "--keep", type=Path, help="a folder for the quantized models; those that are there are measured"
    )
    given = parser.parse_args()
    if why := missing():
        print(why, file=sys.stderr)
        return 2
    print("| model | data | float | quantized | SQNR there | SQNR in Python |\n|---|---|---:|---:|---:|---:|")
    for at, entry in enumerate(given.models):
        source, _, data = entry.partition("=")
        test = given.test[at] if at < len(given.test) else Path(data) if data else None
        with tempfile.TemporaryDirectory() as folder:
            kept = (given.keep or Path(folder)) / f"{Path(source).stem}.{'static' if data else 'dynamic'}.onnx"
            if not kept.exists():
                recipe = onnxq.load_recipe("auto").for_target("web")
                onnxq.quantize(source, recipe, output=kept, data=[data] if data else [])
            if test is None:
                parser.error(f"{source} has neither data nor --test to run on")
            took, ratio, there, here = measure(Path(source), kept.read_bytes(), samples_of(test))
        kind = "yes" if data else "no"
        print(
            f"| {Path(source).stem} | {kind} | {took:.2f} ms | {ratio:.2f} | {there:.1f} dB | {here:.1f} dB |",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
