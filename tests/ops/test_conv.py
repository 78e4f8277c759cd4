"""Conv and ConvTranspose: static integer convolution, ConvInteger on request, weights stored in 8 bit."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from helpers import ALL, F, build, floats, node, quantize_in_memory, recipe_of, run, sqnr, typed, unlike_kernel

from onnxq.errors import ModelError
from onnxq.planning.planner import make_plan

GEOMETRY = {
    "1d": ([2, 3, 20], [6, 3, 5], {}),
    "2d": ([2, 3, 10, 9], [6, 3, 3, 3], {}),
    "3d": ([1, 3, 6, 7, 5], [4, 3, 2, 3, 2], {}),
    "groups": ([2, 6, 9, 9], [8, 3, 3, 3], {"group": 2}),
    "depthwise": ([2, 6, 9, 9], [6, 1, 3, 3], {"group": 6}),
    "depthwise_multiplied": ([2, 3, 9, 9], [6, 1, 3, 3], {"group": 3}),
    "dilation": ([1, 3, 12, 12], [6, 3, 3, 3], {"dilations": [2, 3]}),
    "strides": ([1, 3, 12, 12], [6, 3, 3, 3], {"strides": [2, 3]}),
    "pads": ([1, 3, 8, 8], [6, 3, 3, 3], {"pads": [1, 0, 2, 3]}),
    "same_upper": ([1, 3, 9, 8], [6, 3, 3, 3], {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    "same_lower": ([1, 3, 9, 8], [6, 3, 2, 2], {"auto_pad": "SAME_LOWER"}),
    "pointwise": ([2, 16, 5, 5], [8, 16, 1, 1], {}),
    "one_channel": ([2, 3, 6, 6], [1, 3, 3, 3], {}),
}


def conv(x_shape, w_shape, attributes, bias=True, op="Conv", opset=17) -> onnx.ModelProto:
    weights = {
        "w": unlike_kernel(floats(*w_shape, seed=1)) * np.exp(floats(w_shape[0], *[1] * (len(w_shape) - 1), seed=2))
    }
    if bias:
        channels = w_shape[0] if op == "Conv" else w_shape[1] * attributes.get("group", 1)
        weights["b"] = floats(channels, seed=3)
    names = "x w b" if bias else "x w"
    return build([node(op, names, "y", **attributes)], {"x": x_shape}, ["y"], weights, opset)


@pytest.mark.parametrize("granularity", ["channel", "tensor"])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no_bias"])
@pytest.mark.parametrize("geometry", GEOMETRY.values(), ids=GEOMETRY)
def test_static_conv_keeps_its_geometry(geometry, bias, granularity):
    x_shape, w_shape, attributes = geometry
    proto, x = conv(x_shape, w_shape, attributes, bias), {"x": floats(*x_shape)}
    made = quantize_in_memory(proto, "static-int8", [x], granularity=granularity)
    assert made.ops == {"QuantizeLinear": 2, "DequantizeLinear": 3 + bias, "Conv": 1}
    # three 8-bit roundings of normal numbers; with one scale the smaller channels are coarser, by e on average
    limit = 30 if granularity == "channel" else 25
    assert made.sqnr(x) > limit
    assert made.sqnr(x, ALL) > limit


@pytest.mark.parametrize("geometry", [GEOMETRY[name] for name in ("2d", "groups", "depthwise", "dilation", "pads")])
def test_static_conv_runs_as_one_integer_kernel(geometry):
    x_shape, w_shape, attributes = geometry
    made = quantize_in_memory(conv(x_shape, w_shape, attributes), "static-int8", [{"x": floats(*x_shape)}])
    assert made.optimized() == {"QuantizeLinear": 1, "QLinearConv": 1, "DequantizeLinear": 1}


def test_weights_get_one_scale_for_each_output_channel():
    x_shape, w_shape, attributes = GEOMETRY["groups"]
    proto = conv(x_shape, w_shape, attributes)
    made = quantize_in_memory(proto, "static-int8", [{"x": floats(*x_shape)}])
    w = onnx.numpy_helper.to_array(proto.graph.initializer[0])
    scale = np.abs(w).max(axis=(1, 2, 3)) / F(127)
    np.testing.assert_array_equal(made.weights["w_scale"], scale)
    codes = np.rint(w / scale[:, None, None, None]).astype(np.int8)
    np.testing.assert_array_equal(made.weights["w_quantized"], codes, strict=True)
    np.testing.assert_array_equal(made.weights["b_scale"], made.weights["x_scale"] * scale)
    assert made.weights["b_quantized"].dtype == np.int32, "never an 8-bit bias"


def test_per_channel_scales_raise_the_opset():
    """Other quantizers write DequantizeLinear with an axis into opset 11, where it has none: the file is invalid."""
    proto = conv([1, 3, 8, 8], [6, 3, 3, 3], {}, opset=11)
    assert make_plan(typed(proto), recipe_of("static-int8"), with_data=True).opset == 13
    made = quantize_in_memory(proto, "static-int8", [{"x": floats(1, 3, 8, 8)}])
    assert made.proto.opset_import[0].version == 13
    assert made.sqnr({"x": floats(1, 3, 8, 8)}) > 30


def test_one_scale_for_each_tensor_works_in_an_old_opset():
    proto = conv([1, 3, 8, 8], [6, 3, 3, 3], {}, opset=10)
    x = {"x": floats(1, 3, 8, 8)}
    made = quantize_in_memory(proto, "static-int8", [x], granularity="tensor")
    assert made.proto.opset_import[0].version == 10
    assert not any(n.attribute for n in made.proto.graph.node if n.op_type == "DequantizeLinear"), "axis came with 13"
    assert made.sqnr(x) > 25
    assert made.sqnr(x, ALL) > 25


def test_a_bias_far_larger_than_its_weights_makes_only_its_channel_coarser():
    """Other quantizers let the int32 bias overflow: its channel, and with it the model, is lost."""
    x, w, b = floats(1, 3, 8, 8), unlike_kernel(floats(4, 3, 3, 3, seed=1)), floats(4, seed=2)
    w[1] *= 1e-8
    b[1] = 3.0
    proto = build([node("Conv", "x w b", "y")], {"x": [1, 3, 8, 8]}, ["y"], {"w": w, "b": b})
    made = quantize_in_memory(proto, "static-int8", [{"x": x}])
    assert np.abs(made.weights["b_quantized"].astype(np.int64)).max() <= 2**30
    expected = made.float_run({"x": x})[0]
    for level in (ALL, None):
        got = made.run({"x": x}, level) if level else made.run({"x": x})
        assert sqnr(expected, got[0]) > 30
        np.testing.assert_allclose(got[0][:, 1], 3.0, atol=float(made.weights["y_scale"]))
    others = [0, 2, 3]
    np.testing.assert_array_equal(made.weights["w_scale"][others], np.abs(w[others]).max(axis=(1, 2, 3)) / F(127))


def test_a_channel_of_zeros_keeps_its_bias():
    x, w, b = floats(1, 3, 8, 8, scale=1000), floats(4, 3, 3, 3, seed=1), floats(4, seed=2)
    w[2] = 0
    w *= 1e-3
    proto = build([node("Conv", "x w b", "y")], {"x": [1, 3, 8, 8]}, ["y"], {"w": w, "b": b})
    made = quantize_in_memory(proto, "static-int8", [{"x": x}])
    step = float(made.weights["y_scale"])
    np.testing.assert_allclose(made.run({"x": x})[0][:, 2], b[2], atol=step / 2 * 1.001)
    np.testing.assert_allclose(made.run({"x": x}, ALL)[0][:, 2], b[2], atol=step / 2 * 1.001)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("place", ["w", "b"])
def test_weights_that_are_not_finite_are_refused_by_name(place, bad):
    weights = {"w": floats(4, 3, 3, 3), "b": floats(4)}
    weights[place].flat[0] = bad
    proto = build([node("Conv", "x w b", "y")], {"x": [1, 3, 8, 8]}, ["y"], weights)
    plan = make_plan(model := typed(proto), recipe_of("static-int8"), with_data=True)
    from onnxq.lowering.rewrite import rewrite

    with pytest.raises(ModelError, match=f"'{place}'.*NaN or infinity"):
        rewrite(model, plan, {value: (F(0.1), np.uint8(128)) for value in plan.calibrated()})


# -- Relu and Clip ----------------------------------------------------------------------------------------------------

X = [1, 3, 8, 8]
RELU = node("Relu", "c", "r")
CONV = node("Conv", "x w", "c")
LAST = node("Conv", "r v", "y")
WEIGHTS = {"w": floats(6, 3, 3, 3), "v": floats(4, 6, 1, 1, seed=1)}
BOUNDS = {name: np.array(value, F) for name, value in {"zero": 0, "one": 1, "six": 6, "minus": -2, "half": 0.5}.items()}


def clamped(*clamps: onnx.NodeProto, outputs=("y",), extra=(), inputs=None):
    proto = build([CONV, *clamps, LAST, *extra], {"x": X, **(inputs or {})}, list(outputs), {**WEIGHTS, **BOUNDS})
    feeds = {"x": floats(*X, seed=4)} | {name: np.array(0.1, F) for name in inputs or {}}
    made = quantize_in_memory(proto, "static-int8", [feeds])
    limit = 25  # two convolutions in a row, each with three 8-bit roundings
    assert made.sqnr(feeds) > limit
    assert made.sqnr(feeds, ALL) > limit
    return made


@pytest.mark.parametrize(
    "clamp",
    [
        RELU,
        node("Clip", "c zero six", "r"),
        node("Clip", "c zero", "r"),
        node("Clip", "c - one", "r"),
        node("Clip", "c minus one", "r"),
    ],
    ids=["relu", "clip_0_6", "clip_0", "clip_to_1", "clip_-2_1"],
)
def test_a_clamp_behind_a_conv_is_absorbed(clamp):
    made = clamped(clamp)
    assert made.ops["Relu"] == made.ops["Clip"] == 0
    assert made.decision("n_r").reason == "absorbed by the quantized output of n_c"
    assert made.optimized() == {"QuantizeLinear": 1, "QLinearConv": 2, "DequantizeLinear": 1}


def test_a_clip_of_an_old_opset_is_absorbed():
    proto = build([CONV, node("Clip", "c", "r", min=0.0, max=1.0), LAST], {"x": X}, ["y"], WEIGHTS, opset=10)
    x = {"x": floats(*X)}
    made = quantize_in_memory(proto, "static-int8", [x], granularity="tensor")
    assert made.ops["Clip"] == 0
    assert made.sqnr(x) > 25


OTHERS_READ = {
    "second_reader": {"extra": [node("GlobalMaxPool", "c", "z")], "outputs": ["y", "z"]},
    "graph_output": {"outputs": ["y", "c"]},
}
KEPT = {
    "excludes_zero": ([node("Clip", "c half six", "r")], {}),
    "computed": ([node("Clip", "c low six", "r")], {"inputs": {"low": []}}),
}


@pytest.mark.parametrize("options", OTHERS_READ.values(), ids=OTHERS_READ)
def test_a_clamp_of_what_others_read_stays_and_clamps_codes(options):
    made = clamped(RELU, **options)
    assert made.ops["Relu"] == 1
    assert made.decision("n_r").reason == "clamps 8-bit values"


@pytest.mark.parametrize("case", KEPT.values(), ids=KEPT)
def test_a_clamp_that_does_more_than_saturation_stays(case):
    clamps, options = case
    made = clamped(*clamps, **options)
    assert made.ops["Relu"] + made.ops["Clip"] == 1
    assert made.decision("n_r").scheme is None
    assert made.decision("n_r").reason == "neighbours are float"


def test_a_clamp_that_the_user_excludes_stays():
    proto = build([CONV, RELU, LAST], {"x": X}, ["y"], WEIGHTS)
    recipe = recipe_of("static-int8").selecting(exclude=["n_r"])
    made = quantize_in_memory(proto, recipe, [{"x": floats(*X)}])
    assert made.ops["Relu"] == 1
    assert made.decision("n_r").reason == "--exclude n_r leaves it float"


def test_two_clamps_in_a_row():
    made = clamped(node("Relu", "c", "p"), node("Clip", "p zero one", "r"))
    assert made.decision("n_p").scheme == "static-int8"
    assert made.decision("n_r").scheme is None


# -- ConvTranspose ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no_bias"])
@pytest.mark.parametrize("group", [1, 2])
def test_static_conv_transpose(group, bias):
    attributes = {"group": group, "strides": [2, 2], "pads": [1, 0, 0, 1], "output_padding": [1, 0]}
    x_shape, w_shape = [1, 4, 6, 6], [4, 3, 3, 3]
    proto = conv(x_shape, w_shape, attributes, bias, "ConvTranspose")
    x = {"x": floats(*x_shape)}
    made = quantize_in_memory(proto, "static-int8", [x])
    assert made.weights["w_scale"].shape == (3,), "output channels are axis 1, within each group"
    assert made.ops == {"QuantizeLinear": 1, "DequantizeLinear": 2, "ConvTranspose": 1}
    assert made.sqnr(x) > 30
    assert made.sqnr(x, ALL) > 30


# -- the dynamic and the stored form ----------------------------------------------------------------------------------


def test_conv_integer_is_refused_unless_asked_for():
    """Other quantizers turn every Conv into ConvInteger, whose kernel takes up to five times as long as float."""
    proto = conv([1, 3, 8, 8], [6, 3, 3, 3], {})
    made = quantize_in_memory(proto, "dynamic-int8")
    assert made.ops == {"Conv": 1}
    assert made.decision("n_y").reason.startswith("ConvInteger has no fast kernel: it is no faster than float")


@pytest.mark.parametrize("bias", ["constant", "computed", "absent"])
@pytest.mark.parametrize("geometry", GEOMETRY.values(), ids=GEOMETRY)
def test_conv_integer_is_integer_arithmetic_to_the_bit(geometry, bias):
    x_shape, w_shape, attributes = geometry
    w, b, x = floats(*w_shape, seed=1), floats(w_shape[0], seed=2), floats(*x_shape)
    weights, inputs, feeds = {"w": w}, {"x": x_shape}, {"x": x}
    if bias == "constant":
        weights["b"] = b
    if bias == "computed":
        inputs["b"], feeds["b"] = [w_shape[0]], b
    names = "x w" if bias == "absent" else "x w b"
    proto = build([node("Conv", names, "y", **attributes)], inputs, ["y"], weights)
    made = quantize_in_memory(proto, "dynamic-int8", integer_conv=True)
    assert made.weights["w_quantized"].dtype == np.uint8, "int8 weights have no fast kernel"
    # the sums of integers below 2**24 are exact in float32, so a float Conv over the codes is the oracle
    low, high = min(x.min(), F(0)), max(x.max(), F(0))
    x_scale = (high - low) / F(255)
    zero = np.rint(-low / x_scale)
    codes = (np.clip(np.rint(x / x_scale) + zero, 0, 255) - zero).astype(F)
    channel = tuple(range(1, w.ndim))
    w_scale = np.abs(w).max(axis=channel) / F(127)
    w_codes = np.rint(w / w_scale.reshape(-1, *[1] * (w.ndim - 1))).astype(F)
    oracle = build([node("Conv", "x w", "y", **attributes)], {"x": x_shape}, ["y"], {"w": w_codes})
    (total,) = run(oracle.SerializeToString(), {"x": codes})
    shape = (1, -1, *[1] * (w.ndim - 2))
    expected = total * (x_scale * w_scale).reshape(shape)
    if bias != "absent":
        expected = expected + b.reshape(shape)
    np.testing.assert_array_equal(made.run(feeds)[0], expected)
    assert sqnr(expected, made.run(feeds, ALL)[0]) > 80


@pytest.mark.parametrize("form", ["cast-mul", "qdq"])
@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
def test_stored_weights_are_a_quarter_of_the_size(op, form):
    x = {"x": floats(1, 32, 6, 6)}
    made = quantize_in_memory(conv([1, 32, 6, 6], [32, 32, 3, 3], {}, op=op), "weight-int8", form=form)
    assert len(made.data) < 0.28 * len(made.source)  # 0.25, the scales, and half a kB of graph
    # only the weight is rounded; here a ConvTranspose's channels hold large and small numbers, which costs 4 dB
    assert made.sqnr(x) > (40 if op == "Conv" else 35)
    if form == "cast-mul":
        assert made.ops == {"Cast": 1, "Mul": 1, op: 1}
        assert made.optimized() == {op: 1}, "onnxruntime folds it when it loads the model"
    else:
        assert made.ops == {"DequantizeLinear": 1, op: 1}
