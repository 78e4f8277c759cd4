"""Channels filled up for onnxruntime's integer Conv: which, by how much, and never a code that changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers import ALL, NONE, Quantized, applied, count_ops, floats, quantize_in_memory, run, typed
from helpers import build as build_float
from helpers import node as float_node
from hypothesis import given, settings
from hypothesis import strategies as st
from integer_conv_support import Convs, shapes_of

from onnxq.ir import parse
from onnxq.optimize.pad_channels import pad_channels
from onnxq.optimize.quick_gelu import write_silu
from onnxq.pipeline.quantize import quantize
from onnxq.planning.decision import Plan
from onnxq.planning.planner import make_plan
from onnxq.planning.recipe import load_recipe
from onnxq.search.bias_correction import bias_sites
from onnxq.targets.target import load_target

CPU = load_target("cpu")


def aligned(proto: onnx.ModelProto) -> tuple[onnx.ModelProto, int]:
    """Fill up the channels of a model; what it computes must stay the same in every bit."""
    model = typed(proto)
    changed = pad_channels(model, CPU)
    made = onnx.ModelProto.FromString(model.serialize())
    onnx.checker.check_model(made, full_check=True)
    shape = [d.dim_value for d in proto.graph.input[0].type.tensor_type.shape.dim]
    feeds = {"x": floats(*shape, seed=3)}
    for before, after in zip(
        run(proto.SerializeToString(), feeds, NONE), run(made.SerializeToString(), feeds, NONE), strict=True
    ):
        np.testing.assert_array_equal(before, after)
    return made, changed


def pair_of(first: int, second: int, side: int = 8, **attributes: Any) -> onnx.ModelProto:
    """Two convolutions of 3 × 3 and 1 × 1 behind each other, the first of 4 to `first` channels."""
    net = Convs(1, 4, side, side)
    a = net.conv(net.quantize("x"), "a", first, 4, 3, 3, pads=[1] * 4, **attributes)
    return net.model(net.conv(a, "b", second, first, 1, 1))


def test_filters_that_only_convolutions_read_are_added_and_not_cut_off() -> None:
    made, changed = aligned(pair_of(6, 32))
    assert changed == 2
    assert shapes_of(made) == {"a": (16, 4, 3, 3), "b": (32, 16, 1, 1)}
    assert not count_ops(made)["Slice"]


@pytest.mark.parametrize(
    ("window", "reader", "expected"), [(1, 3, (8, 32, 1, 1)), (1, 1, (16, 32, 1, 1)), (3, 3, (16, 32, 3, 3))]
)
def test_eight_filters_stay_where_windows_behind_them_would_grow(
    window: int, reader: int, expected: tuple[int, ...]
) -> None:
    net = Convs(1, 32, 16, 16)
    a = net.conv(net.quantize("x"), "a", 8, 32, window, window, pads=[window // 2] * 4)
    made, _ = aligned(net.model(net.conv(a, "b", 16, 8, reader, reader)))
    assert shapes_of(made)["a"] == expected
    assert shapes_of(made)["b"][1] == expected[0]


def test_filters_that_somebody_else_reads_are_cut_off_where_that_pays() -> None:
    net = Convs(1, 32, 16, 16)
    made, changed = aligned(net.model(net.conv(net.quantize("x"), "a", 9, 32, 3, 3, pads=[1] * 4)))
    assert changed == 1
    assert shapes_of(made) == {"a": (16, 32, 3, 3)}
    assert count_ops(made)["Slice"] == 1


def test_one_scale_for_all_filters_stays_one_whatever_its_axes() -> None:
    net = Convs(1, 32, 16, 16)
    y = net.conv(net.quantize("x"), "a", 9, 32, 3, 3, pads=[1] * 4)
    net.weights |= {name: net.weights[name][:1] for name in ("a_s", "a_z", "a_t")}
    made, changed = aligned(net.model(y))
    assert changed == 1
    assert shapes_of(made) == {"a": (16, 32, 3, 3)}


def test_a_scale_for_each_channel_that_is_read_keeps_a_conv_as_it_is() -> None:
    net = Convs(1, 9, 16, 16)
    proto = net.model(net.conv(net.quantize("x"), "a", 9, 9, 3, 3, pads=[1] * 4))
    weight = next(step for step in proto.graph.node if step.output[0] == "a_f")
    weight.attribute[0].i = 1
    assert aligned(proto)[1] == 0


@pytest.mark.parametrize(("filters", "kernel", "side"), [(9, 3, 8), (9, 1, 32), (20, 3, 32), (16, 3, 32)])
def test_they_are_not_where_it_does_not(filters: int, kernel: int, side: int) -> None:
    """Few pixels, a window of one place, or kernels that are fast as it is."""
    net = Convs(1, 32, side, side)
    _, changed = aligned(net.model(net.conv(net.quantize("x"), "a", filters, 32, kernel, kernel)))
    assert changed == 0


def test_channels_are_added_to_what_no_conv_makes() -> None:
    net = Convs(1, 3, 16, 16)
    made, changed = aligned(net.model(net.conv(net.quantize("x"), "a", 64, 3, 3, 3, pads=[1] * 4, strides=[2, 2])))
    assert changed == 0  # 8 × 8 pixels of output
    net = Convs(1, 3, 32, 32)
    made, changed = aligned(net.model(net.conv(net.quantize("x"), "a", 64, 3, 3, 3, pads=[1] * 4, strides=[2, 2])))
    assert changed == 1
    assert shapes_of(made) == {"a": (64, 4, 3, 3)}
    assert count_ops(made)["Pad"] == 1


def test_two_convolutions_share_the_channels_that_are_added() -> None:
    net = Convs(1, 3, 20, 20)
    x = net.quantize("x")
    outputs = [net.conv(x, name, 32, 3, 3, 3) for name in "ab"]
    made, changed = aligned(net.model(*outputs))
    assert changed == 2
    assert count_ops(made)["Pad"] == 1


def test_a_depthwise_conv_gets_as_many_channels_as_what_it_stands_between() -> None:
    net = Convs(1, 16, 8, 8)
    a = net.conv(net.quantize("x"), "a", 72, 16, 1, 1)
    b = net.conv(a, "b", 72, 1, 3, 3, group=72, pads=[1] * 4)
    made, changed = aligned(net.model(net.conv(b, "c", 24, 72, 1, 1)))
    assert changed == 3
    assert shapes_of(made) == {"a": (80, 16, 1, 1), "b": (80, 1, 3, 3), "c": (24, 80, 1, 1)}
    groups = [onnx.helper.get_node_attr_value(n, "group") for n in made.graph.node if n.name == "n_b_wide"]
    assert groups == [80]


@pytest.mark.parametrize("where", ["read", "made"])
def test_it_stays_as_it_is_where_somebody_else_reads_one_of_these(where: str) -> None:
    net = Convs(1, 16, 8, 8)
    a = net.conv(net.quantize("x"), "a", 24, 16, 1, 1)
    b = net.conv(a, "b", 24, 1, 3, 3, group=24, pads=[1] * 4)
    c = net.conv(b, "c", 24, 24, 1, 1)
    _, changed = aligned(net.model(c, a if where == "read" else b))
    assert changed == 0


def test_a_depthwise_conv_of_what_no_conv_makes_stays_as_it_is() -> None:
    net = Convs(1, 24, 8, 8)
    b = net.conv(net.quantize("x"), "b", 24, 1, 3, 3, group=24, pads=[1] * 4)
    _, changed = aligned(net.model(net.conv(b, "c", 24, 24, 1, 1)))
    assert changed == 0


def gated(channels: int, inner: str, *, squeeze: bool = False, extra: bool = False) -> onnx.ModelProto:
    """A Conv, an activation on its codes, a depthwise Conv, a gate squeezed out of that if asked for, and a Conv."""
    net = Convs(1, 16, 8, 8)
    made = net.conv(net.quantize("x"), "a", channels, 16, 1, 1)
    if inner == "ramp":
        net.weights |= {"code": np.uint8(255), "half": np.float32(0.5 / 255), "none": np.uint8(0)}
        net.weights |= {"rise": np.float32(0.02 / 6), "part": np.float32(1 / 255)}
        net.nodes += [
            float_node("DequantizeLinear", "a_q rise zero", "r"),
            float_node("DequantizeLinear", "code half none", "k"),
            float_node("Add", "r k", "h"),
            float_node("QuantizeLinear", "h part none", "h_q"),
            float_node("DequantizeLinear", "h_q part none", "h_d"),
        ]
    elif inner != "SiLU":
        net.nodes.append(float_node(inner, made, "h"))
        net.quantize("h")
    else:
        net.nodes.append(float_node("Sigmoid", made, "h_d"))
    net.nodes.append(float_node("Mul", f"{made} h_d", "m"))
    made = net.conv(net.quantize("m"), "b", channels, 1, 3, 3, group=channels, pads=[1] * 4)
    if squeeze:
        net.nodes.append(float_node("GlobalAveragePool", made, "p"))
        squeezed = net.conv(net.quantize("p"), "s", 8, channels, 1, 1)
        gate = net.conv(squeezed, "e", channels, 8, 1, 1)
        net.nodes.append(float_node("Sigmoid", gate, "g"))
        net.nodes.append(float_node("Mul", f"{made} {net.quantize('g')}", "n"))
        made = net.quantize("n")
    return net.model(net.conv(made, "c", 24, channels, 1, 1), *(["h_d"] if extra else []))


@pytest.mark.parametrize("inner", ["Sigmoid", "LeakyRelu", "ramp"])
@pytest.mark.parametrize("squeeze", [False, True])
def test_what_treats_channels_alike_carries_those_that_are_added(inner: str, squeeze: bool) -> None:
    made, _ = aligned(gated(72, inner, squeeze=squeeze))
    shapes = shapes_of(made)
    assert (shapes["a"], shapes["b"], shapes["c"]) == ((80, 16, 1, 1), (80, 1, 3, 3), (24, 80, 1, 1))
    assert not squeeze or (shapes["s"][1], shapes["e"][0]) == (80, 80)
    ops = count_ops(made)
    assert (ops["Slice"], ops["Pad"]) == (0, 0)
    assert ops["QuantizeLinear"] == count_ops(gated(72, inner, squeeze=squeeze))["QuantizeLinear"]


def test_a_silu_in_one_operator_carries_them() -> None:
    model = typed(gated(72, "SiLU", squeeze=True))
    assert applied(write_silu, model) == 1
    made, _ = aligned(onnx.ModelProto.FromString(model.serialize()))
    shapes = shapes_of(made)
    assert (shapes["a"], shapes["b"], shapes["c"]) == ((80, 16, 1, 1), (80, 1, 3, 3), (24, 80, 1, 1))
    assert (count_ops(made)["QuickGelu"], count_ops(made)["Slice"], count_ops(made)["Pad"]) == (1, 0, 0)


def test_it_does_not_where_somebody_else_reads_what_is_carried() -> None:
    made, _ = aligned(gated(72, "Sigmoid", extra=True))
    assert shapes_of(made)["b"] == (72, 1, 3, 3)


@pytest.mark.parametrize("other", ["x", "spatial"])
def test_it_does_not_where_other_channels_come_in(other: str) -> None:
    """A sum with what no Conv makes, and a gate of a single channel, which is the same for all."""
    net = Convs(1, 24, 8, 8)
    x = net.quantize("x")
    made = net.conv(x, "a", 24, 24, 1, 1)
    gate = x if other == "x" else net.conv(x, "s", 1, 24, 1, 1)
    net.nodes.append(float_node("Mul", f"{made} {gate}", "m"))
    made = net.conv(net.quantize("m"), "b", 24, 1, 3, 3, group=24, pads=[1] * 4)
    made, _ = aligned(net.model(net.conv(made, "c", 24, 24, 1, 1)))
    assert shapes_of(made)["b"] == (24, 1, 3, 3)


def test_groups_of_several_channels_have_no_fast_kernel_to_reach() -> None:
    net = Convs(1, 12, 20, 20)
    _, changed = aligned(net.model(net.conv(net.quantize("x"), "a", 6, 6, 3, 3, group=2)))
    assert changed == 0


def test_one_weight_in_two_convolutions_is_widened_for_each_as_it_needs() -> None:
    net = Convs(1, 4, 16, 15)
    x = net.quantize("x")
    a = net.conv(x, "a", 6, 4, 3, 3, pads=[1] * 4)
    net.nodes.append(float_node("Conv", f"{x} a_f a_g", "b", pads=[1] * 4))
    b = net.conv(net.quantize("b"), "c", 16, 6, 1, 1)
    made, _ = aligned(net.model(a, b))
    assert shapes_of(made)["a"] == shapes_of(made)["b"] == (16, 4, 3, 3)


def test_other_targets_are_left_alone() -> None:
    model = typed(pair_of(6, 32))
    assert pad_channels(model, load_target("generic")) == 0


@settings(max_examples=40, deadline=None)
@given(
    channels=st.integers(1, 9),
    filters=st.lists(st.integers(1, 40), min_size=1, max_size=3),
    depthwise=st.booleans(),
    kernel=st.sampled_from([1, 3]),
    side=st.sampled_from([6, 15]),
    shared=st.integers(0, 3),
    zero=st.sampled_from([0, 7, 255]),
    bias=st.booleans(),
    swish=st.booleans(),
)
def test_no_code_changes(
    channels: int,
    filters: list[int],
    depthwise: bool,
    kernel: int,
    side: int,
    shared: int,
    zero: int,
    bias: bool,
    swish: bool,
) -> None:
    """Chains of convolutions, with a SiLU behind each or not, one of their tensors read by somebody else, too."""
    net = Convs(2, channels, side, side, zero=zero)
    made, pads, outputs = net.quantize("x"), [kernel // 2] * 4, []
    for index, count in enumerate(filters):
        made = net.conv(made, f"d{index}", count, channels, kernel, kernel, pads=pads, bias=bias)
        channels = count
        if swish:
            net.nodes.append(float_node("Sigmoid", made, f"s{index}"))
            net.nodes.append(float_node("Mul", f"{made} {net.quantize(f's{index}')}", f"m{index}"))
            made = net.quantize(f"m{index}")
        if depthwise and channels > 1:
            made = net.conv(made, f"e{index}", channels, 1, 3, 3, pads=[1] * 4, group=channels, bias=bias)
        outputs.append(made)
    extra = outputs[min(shared, len(outputs) - 1)]
    aligned(net.model(*dict.fromkeys([outputs[-1], extra])))


def test_onnxruntime_computes_them_all_in_integers() -> None:
    """What is added is merged into the kernels: no float Conv, and no conversion but at the ends."""
    net = Convs(1, 3, 20, 20)
    a = net.conv(net.quantize("x"), "a", 12, 3, 3, 3, pads=[1] * 4)
    b = net.conv(a, "b", 12, 1, 3, 3, group=12, pads=[1] * 4)
    made, changed = aligned(net.model(net.conv(b, "c", 9, 12, 3, 3, pads=[1] * 4)))
    assert changed == 3
    optimized = Quantized(b"", made.SerializeToString(), Plan(load_recipe("auto"))).optimized()
    assert (optimized["QLinearConv"], optimized["Conv"]) == (3, 0)
    assert (optimized["QuantizeLinear"], optimized["DequantizeLinear"]) == (1, 1)


@pytest.mark.parametrize("width", [16, 17])  # with 16 columns, these are folded besides
def test_what_the_pipeline_writes_is_filled_up_and_its_layers_are_compared_all_the_same(
    width: int, tmp_path: Path
) -> None:
    weights = {"w": floats(6, 4, 3, 3, scale=0.2), "v": floats(9, 6, 3, 3, seed=1, scale=0.2)}
    steps = [float_node("Conv", "x w", "a", pads=[1] * 4), float_node("Conv", "a v", "y", pads=[1] * 4)]
    proto = build_float(steps, {"x": [1, 4, 16, width]}, ["y"], weights)
    onnx.save(proto, tmp_path / "m.onnx")
    samples = [{"x": floats(1, 4, 16, width, seed=seed)} for seed in range(4)]
    report = quantize(tmp_path / "m.onnx", "static-int8", output=tmp_path / "q.onnx", samples=samples, detailed=True)
    written = onnx.load(tmp_path / "q.onnx")
    kernels = {tuple(tensor.dims) for tensor in written.graph.initializer if len(tensor.dims) == 4}
    assert kernels == {(16, 4, 3, 3), (16, 16, 3, 3)}
    assert bool(count_ops(written)["Concat"]) == (width == 16)
    assert report.comparison is not None
    assert {layer.tensor for layer in report.comparison.layers} == {"a", "y"}
    expected = run(proto.SerializeToString(), samples[0])[0]
    got = run((tmp_path / "q.onnx").read_bytes(), samples[0], ALL)[0]
    assert got.shape == expected.shape
    assert np.abs(got - expected).max() < 0.05 * np.abs(expected).max()


def test_biases_are_corrected_of_convolutions_that_are_filled_up(tmp_path: Path) -> None:
    """Trials compare tensors with those of the float model, which have fewer channels than what is written."""
    weights = {"w": floats(6, 4, 3, 3, scale=0.2), "v": floats(9, 6, 3, 3, seed=1, scale=0.2)}
    steps = [float_node("Conv", "x w", "a", pads=[1] * 4), float_node("Conv", "a v", "y", pads=[1] * 4)]
    model = typed(build_float(steps, {"x": [1, 4, 16, 16]}, ["y"], weights))
    plan = make_plan(model, load_recipe("static-int8"), with_data=True)
    made = quantize_in_memory(
        build_float(steps, {"x": [1, 4, 16, 16]}, ["y"], weights), "static-int8", [{"x": floats(1, 4, 16, 16)}]
    )
    assert len(bias_sites(plan, parse(made.data))) == 2
