"""Scales of activations: what onnxruntime does not take."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers import ALL, F, build, floats, node, run

import onnxq


@pytest.mark.parametrize("clamp", [False, True])
@pytest.mark.parametrize("target", ["cpu", "generic"])
def test_an_average_of_next_to_nothing_gets_steps_that_onnxruntime_takes(
    tmp_path: Path, target: str, clamp: bool
) -> None:
    """Channels behind an InstanceNormalization average out: to what float32 rounds."""
    nodes = [
        node("InstanceNormalization", "x one none", "n"),
        node("Conv", "n w", "c"),
        node("GlobalAveragePool", "c", "g"),
        node("Relu" if clamp else "Identity", "g", "a"),
        node("Conv", "a v b", "y"),
    ]
    weights = {"one": np.ones(8, F), "none": np.zeros(8, F), "w": floats(16, 8, 1, 1), "v": floats(8, 16, 1, 1)}
    weights["b"] = floats(8)
    proto = build(nodes, {"x": [1, 8, 9, 9]}, ["y"], weights)
    onnx.save(proto, tmp_path / "m.onnx")
    feeds = [{"x": floats(1, 8, 9, 9, seed=seed)} for seed in range(2)]
    recipe = onnxq.load_recipe("static-int8").for_target(target)
    onnxq.quantize(tmp_path / "m.onnx", recipe, samples=feeds, output=tmp_path / "q.onnx")
    made = run((tmp_path / "q.onnx").read_bytes(), feeds[0], ALL, exact=target == "generic")
    assert np.abs(made[0].reshape(-1) - weights["b"]).max() < 0.1
