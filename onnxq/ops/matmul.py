"""MatMul and Gemm with a constant weight: integer products, dynamic or static."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from onnxq.ir import Node, Tensor, Value
from onnxq.ops import rows
from onnxq.ops.bias import integer_bias, minimum_scale
from onnxq.ops.family import Decline, Form, Rewriter, Site, is_stored_weight, plans, rewrites

# -- plans ----------------------------------------------------------------------------------------------------------


@plans("MatMul", when="dynamic-int8")
def plan_dynamic_matmul(site: Site) -> Form:
    """Accept a MatMul with a constant weight on either side."""
    return _dynamic_form(site)


@plans("Gemm", when="dynamic-int8")
def plan_dynamic_gemm(site: Site) -> Form:
    """Accept a Gemm with a constant weight on either side; alpha, beta, transposes and bias are kept."""
    return _dynamic_form(site)


def _dynamic_form(site: Site) -> Form:
    slot = weight_slot(site)
    if site.scheme.activation_granularity == "row":
        return rows.row_form(site.value(1 - slot))
    return Form("DynamicQuantizeLinear and MatMulInteger", opset=11)


@plans("MatMul", when="static-int8")
def plan_static_matmul(site: Site) -> Form:
    """Accept a MatMul whose second input is a constant; the output stays float: no slower, more accurate."""
    _right_weight(site)
    return Form(
        "Q/DQ on input and weight, float output",
        activations=(0,),
        opset=site.scheme.pair_opset(activation=True, weight=True),
    )


@plans("Gemm", when="static-int8")
def plan_static_gemm(site: Site) -> Form:
    """Accept a Gemm whose second input is a constant; alpha and beta move into the constants."""
    _right_weight(site)
    if site.node.attribute("alpha", 1.0) == 0.0:
        raise Decline("alpha is zero: there is no product to quantize")
    return Form(
        "Q/DQ on input and weight, float output",
        activations=(0,),
        opset=site.scheme.pair_opset(activation=True, weight=True),
    )


def weight_slot(site: Site) -> int:
    """Tell which of the two factors is the weight; declines where none is."""
    left, right = site.constant(0), site.constant(1)
    if left is not None and right is not None:
        raise Decline("both inputs are constants")
    if left is None and right is None and any(v is not None and is_stored_weight(v) for v in site.node.inputs[:2]):
        raise Decline("weight is in 8 bit already")
    if left is None and right is None and not any(v is not None and v.tensor for v in site.node.inputs[:2]):
        raise Decline("both inputs are activations: there is no weight")
    slot = 0 if left is not None or (right is None and site.value(0).tensor is not None) else 1
    weight = site.weight(slot)
    if len(weight.shape) < 2:
        raise Decline("weight is a vector")
    data = site.float_input(1 - slot)
    if data.shape is not None and len(data.shape) < 2:
        raise Decline("its data input is a vector")
    return slot


def _right_weight(site: Site) -> None:
    if weight_slot(site) == 0:
        raise Decline("the weight is the first input, for which onnxruntime has no static integer kernel")


# -- rewrites -------------------------------------------------------------------------------------------------------


@rewrites("MatMul", when="dynamic-int8")
def rewrite_dynamic_matmul(site: Site, patch: Rewriter) -> None:
    """DynamicQuantizeLinear, MatMulInteger, Cast, and one Mul by both scales."""
    slot = weight_slot(site)
    weight = site.value(slot)
    codes, scales = patch.codes(weight, reduce=(contracted(slot),), scheme=site.scheme)
    patch.replace(site.output, _integer_product(site, patch, slot, codes, scales, site.value(1 - slot)))


@rewrites("Gemm", when="dynamic-int8")
def rewrite_dynamic_gemm(site: Site, patch: Rewriter) -> None:
    """As MatMul; alpha goes into the weight's scale, beta into the bias, transposes onto the 8-bit tensors."""
    slot = weight_slot(site)
    transposed = [bool(site.node.attribute("transA", 0)), bool(site.node.attribute("transB", 0))]
    axis = contracted(slot) if not transposed[slot] else contracted(1 - slot)
    codes, scales = patch.codes(site.value(slot), reduce=(axis,), scheme=site.scheme)
    if transposed[slot]:
        codes, scales = np.ascontiguousarray(codes.T), np.ascontiguousarray(scales.T)
    scales = (scales * np.float32(site.node.attribute("alpha", 1.0))).astype(np.float32)
    total = _integer_product(site, patch, slot, codes, scales, site.value(1 - slot), transpose=transposed[1 - slot])
    patch.replace(site.output, add_bias(site, patch, total))


