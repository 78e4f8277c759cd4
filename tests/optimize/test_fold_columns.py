"""Neighbouring columns folded into channels: which, by how many, and never a code that changes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers import ALL, NONE, applied, changed_alike, count_ops, floats, run, session, typed
from hypothesis import given, settings
from hypothesis import strategies as st
from integer_conv_support import Convs

from onnxq import evaluate
from onnxq.optimize import fold_columns as columns
from onnxq.optimize.fold_columns import Columns, columns_of, fold_columns
from onnxq.optimize.optimize import optimize_for_target
from onnxq.optimize.pad_channels import pad_channels
from onnxq.planning.cost_model import node_times
from onnxq.targets import load_costs
from onnxq.targets.target import load_target

CPU = load_target("cpu-vnni")  # what is worth it depends on the family


def folded(proto: onnx.ModelProto) -> tuple[onnx.ModelProto, int]:
    """Fold the columns of a model; what it computes on codes must stay the same in every bit.

    Without optimisation onnxruntime adds floats up, in another order: now and then a tie is rounded the other way.
    """
    shape = [d.dim_value or 3 for d in proto.graph.input[0].type.tensor_type.shape.dim]
    feeds = {"x": floats(*shape, seed=3)}
    made, changed = changed_alike(proto, lambda model: applied(fold_columns, model, CPU), feeds, [ALL], exact=True)
    plain = (run(each.SerializeToString(), feeds, NONE, exact=True) for each in (proto, made))
    for before, after in zip(*plain, strict=True):
        assert np.count_nonzero(before != after) <= 1e-3 * before.size
        np.testing.assert_allclose(before, after, rtol=0, atol=0.0201)
    return made, changed


def one_conv(*weight: int, sides: tuple[int, ...] = (32, 32), **attributes: Any) -> onnx.ModelProto:
    net = Convs(1, weight[1] * attributes.get("group", 1), *sides)
    return net.model(net.conv(net.quantize("x"), "a", *weight, **attributes))


def chosen(proto: onnx.ModelProto) -> Columns | None:
    model = typed(proto)
    conv = next(node for node in model.graph.nodes if node.op_type == "Conv")
    return columns_of(conv, next(t.dims for t in proto.graph.initializer if t.name == "a_w"), load_costs(CPU.name))


def optimised(proto: onnx.ModelProto, folder: Path) -> Counter[str]:
    """Count what onnxruntime makes of a model."""
    session(proto.SerializeToString(), ALL, keep=str(folder / "o.onnx"))
    return count_ops(onnx.load(folder / "o.onnx"))


def test_four_columns_of_one_channel_become_four_channels(tmp_path: Path) -> None:
    proto = one_conv(16, 1, 3, 3, pads=[1] * 4)
    assert (found := chosen(proto)) is not None
    assert (found.made, found.read, found.before, found.width) == (4, 4, 0, 2)
    made, changed = folded(proto)
    assert changed == 1
    kinds = optimised(made, tmp_path)  # weights are computed when it is loaded, and codes are moved once, at the end
    assert kinds == Counter(QuantizeLinear=1, Pad=1, Reshape=2, QLinearConv=1, Transpose=1, DequantizeLinear=1)


def test_rows_of_one_channel_are_padded_where_that_spares_a_block(tmp_path: Path) -> None:
    proto = one_conv(64, 1, 5, 5, sides=(224, 224), pads=[2] * 4)
    assert (found := chosen(proto)) is not None
    assert (found.made, found.read, found.before, found.width, found.padded) == (4, 4, 0, 2, 2)
    made, changed = folded(proto)
    assert changed == 1
    kinds = optimised(made, tmp_path)
    assert kinds == Counter(QuantizeLinear=1, Pad=1, Reshape=2, QLinearConv=1, Transpose=1, DequantizeLinear=1)


def test_a_stride_takes_as_many_columns_of_the_input_for_one() -> None:
    found = chosen(one_conv(64, 3, 7, 7, sides=(224, 224), pads=[3] * 4, strides=[2, 2]))
    assert found is not None
    assert (found.made, found.read, found.before, found.width) == (2, 4, 1, 3)


def test_a_patch_of_a_picture_becomes_one_column() -> None:
    found = chosen(one_conv(192, 3, 16, 16, sides=(224, 224), strides=[16, 16]))
    assert found is not None
    assert (found.made, found.read, found.before, found.width) == (1, 16, 0, 1)


def test_a_window_that_makes_fewer_columns_than_it_reads() -> None:
    """As behind a Pad that reflects."""
    proto = one_conv(3, 8, 9, 9, sides=(136, 136))
    found = chosen(proto)
    assert found is not None
    assert (found.made, found.before, found.width, found.after) == (8, 0, 2, 0)
    assert folded(proto)[1] == 1


def test_pads_beside_auto_pad_count_for_nothing() -> None:
    """onnxruntime refuses the model, and would load what is made of it."""
    proto = one_conv(64, 3, 16, 16, sides=(64, 64), pads=[1] * 4, strides=[16, 16], auto_pad="VALID")
    found = chosen(proto)
    assert found is not None
    assert (found.before, found.width) == (0, 1)
    feeds = {"x": floats(1, 3, 64, 64, seed=3)}
    model = typed(proto)
    assert applied(fold_columns, model, CPU) == 1
    made = evaluate(onnx.load_from_string(model.serialize()), feeds)
    for name, expected in evaluate(proto, feeds).items():
        np.testing.assert_allclose(made[name], expected, rtol=0, atol=0.0201)  # a tie, as above


def test_the_weight_is_stored_once() -> None:
    proto = one_conv(64, 1, 5, 5, pads=[2] * 4)
    made, _ = folded(proto)
    weights = [tensor for tensor in made.graph.initializer if tensor.data_type == onnx.TensorProto.INT8]
    assert sum(len(tensor.raw_data) for tensor in weights) == 64 * 25 + 64


@pytest.mark.parametrize(
    ("weight", "attributes"),
    [
        ((64, 64, 3, 3), {"pads": [1] * 4}),  # full as it is
        ((16, 1, 3, 1), {"pads": [1, 0, 1, 0]}),
        ((16, 1, 3, 3), {}),  # 30 columns of 32
        ((16, 1, 3, 3), {"pads": [1] * 4, "sides": (32, 33)}),
        ((16, 1, 3, 3), {"pads": [2] * 4, "dilations": [2, 2]}),
        ((16, 1, 3, 3), {"auto_pad": "SAME_UPPER"}),
        ((16, 1, 3, 3), {"group": 16, "pads": [1] * 4}),
        ((3, 1, 3, 3), {"pads": [1] * 4, "sides": (32, 36)}),  # 12 filters in place of 3
    ],
)
def test_others_are_left(weight: tuple[int, ...], attributes: dict[str, Any]) -> None:
    proto = one_conv(*weight, **attributes)
    assert folded(proto)[1] == 0


def test_the_width_has_to_be_known_and_no_other_size() -> None:
    proto = one_conv(16, 1, 3, 3, pads=[1] * 4)
    sizes = proto.graph.input[0].type.tensor_type.shape.dim
    sizes[0].dim_param, sizes[2].dim_param = "batch", "height"
    assert folded(proto)[1] == 1
    sizes[3].dim_param = "width"
    assert folded(proto)[1] == 0


def test_what_a_conv_makes_lies_channels_last_already(tmp_path: Path) -> None:
    net = Convs(1, 64, 32, 32)
    a = net.conv(net.quantize("x"), "a", 8, 64, 1, 1)
    made, changed = folded(net.model(net.conv(a, "b", 8, 8, 5, 5, pads=[2] * 4)))
    assert changed == 1
    kinds = optimised(made, tmp_path)
    assert (kinds["Transpose"], kinds["Reshape"], kinds["QLinearConv"]) == (2, 2, 2)


def test_an_add_behind_it_stays_in_8_bit(tmp_path: Path) -> None:
    """Whoever reads the codes finds them where they were, and onnxruntime moves the change of layout through."""
    net = Convs(1, 1, 32, 32)
    a = net.conv(net.quantize("x"), "a", 16, 1, 3, 3, pads=[1] * 4)
    b = net.conv(a, "b", 16, 16, 3, 3, pads=[1] * 4)
    net.nodes.append(onnx.helper.make_node("Add", [a, b], ["c"]))
    made, changed = folded(net.model(net.conv(net.quantize("c"), "d", 16, 16, 1, 1), a))
    assert changed == 2
    kinds = optimised(made, tmp_path)
    assert (kinds["QLinearAdd"], kinds["QLinearConv"]) == (1, 3)


@pytest.mark.parametrize("shape", [(), (1,)])
def test_one_scale_for_all_filters_stays_one(shape: tuple[int, ...]) -> None:
    proto = one_conv(16, 1, 3, 3, pads=[1] * 4)
    for tensor in proto.graph.initializer:
        if tensor.name in ("a_s", "a_z", "a_t"):
            one = onnx.numpy_helper.to_array(tensor)[:1].reshape(shape)
            tensor.CopyFrom(onnx.numpy_helper.from_array(one, tensor.name))
    made, changed = folded(proto)
    assert changed == 1
    assert count_ops(made)["Concat"] == 2  # the weight, and the codes of the bias


def test_the_scale_of_a_single_filter_has_no_axis() -> None:
    proto = one_conv(1, 1, 3, 3, pads=[1] * 4)
    for step in proto.graph.node:
        if step.op_type == "DequantizeLinear":
            del step.attribute[:]
    assert folded(proto)[1] == 1


def test_without_kernel_times_nothing_is_folded() -> None:
    assert applied(fold_columns, typed(one_conv(16, 1, 3, 3, pads=[1] * 4)), load_target("qnn")) == 0


def test_channels_are_not_filled_up_where_columns_are_folded() -> None:
    model = typed(one_conv(16, 3, 3, 3, pads=[1] * 4))
    made = onnx.ModelProto.FromString(optimize_for_target(model, "cpu").serialize())
    assert count_ops(made)["Concat"]
    assert next(tuple(t.dims) for t in made.graph.initializer if t.data_type == onnx.TensorProto.INT8) == (16, 3, 3, 3)


def test_few_filters_are_folded_as_they_are() -> None:
    """Eight columns of 3 filters are 24, and of 16 they would be 128, nearly all of zeros."""
    proto = one_conv(3, 8, 9, 9, pads=[4] * 4, sides=(128, 128))
    model = typed(proto)
    assert pad_channels(model, CPU) == 0
    assert folded(proto)[1] == 1


def test_eight_columns_of_one_filter_of_many_channels_save_too_little() -> None:
    assert folded(one_conv(1, 64, 3, 3, pads=[1] * 4, sides=(64, 64)))[1] == 0
    assert folded(one_conv(2, 64, 3, 3, pads=[1] * 4, sides=(64, 64)))[1] == 1


def test_a_plan_knows_what_it_gains() -> None:
    """8 bit is priced as it will be computed."""
    times = []
    for side in (32, 33):
        model = typed(one_conv(16, 1, 3, 3, pads=[1] * 4, sides=(32, side)))
        conv = next(node for node in model.graph.nodes if node.op_type == "Conv")
        codes = next(node for node in model.graph.nodes if node.op_type == "DequantizeLinear" and node.inputs[0].tensor)
        conv.inputs[1].tensor = codes.inputs[0].tensor  # as in the float model
        times.append(node_times(conv, load_costs(CPU.name))[1])
    assert times[0] < 0.7 * times[1]


@settings(max_examples=60, deadline=None)
@given(data=st.data(), at_once=st.sampled_from(columns.AT_ONCE), channels=st.sampled_from((1, 2, 3, 4, 6)))
def test_no_code_changes(data: st.DataObject, at_once: int, channels: int) -> None:
    """Whatever the geometry, in one and in two dimensions, and in either layout of the blocks."""
    stride = data.draw(st.integers(1, 3), label="stride")
    window = data.draw(st.integers(2, 7), label="window")
    left = data.draw(st.integers(0, window - 1), label="left")
    count = data.draw(st.integers(1, 3), label="blocks")
    width = at_once * stride * count
    # as much padding on the right as a column for each stride needs, and what makes no further one; or more columns, or
    # fewer
    right = window - stride - left + data.draw(st.integers(0, stride - 1), label="more")
    blocks = data.draw(st.sampled_from((0, 0, 1, -1)), label="blocks more")
    right += blocks * at_once * stride
    if right < 0 or left + width + right < window:
        return
    one, behind = data.draw(st.booleans(), label="one axis"), data.draw(st.booleans(), label="behind a Conv")
    pads = [left, right] if one else [1, left, 0, right]
    strides, kernel = ([stride], [window]) if one else ([2, stride], [2, window])
    net = Convs(2, channels, *[width] if one else [5, width])
    read = net.quantize("x")
    if behind:
        read = net.conv(read, "first", channels, channels, *[1] * len(kernel))
    proto = net.model(net.conv(read, "a", 8, channels, *kernel, pads=pads, strides=strides))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(columns, "AT_ONCE", (at_once,))
        patched.setattr(columns, "LEAST_SAVING", -np.inf)
        patched.setattr(columns, "LEAST_SAVING_OF_FEW", -np.inf)
        _, changed = folded(proto)
    assert changed <= (at_once * stride * channels % 4 == 0)
    assert changed or blocks < 0 or at_once * stride * channels % 4
