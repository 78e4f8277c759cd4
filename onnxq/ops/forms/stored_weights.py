"""MatMul and Gemm that compute in float with weights of 8 or 4 bit: stored, or multiplied by MatMulNBits."""

from __future__ import annotations

import numpy as np

from onnxq.ops.forms.family import (
    MINIMUM_STORED_ELEMENTS,
    NodeView,
    NotQuantizable,
    QuantizedForm,
    Rewriter,
    register_plan,
    register_rewrite,
    stored_form,
)
from onnxq.ops.forms.integer_products import add_bias, contracted, weight_slot
from onnxq.ops.forms.scheme import Scheme


@register_plan("MatMul", "Gemm", when="weight-int8")
@register_plan("MatMul", "Gemm", when="weight-int4")
def plan_stored(site: NodeView) -> QuantizedForm:
    """Accept any MatMul or Gemm with a constant weight that is large enough to be worth it."""
    slot, scheme = weight_slot(site), site.scheme
    weight = site.weight(slot, rank=2)
    if scheme.block_size and scheme.granularity == "tensor":
        raise NotQuantizable("one scale for the whole tensor leaves none for blocks")
    if scheme.form != "matmulnbits":
        if scheme.block_size and scheme.form == "qdq" and scheme.domain != "ai.onnx":
            raise NotQuantizable(f"DequantizeLinear of {scheme.domain} knows no blocks")
        return stored_form(site, weight)
    if not scheme.block_size:
        raise NotQuantizable("MatMulNBits needs a block_size of 16 or more")
    if slot == 0 or len(weight.shape) != 2:
        raise NotQuantizable("MatMulNBits multiplies by a matrix on the right only")
    if site.node.attribute("alpha", 1.0) == 0.0:
        raise NotQuantizable("alpha is zero: there is no product to quantize")
    if weight.size < MINIMUM_STORED_ELEMENTS:
        raise NotQuantizable(f"weight has only {weight.size} elements")
    return QuantizedForm(f"MatMulNBits, {scheme.weight_bits}-bit weights in blocks of {scheme.block_size}", opset=7)


def _shared_axis(site: NodeView, slot: int) -> int:
    """Give the axis of the weight that the product sums over, not negative."""
    transposed = site.node.op_type == "Gemm" and site.node.attribute("transA" if slot == 0 else "transB", 0)
    return contracted(1 - slot if transposed else slot) % len(site.weight(slot).shape)


@register_rewrite("MatMul", "Gemm", when="weight-int8")
@register_rewrite("MatMul", "Gemm", when="weight-int4")
def rewrite_stored(site: NodeView, patch: Rewriter) -> None:
    """Let the node read a float weight that the file holds in few bits, or make it a MatMulNBits."""
    slot, scheme = weight_slot(site), site.scheme
    axis = _shared_axis(site, slot)
    if scheme.form == "matmulnbits":
        _multiply_bits(site, patch, axis)
        return
    weight = patch.stored(site.value(slot), reduce=(axis,), scheme=scheme, block_size=scheme.block_size)
    patch.rewire(site.node, slot, weight)


def _multiply_bits(site: NodeView, patch: Rewriter, axis: int) -> None:
    node, scheme, weight, name = site.node, site.scheme, site.value(1), site.output.name
    codes, scales = patch.codes(weight, reduce=(axis,), scheme=scheme, block_size=scheme.block_size)
    if axis == 0:
        codes, scales = codes.T, scales.T
    alpha = np.float32(node.attribute("alpha", 1.0))
    scales = np.ascontiguousarray(np.float32(abs(alpha)) * scales)
    columns, inner = codes.shape
    attributes = {"K": inner, "N": columns, "bits": scheme.weight_bits, "block_size": scheme.block_size}
    if scheme.accuracy_level:
        attributes["accuracy_level"] = scheme.accuracy_level
    x = site.value(0)
    if node.attribute("transA", 0):
        x = patch.op("Transpose", x, hint=f"{name}_transposed", perm=[1, 0])
    packed = patch.constant(pack(codes if alpha > 0 else -codes, scheme), f"{weight.name}_quantized", beside=weight)
    scale = patch.constant(scales, f"{weight.name}_scale", beside=weight)
    product = patch.node("MatMulNBits", [x, packed, scale], outputs=[name], domain="com.microsoft", **attributes)[0]
    patch.replace(site.output, add_bias(site, patch, product) if node.op_type == "Gemm" else product)


def pack(codes: np.ndarray, scheme: Scheme) -> np.ndarray:
    """Pack symmetric codes as MatMulNBits reads them without zero points.

    Args:
        codes: int8 `[columns, inner]`.
        scheme: Says how many bits, and how large blocks are.

    Returns:
        uint8 `[columns, blocks, block_size * bits / 8]`, the middle of the type standing for 0. The first of
        two 4-bit codes is in the low bits, the last block is filled up with zeros.

    """
    columns, inner = codes.shape
    blocks = -(-inner // scheme.block_size)
    middle = 1 << (scheme.weight_bits - 1)
    full = np.full((columns, blocks * scheme.block_size), middle, np.uint8)
    full[:, :inner] = codes.astype(np.int16) + middle
    if scheme.weight_bits == 4:
        full = full[:, 0::2] | full[:, 1::2] << 4
    return full.reshape(columns, blocks, -1)
