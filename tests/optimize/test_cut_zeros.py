"""Weights are stored without filters and channels of zeros, and results stay the same to the bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers import applied, build, changed_alike, floats, node, typed
from integer_conv_support import Convs, shapes_of

from onnxq.optimize.cut_zeros import LEAST, cut_zeros
from onnxq.optimize.pad_channels import pad_channels
from onnxq.pipeline.quantize import quantize
from onnxq.targets.target import load_target


def padded(filters: int, window: int) -> onnx.ModelProto:
    """A Conv of 32 channels whose filters are filled up to 16; of 31 columns, which cannot be folded by twos."""
    net = Convs(1, 32, 31, 31)
    codes = net.conv(net.quantize("x"), "a", filters, 32, window, window, pads=[window // 2] * 4)
    model = typed(net.model(codes))
    pad_channels(model, load_target("cpu"))
    return onnx.ModelProto.FromString(model.serialize())


@pytest.mark.parametrize(("filters", "expected"), [(3, 3), (15, 15), (16, 16)])
def test_filters_of_zeros_are_not_stored(filters: int, expected: int) -> None:
    proto = padded(filters, 9)
    assert shapes_of(proto)["a"] == (16, 32, 9, 9)
    made, _ = changed_alike(proto, cut_zeros, {"x": floats(1, 32, 31, 31, seed=3)})
    stored = [t for t in made.graph.initializer if len(t.dims) == 4]
    assert [tuple(t.dims) for t in stored] == [(expected, 32, 9, 9)]
    assert len(proto.SerializeToString()) - len(made.SerializeToString()) >= (16 - expected) * 32 * 81 - 400


def test_a_few_zeros_stay() -> None:
    proto = padded(15, 3)
    assert LEAST > 32 * 9
    assert applied(cut_zeros, typed(proto)) == 0


def test_a_file_of_wide_filters_is_smaller_than_the_float_model(tmp_path: Path) -> None:
    weights = {"v": floats(32, 3, 3, 3, seed=1), "w": floats(3, 32, 9, 9, seed=2)}
    nodes = [node("Conv", "x v", "a", pads=[1] * 4), node("Relu", "a", "b"), node("Conv", "b w", "y", pads=[4] * 4)]
    proto = build(nodes, {"x": [1, 3, 31, 31]}, ["y"], weights, 17)
    data = {"x": np.stack([floats(3, 31, 31, seed=seed) for seed in range(4)])}
    quantize(proto, "static-int8", samples=data, output=tmp_path / "q.onnx")
    assert (tmp_path / "q.onnx").stat().st_size < 0.5 * len(proto.SerializeToString())