def contracted(slot: int) -> int:
    """Axis of the weight that a product sums over: its last as first factor, its last but one as second."""
    return -1 if slot == 0 else -2


def _integer_product(
    site: Site,
    patch: Rewriter,
    slot: int,
    codes: np.ndarray,
    scales: np.ndarray,
    data: Value,
    *,
    transpose: bool = False,
) -> Value:
    if site.scheme.activation_granularity == "row":
        return rows.row_product(site, patch, slot, codes, scales, transpose=transpose)
    name = site.output.name
    x, x_scale, x_zero = patch.dynamic(data)
    if transpose:
        x = patch.op("Transpose", x, hint=f"{name}_transposed", perm=[1, 0])
    weight = site.value(slot)
    w_scale = patch.constant(_row(scales, slot), f"{weight.name}_scale", beside=weight)
    if slot == 1:
        w = patch.constant(codes, f"{weight.name}_quantized", beside=weight)
        total = patch.op("MatMulInteger", x, w, x_zero, hint=f"{name}_int32")
    else:
        # int8 × uint8 takes eight times as long, and onnxruntime has no kernel for what it fuses it into.
        w = patch.constant((codes.astype(np.int16) + 128).astype(np.uint8), f"{weight.name}_quantized", beside=weight)
        w_zero = patch.constant(np.array(128, np.uint8), f"{weight.name}_zero_point", beside=weight)
        total = patch.op("MatMulInteger", w, x, w_zero, x_zero, hint=f"{name}_int32")
    total = patch.op("Cast", total, to=int(TensorProto.FLOAT), hint=f"{name}_cast")
    if slot == 0 and scales.size > 1:
        # MatMulIntegerToFloat scales rows after it has added a bias, which is wrong: two Muls are not fused into it.
        return patch.op("Mul", patch.op("Mul", total, w_scale, hint=f"{name}_scaled"), x_scale, hint=name)
    return patch.op("Mul", total, patch.op("Mul", x_scale, w_scale, hint=f"{name}_scale"), hint=name)


def _row(scales: np.ndarray, slot: int) -> np.ndarray:
    """Give scales the rank that onnxruntime's kernels know: a vector beside a matrix, all axes beside a stack."""
    if scales.size == 1:
        return scales.reshape(())
    return scales.reshape(-1) if slot == 1 and scales.ndim == 2 else scales


def add_bias(site: Site, patch: Rewriter, total: Value) -> Value:
    """Add beta times the bias of a Gemm to what the rest of it came to."""
    bias, beta = site.input(2), float(site.node.attribute("beta", 1.0))
    if bias is None or beta == 0.0:
        return total
    if bias.constant is not None and beta != 1.0:
        bias = patch.constant(bias.constant.numpy() * np.float32(beta), f"{bias.name}_scaled")
    elif beta != 1.0:
        factor = patch.constant(np.array(beta, np.float32), f"{site.output.name}_beta")
        bias = patch.op("Mul", bias, factor, hint=f"{bias.name}_scaled")
    return patch.op("Add", total, bias, hint=site.output.name)


