"""Residual additions kept apart from the LayerNormalization behind them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from helpers import ALL, build, floats, node, run, session, typed

from onnxq.simplify import simplify

WEIGHTS = {"g": floats(16, seed=1), "b": floats(16, seed=2), "vector": floats(16, seed=3)}
NORM = node("LayerNormalization", "s g b", "y", axis=-1)
FEEDS = {"x": floats(2, 4, 16), "r": floats(2, 4, 16, seed=4)}


def simplified(nodes, outputs=("y",)):
    proto = build(nodes, {"x": [2, 4, 16], "r": [2, 4, 16]}, outputs, WEIGHTS)
    return proto, simplify(typed(proto), only=["block_skip_layer_norm"])


def kernels(data: bytes, path) -> set[str]:
    session(data, ALL, str(path))
    return {item.op_type for item in onnx.load(path).graph.node}


def test_onnxruntime_does_not_fuse_what_was_kept_apart(tmp_path):
    proto, found = simplified([node("Add", "x r", "s"), NORM])
    data = found.model.serialize()
    assert [item.op_type for item in found.model.graph.nodes] == ["Sum", "LayerNormalization"]
    assert [value.name for value in found.model.graph.nodes[0].outputs] == ["s"]
    assert len(found.notes) == 1
    assert found.notes[0].startswith("kept 1 addition from being fused with LayerNormalization")
    np.testing.assert_array_equal(run(data, FEEDS)[0], run(proto.SerializeToString(), FEEDS)[0])
    assert kernels(proto.SerializeToString(), tmp_path / "a.onnx") == {"SkipLayerNormalization"}, (
        "else it is not needed"
    )
    assert kernels(data, tmp_path / "b.onnx") == {"Sum", "LayerNormalization"}
    np.testing.assert_allclose(run(data, FEEDS, ALL)[0], run(data, FEEDS)[0], rtol=1e-5, atol=1e-5)


def test_sum_to_add_leaves_what_was_kept_apart():
    """Else both passes undo each other, round after round."""
    proto = build([node("Add", "x r", "s"), NORM], {"x": [2, 4, 16], "r": [2, 4, 16]}, ["y"], WEIGHTS)
    found = simplify(typed(proto))
    assert found.notes == ("kept 1 addition from being fused with LayerNormalization into a slow kernel",)
    assert simplify(found.model).original is None


@pytest.mark.parametrize(
    ("nodes", "outputs"),
    [
        ([node("Add", "x vector", "s"), NORM], ["y"]),
        ([node("Add", "x r", "s"), NORM], ["y", "s"]),
        ([node("Add", "x r", "s"), NORM, node("Relu", "s", "z")], ["y", "z"]),
        ([node("Mul", "x r", "s"), NORM], ["y"]),
    ],
    ids=["bias", "output", "two_readers", "product"],
)
def test_other_additions_stay(nodes, outputs):
    _, found = simplified(nodes, outputs)
    assert found.original is None
