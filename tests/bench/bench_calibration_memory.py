"""Peak memory of calibration does not grow with the number of samples: 8 against 128, each in a process of its own.

Run it for the figures (`python tests/bench/bench_calibration_memory.py`) or as a test (`pytest -m bench
tests/bench/bench_calibration_memory.py`). The model is twelve convolutions, the one for which onnxruntime's own
histogram calibrators go from 161 to 594 MB between 8 and 64 samples; the samples differ in size.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest

COUNTS = (8, 128)
# Bytes. One sample of 64 × 64 has 24 taps of 0.5 MB: keeping as few as two samples, of 120 more, would show
LARGEST_GROWTH = 16e6
SIZES = (64, 48, 56, 40)


def write_model(path: Path) -> None:
    """Twelve times Conv (32 channels, 3 × 3) and Relu over a picture of any size."""
    import onnx
    from onnx import TensorProto, helper

    random = np.random.default_rng(0)
    nodes, weights, value = [], [], "image"
    for layer in range(12):
        channels = 3 if layer == 0 else 32
        weight = random.standard_normal((32, channels, 3, 3)).astype(np.float32) * (2 / channels / 9) ** 0.5
        weights.append(onnx.numpy_helper.from_array(weight.astype(np.float32), f"w{layer}"))
        nodes.append(helper.make_node("Conv", [value, f"w{layer}"], [f"c{layer}"], pads=[1, 1, 1, 1]))
        value = f"r{layer}"
        nodes.append(helper.make_node("Relu", [f"c{layer}"], [value]))
    graph = helper.make_graph(
        nodes,
        "twelve",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["n", 3, "h", "w"])],
        [helper.make_tensor_value_info(value, TensorProto.FLOAT, ["n", 32, "h", "w"])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())


def write_samples(folder: Path, count: int) -> None:
    """One `.npz` for each sample, in turn of four sizes."""
    folder.mkdir()
    for index in range(count):
        size = SIZES[index % len(SIZES)]
        image = np.random.default_rng(index).standard_normal((1, 3, size, size)).astype(np.float32)
        np.savez(folder / f"{index}.npz", image=image)


def measure(model_path: str, folder: str) -> dict[str, float]:
    """Calibrate every float value in this process and give peak memory in bytes and seconds."""
    import resource

    from onnxq.calibration.calibrate import calibrate
    from onnxq.data.samples import input_specs, open_samples
    from onnxq.ir import load
    from onnxq.ir.shape_inference.types import infer_types

    model = load(model_path)
    infer_types(model)
    samples = open_samples([folder], input_specs(model))
    taps = [value for value in model.graph.values.values() if value.tensor is None]
    start = time.perf_counter()
    stats = calibrate(model, taps, samples, threads=1)
    seconds = time.perf_counter() - start
    elements = sum(tensor.count for tensor in stats.tensors.values())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return {"samples": stats.samples, "peak": peak, "seconds": seconds, "elements": elements}


def compare(folder: Path) -> list[dict[str, float]]:
    """Measure both numbers of samples."""
    write_model(folder / "model.onnx")
    results = []
    for count in COUNTS:
        write_samples(folder / str(count), count)
        command = [sys.executable, __file__, str(folder / "model.onnx"), str(folder / str(count))]
        results.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    return results


@pytest.mark.bench
def test_memory_does_not_grow_with_the_number_of_samples(tmp_path):
    few, many = compare(tmp_path)
    assert (few["samples"], many["samples"]) == COUNTS
    assert many["peak"] - few["peak"] <= LARGEST_GROWTH


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for r in compare(Path(folder)):
            print(
                f"{r['samples']:4.0f} samples: peak {r['peak'] / 1e6:6.1f} MB, {r['seconds']:5.2f} s, "
                f"{r['elements'] / 1e6:6.1f} million elements, {r['seconds'] / r['elements'] * 1e9:.1f} ns each"
            )


if __name__ == "__main__":
    if len(sys.argv) == 3:
        print(json.dumps(measure(*sys.argv[1:])))
    else:
        main()
