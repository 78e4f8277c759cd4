"""Measure a folder of models that others trained: error on other samples, latency and size.

    python tests/bench/bench_real.py FOLDER [PATTERN ...] [--samples N] [--recipe NAME] [--target NAME] [--fast]

FOLDER holds for each NAME.onnx samples to calibrate with, NAME_calib, and samples to judge on, NAME_eval: each an
.npz file or a folder of them. PATTERN is a glob of names; by default all models run. `SQNR` is that of the worst
output on the samples to judge on. `expected` is what `quantize` expects it to be, `fitted` the SQNR on the samples to
calibrate with.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from fnmatch import fnmatch
from pathlib import Path
from statistics import median

from onnxq.data.samples import input_specs, open_samples
from onnxq.errors import OnnxqError
from onnxq.ir import load
from onnxq.pipeline.quantize import quantize
from onnxq.stages.prepare import prepare
from onnxq.verification.compare import compare

HEAD = ("model", "SQNR", "expected", "fitted", "latency", "predicted", "size", "time")


def data_of(model: Path, part: str) -> Path | None:
    """Return where the samples of a model are, or None."""
    places = (model.with_name(f"{model.stem}_{part}{ending}") for ending in (".npz", ""))
    return next((place for place in places if place.exists()), None)


def judge(model: Path, calibration: Path, held_out: Path, options: argparse.Namespace) -> tuple[float, list[str]]:
    """Quantize a model and compare it on other samples; returns the SQNR in dB and a row of the table."""
    with tempfile.TemporaryDirectory() as folder:
        target, started = Path(folder) / "out.onnx", time.perf_counter()
        report = quantize(
            model,
            options.recipe,
            output=target,
            data=[calibration],
            target=options.target,
            sample_limit=options.samples,
            fast=options.fast,
        )
        seconds = time.perf_counter() - started
        baseline = prepare(load(model), with_data=False).model
        found = compare(baseline.serialize(), target, open_samples([held_out], input_specs(baseline)))
        assert found.latency is not None
        assert report.comparison is not None
        predicted = max((family.latency for family in report.families if family.latency is not None), default=1.0)
        expected = report.cross_validation
        fitted = report.comparison.worst_sqnr
        figures = [f"{found.worst_sqnr:.1f} dB", "" if expected is None else f"{expected.sqnr:.1f} dB"]
        figures += [f"{fitted:.1f} dB"]
        figures += [f"{found.latency.ratio:.2f}", f"{predicted:.2f}"]
        figures += [f"{target.stat().st_size / model.stat().st_size:.2f}", f"{seconds:.0f} s"]
        return found.worst_sqnr, [model.stem, *figures]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("patterns", nargs="*", default=["*"])
    parser.add_argument("--samples", type=int, help="calibrate with the first N samples only")
    parser.add_argument("--recipe", default="auto")
    parser.add_argument("--target")
    parser.add_argument("--fast", action="store_true", help="leave searches out, as `onnxq quantize --fast`")
    options = parser.parse_args()
    print(f"| {' | '.join(HEAD)} |\n|---|{'---:|' * (len(HEAD) - 1)}")
    ratios = []
    for model in sorted(options.folder.glob("*.onnx")):
        calibration, held_out = data_of(model, "calib"), data_of(model, "eval")
        if calibration is None or held_out is None or not any(fnmatch(model.stem, one) for one in options.patterns):
            continue
        try:
            sqnr, row = judge(model, calibration, held_out, options)
        except OnnxqError as error:
            print(f"| {model.stem} | {error} |{' |' * (len(HEAD) - 2)}", flush=True)
            continue
        ratios.append(sqnr)
        print(f"| {' | '.join(row)} |", flush=True)
    if ratios:
        print(f"\nmedian {median(ratios):.1f} dB, least {min(ratios):.1f} dB, {len(ratios)} models")


if __name__ == "__main__":
    sys.exit(main())
