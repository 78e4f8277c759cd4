"""What onnxq makes of the sample models: size, latency, distance from float and accuracy, static and dynamic.

    python tests/bench/bench_samples.py

Accuracy is top-1 on the 597 test images, one image at a time; SQNR is on the same images, which no step has seen.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np

from onnxq.data.samples import input_specs, open_samples
from onnxq.ir import load
from onnxq.pipeline.quantize import quantize
from onnxq.runtime.session import open_session, run_session
from onnxq.stages.prepare import prepare
from onnxq.verification.compare import compare

SAMPLES = Path(__file__).parents[2] / "sample_models"


def accuracy(model: Path | bytes) -> float:
    """Top-1 accuracy in percent."""
    session = open_session(model, threads=1)
    data = np.load(SAMPLES / "digits_test.npz")
    pairs = zip(data["image"], data["_label"], strict=True)
    return 100 * float(np.mean([run_session(session, None, {"image": i[None]})[0].argmax() == y for i, y in pairs]))


def main() -> None:
    print("| model | mode | size | latency | SQNR | accuracy, float | quantized |")
    print("|---|---|---:|---:|---:|---:|---:|")
    for source in sorted(path for path in SAMPLES.glob("digits_*.onnx") if not path.stem.endswith(".int8")):
        for mode in ("static", "dynamic"):
            with tempfile.TemporaryDirectory() as folder:
                target = Path(folder) / "out.onnx"
                quantize(source, output=target, data=[SAMPLES / "digits_calibration.npz"] if mode == "static" else [])
                prepared = prepare(load(source), with_data=False)
                test = open_samples([SAMPLES / "digits_test.npz"], input_specs(prepared.model))
                found = compare(prepared.model.serialize(), target, test)
                assert found.latency is not None
                size = target.stat().st_size / source.stat().st_size
                print(
                    f"| {source.stem} | {mode} | {size:.2f} | {found.latency.ratio:.2f} | {found.worst_sqnr:.1f} dB"
                    f" | {accuracy(source):.2f} % | {accuracy(target):.2f} % |"
                )


if __name__ == "__main__":
    sys.exit(main())