@rewrites("MatMul", when="static-int8")
def rewrite_static_matmul(site: Site, patch: Rewriter) -> None:
    """Q/DQ on the input, DequantizeLinear on the weight; of matrices, with the bias behind it as a Gemm."""
    weight, data = site.value(1), site.value(0)
    assert weight.constant is not None
    # A stack of matrices has one scale: onnxruntime fuses scales along one axis as well, and fails when it runs that.
    rank = len(weight.constant.shape)
    after = _constant_add(site) if site.scheme.bias == "int32" and not patch.output_quantized else None
    bias = _added(after).numpy() if after is not None and rank == 2 and _is_matrix(data) else None
    minimum = None if bias is None else minimum_scale(bias, patch.activation_scale(data))[None]
    reduce = (0,) if rank == 2 else tuple(range(rank))
    codes, scales = patch.codes(weight, reduce=reduce, scheme=site.scheme, minimum=minimum)
    a = patch.dequantized(data)
    b = patch.linear_weight(codes, scales, rank - 1, weight.name)
    if after is not None and bias is not None and after.outputs[0] is not None:
        vector = np.broadcast_to(scales.reshape(-1), bias.shape) if scales.size > 1 else scales.reshape(1)
        c = integer_bias(patch, bias, patch.activation_scale(data), vector, f"{site.output.name}_bias")
        patch.replace(after.outputs[0], patch.op("Gemm", a, b, c, hint=after.outputs[0].name))
        return
    if site.scheme.target == "cpu" and rank == 2 and _is_matrix(data) and _added_to(site) is not None:
        # onnxruntime would make one float Gemm of product and sum; of a Gemm of its own it makes QGemm.
        patch.replace(site.output, patch.op("Gemm", a, b, hint=site.output.name))
        return
    patch.rewire(site.node, 0, a)
    patch.rewire(site.node, 1, b)
    if after is not None and data.shape is not None and all(isinstance(size, int) for size in data.shape):
        _keep_apart(after, patch)


def _is_matrix(value: Value) -> bool:
    return value.shape is not None and len(value.shape) == 2


def _added_to(site: Site) -> Node | None:
    """Give the Add that alone reads a product."""
    if len(site.output.uses) != 1 or site.output.is_output:
        return None
    after = next(iter(site.output.uses)).node
    if after.op_type != "Add" or after.domain or after.graph is not site.output.graph or after.outputs[0] is None:
        return None
    return after


def _constant_add(site: Site) -> Node | None:
    """Give the Add of a constant vector that alone reads a product."""
    after, weight = _added_to(site), site.value(1).constant
    if after is None or weight is None:
        return None
    constants = [value.constant for value in after.inputs if value is not None and value.constant is not None]
    return after if len(constants) == 1 and constants[0].shape == weight.shape[-1:] else None


def _added(after: Node) -> Tensor:
    return next(value.constant for value in after.inputs if value is not None and value.constant is not None)


def _keep_apart(after: Node, patch: Rewriter) -> None:
    """Keep onnxruntime from making one float Gemm of a product of fixed shape and the addition of a vector.

    That fusion (MatMulAddFusion, 1.31) comes before the one with DequantizeLinear, and the node then takes five times
    as long. A bias of shape [1, N] is not a vector.
    """
    for slot, value in enumerate(after.inputs):
        if value is not None and value.constant is not None:
            row = value.constant.numpy().reshape(1, -1)
            patch.rewire(after, slot, patch.constant(row, f"{value.name}_row", beside=value))


@rewrites("Gemm", when="static-int8")
def rewrite_static_gemm(site: Site, patch: Rewriter) -> None:
    """Q/DQ on the input, DequantizeLinear on the weight, an int32 bias; alpha and beta go into the constants."""
    node, weight = site.node, site.value(1)
    channel = 0 if node.attribute("transB", 0) else 1
    alpha = np.float32(node.attribute("alpha", 1.0))
    columns = _columns(weight, channel)
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
    inputs = (a, b) if c is None else (a, b, c)
    product = patch.op("Gemm", *inputs, hint=site.output.name, **transposes)
    patch.replace(site.output, product if bias is not None or site.input(2) is None else add_bias(site, patch, product))


def _columns(weight: Value, channel: int) -> int:
    assert weight.constant is not None
    return weight.constant.shape[channel]


def _bias_vector(site: Site, columns: int) -> np.ndarray | None:
    """Give beta times the bias as one number a column, or None where it is absent, computed, or differs by row."""
    bias = site.constant(2)
    if bias is None or bias.size not in (1, columns) or (bias.size == columns != 1 and bias.shape[-1] != columns):
        return None
    return np.broadcast_to(bias.numpy().reshape(-1) * np.float32(site.node.attribute("beta", 1.0)), (columns,))
