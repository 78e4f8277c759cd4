"""MatMul and Gemm with a constant weight as MatMulInteger: activations quantized at run time, or by calibrated scales.

Cast and Mul scale the sums, and where an Add of a bias follows, onnxruntime makes one kernel of all, which is
MatMulIntegerToFloat or DynamicQuantizeMatMul. It turns Q/DQ pairs around a MatMul into the former, too, but without the
bias, which stays a pass of its own.
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from onnxq.ir import Value
from onnxq.ops.forms import per_row
from onnxq.ops.forms.family import (
    NodeView,
    NotQuantizable,
    QuantizedForm,
    Rewriter,
    is_stored_weight,
    register_plan,
    register_rewrite,
)
from onnxq.ops.forms.per_row_scales import ranked, widening_weight


@register_plan("MatMul", when="dynamic-int8")
def plan_dynamic_matmul(site: NodeView) -> QuantizedForm:
    """Accept a MatMul with a constant weight on either side."""
    return _dynamic_form(site)


@register_plan("Gemm", when="dynamic-int8")
def plan_dynamic_gemm(site: NodeView) -> QuantizedForm:
    """Accept a Gemm with a constant weight on either side; alpha, beta, transposes and bias are kept."""
    return _dynamic_form(site)


def _dynamic_form(site: NodeView) -> QuantizedForm:
    slot = weight_slot(site)
    if site.scheme.activation_granularity == "row":
        return per_row.row_form(site.value(1 - slot))
    return QuantizedForm("DynamicQuantizeLinear and MatMulInteger", opset=11)


def weight_slot(site: NodeView) -> int:
    """Tell which of the two factors is the weight; declines where none is."""
    left, right = site.constant(0), site.constant(1)
    if left is not None and right is not None:
        raise NotQuantizable("both inputs are constants")
    if left is None and right is None:
        factors = [value for value in site.node.inputs[:2] if value is not None]
        if any(is_stored_weight(value) for value in factors):
            raise NotQuantizable("weight is in 8 bit already")
        if not any(value.tensor for value in factors):
            raise NotQuantizable("both inputs are activations: there is no weight")
    slot = 0 if left is not None or (right is None and site.value(0).tensor is not None) else 1
    weight = site.weight(slot)
    if len(weight.shape) < 2:
        raise NotQuantizable("weight is a vector")
    data = site.float_input(1 - slot)
    if data.shape is not None and len(data.shape) < 2:
        raise NotQuantizable("its data input is a vector")
    return slot


@register_rewrite("MatMul", when="dynamic-int8")
def rewrite_integer_matmul(site: NodeView, patch: Rewriter) -> None:
    """Codes of the input, MatMulInteger, Cast, and one Mul by both scales."""
    slot = weight_slot(site)
    weight = site.value(slot)
    codes, scales = patch.codes(weight, reduce=(contracted(slot),), scheme=site.scheme)
    patch.replace(site.output, multiply_codes(site, patch, slot, codes, scales, site.value(1 - slot)))


@register_rewrite("Gemm", when="dynamic-int8")
def rewrite_integer_gemm(site: NodeView, patch: Rewriter) -> None:
    """As MatMul; alpha goes into the weight's scale, beta into the bias, transposes onto the 8-bit tensors."""
    slot = weight_slot(site)
    transposed = [bool(site.node.attribute("transA", 0)), bool(site.node.attribute("transB", 0))]
    axis = contracted(slot) if not transposed[slot] else contracted(1 - slot)
    codes, scales = patch.codes(site.value(slot), reduce=(axis,), scheme=site.scheme)
    if transposed[slot]:
        codes, scales = np.ascontiguousarray(codes.T), np.ascontiguousarray(scales.T)
    scales = (scales * np.float32(site.node.attribute("alpha", 1.0))).astype(np.float32)
    total = multiply_codes(site, patch, slot, codes, scales, site.value(1 - slot), transpose=transposed[1 - slot])
    patch.replace(site.output, add_bias(site, patch, total))


def contracted(slot: int) -> int:
    """Axis of the weight that a product sums over: its last as first factor, its last but one as second."""
    return -1 if slot == 0 else -2


def multiply_codes(
    site: NodeView,
    patch: Rewriter,
    slot: int,
    codes: np.ndarray,
    scales: np.ndarray,
    data: Value,
    *,
    transpose: bool = False,
) -> Value:
    """Multiply the codes of an activation and of a weight, and scale the sums."""
    if site.scheme.activation_granularity == "row":
        return per_row.row_product(site, patch, slot, codes, scales, transpose=transpose)
    name = site.output.name
    x, x_scale, x_zero = patch.dynamic(data) if site.scheme.name == "dynamic-int8" else patch.quantized(data)
    if transpose:
        x = patch.op("Transpose", x, hint=f"{name}_transposed", perm=[1, 0])
    weight = site.value(slot)
    w_scale = patch.constant(ranked(scales, slot), f"{weight.name}_scale", beside=weight)
    if slot == 1:
        w = patch.constant(codes, f"{weight.name}_quantized", beside=weight)
        total = patch.op("MatMulInteger", x, w, x_zero, hint=f"{name}_int32")
    else:
        # int8 × uint8 takes eight times as long, and onnxruntime has no kernel for what it fuses it into.
        w, w_zero = widening_weight(patch, codes, weight)
        total = patch.op("MatMulInteger", w, x, w_zero, x_zero, hint=f"{name}_int32")
    total = patch.op("Cast", total, to=int(TensorProto.FLOAT), hint=f"{name}_cast")
    if slot == 0 and scales.size > 1:
        # MatMulIntegerToFloat scales rows after it has added a bias, which is wrong: two Muls are not fused into it.
        return patch.op("Mul", patch.op("Mul", total, w_scale, hint=f"{name}_scaled"), x_scale, hint=name)
    return patch.op("Mul", total, patch.op("Mul", x_scale, w_scale, hint=f"{name}_scale"), hint=name)


def add_bias(site: NodeView, patch: Rewriter, total: Value) -> Value:
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
