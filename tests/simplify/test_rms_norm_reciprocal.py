"""Root mean squares that divide."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest
from helpers import build, floats, node, session
from support import assert_same, simplified, written

WEIGHTS = {"two": np.float32(2), "axes": np.int64([-1]), "eps": np.float32(1e-6), "g": floats(8, seed=1)}
FEEDS = [{"x": floats(2, 5, 8)}, {"x": 1e4 * floats(1, 3, 8)}, {"x": np.zeros((1, 2, 8), np.float32)}]


def rms(*changed: str, outputs=("y",), **weights):
    """RMS normalization as PyTorch's newer exporter writes it, some of its lines in another way."""
    lines = {
        "s": "Pow x two", "m": "ReduceMean s axes", "v": "Add m eps", "d": "Sqrt v", "r": "Reciprocal d",
        "n": "Mul x r", "y": "Mul n g",
    } | dict(line.split(" = ") for line in changed)  # fmt: skip
    nodes = [node(call.split()[0], " ".join(call.split()[1:]), made) for made, call in lines.items()]
    return build(nodes, {"x": ["b", "t", 8]}, outputs, {**WEIGHTS, **weights}, opset=18)


@pytest.mark.parametrize("changed", [(), ("n = Mul r x", "v = Add eps m")])
def test_a_reciprocal_becomes_a_divisor(tmp_path, changed):
    found = simplified(rms(*changed), "rms_norm_reciprocal")
    assert written(found.model)[-3:] == ["d = Sqrt(v)", "n = Div(x, d)", "y = Mul(n, g[8])"]
    assert found.notes == ("rewrote 1 RMSNorm reciprocal as Div",)
    assert_same(rms(*changed), found, FEEDS, rtol=1e-6)


def test_onnxruntime_knows_it_then(tmp_path):
    found = simplified(rms(), "rms_norm_reciprocal")
    kept = tmp_path / "optimised.onnx"
    session(found.model.serialize(), ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED, str(kept))
    assert b"SimplifiedLayerNormalization" in kept.read_bytes()


@pytest.mark.parametrize(
    "changed",
    [
        ("n = Mul r r",),
        ("n = Mul g r",),  # not what was squared
        ("n = Add x r",),
        ("r = Reciprocal v",),
        ("s = Pow x three",),
        ("m = ReduceMax s axes",),
        ("v = Add m x",),
        ("y = Mul n r",),  # two readers
    ],
)
def test_what_stays(changed):
    assert simplified(rms(*changed, three=np.float32(3)), "rms_norm_reciprocal").notes == ()


def test_a_reciprocal_that_is_an_output_stays():
    assert simplified(rms(outputs=("y", "r")), "rms_norm_reciprocal").notes == ()
