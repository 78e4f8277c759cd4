"""Windows over one channel, folded into channels: which, and never a code that changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from helpers import ALL, applied, count_ops, floats, graph, node, run, typed
from hypothesis import given, settings
from hypothesis import strategies as st
from integer_conv_support import Convs, shapes_of

from onnxq.optimize import fold_taps as taps
from onnxq.optimize.fold_taps import fold_taps
from onnxq.optimize.pad_channels import pad_channels
from onnxq.targets.target import load_target

CPU = load_target("cpu")


def folded(proto: onnx.ModelProto) -> tuple[onnx.ModelProto, int]:
    """Fold the windows of a model; what it computes on codes must stay the same in every bit."""
    model = typed(proto)
    changed = applied(fold_taps, model, CPU)
    pad_channels(model, CPU)
    made = onnx.ModelProto.FromString(model.serialize())
    onnx.checker.check_model(made, full_check=True)
    feeds = {"x": floats(*[d.dim_value for d in proto.graph.input[0].type.tensor_type.shape.dim], seed=3)}
    # sums in another order: where they saturate, they would not stay the same
    before, after = (run(each.SerializeToString(), feeds, ALL, exact=True)[0] for each in (proto, made))
    np.testing.assert_array_equal(before, after)
    return made, changed


def one_conv(*weight: int, side: int = 102, **attributes: Any) -> onnx.ModelProto:
    """A Conv over a square whose columns do not come in blocks: those are folded otherwise, see `columns.py`."""
    net = Convs(1, weight[1] * attributes.get("group", 1), side, side)
    return net.model(net.conv(net.quantize("x"), "a", *weight, **attributes))


def test_a_conv_whose_result_a_body_quantizes_stays() -> None:
    """The Conv stands in another graph than what a patch would replace."""
    proto = one_conv(16, 1, 5, 5, pads=[2] * 4)
    product = next(one.output[0] for one in proto.graph.node if one.op_type == "Conv")
    quantize = next(one for one in proto.graph.node if product in one.input)
    scale, zero = quantize.input[1:]
    inside = {
        name: graph([node("QuantizeLinear", f"{read} {scale} {zero}", name)], {}, {name: onnx.TensorProto.UINT8}, {})
        for name, read in (("a_codes", product), ("x_codes", "x"))
    }
    held = node("If", "c", quantize.output[0], then_branch=inside["a_codes"], else_branch=inside["x_codes"])
    quantize.CopyFrom(held)
    proto.graph.input.append(onnx.helper.make_tensor_value_info("c", onnx.TensorProto.BOOL, []))
    assert applied(fold_taps, typed(proto), CPU) == 0


def test_the_places_of_a_row_become_channels() -> None:
    made, changed = folded(one_conv(16, 1, 5, 5, pads=[2] * 4))
    assert changed == 1
    assert shapes_of(made) == {"a": (16, 8, 5, 1)}
    counts = count_ops(made)
    assert (counts["Pad"], counts["Slice"], counts["Concat"]) == (1, 5, 1)


@pytest.mark.parametrize(
    ("weight", "attributes"),
    [
        ((16, 3, 5, 5), {"pads": [2] * 4}),  # 16 channels in place of 20
        ((16, 1, 5, 1), {"pads": [2, 0, 2, 0]}),
        ((16, 1, 3, 3), {"pads": [1] * 4, "strides": [2, 2]}),  # 2,601 pixels
        ((16, 1, 5, 5), {"auto_pad": "SAME_UPPER"}),
        ((4, 1, 5, 5), {"group": 4}),
    ],
)
def test_it_is_left_where_little_is_saved_and_where_pads_are_not_stated(
    weight: tuple[int, ...], attributes: dict[str, Any]
) -> None:
    _, changed = folded(one_conv(*weight, **attributes))
    assert changed == 0


def test_other_axes_than_two_are_left() -> None:
    net = Convs(1, 1, 20_000)
    _, changed = folded(net.model(net.conv(net.quantize("x"), "a", 16, 1, 5)))
    assert changed == 0


def test_the_width_may_be_open() -> None:
    proto = one_conv(16, 1, 5, 5, pads=[2] * 4)
    proto.graph.input[0].type.tensor_type.shape.dim[3].dim_param = "width"
    model = typed(proto)
    assert applied(fold_taps, model, CPU) == 1
    for width in (3, 40):
        feeds = {"x": floats(1, 1, 102, width)}
        before, after = (run(each, feeds, ALL)[0] for each in (proto.SerializeToString(), model.serialize()))
        np.testing.assert_array_equal(before, after)


@settings(max_examples=40, deadline=None)
@given(
    height=st.integers(1, 5),
    width=st.integers(2, 7),
    pads=st.tuples(*[st.integers(0, 3)] * 4),
    strides=st.tuples(*[st.integers(1, 3)] * 2),
    dilations=st.tuples(*[st.integers(1, 2)] * 2),
    channels=st.integers(1, 2),
)
def test_no_code_changes(
    height: int,
    width: int,
    pads: tuple[int, ...],
    strides: tuple[int, ...],
    dilations: tuple[int, ...],
    channels: int,
) -> None:
    """Whatever the geometry, and however small the picture."""
    geometry = {"pads": list(pads), "strides": list(strides), "dilations": list(dilations)}
    before = taps.LEAST_PIXELS, taps.LEAST_SAVING
    taps.LEAST_PIXELS, taps.LEAST_SAVING = 1, 0.0
    try:
        _, changed = folded(one_conv(8, channels, height, width, side=13, **geometry))
    finally:
        taps.LEAST_PIXELS, taps.LEAST_SAVING = before
    assert changed == 1
