"""MatMul and Gemm with a constant weight, static: Q/DQ pairs around them, or MatMulInteger as in `integer_products`."""

from __future__ import annotations

import math

import numpy as np

from onnxq.ir import Node, Tensor, Value
from onnxq.ops.forms.bias import integer_bias, minimum_scale
from onnxq.ops.forms.family import NodeView, NotQuantizable, QuantizedForm, Rewriter, register_plan, register_rewrite
from onnxq.ops.forms.integer_domain import clamp_bounds
from onnxq.ops.forms.integer_products import add_bias, rewrite_integer_gemm, rewrite_integer_matmul, weight_slot
from onnxq.targets.target import load_target

OPTIONAL_BIAS = 11  # the operator set from which on Gemm may leave its bias out

# -- plans ----------------------------------------------------------------------------------------------------------


@register_plan("MatMul", when="static-int8")
def plan_static_matmul(site: NodeView) -> QuantizedForm:
    """Accept a MatMul whose second input is a constant; the output stays float: no slower, more accurate."""
    _right_weight(site)
    return _static_form(site)


@register_plan("Gemm", when="static-int8")
def plan_static_gemm(site: NodeView) -> QuantizedForm:
    """Accept a Gemm whose second input is a constant; alpha and beta move into the constants."""
    _right_weight(site)
    if site.node.attribute("alpha", 1.0) == 0.0:
        raise NotQuantizable("alpha is zero: there is no product to quantize")
    return _static_form(site)


def _static_form(site: NodeView) -> QuantizedForm:
    scheme = site.scheme
    if scheme.form != "integer":
        opset = scheme.pair_opset(activation=True, weight=True)
        return QuantizedForm("Q/DQ on input and weight, float output", activations=(0,), opset=opset)
    if scheme.bits > 8:
        raise NotQuantizable(f"MatMulInteger takes activations of 8 bit, not {scheme.activations}")
    if scheme.domain != "ai.onnx":
        raise NotQuantizable(f"MatMulInteger is of ai.onnx, and the recipe asks for {scheme.domain}")
    return QuantizedForm("QuantizeLinear and MatMulInteger, float output", activations=(0,), opset=10)


def _right_weight(site: NodeView) -> None:
    if weight_slot(site) == 0:
        raise NotQuantizable("the weight is the first input, for which onnxruntime has no static integer kernel")


# -- rewrites -------------------------------------------------------------------------------------------------------


@register_rewrite("MatMul", when="static-int8")
def rewrite_static_matmul(site: NodeView, patch: Rewriter) -> None:
    """Q/DQ on the input, DequantizeLinear on the weight; of matrices, with the bias behind it as a Gemm."""
    if site.scheme.form == "integer":
        rewrite_integer_matmul(site, patch)
        return
    weight, data = site.value(1), site.value(0)
    # A stack of matrices has one scale: onnxruntime fuses scales along one axis as well, and fails when it runs that.
    rank = len(weight.elements.shape)
    after = _constant_add(site) if site.scheme.bias == "int32" and not patch.output_quantized else None
    bias = _added(after).numpy() if after is not None and rank == 2 and _is_matrix(data) else None
    minimum = None if bias is None else minimum_scale(bias, patch.activation_scale(data))[None]
    reduce = (0,) if rank == 2 else tuple(range(rank))
    codes, scales = patch.codes(weight, reduce=reduce, scheme=site.scheme, minimum=minimum)
    a = patch.dequantized(data)
    b = patch.linear_weight(codes, scales, rank - 1, weight.name)
    if after is not None and bias is not None and after.outputs[0] is not None:
        c = integer_bias(patch, bias, patch.activation_scale(data), scales.reshape(-1), f"{site.output.name}_bias")
        _give(site, patch, after.outputs[0], patch.op("Gemm", a, b, c, hint=after.outputs[0].name))
        return
    stays_float = load_target(site.scheme.target).sums_stay_float and _alone(site.output, "Add") is not None
    if stays_float and rank == 2 and _is_matrix(data):
        # onnxruntime would make one float Gemm of product and sum; of a Gemm of its own it makes QGemm.
        inputs = a, b, *_no_bias(site, patch, scales)
        _give(site, patch, site.output, patch.op("Gemm", *inputs, hint=site.output.name))
        return
    patch.rewire(site.node, 0, a)
    patch.rewire(site.node, 1, b)
    if after is not None and data.shape is not None and all(isinstance(size, int) for size in data.shape):
        _keep_apart(after, patch)
    _keep_clamp_apart(site, patch, site.output, site.output)


def _no_bias(site: NodeView, patch: Rewriter, scales: np.ndarray) -> tuple[Value, ...]:
    """Return the bias of a Gemm that adds nothing: none, but for zeros where an operator set asks for one."""
    if site.opset >= OPTIONAL_BIAS:
        return ()
    x_scale, vector = patch.activation_scale(site.value(0)), scales.reshape(-1)
    return (integer_bias(patch, np.zeros(vector.shape, np.float32), x_scale, vector, f"{site.output.name}_zeros"),)


def _give(site: NodeView, patch: Rewriter, output: Value, product: Value) -> None:
    """Let a Gemm give an output."""
    patch.replace(output, product)
    _keep_clamp_apart(site, patch, output, product)


