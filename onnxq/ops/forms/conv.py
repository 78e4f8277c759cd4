"""Conv and ConvTranspose with a constant weight: static integer convolution, ConvInteger, weights stored in 8 bit."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from onnxq.ir import Value
from onnxq.ops.forms.bias import integer_bias, minimum_scale
from onnxq.ops.forms.family import (
    NodeView,
    NotQuantizable,
    QuantizedForm,
    Rewriter,
    register_plan,
    register_rewrite,
    stored_form,
)
from onnxq.ops.forms.per_row_conv import plan_row_conv, rewrite_row_conv
from onnxq.ops.forms.per_row_scales import widening_weight

# onnxruntime quantizes the bias of a ConvTranspose between pairs when it loads a model, of whatever domain these are.
# It does so with Round, and a DequantizeLinear of ai.onnx that has the weight's scales
BIAS_OPSETS = {"tensor": 11, "channel": 13}
GEOMETRY = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides", "output_padding", "output_shape")


@register_plan("Conv", when="static-int8")
def plan_static_conv(site: NodeView) -> QuantizedForm:
    """Accept a Conv of one to three spatial dimensions, with groups and dilation; the output is quantized too."""
    _conv_weight(site)
    return QuantizedForm(
        "Q/DQ on input, weight and output, int32 bias",
        activations=(0,),
        output=True,
        opset=site.scheme.pair_opset(activation=True, weight=True),
    )


@register_plan("ConvTranspose", when="static-int8")
def plan_static_conv_transpose(site: NodeView) -> QuantizedForm:
    """Accept a ConvTranspose; onnxruntime computes it in float, so its output and bias stay float."""
    _conv_weight(site)
    opset = site.scheme.pair_opset(activation=True, weight=True)
    opset = opset if site.input(2) is None else max(opset, BIAS_OPSETS[site.scheme.granularity])
    return QuantizedForm("Q/DQ on input and weight, float output and bias", activations=(0,), opset=opset)


@register_plan("Conv", when="dynamic-int8")
def plan_dynamic_conv(site: NodeView) -> QuantizedForm:
    """Refuse, unless the recipe asks for ConvInteger, or for a scale for every window along one axis."""
    _conv_weight(site)
    if site.scheme.activation_granularity == "row":
        return plan_row_conv(site)
    if not site.scheme.integer_conv:
        raise NotQuantizable(
            "ConvInteger has no fast kernel: it is no faster than float (set integer_conv = true to use it)"
        )
    return QuantizedForm("DynamicQuantizeLinear and ConvInteger with a uint8 weight", opset=11)


@register_plan("Conv", "ConvTranspose", when="weight-int12")
@register_plan("Conv", "ConvTranspose", when="weight-int8")
@register_plan("Conv", "ConvTranspose", when="weight-int4")
def plan_stored_conv(site: NodeView) -> QuantizedForm:
    """Accept a constant weight that is large enough to be worth storing."""
    _conv_weight(site)
    return stored_form(site, site.weight(1))


def _conv_weight(site: NodeView) -> None:
    weight = site.weight(1, rank=3)
    site.float_input(0)
    if len(weight.shape) > 5:
        raise NotQuantizable(f"it has {len(weight.shape) - 2} spatial dimensions")
    bias = site.input(2)
    if bias is not None and bias.constant is None and site.scheme.name == "static-int8":
        raise NotQuantizable("bias is not a constant")


def _other_axes(site: NodeView, channel: int) -> tuple[int, ...]:
    return tuple(axis for axis in range(len(site.weight(1).shape)) if axis != channel)


@register_rewrite("Conv", when="static-int8")
def rewrite_static_conv(site: NodeView, patch: Rewriter) -> None:
    """Q/DQ on input and output, DequantizeLinear on the weight and on an int32 bias."""
    x, weight = site.value(0), site.value(1)
    bias = site.constant(2) if site.scheme.bias == "int32" else None
    x_scale = patch.activation_scale(x)
    minimum = None
    if bias is not None:
        minimum = minimum_scale(bias.numpy(), x_scale).reshape(-1, *[1] * (len(site.weight(1).shape) - 1))
    codes, scales = patch.codes(weight, reduce=_other_axes(site, 0), scheme=site.scheme, minimum=minimum)
    patch.rewire(site.node, 0, patch.dequantized(x))
    patch.rewire(site.node, 1, patch.linear_weight(codes, scales, 0, weight.name))
    if bias is not None:
        patch.rewire(site.node, 2, integer_bias(patch, bias.numpy(), x_scale, scales.reshape(-1), site.value(2).name))


@register_rewrite("ConvTranspose", when="static-int8")
def rewrite_static_conv_transpose(site: NodeView, patch: Rewriter) -> None:
    """Q/DQ on the input, DequantizeLinear on the weight, whose output channels are axis 1 within each group."""
    weight = site.value(1)
    codes, scales = patch.codes(weight, reduce=_other_axes(site, 1), scheme=site.scheme)
    patch.rewire(site.node, 0, patch.dequantized(site.value(0)))
    patch.rewire(site.node, 1, patch.linear_weight(codes, scales, 1, weight.name))


@register_rewrite("Conv", when="dynamic-int8")
def rewrite_dynamic_conv(site: NodeView, patch: Rewriter) -> None:
    """DynamicQuantizeLinear, ConvInteger with a uint8 weight of zero point 128, Cast, Mul, and the bias as an Add."""
    if site.scheme.activation_granularity == "row":
        rewrite_row_conv(site, patch)
        return
    name, weight, bias = site.output.name, site.value(1), site.input(2)
    rank = len(site.weight(1).shape)
    codes, scales = patch.codes(weight, reduce=_other_axes(site, 0), scheme=site.scheme)
    x, x_scale, x_zero = patch.dynamic(site.value(0))
    w, w_zero = widening_weight(patch, codes, weight)
    w_scale = patch.constant(scales.reshape(_per_channel(scales, rank)), f"{weight.name}_scale", beside=weight)
    geometry = {key: site.node.attribute(key) for key in GEOMETRY if site.node.attribute(key) is not None}
    total = patch.op("ConvInteger", x, w, x_zero, w_zero, hint=f"{name}_int32", **geometry)
    scale = patch.op("Mul", x_scale, w_scale, hint=f"{name}_scale")
    result = patch.op("Mul", patch.op("Cast", total, to=int(TensorProto.FLOAT), hint=f"{name}_cast"), scale, hint=name)
    if bias is not None:
        result = patch.op("Add", result, _broadcast_bias(patch, bias, rank), hint=name)
    patch.replace(site.output, result)


def _per_channel(scales: np.ndarray, rank: int) -> tuple[int, ...]:
    """Shape of one scale a channel against an output `(batch, channel, ...)`."""
    return () if scales.size == 1 else (1, -1, *[1] * (rank - 2))


def _broadcast_bias(patch: Rewriter, bias: Value, rank: int) -> Value:
    shape = (1, -1, *[1] * (rank - 2))
    if bias.constant is not None:
        return patch.constant(bias.constant.numpy().reshape(shape), f"{bias.name}_reshaped")
    target = patch.constant(np.array(shape, np.int64), f"{bias.name}_shape")
    return patch.op("Reshape", bias, target, hint=f"{bias.name}_reshaped")


@register_rewrite("Conv", "ConvTranspose", when="weight-int12")
@register_rewrite("Conv", "ConvTranspose", when="weight-int8")
@register_rewrite("Conv", "ConvTranspose", when="weight-int4")
def rewrite_stored_conv(site: NodeView, patch: Rewriter) -> None:
    """Let the node read a float weight that the file holds in few bits."""
    channel = 0 if site.node.op_type == "Conv" else 1
    weight = site.value(1)
    patch.rewire(site.node, 1, patch.stored(weight, reduce=_other_axes(site, channel), scheme=site.scheme))
