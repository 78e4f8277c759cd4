"""MatMul and Gemm that compute in float with weights of 12, 8, 4 or 2 bit: stored, or multiplied by MatMulNBits."""

from __future__ import annotations

import numpy as np

from onnxq.ir import Value
from onnxq.ir.graph import MICROSOFT
from onnxq.ir.storage.shelf import release_array
from onnxq.ops.forms.block_codes import BlockCodes, pack_bits
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

ONE = np.float32(1)


@register_plan("MatMul", "Gemm", when="weight-int12")
@register_plan("MatMul", "Gemm", when="weight-int8")
@register_plan("MatMul", "Gemm", when="weight-int4")
@register_plan("MatMul", "Gemm", when="weight-int2")
def plan_stored(site: NodeView) -> QuantizedForm:
    """Accept any MatMul or Gemm with a constant weight that is large enough to be worth it."""
    slot, scheme = weight_slot(site), site.scheme
    weight = site.weight(slot, rank=2)
    if scheme.weight_bits == 12:
        return stored_form(site, weight)
    if scheme.block_size and scheme.granularity == "tensor":
        raise NotQuantizable("one scale for the whole tensor leaves none for blocks")
    if scheme.zero_points and not scheme.block_size:
        raise NotQuantizable("zero points are of blocks, and the recipe sets no block_size")
    if scheme.form != "matmulnbits":
        if scheme.weight_bits < 4:
            raise NotQuantizable("weights of 2 bit are written as MatMulNBits only")
        if scheme.block_size and scheme.form == "qdq" and scheme.domain != "ai.onnx":
            raise NotQuantizable(f"DequantizeLinear of {scheme.domain} has no blocks")
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
    """Return the axis of the weight that the product sums over, not negative."""
    transposed = site.node.op_type == "Gemm" and site.node.attribute("transA" if slot == 0 else "transB", 0)
    return contracted(1 - slot if transposed else slot) % len(site.weight(slot).shape)


@register_rewrite("MatMul", "Gemm", when="weight-int12")
@register_rewrite("MatMul", "Gemm", when="weight-int8")
@register_rewrite("MatMul", "Gemm", when="weight-int4")
@register_rewrite("MatMul", "Gemm", when="weight-int2")
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
    alpha = np.float32(node.attribute("alpha", 1.0))
    arrays = block_arrays(patch, weight, axis, scheme, alpha)
    inner, columns = site.weight(1).shape[axis], site.weight(1).shape[1 - axis]
    attributes = {"K": inner, "N": columns, "bits": scheme.weight_bits, "block_size": scheme.block_size}
    if scheme.accuracy_level:
        attributes["accuracy_level"] = scheme.accuracy_level
    x = site.value(0)
    if node.attribute("transA", 0):
        x = patch.op("Transpose", x, hint=f"{name}_transposed", perm=[1, 0])
    inputs = [x, *(patch.constant(array, f"{weight.name}_{what}", beside=weight) for what, array in arrays.items())]
    product = patch.node("MatMulNBits", inputs, outputs=[name], domain=MICROSOFT, **attributes)[0]
    patch.replace(site.output, add_bias(site, patch, product) if node.op_type == "Gemm" else product)


def block_arrays(
    patch: Rewriter, weight: Value, axis: int, scheme: Scheme, alpha: np.float32 = ONE
) -> dict[str, np.ndarray]:
    """Return the constants of a MatMulNBits by what to name them: codes, scales, and zero points if it has them.

    Args:
        patch: Gives the codes.
        weight: A constant float32 matrix.
        axis: The axis that the product sums over.
        scheme: The settings of the product.
        alpha: What the weight is multiplied by.

    Returns:
        `quantized` uint8 `[columns, blocks, bytes]`, `scale` float32 `[columns, blocks]`, `zero_point` uint8
        `[columns, bytes]`.

    """
    blocks = _unsigned(patch, weight, axis, scheme, negative=bool(alpha < 0))
    arrays = {"quantized": pack(blocks, scheme), "scale": np.ascontiguousarray(abs(alpha) * blocks.scales)}
    release_array(blocks.scales)
    if scheme.zero_points:
        arrays["zero_point"] = pack_bits(blocks.zeros, scheme.weight_bits)
    return arrays


def _unsigned(patch: Rewriter, weight: Value, axis: int, scheme: Scheme, *, negative: bool) -> BlockCodes:
    """Return the codes of a matrix, or of the negative one, with a row for each column of the product."""
    if scheme.zero_points:
        blocks = patch.block_codes(weight, reduce=(axis,), scheme=scheme)
        blocks = blocks.transposed() if axis == 0 else blocks
        return blocks.negated(scheme.weight_bits) if negative else blocks
    codes, scales = patch.codes(weight, reduce=(axis,), scheme=scheme, block_size=scheme.block_size)
    if axis == 0:
        codes, scales = codes.T, scales.T
    return BlockCodes.symmetric(-codes if negative else codes, scales, scheme.weight_bits)


def pack(blocks: BlockCodes, scheme: Scheme) -> np.ndarray:
    """Pack codes as MatMulNBits reads them.

    Args:
        blocks: Codes `[columns, inner]`.
        scheme: Says how many bits, and how large blocks are.

    Returns:
        uint8 `[columns, blocks, block_size * bits / 8]`, the first code in the low bits. The last block is filled up
        with codes that stand for 0.

    """
    columns, inner = blocks.codes.shape
    count = blocks.scales.shape[1]
    full = np.repeat(blocks.zeros, scheme.block_size, axis=1)
    full[:, :inner] = blocks.codes
    release_array(blocks.codes)
    return pack_bits(full, scheme.weight_bits).reshape(columns, count, -1)