def _keep_clamp_apart(site: NodeView, patch: Rewriter, output: Value, product: Value) -> None:
    """Write a Relu or Clip behind a product as Max and Min, where onnxruntime would leave the product float for it.

    It takes a clamp between a product and its only reader for one that a QuantizeLinear makes superfluous (1.31,
    `qdq_selectors.cc`). Without one, the product stays float, and its weight is dequantized in every run.
    """
    clamp = _alone(output, "Relu") or _alone(output, "Clip")
    clamped = clamp.outputs[0] if clamp is not None else None
    stays_float = load_target(site.scheme.target).clamps_stay_float
    if clamp is None or clamped is None or not stays_float or patch.output_quantized:
        return
    bounds = clamp_bounds(NodeView(clamp, site.scheme, site.opset))
    if bounds is None or clamped.is_output or len(clamped.uses) != 1 or patch.is_quantized(clamped):
        return
    for op_type, bound in zip(("Max", "Min"), bounds, strict=True):
        if math.isfinite(bound):
            limit = patch.constant(np.array(bound, np.float32), f"{clamped.name}_bound")
            product = patch.op(op_type, product, limit, hint=clamped.name)
    patch.replace(clamped, product)


def _is_matrix(value: Value) -> bool:
    return value.shape is not None and len(value.shape) == 2


def _alone(value: Value, op_type: str) -> Node | None:
    """Return the operator of this type that alone reads a value, in the same graph."""
    use = value.only_use
    if use is None:
        return None
    after = use.node
    if after.op_type != op_type or after.domain or after.graph is not value.graph or after.outputs[0] is None:
        return None
    return after


def _constant_add(site: NodeView) -> Node | None:
    """Return the Add of a constant vector that alone reads a product."""
    after, weight = _alone(site.output, "Add"), site.value(1).constant
    if after is None or weight is None:
        return None
    constants = after.constants
    return after if len(constants) == 1 and constants[0].shape == weight.shape[-1:] else None


def _added(after: Node) -> Tensor:
    return after.constants[0]


def _keep_apart(after: Node, patch: Rewriter) -> None:
    """Keep onnxruntime from making one float Gemm of a product of fixed shape and the addition of a vector.

    That fusion (MatMulAddFusion, 1.31) comes before the one with DequantizeLinear, and the node then takes five times
    as long. A bias of shape [1, N] is not a vector.
    """
    for slot, value in enumerate(after.inputs):
        if value is not None and value.constant is not None:
            row = value.constant.numpy().reshape(1, -1)
            patch.rewire(after, slot, patch.constant(row, f"{value.name}_row", beside=value))


@register_rewrite("Gemm", when="static-int8")
def rewrite_static_gemm(site: NodeView, patch: Rewriter) -> None:
    """Q/DQ on the input, DequantizeLinear on the weight, an int32 bias; alpha and beta go into the constants."""
    if site.scheme.form == "integer":
        rewrite_integer_gemm(site, patch)
        return
    node, weight = site.node, site.value(1)
    channel = 0 if node.attribute("transB", 0) else 1
    alpha = np.float32(node.attribute("alpha", 1.0))
    columns = weight.elements.shape[channel]
    bias = _bias_vector(site, columns)
    x_scale = patch.activation_scale(site.value(0))
    in_float = bias is not None and site.scheme.bias == "float"
    minimum = None if bias is None or in_float else minimum_scale(bias, x_scale * abs(float(alpha)))
    if minimum is not None:
        minimum = np.expand_dims(minimum, 1 - channel)
    codes, scales = patch.codes(weight, reduce=(1 - channel,), scheme=site.scheme, minimum=minimum)
    scales = np.broadcast_to(scales * alpha, scales.shape).astype(np.float32)
    if alpha < 0:  # a scale is positive: the sign goes into the codes, which are symmetric
        codes, scales = -codes, -scales
    a = patch.dequantized(site.value(0))
    b = patch.linear_weight(codes, scales, channel, weight.name)
    c = None
    if bias is not None and in_float:
        c = patch.constant(np.ascontiguousarray(bias), f"{site.value(2).name}_scaled")
    elif bias is not None:
        c = integer_bias(patch, bias, x_scale, scales.reshape(-1), site.value(2).name)
    transposes = {key: node.attribute(key) for key in ("transA", "transB") if node.attribute(key, 0)}
    added = _no_bias(site, patch, scales) if c is None else (c,)
    product = patch.op("Gemm", a, b, *added, hint=site.output.name, **transposes)
    if bias is not None or site.input(2) is None:
        _give(site, patch, site.output, product)
    else:
        patch.replace(site.output, add_bias(site, patch, product))


def _bias_vector(site: NodeView, columns: int) -> np.ndarray | None:
    """Return beta times the bias as one number a column, or None where it is absent, computed, or differs by row."""
    bias = site.constant(2)
    if bias is None or bias.size not in (1, columns) or (bias.size == columns != 1 and bias.shape[-1] != columns):
        return None
    return np.broadcast_to(bias.numpy().reshape(-1) * np.float32(site.node.attribute("beta", 1.0)), (columns,))
