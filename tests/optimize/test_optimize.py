"""The last step: in operator sets that know what it takes, and for runtimes whose kernels are known."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from helpers import ALL, build, count_ops, floats, node, recipe_of, run, sqnr

from onnxq.pipeline.quantize import quantize

STEPS = [node("Conv", "x w", "a", pads=[1] * 4), node("Conv", "a v", "y", pads=[1] * 4)]
WEIGHTS = {"w": floats(6, 3, 3, 3), "v": floats(9, 6, 3, 3)}


def made(folder: Path, opset: int, target: str = "cpu", width: int = 21) -> onnx.ModelProto:
    onnx.save(build(STEPS, {"x": [1, 3, 20, width]}, ["y"], WEIGHTS, opset), folder / "m.onnx")
    recipe = recipe_of("static-int8", granularity="tensor", target=target)
    samples = [{"x": floats(1, 3, 20, width, seed=seed)} for seed in range(4)]
    quantize(folder / "m.onnx", recipe, output=folder / "q.onnx", samples=samples, fast=True)
    proto = onnx.load(folder / "q.onnx")
    onnx.checker.check_model(proto, full_check=True)
    return proto


@pytest.mark.parametrize("opset", [11, 12, 13, 17])
def test_channels_are_filled_up_in_every_operator_set_that_pads_codes(tmp_path: Path, opset: int) -> None:
    counts = count_ops(made(tmp_path, opset))
    assert (counts["Pad"], counts["Slice"]) == (1, 1)


@pytest.mark.parametrize("opset", [11, 12, 13, 17])
def test_columns_are_folded_in_every_operator_set_that_pads_codes(tmp_path: Path, opset: int) -> None:
    proto = made(tmp_path, opset, width=20)
    assert count_ops(proto)["Pad"] == 4  # of the first weight, once for each column
    feeds = {"x": floats(1, 3, 20, 20, seed=9)}
    before, after = (run((tmp_path / name).read_bytes(), feeds, ALL)[0] for name in ("m.onnx", "q.onnx"))
    assert sqnr(before, after) > 30


def test_they_are_not_in_older_ones(tmp_path: Path) -> None:
    """Pad takes floats only there, and its pads are attributes."""
    proto = made(tmp_path, 10)
    assert proto.opset_import[0].version == 10
    assert not count_ops(proto)["Pad"]


def test_other_runtimes_get_the_channels_of_the_model(tmp_path: Path) -> None:
    assert not count_ops(made(tmp_path, 13, "generic"))["Pad"]
