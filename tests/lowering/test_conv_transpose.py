"""ConvTranspose as a Conv whose pixels are put side by side: the same numbers, and only where it works in 8 bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers import NONE, build, floats, node, run, sqnr, typed
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxq.ir import commit, infer_types, load
from onnxq.lowering.conv_transpose import as_conv, subpixels
from onnxq.pipeline.quantize import quantize
from onnxq.planning.recipe import load_recipe
from onnxq.stages.prepare import prepare
from onnxq.stages.substitution import substitute_layers
from onnxq.targets import load_costs

TWICE: dict[str, Any] = {"strides": [2, 2], "pads": [1] * 4}
COSTS = load_costs()


def enlarging(channels: int, filters: int, kernel: int, side: int, *, bias: bool = True, **attributes: Any) -> Any:
    weights = {"w": floats(channels, filters, kernel, kernel, scale=0.2)} | ({"b": floats(filters)} if bias else {})
    reads = "x w b" if bias else "x w"
    steps = [node("ConvTranspose", reads, "y", **attributes)]
    return build(steps, {"x": [1, channels, side, side]}, ["y"], weights, 13)


def decoder(behind: str = "Conv", opset: int = 13) -> onnx.ModelProto:
    """A Conv, an enlargement with its Relu, and something behind."""
    weights = {"w": floats(64, 64, 3, 3, scale=0.05), "t": floats(64, 64, 4, 4, scale=0.05)}
    weights |= {"v": floats(64, 64, 3, 3, scale=0.05)}
    last = node("Conv", "r v", "y", pads=[1] * 4) if behind == "Conv" else node(behind, "r", "y")
    steps = [
        node("Conv", "x w", "c", pads=[1] * 4),
        node("ConvTranspose", "c t", "u", **TWICE),
        node("Relu", "u", "r"),
        last,
    ]
    return build(steps, {"x": [1, 64, 24, 24]}, ["y"], weights, opset)


@pytest.mark.parametrize(
    ("sizes", "attributes"),
    [
        ((64, 32, 4, 16), TWICE),
        ((128, 64, 2, 14), {"strides": [2, 2]}),
        ((64, 64, 3, 14), TWICE | {"output_padding": [1, 1]}),
        ((32, 32, 3, 32), {"pads": [1] * 4}),
    ],
)
def test_those_that_enlarge_by_their_strides_are_listed(sizes: tuple[int, ...], attributes: dict[str, Any]) -> None:
    assert len(list(subpixels(typed(enlarging(*sizes, **attributes)).graph, COSTS))) == 1


@pytest.mark.parametrize(
    ("sizes", "attributes"),
    [
        ((64, 32, 3, 16), {"strides": [2, 2]}),  # one row more
        ((64, 32, 4, 16), {"strides": [2, 1], "pads": [1, 1, 1, 2]}),
        ((64, 32, 3, 16), {"dilations": [2, 2], "pads": [2] * 4}),
        ((64, 32, 4, 16), {"strides": [2, 2], "auto_pad": "SAME_UPPER"}),
        ((64, 16, 4, 16), TWICE | {"group": 4}),
    ],
)
def test_others_are_not(sizes: tuple[int, ...], attributes: dict[str, Any]) -> None:
    assert not list(subpixels(typed(enlarging(*sizes, **attributes)).graph, COSTS))


@settings(max_examples=60, deadline=None)
@given(
    kernel=st.integers(1, 7),
    stride=st.integers(1, 4),
    front=st.integers(0, 3),
    more=st.integers(0, 3),
    bias=st.booleans(),
)
def test_both_compute_the_same(kernel: int, stride: int, front: int, more: int, bias: bool) -> None:
    more = min(more, stride - 1)
    end = kernel + more - stride - front
    if end < 0:
        return
    attributes = {"strides": [stride] * 2, "pads": [front, front, end, end], "output_padding": [more] * 2}
    proto = enlarging(3, 5, kernel, 5, bias=bias, **attributes)
    model = typed(proto)
    commit([as_conv(step) for step in model.graph.nodes])
    infer_types(model)
    x = {"x": floats(1, 3, 5, 5, seed=1)}
    before, after = run(proto.SerializeToString(), x, NONE)[0], run(model.serialize(), x, NONE)[0]
    np.testing.assert_allclose(after, before, rtol=0, atol=2e-6 * max(float(np.abs(before).max()), 1.0))


def test_a_relu_is_done_before_pixels_are_put_side_by_side(tmp_path: Path) -> None:
    onnx.save(decoder(), tmp_path / "m.onnx")
    prepared = substitute_layers(prepare(load(tmp_path / "m.onnx"), with_data=True))
    assert [step.op_type for step in prepared.model.graph.nodes] == ["Conv", "Conv", "Relu", "DepthToSpace", "Conv"]
    assert all(decision.scheme == "static-int8" for decision in prepared.plan.decisions)
    assert "rewrote 1 ConvTranspose as Conv and DepthToSpace, which have int8 kernels" in prepared.notes
    assert prepared.original is not None


@pytest.mark.parametrize(
    "options",
    [{"with_data": False}, {"with_data": True, "exclude": ["ConvTranspose"]}, {"with_data": True, "only": ["c"]}],
)
def test_it_stays_where_it_would_not_work_in_8_bit(options: dict[str, Any], tmp_path: Path) -> None:
    onnx.save(decoder(), tmp_path / "m.onnx")
    prepared = substitute_layers(prepare(load(tmp_path / "m.onnx"), **options))
    assert [step.op_type for step in prepared.model.graph.nodes] == ["Conv", "ConvTranspose", "Relu", "Conv"]


def test_it_stays_where_its_codes_would_go_back_to_float_at_once(tmp_path: Path) -> None:
    onnx.save(decoder("Tanh"), tmp_path / "m.onnx")
    prepared = substitute_layers(prepare(load(tmp_path / "m.onnx"), with_data=True))
    assert [step.op_type for step in prepared.model.graph.nodes] == ["Conv", "ConvTranspose", "Relu", "Tanh"]


@pytest.mark.parametrize("opset", [10, 11])
def test_older_operator_sets_leave_it(opset: int, tmp_path: Path) -> None:
    """DepthToSpace has no mode before 11; pairs of com.microsoft leave a model in its operator set."""
    onnx.save(decoder(opset=opset), tmp_path / "m.onnx")
    recipe = replace(load_recipe("auto"), allow=("com.microsoft",))
    prepared = substitute_layers(prepare(load(tmp_path / "m.onnx"), recipe, with_data=True))
    assert prepared.model.opset == opset
    assert ("DepthToSpace" in [step.op_type for step in prepared.model.graph.nodes]) == (opset > 10)


def test_other_targets_and_recipes_leave_it(tmp_path: Path) -> None:
    onnx.save(decoder(), tmp_path / "m.onnx")
    prepared = substitute_layers(prepare(load(tmp_path / "m.onnx"), "static-int8", with_data=True))
    assert [step.op_type for step in prepared.model.graph.nodes] == ["Conv", "ConvTranspose", "Relu", "Conv"]


def test_the_result_is_as_the_model(tmp_path: Path) -> None:
    onnx.save(decoder(), tmp_path / "m.onnx")
    samples = [{"x": floats(1, 64, 24, 24, seed=seed)} for seed in range(4)]
    quantize(tmp_path / "m.onnx", "auto", output=tmp_path / "q.onnx", samples=samples)
    feeds = {"x": floats(1, 64, 24, 24, seed=9)}
    before, after = (run((tmp_path / name).read_bytes(), feeds)[0] for name in ("m.onnx", "q.onnx"))
    assert sqnr(before, after) > 30
