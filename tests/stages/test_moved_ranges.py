"""What only moves values of another tensor has that one's scale, so that onnxruntime works in 8 bit between the two."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from helpers import build, floats, node

from onnxq.data.samples import input_specs, wrap_samples
from onnxq.ir import load
from onnxq.planning.recipe import load_recipe
from onnxq.progress import Silent
from onnxq.stages.measure import choose_qparams, layers_needing_moments, measure
from onnxq.stages.prepare import prepare


def test_behind_a_float_maxpool_values_keep_the_scale_that_they_had_before_it(tmp_path: Path) -> None:
    nodes = [
        node("Conv", "x w0", "c"),
        node("Relu", "c", "r"),
        node("MaxPool", "r", "p", name="pool", kernel_shape=[4, 4], strides=[4, 4]),
        node("Conv", "p w1", "y"),
    ]
    weights = {"w0": floats(8, 4, 1, 1, seed=1), "w1": floats(8, 8, 1, 1, seed=2)}
    onnx.save(build(nodes, {"x": ["N", 4, 16, 16]}, ["y"], weights), tmp_path / "m.onnx")
    sizes = np.exp(np.random.default_rng(3).normal(0, 0.6, 32))
    given = [{"x": np.float32(size) * floats(1, 4, 16, 16, seed=index)} for index, size in enumerate(sizes)]
    for ranges in ("auto", "output-error"):
        recipe = load_recipe("static-int8").setting(ranges=ranges)
        prepared = prepare(load(tmp_path / "m.onnx"), recipe, with_data=True, exclude=["pool"])
        stats = measure(
            prepared,
            layers_needing_moments(prepared.plan),
            wrap_samples(given, input_specs(prepared.model)),
            None,
            Silent(),
        )
        chosen = {value.name: qparams for value, qparams in choose_qparams(prepared.plan, stats).items()}
        assert {"r", "p"} <= chosen.keys(), ranges
        assert chosen["p"] == chosen["r"]


def test_through_several_operators_to_the_first_value_of_the_same_settings(tmp_path: Path) -> None:
    nodes = [
        node("MatMul", "x w", "y0"),
        node("Transpose", "x", "t", perm=[0, 2, 1]),
        node("Reshape", "t shape", "f", name="flat"),
        node("MatMul", "f w", "y1"),
        node("Transpose", "f", "b", perm=[1, 0]),
        node("MatMul", "b v", "y2", name="wide"),
    ]
    weights = {"w": floats(16, 8, seed=1), "v": floats(16, 8, seed=2), "shape": np.array([16, 16], np.int64)}
    onnx.save(build(nodes, {"x": [1, 16, 16]}, ["y0", "y1", "y2"], weights, opset=21), tmp_path / "m.onnx")
    (tmp_path / "r.toml").write_text('scheme = "static-int8"\n[[rules]]\nname = "wide"\nactivations = "uint16"\n')
    for recipe, owner in ((load_recipe("static-int8"), "x"), (load_recipe(tmp_path / "r.toml"), "b")):
        plan = prepare(load(tmp_path / "m.onnx"), recipe, with_data=True, only=["MatMul"]).plan
        assert {v.name: plan.range_owner(v).name for v in plan.calibrated()} == {"x": "x", "f": "x", "b": owner}


def test_the_parts_of_a_split_have_scales_of_their_own(tmp_path: Path) -> None:
    nodes = [
        node("Conv", "x w0", "c"),
        node("Split", "c", "a b", name="split", axis=1),
        node("Conv", "a w1", "y"),
        node("Conv", "b w1", "z"),
    ]
    weights = {"w0": floats(8, 4, 1, 1, seed=1), "w1": floats(8, 4, 1, 1, seed=2)}
    weights["w0"][4:] /= 100
    onnx.save(build(nodes, {"x": ["N", 4, 8, 8]}, ["y", "z"], weights, opset=13), tmp_path / "m.onnx")
    given = [{"x": floats(1, 4, 8, 8, seed=index)} for index in range(8)]
    prepared = prepare(load(tmp_path / "m.onnx"), load_recipe("static-int8"), with_data=True, exclude=["split"])
    stats = measure(
        prepared,
        layers_needing_moments(prepared.plan),
        wrap_samples(given, input_specs(prepared.model)),
        None,
        Silent(),
    )
    chosen = {value.name: qparams for value, qparams in choose_qparams(prepared.plan, stats).items()}
    assert chosen["b"][0] < chosen["a"][0] / 30
