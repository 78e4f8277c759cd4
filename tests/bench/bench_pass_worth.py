"""What each simplifying and optimizing pass is worth: every model quantized without it, where it finds anything.

    python tests/bench/made_for.py /tmp/made-for
    python tests/bench/bench_pass_worth.py [--measure] [--recipe RECIPE] FOLDER... [--only PASS...]

A FOLDER holds `NAME.onnx`, and for each `NAME_calib.npz` or a folder of that name where there are data. Models are
quantized with `--fast` on at most eight samples. Prints for each pass how many models it changes and, with `--measure`,
what it gains at best: least latency of many runs, in turn, one thread, without the pass by with it; SQNR with it less
without. A pass that gains nothing anywhere is printed too: it has to be correct for something else, or go.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import numpy as np
import onnxruntime as ort

import onnxq
from onnxq.data.samples import input_specs, open_samples
from onnxq.ir.pass_manager import OPTIMIZE, SIMPLIFY, Pass, _Run, find_passes
from onnxq.ir.shape_inference.types import infer_types

SAMPLES = 8
SECONDS = 4.0  # of runs for a pair of models
WORTH_TIME, WORTH_SQNR = 0.01, 0.2


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Count the steps of every pass that changed something."""
    found = Counter[str]()
    before = _Run.step

    def step(self: _Run, item: Pass) -> bool:
        changed = before(self, item)
        found[item.name] += changed
        return changed

    with mock.patch.object(_Run, "step", step):
        yield found


@contextmanager
def without(name: str) -> Iterator[None]:
    """Leave a pass out."""
    before = _Run.step
    with mock.patch.object(_Run, "step", lambda self, item: item.name != name and before(self, item)):
        yield


def quantized(model: Path, data: Path | None, output: Path, recipe: str) -> float | None:
    """Quantize, and give the SQNR of the worst output; None where that is refused."""
    try:
        report = onnxq.quantize(
            model,
            recipe=recipe,
            output=output,
            data=[data] if data else [],
            sample_limit=SAMPLES if data else None,
            fast=True,
            force=True,
        )
    except onnxq.OnnxqError as error:
        print(f"{model.stem}: {error}", file=sys.stderr)
        return None
    return None if report.comparison is None else report.comparison.worst_sqnr


def speedup(model: Path, data: Path | None, first: Path, second: Path) -> float:
    """Give the least latency of the first of two models by that of the second, run in turn."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    sessions = [
        ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"]) for path in (first, second)
    ]
    loaded = onnxq.load(model)
    infer_types(loaded)
    if data is None:
        from onnxq.data.synthetic import synthetic_samples

        samples = synthetic_samples(loaded, input_specs(loaded), 1)
    else:
        samples = open_samples([data], input_specs(loaded)).limit(1)
    feeds = dict(next(iter(samples)))
    least = [np.inf, np.inf]
    started, runs = time.perf_counter(), 0
    while runs < 5 or time.perf_counter() - started < SECONDS:
        for which, session in enumerate(sessions):
            before = time.perf_counter()
            session.run(None, feeds)
            least[which] = min(least[which], time.perf_counter() - before)
        runs += 1
    return least[0] / least[1]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--recipe", default="auto")
    parser.add_argument("--only", nargs="*", default=[])
    given = parser.parse_args()
    passes = [item.name for phase in (SIMPLIFY, OPTIMIZE) for item in find_passes(phase)]
    fires: dict[str, list[str]] = {name: [] for name in passes}
    gains: dict[str, list[tuple[float, float, str]]] = {name: [] for name in passes}
    for folder in given.folders:
        for model in sorted(folder.glob("*.onnx")):
            data = next(iter(folder.glob(f"{model.stem}_calib*")), None)
            with tempfile.TemporaryDirectory() as scratch:
                whole, part = Path(scratch) / "whole.onnx", Path(scratch) / "part.onnx"
                with counted() as found:
                    sqnr = quantized(model, data, whole, given.recipe)
                if sqnr is None:
                    continue
                for name in (name for name in passes if found[name]):
                    fires[name].append(model.stem)
                    if not given.measure or (given.only and name not in given.only):
                        continue
                    with without(name):
                        other = quantized(model, data, part, given.recipe)
                    if other is None:
                        gains[name].append((np.inf, np.inf, model.stem))
                        continue
                    time_gain = speedup(model, data, part, whole) - 1
                    gains[name].append((time_gain, sqnr - other, model.stem))
                    print(
                        f"{name}\t{model.stem}\t{time_gain:+.3f}\t{sqnr - other:+.2f} dB", file=sys.stderr, flush=True
                    )
            print(f"{model.stem}: {', '.join(sorted(n for n in passes if found[n]))}", file=sys.stderr, flush=True)
    print("| pass | models | time at best | SQNR at best |\n|---|---:|---:|---:|")
    for name in passes:
        best = max((gain for gain, _, _ in gains[name]), default=float("nan"))
        most = max((gain for _, gain, _ in gains[name]), default=float("nan"))
        print(f"| {name} | {len(fires[name])} | {100 * best:+.1f} % | {most:+.1f} dB |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
